//! Where minijinja's filters, tests and methods make another text than Jinja2's and Python's: put right, or an error.

use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};
use minijinja_contrib::pycompat;

use super::print::{text, tojson};
use super::value::{self, Iterated, Safe, refused};

/// Python's `str.isspace`, which also counts the four separators of ASCII.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// What ends a line in Python beside `\n`.
const LINE_ENDS: [char; 9] = [
    '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}', '\u{2029}',
];

/// What minijinja has and Jinja2 has not, or has otherwise in ways that are not put right here.
const REMOVED_FILTERS: &str = "abs attr batch bool chain e escape float groupby lines pprint round slice split sum title urlencode zip";
const REMOVED_TESTS: &str = "escaped filter int lower safe test upper";

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
    environment.add_filter("reverse", |value: &Value| match value.kind() {
        ValueKind::String => value.reverse(),
        _ => Iterated::generator(&value.reverse()?),
    });
    let map = Value::from_function(filters::map);
    let join = Value::from_function(filters::join);
    environment.add_filter(
        "join",
        move |state: &mut State, items: Value, joiner: Option<&str>, named: Kwargs| {
            let items = match named.get::<Option<Value>>("attribute")? {
                None => items,
                Some(_) => map.call(state, &[items, named.into()])?,
            };
            let mut texts = Vec::new();
            for item in items.try_iter()?.checked() {
                let text = text(state, &item?)?;
                state.consume_fuel(1 + text.len() as u64 / 64)?;
                texts.push(text);
            }
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
    let adapted: [(&'static str, Value, Before); 9] = [
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
        ("replace", Value::from_function(filters::replace), from_text),
        ("sort", Value::from_function(filters::sort), in_one_case),
        ("upper", Value::from_function(filters::upper), from_text),
    ];
    for (name, filter, before) in adapted {
        adapt(environment, name, filter, before, Ok);
    }
    // Jinja2 goes through these as they are asked for items.
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

/// What is made of a filter's input first, such as the text that Jinja2 prints of it.
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

/// Jinja2's `indent`.
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
            "indent: expected a width of at most 64, and no line end but \\n",
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

fn integer(_: &State, value: &Value) -> Result<Value, Error> {
    match value.as_str() {
        Some(text) if text.parse::<i64>().is_err() => {
            Err(refused("int: expected a number or its digits"))
        }
        _ => Ok(value.clone()),
    }
}

/// What is sorted without regard to case, which minijinja knows in ASCII alone.
fn in_one_case(state: &State, value: &Value) -> Result<Value, Error> {
    let items = value.try_iter()?.checked().collect::<Result<Vec<_>, _>>()?;
    let items = Value::from(items);
    let has_case = |c: char| !c.is_ascii() && c.to_lowercase().ne([c]);
    if text(state, &items)?.contains(has_case) {
        return Err(refused(
            "found letters outside of ASCII, expected none in what is sorted without regard to case",
        ));
    }
    Ok(match value.kind() {
        ValueKind::Map => value.clone(),
        _ => items,
    })
}

/// The values that are to be put in a format: minijinja prints texts and plain numbers as Python does.
fn formatted(state: &State, format: &str, values: &[Value]) -> Result<Vec<Value>, Error> {
    let has_width = format.contains(|c: char| c.is_ascii_digit());
    let print = |value: &Value| {
        let text = text(state, value)?;
        if value.is_kwargs() || has_width && !text.is_ascii() {
            return Err(refused(
                "format: found an argument's name, or a width for letters outside of ASCII, which are not supported here",
            ));
        }
        Ok(match value.is_number() && text == value.to_string() {
            true => value.clone(),
            false => text.into(),
        })
    };
    values.iter().map(print).collect()
}

/// Methods of Python's str, list and dict.
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
        ("isspace", []) => (!text.is_empty() && text.chars().all(is_space)).into(),
        _ if !is_as_in_python(text, method, args) => {
            return Err(refused(format!(
                "the method `{method}` is otherwise in Python for this text and these arguments"
            )));
        }
        ("format", _) => {
            let args = formatted(state, text, args)?;
            pycompat::unknown_method_callback(state, value, method, &args)?
        }
        _ => pycompat::unknown_method_callback(state, value, method, args)?,
    })
}

/// Whether `pycompat` has the method as Python has it.
fn is_as_in_python(text: &str, method: &str, args: &[Value]) -> bool {
    match (method, args) {
        ("split" | "count", [part, ..]) => part.as_str().is_some_and(|part| !part.is_empty()),
        ("splitlines", _) => !text.contains(LINE_ENDS),
        ("title", _) => false,
        (
            "capitalize" | "isalnum" | "isalpha" | "isdigit" | "isnumeric" | "islower" | "isupper",
            _,
        ) => text.is_ascii(),
        // Widths of any size would be made before anything counts them.
        ("format", _) => !text
            .as_bytes()
            .windows(4)
            .any(|four| four.iter().all(u8::is_ascii_digit)),
        _ => true,
    }
}

/// `raise_exception` of transformers.
pub fn raise_exception(message: &Value) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.to_string()))
}
