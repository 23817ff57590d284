//! `pprint`: Python's `pprint.pformat`, which breaks lines at 80 characters and sorts keys.

use std::cmp::Ordering;

use minijinja::{Error, Value};

use super::super::args::Bound;
use super::super::characters::is_space;
use super::super::value::{Dict, Seq, SeqKind, Type, items_of, name, type_of};
use super::super::{compare, meter, methods, print};

const WIDTH: usize = 80;

pub fn pprint(value: &Value, _: &Bound) -> Result<Value, Error> {
    let mut out = String::new();
    format(value, Place::default(), &mut out)?;
    Ok(Value::from(out))
}

/// Where a value is written.
#[derive(Clone, Copy, Default)]
struct Place {
    /// Characters before it on its line; lines after the first begin below it.
    indent: usize,
    /// Characters that come after it on its last line.
    allowance: usize,
    is_inner: bool,
}

impl Place {
    /// For a value within this one.
    fn inner(indent: usize, allowance: usize) -> Self {
        Self {
            indent,
            allowance,
            is_inner: true,
        }
    }
}

fn chars(text: &str) -> usize {
    text.chars().count()
}

fn new_line(indent: usize, out: &mut String) -> Result<(), Error> {
    meter::charge(indent + 1)?;
    out.push('\n');
    out.push_str(&" ".repeat(indent));
    Ok(())
}

fn format(value: &Value, place: Place, out: &mut String) -> Result<(), Error> {
    let on_one_line = repr(value)?;
    let room = WIDTH.saturating_sub(place.indent + place.allowance);
    if chars(&on_one_line) <= room {
        out.push_str(&on_one_line);
        return Ok(());
    }
    match type_of(value) {
        Type::Dict => dict(value, place, out),
        Type::List => list(["[", "]"], value, place, out),
        Type::Tuple if is_plain_tuple(value) => {
            let close = match items_of(value) {
                Some([_]) => ",)",
                _ => ")",
            };
            list(["(", close], value, place, out)
        }
        Type::Str if !value.is_safe() => text(value.as_str().unwrap_or_default(), place, out),
        _ => {
            out.push_str(&on_one_line);
            Ok(())
        }
    }
}

/// `groupby`'s pairs print as a type of their own.
fn is_plain_tuple(value: &Value) -> bool {
    value
        .downcast_object_ref::<Seq>()
        .is_some_and(|seq| seq.kind == SeqKind::Tuple)
}

fn dict(value: &Value, place: Place, out: &mut String) -> Result<(), Error> {
    out.push('{');
    let pairs = sorted(value);
    let indent = place.indent + 1;
    for (at, (key, value)) in pairs.iter().enumerate() {
        if at > 0 {
            out.push(',');
            new_line(indent, out)?;
        }
        let key = repr(key)?;
        out.push_str(&key);
        out.push_str(": ");
        let allowance = match at + 1 == pairs.len() {
            true => place.allowance + 1,
            false => 1,
        };
        format(
            value,
            Place::inner(indent + chars(&key) + 2, allowance),
            out,
        )?;
    }
    out.push('}');
    Ok(())
}

fn list(
    [open, close]: [&str; 2],
    value: &Value,
    place: Place,
    out: &mut String,
) -> Result<(), Error> {
    out.push_str(open);
    let items = items_of(value).unwrap_or_default();
    let indent = place.indent + 1;
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            out.push(',');
            new_line(indent, out)?;
        }
        let allowance = match at + 1 == items.len() {
            true => place.allowance + close.len(),
            false => 1,
        };
        format(item, Place::inner(indent, allowance), out)?;
    }
    out.push_str(close);
    Ok(())
}

/// A text as several, one a line: by its own lines, and where those are too long, by words.
fn text(text: &str, place: Place, out: &mut String) -> Result<(), Error> {
    let Place {
        mut indent,
        mut allowance,
        is_inner,
    } = place;
    if !is_inner {
        indent += 1;
        allowance += 1;
    }
    let quoted = |part: &str| print::repr(&Value::from(part));
    let width = WIDTH.saturating_sub(indent);
    let last_width = width.saturating_sub(allowance);
    let lines = methods::lines(text, true);
    let mut chunks = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let is_last = at + 1 == lines.len();
        let whole = quoted(line)?;
        if chars(&whole) <= if is_last { last_width } else { width } {
            chunks.push(whole);
            continue;
        }
        let words = words(line);
        let mut current = String::new();
        for (at, word) in words.iter().enumerate() {
            let room = match is_last && at + 1 == words.len() {
                true => last_width,
                false => width,
            };
            let longer = format!("{current}{word}");
            if chars(&quoted(&longer)?) <= room {
                current = longer;
                continue;
            }
            if !current.is_empty() {
                chunks.push(quoted(&current)?);
            }
            current = (*word).to_owned();
        }
        if !current.is_empty() {
            chunks.push(quoted(&current)?);
        }
    }
    let in_brackets = !is_inner && chunks.len() > 1;
    out.push_str(if in_brackets { "(" } else { "" });
    for (at, chunk) in chunks.iter().enumerate() {
        if at > 0 {
            new_line(indent, out)?;
        }
        out.push_str(chunk);
    }
    out.push_str(if in_brackets { ")" } else { "" });
    Ok(())
}

/// Words, each with the space after it; space at the start is a word of its own.
fn words(line: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = line;
    while !rest.is_empty() {
        let space = rest.find(is_space).unwrap_or(rest.len());
        let next = rest[space..].find(|c| !is_space(c));
        let (word, after) = rest.split_at(next.map_or(rest.len(), |next| space + next));
        words.push(word);
        rest = after;
    }
    words
}

/// `repr`, but with sorted keys.
fn repr(value: &Value) -> Result<String, Error> {
    let items = || -> Result<String, Error> {
        let items = items_of(value).unwrap_or_default().iter().map(repr);
        Ok(items.collect::<Result<Vec<_>, _>>()?.join(", "))
    };
    Ok(match type_of(value) {
        Type::Dict if value.downcast_object_ref::<Dict>().is_some() => {
            let pairs = sorted(value).into_iter();
            let pairs = pairs.map(|(key, value)| Ok(format!("{}: {}", repr(key)?, repr(value)?)));
            let text = pairs.collect::<Result<Vec<_>, Error>>()?.join(", ");
            meter::charge(text.len())?;
            format!("{{{text}}}")
        }
        Type::List => format!("[{}]", items()?),
        Type::Tuple if is_plain_tuple(value) => match items_of(value) {
            Some([_]) => format!("({},)", items()?),
            _ => format!("({})", items()?),
        },
        _ => print::repr(value)?,
    })
}

/// A dict's pairs by key; keys that Python cannot compare go by the names of their types.
fn sorted(dict: &Value) -> Vec<(&Value, &Value)> {
    let mut pairs: Vec<(&Value, &Value)> = dict
        .downcast_object_ref::<Dict>()
        .map(|dict| dict.iter().map(|(key, value)| (key, value)).collect())
        .unwrap_or_default();
    pairs.sort_by(|(a, _), (b, _)| match compare::order("<", a, b) {
        Ok(order) => order.unwrap_or(Ordering::Equal),
        Err(_) => name(a).cmp(name(b)),
    });
    pairs
}
