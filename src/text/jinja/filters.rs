//! Filters, tests and functions of Jinja2 that minijinja lacks or treats differently.

use minijinja::value::{Kwargs, Rest, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, Value};
use minijinja_contrib::globals;

use super::methods::is_space;
use super::python::{self, JsonStyle};

pub fn add(environment: &mut Environment<'static>) {
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", |value: &Value| python::str(value));
    environment.add_filter("upper", |value: &Value| python::str(value).to_uppercase());
    environment.add_filter("lower", |value: &Value| python::str(value).to_lowercase());
    environment.add_filter("capitalize", capitalize);
    environment.add_filter("title", title);
    environment.add_filter("trim", trim);
    environment.add_filter("replace", replace);
    environment.add_filter("indent", indent);
    environment.add_filter("join", join);
    environment.add_filter("default", default);
    environment.add_filter("d", default);
    environment.add_filter("int", int);
    environment.add_filter("float", float);
    environment.add_filter("round", round);
    environment.add_filter("items", items);
    environment.add_filter("sum", sum);
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("wordcount", wordcount);
    environment.add_filter("escape", escape);
    environment.add_filter("e", escape);

    environment.add_test("iterable", is_iterable);
    environment.add_test("sequence", |value: &Value| {
        is_iterable(value) && value.kind() != ValueKind::Plain
    });
    environment.add_test("number", |value: &Value| {
        matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
    });

    environment.add_function("joiner", globals::joiner);
}

/// transformers' own: json.dumps, and nothing escaped for HTML.
fn tojson(value: &Value, arguments: Rest<Value>) -> Result<String, Error> {
    type Arguments = (
        Option<bool>,
        Option<Value>,
        Option<Value>,
        Option<bool>,
        Kwargs,
    );
    let (ensure_ascii, indent, separators, sort_keys, named): Arguments = from_args(&arguments)?;
    let flag = |given: Option<bool>, name: &str| -> Result<bool, Error> {
        Ok(given.or(named.get(name)?).unwrap_or(false))
    };
    let given = |given: Option<Value>, name: &str| -> Result<Option<Value>, Error> {
        let value = given.or(named.get(name)?);
        Ok(value.filter(|value| !value.is_none() && !value.is_undefined()))
    };
    let style = JsonStyle {
        ensure_ascii: flag(ensure_ascii, "ensure_ascii")?,
        sort_keys: flag(sort_keys, "sort_keys")?,
        indent: match given(indent, "indent")? {
            None => None,
            Some(indent) => Some(indentation(&indent)?),
        },
        separators: match given(separators, "separators")? {
            None => None,
            Some(pair) => {
                let pair: Vec<Value> = pair.try_iter()?.collect();
                match pair
                    .iter()
                    .map(Value::as_str)
                    .collect::<Option<Vec<_>>>()
                    .as_deref()
                {
                    Some([item, key]) => Some((item.to_string(), key.to_string())),
                    _ => return Err(wrong("tojson: `separators` is not a pair of strings")),
                }
            }
        },
    };
    named.assert_all_used()?;
    style.dumps(value)
}

/// Wider than this no template needs; without a limit one line could ask for all memory.
const MAX_INDENT: usize = 256;

/// A number of spaces, or the string itself.
fn indentation(width: &Value) -> Result<String, Error> {
    if let Some(text) = width.as_str() {
        return Ok(text.to_owned());
    }
    let spaces = width
        .as_i64()
        .ok_or_else(|| wrong("the indent is neither a number nor a string"))?;
    match usize::try_from(spaces).unwrap_or(0) {
        spaces if spaces <= MAX_INDENT => Ok(" ".repeat(spaces)),
        spaces => Err(wrong(&format!(
            "the indent is {spaces}, expected at most {MAX_INDENT}"
        ))),
    }
}

fn capitalize(value: &Value) -> String {
    let text = python::str(value).to_lowercase();
    let mut chars = text.chars();
    let first = chars.next().into_iter().flat_map(char::to_uppercase);
    first.chain(chars.as_str().chars()).collect()
}

/// Upper case after spaces, hyphens and opening brackets (not after apostrophes, as `str.title` has it).
fn title(value: &Value) -> String {
    let mut at_start = true;
    let mut out = String::new();
    for c in python::str(value).chars() {
        match at_start {
            true => out.extend(c.to_uppercase()),
            false => out.extend(c.to_lowercase()),
        }
        at_start = is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
    }
    out
}

fn trim(value: &Value, chars: Option<&str>) -> String {
    let text = python::str(value);
    match chars {
        Some(chars) => text.trim_matches(|c| chars.contains(c)),
        None => text.trim_matches(is_space),
    }
    .to_owned()
}

fn replace(value: &Value, old: &Value, new: &Value, count: Option<i64>) -> String {
    let (text, old, new) = (python::str(value), python::str(old), python::str(new));
    match count.map(usize::try_from) {
        Some(Ok(count)) => text.replacen(&old, &new, count),
        _ => text.replace(&old, &new),
    }
}

fn indent(
    value: &Value,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    named: Kwargs,
) -> Result<String, Error> {
    let width = width.or(named.get("width")?);
    let first = first.or(named.get("first")?).unwrap_or(false);
    let blank = blank.or(named.get("blank")?).unwrap_or(false);
    named.assert_all_used()?;
    let width = indentation(&width.unwrap_or_else(|| Value::from(4)))?;
    let text = python::str(value);
    let mut out = String::new();
    for (i, line) in text.split('\n').enumerate() {
        if i > 0 {
            out.push('\n');
        }
        if (i == 0 && first) || (i > 0 && (blank || !line.is_empty())) {
            out.push_str(&width);
        }
        out.push_str(line);
    }
    Ok(out)
}

fn join(
    value: &Value,
    separator: Option<&str>,
    attribute: Option<Value>,
    named: Kwargs,
) -> Result<String, Error> {
    let separator = separator.or(named.get("d")?).unwrap_or("");
    let attribute: Option<Value> = attribute.or(named.get("attribute")?);
    named.assert_all_used()?;
    let mut out = String::new();
    for (i, item) in value.try_iter()?.enumerate() {
        out.push_str(if i > 0 { separator } else { "" });
        match &attribute {
            Some(attribute) => out.push_str(&python::str(&item.get_item(attribute)?)),
            None => out.push_str(&python::str(&item)),
        }
    }
    Ok(out)
}

fn default(
    value: &Value,
    other: Option<Value>,
    boolean: Option<bool>,
    named: Kwargs,
) -> Result<Value, Error> {
    let other = other.or(named.get("default_value")?);
    let boolean = boolean.or(named.get("boolean")?).unwrap_or(false);
    named.assert_all_used()?;
    Ok(
        match value.is_undefined() || (boolean && !value.is_true()) {
            true => other.unwrap_or_else(|| Value::from("")),
            false => value.clone(),
        },
    )
}

fn int(
    value: &Value,
    default: Option<Value>,
    base: Option<u32>,
    named: Kwargs,
) -> Result<Value, Error> {
    let default = default
        .or(named.get("default")?)
        .unwrap_or_else(|| Value::from(0));
    let base = base.or(named.get("base")?).unwrap_or(10);
    named.assert_all_used()?;
    if !matches!(base, 2 | 8 | 10 | 16) {
        return Err(wrong(&format!(
            "int: the base is {base}, expected 2, 8, 10 or 16"
        )));
    }
    Ok(match value.kind() {
        ValueKind::Bool => Value::from(i64::from(value.is_true())),
        ValueKind::Number if value.is_integer() => value.clone(),
        ValueKind::Number => match f64::try_from(value.clone()) {
            Ok(x) if x.is_finite() => Value::from(x as i128),
            _ => default,
        },
        ValueKind::String => {
            let text = python::str(value).trim_matches(is_space).replace('_', "");
            let prefix = [(2, "0b"), (8, "0o"), (16, "0x")];
            let digits = prefix
                .iter()
                .find_map(|&(of, prefix)| (of == base).then(|| text.strip_prefix(prefix)).flatten())
                .unwrap_or(&text);
            match (i128::from_str_radix(digits, base), text.parse::<f64>()) {
                (Ok(n), _) => Value::from(n),
                (_, Ok(x)) if x.is_finite() => Value::from(x as i128),
                _ => default,
            }
        }
        _ => default,
    })
}

fn float(value: &Value, default: Option<Value>, named: Kwargs) -> Result<Value, Error> {
    let default = default
        .or(named.get("default")?)
        .unwrap_or_else(|| Value::from(0.0));
    named.assert_all_used()?;
    let x = match value.kind() {
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        ValueKind::Number => f64::try_from(value.clone()).ok(),
        ValueKind::String => python::str(value).trim_matches(is_space).parse().ok(),
        _ => None,
    };
    Ok(x.map_or(default, Value::from))
}

/// `common` rounds half to even on the decimal digits, as Python's round.
fn round(
    value: &Value,
    precision: Option<i32>,
    method: Option<&str>,
    named: Kwargs,
) -> Result<Value, Error> {
    let precision = precision.or(named.get("precision")?).unwrap_or(0);
    let method = method.or(named.get("method")?).unwrap_or("common");
    named.assert_all_used()?;
    if value.is_integer() && method == "common" {
        return Ok(value.clone());
    }
    let x = f64::try_from(value.clone()).map_err(|_| {
        wrong(&format!(
            "round: found a value of type {}, expected a number",
            value.kind()
        ))
    })?;
    let power = 10f64.powi(precision);
    Ok(Value::from(match (method, usize::try_from(precision)) {
        // Formatting rounds the exact binary value, as Python does.
        ("common", Ok(digits)) if digits <= 17 => format!("{x:.digits$}").parse().unwrap_or(x),
        ("common", Ok(_)) => x,
        ("common", Err(_)) => (x * power).round_ties_even() / power,
        ("ceil", _) => (x * power).ceil() / power,
        ("floor", _) => (x * power).floor() / power,
        _ => {
            return Err(wrong(&format!(
                "round: the method is {method:?}, expected common, ceil or floor"
            )));
        }
    }))
}

fn items(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(Value::from(Vec::<Value>::new())),
        ValueKind::Map => value
            .try_iter()?
            .map(|key| Ok(Value::from(vec![key.clone(), value.get_item(&key)?])))
            .collect::<Result<Vec<Value>, Error>>()
            .map(Value::from),
        kind => Err(wrong(&format!(
            "items: found a value of type {kind}, expected a mapping"
        ))),
    }
}

fn sum(
    value: &Value,
    attribute: Option<Value>,
    start: Option<Value>,
    named: Kwargs,
) -> Result<Value, Error> {
    let attribute: Option<Value> = attribute.or(named.get("attribute")?);
    let start: Option<Value> = start.or(named.get("start")?);
    named.assert_all_used()?;
    let (mut whole, mut fraction) = (Some(0i128), 0.0);
    for (i, item) in start
        .into_iter()
        .map(Ok)
        .chain(value.try_iter()?.map(|item| match &attribute {
            Some(attribute) => item.get_item(attribute),
            None => Ok(item),
        }))
        .enumerate()
    {
        let item = item?;
        let x = f64::try_from(item.clone()).map_err(|_| {
            wrong(&format!(
                "sum: item {i} is of type {}, expected a number",
                item.kind()
            ))
        })?;
        fraction += x;
        whole = match i128::try_from(item) {
            Ok(n) if whole.is_some() && x.fract() == 0.0 => {
                whole.and_then(|sum| sum.checked_add(n))
            }
            _ => None,
        };
    }
    Ok(whole.map_or(Value::from(fraction), Value::from))
}

fn length(value: &Value) -> Result<usize, Error> {
    match value.len() {
        Some(length) => Ok(length),
        None if value.is_undefined() => Ok(0),
        None => Err(wrong(&format!(
            "length: a value of type {} has none",
            value.kind()
        ))),
    }
}

fn wordcount(value: &Value) -> usize {
    python::str(value)
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
        .count()
}

fn escape(value: &Value) -> String {
    let mut out = String::new();
    for c in python::str(value).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    out
}

/// An undefined value is empty to iterate over; none cannot be iterated.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

fn wrong(message: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.to_owned())
}
