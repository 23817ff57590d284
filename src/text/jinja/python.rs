//! Where minijinja's filters, tests and methods make another text than Jinja2's and Python's: put right, or an error.

use minijinja::functions::Function;
use minijinja::value::{
    FunctionArgs, FunctionResult, Kwargs, Rest, ValueKind, ValueOrKwargs, from_args,
};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};
use minijinja_contrib::pycompat;

use super::json;
use super::value::{self, Generator, Safe, WideFloat, refused};

/// Python's `str.isspace`, which also counts the four separators of ASCII.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// What ends a line in Python beside `\n`.
const LINE_ENDS: [char; 9] = [
    '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}', '\u{2029}',
];

pub fn add(environment: &mut Environment<'_>) {
    environment.set_unknown_method_callback(method);
    environment.set_formatter(|out, state, value| match value.as_str() {
        Some(text) => Ok(out.write_str(text)?),
        None => Ok(out.write_str(&value::text(value, state)?)?),
    });
    environment.add_filter(value::KEPT, value::kept);
    environment.add_filter("tojson", json::tojson);
    environment.add_filter("string", |state: &State, value: &Value| {
        value::text(value, state)
    });
    environment.add_filter("safe", |state: &State, value: &Value| {
        Ok::<_, Error>(Value::from_object(Safe(value::text(value, state)?)))
    });
    let indent = Value::from_function(filters::indent);
    environment.add_filter(
        "indent",
        move |state: &mut State, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            let (text, width, _, _, named): (
                &str,
                Option<usize>,
                Option<bool>,
                Option<bool>,
                Kwargs,
            ) = from_args(&args)?;
            let width = width.map_or_else(|| named.get("width"), |width| Ok(Some(width)))?;
            if width > Some(64) || text.ends_with('\n') || text.contains(LINE_ENDS) {
                return Err(refused(
                    "indent: expected a width of at most 64, and no line end but \\n between lines",
                ));
            }
            indent.call(state, &args)
        },
    );
    environment.add_filter(
        "trim",
        |state: &State, text: &Value, characters: Option<&str>| {
            let text = value::text(text, state)?;
            Ok::<_, Error>(strip(&text, characters, true, true).to_owned())
        },
    );
    // Jinja2 goes through these as they are asked for items.
    lazy(environment, "map", filters::map);
    lazy(environment, "select", filters::select);
    lazy(environment, "reject", filters::reject);
    lazy(environment, "selectattr", filters::selectattr);
    lazy(environment, "rejectattr", filters::rejectattr);
    lazy(environment, "unique", filters::unique);
    lazy(environment, "batch", filters::batch);
    lazy(environment, "slice", filters::slice);
    lazy(environment, "items", filters::items);
    environment.add_filter("reverse", |value: &Value| match value.kind() {
        ValueKind::String => value.reverse(),
        _ => Generator::of(&value.reverse()?),
    });
    // They give something else than Jinja2's.
    for name in ["escape", "e", "pprint", "attr", "groupby"] {
        environment.remove_filter(name);
    }
    environment.remove_global("debug");
    environment.add_test("string", |value: &Value| {
        value.kind() == ValueKind::String || value.downcast_object_ref::<Safe>().is_some()
    });
    environment.add_test("number", |value: &Value| {
        matches!(value.kind(), ValueKind::Number | ValueKind::Bool) || is_wide_float(value)
    });
    environment.add_test("float", |value: &Value| {
        value.kind() == ValueKind::Number && !value.is_integer() || is_wide_float(value)
    });
    environment.add_test("iterable", |value: &Value| {
        !value.is_none() && value.try_iter().is_ok()
    });
    environment.add_test("sequence", |value: &Value| {
        let kind = value.kind();
        value::is_list(value)
            || matches!(
                kind,
                ValueKind::String | ValueKind::Map | ValueKind::Undefined
            )
    });
}

fn is_wide_float(value: &Value) -> bool {
    value.downcast_object_ref::<WideFloat>().is_some()
}

/// The filter of this name, whose result is a generator.
fn lazy<F, Rv, Args>(environment: &mut Environment<'_>, name: &'static str, filter: F)
where
    F: Function<Rv, Args>,
    Rv: FunctionResult,
    Args: for<'a> FunctionArgs<'a>,
{
    let filter = Value::from_function(filter);
    environment.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
        Generator::of(&filter.call(state, &args.into_values())?)
    });
}

fn strip<'a>(text: &'a str, characters: Option<&str>, at_start: bool, at_end: bool) -> &'a str {
    let is_stripped = |c: char| characters.map_or_else(|| is_space(c), |all| all.contains(c));
    let text = if at_start {
        text.trim_start_matches(is_stripped)
    } else {
        text
    };
    if at_end {
        text.trim_end_matches(is_stripped)
    } else {
        text
    }
}

/// Methods of Python's str, list and dict.
fn method(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if let Some(result) = value::dict_method(value, method, args) {
        return result;
    }
    if let Some(text) = value.as_str()
        && let Some(result) = text_method(text, method, args)?
    {
        return Ok(result);
    }
    pycompat::unknown_method_callback(state, value, method, args)
}

/// The methods of a text that `pycompat` has otherwise; `None` for those that it has right.
fn text_method(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let unsupported = |why: &str| Err(refused(format!("the method `{method}` {why}")));
    Ok(Some(match (method, args) {
        ("strip", []) => strip(text, None, true, true).into(),
        ("lstrip", []) => strip(text, None, true, false).into(),
        ("rstrip", []) => strip(text, None, false, true).into(),
        ("split", []) => text
            .split(is_space)
            .filter(|word| !word.is_empty())
            .map(Value::from)
            .collect(),
        ("split", [separator, ..]) if separator.as_str().is_none_or(str::is_empty) => {
            return unsupported("takes a text that is not empty here");
        }
        ("splitlines", _) if text.contains(LINE_ENDS) => {
            return unsupported("takes lines that end in \\n alone here");
        }
        ("count", [part]) if part.as_str().is_none_or(str::is_empty) => {
            return unsupported("takes a text that is not empty here");
        }
        ("title", []) if !text.chars().all(|c| c.is_ascii_alphabetic() || c == ' ') => {
            return unsupported("takes letters of ASCII and spaces alone here");
        }
        (
            "capitalize" | "isalnum" | "isalpha" | "isdigit" | "isnumeric" | "islower" | "isupper",
            _,
        ) if !text.is_ascii() => {
            return unsupported("takes ASCII alone here");
        }
        // Widths of any size would be made before anything counts them.
        ("format", _)
            if text
                .as_bytes()
                .windows(4)
                .any(|four| four.iter().all(u8::is_ascii_digit)) =>
        {
            return unsupported("takes widths of at most 3 digits here");
        }
        ("isspace", []) => (!text.is_empty() && text.chars().all(is_space)).into(),
        _ => return Ok(None),
    }))
}

/// `raise_exception` of transformers.
pub fn raise_exception(message: &Value) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.to_string()))
}
