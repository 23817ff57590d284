//! Filters that make text.

use minijinja::value::Kwargs;
use minijinja::{Environment, Error, State, Value};

use super::super::args::Bound;
use super::super::characters::{self, is_space};
use super::super::print::JsonStyle;
use super::super::value::numbers;
use super::super::value::{Dict, Type, iterate, type_of, wrong};
use super::super::{args, format, meter, methods, print};
use super::{filter, open_filter};

pub fn add(environment: &mut Environment<'_>) {
    filter(
        environment,
        "tojson",
        &["ensure_ascii", "indent", "separators", "sort_keys"],
        tojson,
    );
    filter(environment, "string", &[], |value, _| {
        match value.is_safe() {
            true => Ok(value.clone()),
            false => Ok(Value::from(print::str(value)?.as_ref())),
        }
    });
    filter(environment, "upper", &[], |value, _| {
        recased(value, "upper")
    });
    filter(environment, "lower", &[], |value, _| {
        recased(value, "lower")
    });
    filter(environment, "capitalize", &[], |value, _| {
        recased(value, "capitalize")
    });
    filter(environment, "title", &[], |value, _| {
        Ok(Value::from(title(&print::str(value)?)))
    });
    filter(environment, "trim", &["chars"], trim);
    filter(environment, "replace", &["old", "new", "count"], replace);
    filter(environment, "indent", &["width", "first", "blank"], indent);
    filter(environment, "center", &["width"], |value, args| {
        plain(value, "center")?;
        let text = print::str(value)?;
        methods::centered(&text, args.int(0, 80)?).map(Value::from)
    });
    filter(
        environment,
        "truncate",
        &["length", "killwords", "end", "leeway"],
        truncate,
    );
    filter(environment, "wordcount", &[], |value, _| {
        let text = print::str(value)?;
        meter::charge(text.len())?;
        let words = text.split(|c: char| !characters::is_alphanumeric(c) && c != '_');
        Ok(Value::from(words.filter(|word| !word.is_empty()).count()))
    });
    for name in ["escape", "e"] {
        filter(environment, name, &[], |value, _| match value.is_safe() {
            true => Ok(value.clone()),
            false => escaped(value),
        });
    }
    filter(environment, "forceescape", &[], |value, _| escaped(value));
    filter(environment, "safe", &[], |value, _| {
        Ok(Value::from_safe_string(print::str(value)?.into_owned()))
    });
    filter(environment, "urlencode", &[], urlencode);
    filter(environment, "xmlattr", &["autospace"], xmlattr);
    open_filter(environment, "format", format_filter);
}

fn recased(value: &Value, how: &str) -> Result<Value, Error> {
    let text = print::str(value)?;
    meter::charge(text.len())?;
    let text = characters::recased(&text, how);
    Ok(match value.is_safe() {
        true => Value::from_safe_string(text),
        false => Value::from(text),
    })
}

/// Refuses text that `escape` or `safe` made: it escapes what is joined to it, which few filters need.
fn plain(value: &Value, filter: &str) -> Result<(), Error> {
    match value.is_safe() {
        true => Err(wrong(format!(
            "{filter} of text that `escape` or `safe` made is not supported here"
        ))),
        false => Ok(()),
    }
}

fn escaped(value: &Value) -> Result<Value, Error> {
    let text = print::str(value)?;
    meter::charge(text.len().saturating_mul(6))?;
    Ok(Value::from_safe_string(print::escape(&text)))
}

/// transformers' own: json.dumps, and nothing escaped for HTML.
fn tojson(value: &Value, args: &Bound) -> Result<Value, Error> {
    let style = JsonStyle {
        ensure_ascii: args.truth(0),
        sort_keys: args.truth(3),
        indent: args.some(1).map(indentation).transpose()?,
        separators: match args.some(2) {
            None => None,
            Some(pair) => {
                let pair = iterate(pair)?;
                match pair
                    .iter()
                    .map(Value::as_str)
                    .collect::<Option<Vec<_>>>()
                    .as_deref()
                {
                    Some([item, key]) => Some((item.to_string(), key.to_string())),
                    _ => return Err(args.unfit(2, "a pair of strings")),
                }
            }
        },
    };
    style.dumps(value).map(Value::from)
}

/// A number of spaces, or the string itself.
fn indentation(width: &Value) -> Result<String, Error> {
    if let Some(text) = width.as_str() {
        return Ok(text.to_owned());
    }
    let spaces = usize::try_from(numbers::int(width)?).unwrap_or(0);
    meter::charge(spaces)?;
    Ok(" ".repeat(spaces))
}

/// Upper case after spaces, hyphens and opening brackets (not after apostrophes, as `str.title` has it).
fn title(text: &str) -> String {
    let mut at_start = true;
    let mut out = String::new();
    for c in text.chars() {
        match at_start {
            true => out.extend(c.to_uppercase()),
            false => out.extend(c.to_lowercase()),
        }
        at_start = is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
    }
    out
}

fn trim(value: &Value, args: &Bound) -> Result<Value, Error> {
    let text = print::str(value)?;
    meter::charge(text.len())?;
    let trimmed = match args.text(0)? {
        Some(chars) => text.trim_matches(|c| chars.contains(c)),
        None => text.trim_matches(is_space),
    };
    Ok(match value.is_safe() {
        true => Value::from_safe_string(trimmed.to_owned()),
        false => Value::from(trimmed),
    })
}

fn replace(value: &Value, args: &Bound) -> Result<Value, Error> {
    let (old, new) = (
        print::str(args.required(0)?)?,
        print::str(args.required(1)?)?,
    );
    let count = match args.some(2) {
        None => -1,
        Some(count) => numbers::int(count)?,
    };
    methods::replaced(&print::str(value)?, &old, &new, count).map(Value::from)
}

fn indent(value: &Value, args: &Bound) -> Result<Value, Error> {
    plain(value, "indent")?;
    if type_of(value) != Type::Str {
        return Err(wrong("indent: expected text"));
    }
    let width = match args.get(0) {
        None => "    ".to_owned(),
        Some(width) => indentation(width)?,
    };
    let (first, blank) = (args.truth(1), args.truth(2));
    let text = value.as_str().unwrap_or_default().to_owned() + "\n";
    let lines = methods::lines(&text, false);
    meter::charge(text.len() + lines.len().saturating_mul(width.len() + 1))?;
    let mut out = String::new();
    for (i, line) in lines.iter().enumerate() {
        out.push_str(if i > 0 { "\n" } else { "" });
        if (i == 0 && first) || (i > 0 && (blank || !line.is_empty())) {
            out.push_str(&width);
        }
        out.push_str(line);
    }
    Ok(Value::from(out))
}

fn truncate(value: &Value, args: &Bound) -> Result<Value, Error> {
    let end = args.text(2)?.unwrap_or("...");
    let ending = end.chars().count() as i128;
    let (length, leeway) = (
        args.int(0, 255)?,
        match args.some(3) {
            None => 5,
            Some(leeway) => numbers::int(leeway)?,
        },
    );
    if length < ending || leeway < 0 {
        return Err(wrong(format!(
            "truncate: found a length of {length} and a leeway of {leeway}, expected at least {ending} and 0"
        )));
    }
    // What is short enough, a list too, stays what it is.
    if super::super::value::length(value)? as i128 <= length + leeway {
        return Ok(value.clone());
    }
    plain(value, "truncate")?;
    if type_of(value) != Type::Str {
        return Err(wrong("truncate: expected text"));
    }
    let text = value.as_str().unwrap_or_default();
    let kept = usize::try_from(length - ending).unwrap_or(0);
    let kept: String = text.chars().take(kept).collect();
    meter::charge(kept.len() + end.len())?;
    let kept = match args.truth(1) {
        true => kept.as_str(),
        false => kept
            .rsplit_once(' ')
            .map_or(kept.as_str(), |(before, _)| before),
    };
    Ok(Value::from(kept.to_owned() + end))
}

/// Bytes as `%XX` but for letters, digits and `_.-~`; `/` too stays, unless in a query.
fn quote(value: &Value, in_query: bool) -> Result<String, Error> {
    let text = print::str(value)?;
    meter::charge(text.len().saturating_mul(3))?;
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b' ' if in_query => out.push('+'),
            b'_' | b'.' | b'-' | b'~' => out.push(byte.into()),
            b'/' if !in_query => out.push('/'),
            _ if byte.is_ascii_alphanumeric() => out.push(byte.into()),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    Ok(out)
}

fn urlencode(value: &Value, _: &Bound) -> Result<Value, Error> {
    let pairs = match (type_of(value), value.downcast_object_ref::<Dict>()) {
        (_, Some(dict)) => methods::pairs(dict)?,
        (Type::List | Type::Tuple | Type::View | Type::Generator, _) => iterate(value)?,
        _ => return quote(value, false).map(Value::from),
    };
    let mut out = Vec::new();
    for pair in pairs {
        match &iterate(&pair)?[..] {
            [key, value] => out.push(format!("{}={}", quote(key, true)?, quote(value, true)?)),
            _ => return Err(wrong("urlencode: expected pairs")),
        }
    }
    Ok(Value::from(out.join("&")))
}

fn xmlattr(value: &Value, args: &Bound) -> Result<Value, Error> {
    let dict = value
        .downcast_object_ref::<Dict>()
        .ok_or_else(|| wrong("xmlattr: expected a mapping"))?;
    let mut out = String::new();
    for (key, value) in dict
        .iter()
        .filter(|(_, value)| !value.is_none() && !value.is_undefined())
    {
        let key = key
            .as_str()
            .ok_or_else(|| wrong("xmlattr: expected text as keys"))?;
        if key.contains(|c: char| c.is_ascii_whitespace() || "/>=\u{b}".contains(c)) {
            return Err(wrong(format!(
                "xmlattr: Invalid character in attribute name: {key:?}"
            )));
        }
        let value = match value.is_safe() {
            true => value.clone(),
            false => escaped(value)?,
        };
        out.push_str(if out.is_empty() { "" } else { " " });
        out.push_str(&format!(
            "{}=\"{}\"",
            print::escape(key),
            print::str(&value)?
        ));
        meter::charge(out.len() / 8)?;
    }
    let space = !out.is_empty() && args.get(0).is_none_or(Value::is_true);
    Ok(Value::from(if space { " " } else { "" }.to_owned() + &out))
}

/// Python's pformat breaks lines at 80 characters and sorts dicts: what it would leave on one line is written.
fn format_filter(_: &State, value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let (positional, named) = args::split(arguments)?;
    let text = print::str(value)?;
    let named = named.map(|named| -> Result<Value, Error> {
        let pairs = Kwargs::args(&named).map(|name| Ok((Value::from(name), named.peek(name)?)));
        super::super::value::dict(pairs.collect::<Result<Vec<_>, Error>>()?)
    });
    match named.transpose()? {
        Some(_) if !positional.is_empty() => Err(wrong(
            "format: can't handle positional and keyword arguments at the same time",
        )),
        Some(dict) => format::percent_with(&text, std::slice::from_ref(&dict), Some(&dict)),
        None => format::percent_with(&text, positional, None),
    }
    .map(Value::from)
}
