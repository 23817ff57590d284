//! Filters, tests and methods that make another text in minijinja than in Jinja2 and Python: each is replaced here, or is
//! an error.

use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};
use minijinja_contrib::pycompat;

use super::print::{text, tojson};
use super::value::{self, Iterated, Safe, refused};

/// Whether a character is a space to Python's `str.isspace`, to which ASCII's four separators are spaces too.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// The characters beside `\n` that end a line in Python's `str.splitlines`.
const LINE_ENDS: [char; 9] = [
    '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}', '\u{2029}',
];

/// Filters of minijinja that Jinja2 has not, or that make another text there.
const REMOVED_FILTERS: &str = "abs attr batch bool chain e escape float groupby lines pprint round slice split sum title urlencode zip";
/// Tests of minijinja that Jinja2 has not, or that hold for other values there.
const REMOVED_TESTS: &str = "escaped filter int lower safe test upper";

/// Gives `environment` filters, tests, methods and printing as Jinja2 has them.
pub fn add(environment: &mut Environment<'_>) {
    environment.set_unknown_method_callback(method);
    environment.set_formatter(|out, state, value| match value.as_str() {
        Some(text) => Ok(out.write_str(text)?),
        None => Ok(out.write_str(&text(state, value)?)?),
    });
    for name in REMOVED_FILTERS.split(' ') {
        environment.remove_filter(name);
    }
    for name in REMOVED_TESTS.split(' ') {
        environment.remove_test(name);
    }
    environment.remove_global("debug");
    add_filters(environment);
    environment.add_test("string", is_text);
    environment.add_test("number", |value: &Value| {
        matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
    });
    environment.add_test("sequence", is_sequence);
    environment.add_test("iterable", |value: &Value| {
        is_sequence(value) || value.kind() == ValueKind::Iterable
    });
}

fn is_sequence(value: &Value) -> bool {
    let is_dict = matches!(value.kind(), ValueKind::Map | ValueKind::Undefined);
    is_dict || is_text(value) || value::is_list(value)
}

fn is_text(value: &Value) -> bool {
    value.kind() == ValueKind::String || value.downcast_object_ref::<Safe>().is_some()
}

fn add_filters(environment: &mut Environment<'_>) {
    environment.add_filter(value::KEPT, value::kept);
    environment.add_filter(value::LOOPED, value::looped);
    environment.add_filter(value::JOINED, text);
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", text);
    environment.add_filter("safe", |state: &State, value: &Value| {
        Ok::<_, Error>(Value::from_object(Safe(text(state, value)?)))
    });
    environment.add_filter("trim", |state: &State, value: &Value| {
        Ok::<_, Error>(text(state, value)?.trim_matches(is_space).to_owned())
    });
    environment.add_filter("indent", indent);
    environment.add_filter("reverse", |state: &State, value: &Value| {
        state.consume_fuel(value.len().unwrap_or(0) as u64)?;
        match value.kind() {
            ValueKind::String => value.reverse(),
            _ => Iterated::generator(&value.reverse()?),
        }
    });
    environment.add_filter(
        "replace",
        |state: &State, value: &Value, old: &Value, new: &Value| {
            let [value, old, new] = [text(state, value)?, text(state, old)?, text(state, new)?];
            charge_replaced(state, &value, &old, &new)?;
            Ok::<_, Error>(value.replace(&old, &new))
        },
    );
    let map = Value::from_function(filters::map);
    let join = Value::from_function(filters::join);
    environment.add_filter(
        "join",
        move |state: &mut State, items: Value, joiner: Option<&str>, named: Kwargs| {
            let items = match named.get::<Option<Value>>("attribute")? {
                None => items,
                Some(_) => map.call(state, &[items, named.into()])?,
            };
            let texts = texts(state, &items)?;
            join.call(state, &[texts.into(), joiner.unwrap_or_default().into()])
        },
    );
    let format = Value::from_function(filters::format);
    environment.add_filter(
        "format",
        move |state: &mut State, format_text: &str, args: Rest<ValueOrKwargs>| {
            let mut args = formatted(state, format_text, &args.into_values())?;
            args.insert(0, format_text.into());
            format.call(state, &args)
        },
    );
    let from_text: Before = |state, value| Ok(text(state, value)?.into());
    let adapted: [(&'static str, Value, Before); 8] = [
        (
            "capitalize",
            Value::from_function(filters::capitalize),
            from_text,
        ),
        (
            "dictsort",
            Value::from_function(filters::dictsort),
            in_one_case,
        ),
        ("int", Value::from_function(filters::int), integer),
        ("lower", Value::from_function(filters::lower), from_text),
        ("max", Value::from_function(filters::max), in_one_case),
        ("min", Value::from_function(filters::min), in_one_case),
        ("sort", Value::from_function(filters::sort), in_one_case),
        ("upper", Value::from_function(filters::upper), from_text),
    ];
    for (name, filter, before) in adapted {
        adapt(environment, name, filter, before, Ok);
    }
    // These give generators in Jinja2.
    let as_it_is: Before = |_, value| Ok(value.clone());
    let lazy: [(&'static str, Value, Before); 7] = [
        ("items", Value::from_function(filters::items), as_it_is),
        ("map", Value::from_function(filters::map), as_it_is),
        ("reject", Value::from_function(filters::reject), as_it_is),
        (
            "rejectattr",
            Value::from_function(filters::rejectattr),
            as_it_is,
        ),
        ("select", Value::from_function(filters::select), as_it_is),
        (
            "selectattr",
            Value::from_function(filters::selectattr),
            as_it_is,
        ),
        ("unique", Value::from_function(filters::unique), in_one_case),
    ];
    for (name, filter, before) in lazy {
        adapt(environment, name, filter, before, |items| {
            Iterated::generator(&items)
        });
    }
}

/// Makes of a filter's input what minijinja's filter is given, such as the text that Jinja2 prints of it.
type Before = fn(&State, &Value) -> Result<Value, Error>;

/// Adds minijinja's filter of this name, with `before` for its input and `after` for its result.
fn adapt(
    environment: &mut Environment<'_>,
    name: &'static str,
    filter: Value,
    before: Before,
    after: fn(Value) -> Result<Value, Error>,
) {
    environment.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
        let mut args = args.into_values();
        if let Some(input) = args.first_mut() {
            *input = before(state, input)?;
        }
        after(filter.call(state, &args)?)
    });
}

/// Jinja2's filter `indent`.
fn indent(
    state: &State,
    value: &Value,
    width: Option<usize>,
    first: Option<bool>,
    named: Kwargs,
) -> Result<String, Error> {
    let text = text(state, value)?;
    let width = width.or(named.get("width")?).unwrap_or(4);
    let first = first.or(named.get("first")?).unwrap_or(false);
    named.assert_all_used()?;
    if width > 64 || text.contains(LINE_ENDS) {
        return Err(refused(
            "indent: found a width of more than 64, or a line end beside \\n, expected neither",
        ));
    }
    let mut out = String::new();
    for (at, line) in text.split('\n').enumerate() {
        state.consume_fuel(1)?;
        let is_indented = if at == 0 { first } else { !line.is_empty() };
        out.push_str(if at == 0 { "" } else { "\n" });
        out.push_str(&" ".repeat(if is_indented { width } else { 0 }));
        out.push_str(line);
    }
    Ok(out)
}

/// The input of the filter `int`: a number, or a text of digits. Python's `int` reads other texts differently.
fn integer(_: &State, value: &Value) -> Result<Value, Error> {
    match value.as_str() {
        Some(text) if text.parse::<i64>().is_err() => Err(refused(
            "int: found a text, expected a number or its digits",
        )),
        _ => Ok(value.clone()),
    }
}

/// The input of a filter that compares without regard to case: minijinja does that for ASCII alone.
fn in_one_case(state: &State, value: &Value) -> Result<Value, Error> {
    let items = value.try_iter()?.checked().map(|item| {
        state.consume_fuel(1)?;
        item
    });
    let items = Value::from(items.collect::<Result<Vec<_>, _>>()?);
    let has_case = |c: char| !c.is_ascii() && c.to_lowercase().ne([c]);
    if text(state, &items)?.contains(has_case) {
        return Err(refused(
            "found letters outside of ASCII, expected none in what is compared without regard to case",
        ));
    }
    Ok(match value.kind() {
        ValueKind::Map => value.clone(),
        _ => items,
    })
}

/// The arguments of a format, as texts where minijinja would print them differently from Python.
fn formatted(state: &State, format: &str, values: &[Value]) -> Result<Vec<Value>, Error> {
    let has_width = format.contains(|c: char| c.is_ascii_digit());
    let print = |value: &Value| {
        let text = charged_text(state, value)?;
        if value.is_kwargs() || has_width && !text.is_ascii() {
            return Err(refused(
                "format: found a named argument, or a width for letters outside of ASCII, which are not supported: expected neither",
            ));
        }
        let is_same = value.is_number() && text == value.to_string();
        Ok(if is_same { value.clone() } else { text.into() })
    };
    let values: Vec<Value> = values.iter().map(print).collect::<Result<_, _>>()?;
    // minijinja takes fuel for the text once it is made: the most that it can be is charged before.
    let longest = values.iter().filter_map(Value::len).max().unwrap_or(0);
    let width = if has_width { 2000 } else { 20 };
    let fields = format.matches(['{', '%']).count();
    state.consume_fuel((fields.saturating_mul(width + longest) / 64) as u64)?;
    Ok(values)
}

/// The text of a value, for which fuel is taken before another one is made of it.
fn charged_text(state: &State, value: &Value) -> Result<String, Error> {
    let text = text(state, value)?;
    state.consume_fuel(1 + text.len() as u64 / 64)?;
    Ok(text)
}

/// The texts of items.
fn texts(state: &State, items: &Value) -> Result<Vec<String>, Error> {
    let items = items.try_iter()?.checked();
    items.map(|item| charged_text(state, &item?)).collect()
}

/// Takes fuel for a text in which each `old` becomes `new`, before it is made.
fn charge_replaced(state: &State, text: &str, old: &str, new: &str) -> Result<(), Error> {
    let found = text.matches(old).count();
    state.consume_fuel((found.saturating_mul(new.len()) / 64) as u64)
}

/// Calls a method of Python's str, list or dict.
fn method(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if let Some(result) = value::dict_method(value, method, args) {
        return result;
    }
    let Some(text) = value.as_str() else {
        return pycompat::unknown_method_callback(state, value, method, args);
    };
    Ok(match (method, args) {
        ("strip", []) => text.trim_matches(is_space).into(),
        ("lstrip", []) => text.trim_start_matches(is_space).into(),
        ("rstrip", []) => text.trim_end_matches(is_space).into(),
        ("split", []) => {
            let words = text.split(is_space).filter(|word| !word.is_empty());
            words.map(Value::from).collect()
        }
        ("join", [items]) => {
            let items = texts(state, items)?;
            pycompat::unknown_method_callback(state, value, method, &[items.into()])?
        }
        ("replace", [old, new, ..]) => {
            if let (Some(old), Some(new)) = (old.as_str(), new.as_str()) {
                charge_replaced(state, text, old, new)?;
            }
            pycompat::unknown_method_callback(state, value, method, args)?
        }
        ("isspace", []) => (!text.is_empty() && text.chars().all(is_space)).into(),
        _ if !is_as_in_python(text, method, args) => {
            return Err(refused(format!(
                "the method `{method}` differs in Python for this text and these arguments, expected others"
            )));
        }
        ("format", _) => {
            let args = formatted(state, text, args)?;
            pycompat::unknown_method_callback(state, value, method, &args)?
        }
        _ => pycompat::unknown_method_callback(state, value, method, args)?,
    })
}

/// Whether `pycompat`'s method gives what Python's does.
fn is_as_in_python(text: &str, method: &str, args: &[Value]) -> bool {
    match (method, args) {
        ("split" | "count", [part, ..]) => part.as_str().is_some_and(|part| !part.is_empty()),
        ("splitlines", _) => !text.contains(LINE_ENDS),
        ("title", _) => false,
        (
            "capitalize" | "isalnum" | "isalpha" | "isdigit" | "isnumeric" | "islower" | "isupper",
            _,
        ) => text.is_ascii(),
        // pycompat makes any width, and fuel is taken once the text is made.
        ("format", _) => !text
            .as_bytes()
            .windows(4)
            .any(|four| four.iter().all(u8::is_ascii_digit)),
        _ => true,
    }
}

/// transformers' function `raise_exception`, whose message is the error.
pub fn raise_exception(message: &Value) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.to_string()))
}
