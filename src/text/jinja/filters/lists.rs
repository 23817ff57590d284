//! Filters over lists and dicts.

use std::cmp::Ordering;
use std::collections::HashSet;

use minijinja::{Environment, Error, Value};

use super::super::args::Bound;
use super::super::methods::names;
use super::super::value::numbers;
use super::super::value::{
    Dict, Generator, Key, SeqKind, Type, generator, items_of, iterate, list, name, seq, type_of,
    wrong,
};
use super::super::{access, compare, meter, methods, ops, print};
use super::filter;

pub fn add(environment: &mut Environment<'_>) {
    filter(environment, "list", &[], |value, _| list(iterate(value)?));
    filter(environment, "items", &[], |value, _| match type_of(value) {
        Type::Undefined => generator(Vec::new()),
        Type::Dict => generator(pairs(value)?),
        _ => Err(wrong(format!(
            "items: found a value of type '{}', expected a mapping",
            name(value)
        ))),
    });
    filter(environment, "first", &[], |value, _| {
        if let Some(generator) = value.downcast_object_ref::<Generator>() {
            return Ok(generator.next().unwrap_or_default());
        }
        match value.as_str() {
            Some(text) => Ok(text.chars().next().map(Value::from).unwrap_or_default()),
            None => Ok(iterate(value)?.into_iter().next().unwrap_or_default()),
        }
    });
    filter(environment, "last", &[], |value, _| {
        match (type_of(value), value.as_str()) {
            (Type::Str, Some(text)) => Ok(text
                .chars()
                .next_back()
                .map(Value::from)
                .unwrap_or_default()),
            (Type::Generator, _) => Err(wrong(format!(
                "last: found a value of type '{}', expected a list",
                name(value)
            ))),
            _ => Ok(iterate(value)?.pop().unwrap_or_default()),
        }
    });
    filter(environment, "join", &["d", "attribute"], join);
    filter(environment, "sum", &["attribute", "start"], sum);
    filter(
        environment,
        "sort",
        &["reverse", "case_sensitive", "attribute"],
        sort,
    );
    filter(
        environment,
        "dictsort",
        &["case_sensitive", "by", "reverse"],
        dictsort,
    );
    filter(
        environment,
        "unique",
        &["case_sensitive", "attribute"],
        unique,
    );
    filter(
        environment,
        "min",
        &["case_sensitive", "attribute"],
        |value, args| extreme(value, args, Ordering::Less),
    );
    filter(
        environment,
        "max",
        &["case_sensitive", "attribute"],
        |value, args| extreme(value, args, Ordering::Greater),
    );
    filter(
        environment,
        "groupby",
        &["attribute", "default", "case_sensitive"],
        groupby,
    );
    filter(environment, "batch", &["linecount", "fill_with"], batch);
    filter(environment, "slice", &["slices", "fill_with"], slice);
    filter(environment, "reverse", &[], reverse);
    filter(
        environment,
        "attr",
        &["name"],
        |value, args| match type_of(value) {
            // Only Python's own attributes, not items.
            Type::Dict if !names::exists(Type::Dict, args.required_text(0)?) => {
                Ok(Value::UNDEFINED)
            }
            _ => access::attribute(value, args.required_text(0)?),
        },
    );
}

fn pairs(value: &Value) -> Result<Vec<Value>, Error> {
    match value.downcast_object_ref::<Dict>() {
        Some(dict) => methods::pairs(dict),
        None => Err(wrong("found keyword arguments, expected a mapping")),
    }
}

/// What `attribute='a.0.b'` reads of an item. `default` stands for what is undefined on the way.
pub fn read(
    item: &Value,
    attribute: Option<&Value>,
    default: Option<&Value>,
) -> Result<Value, Error> {
    let Some(attribute) = attribute else {
        return Ok(item.clone());
    };
    let Some(path) = attribute.as_str() else {
        return match numbers::int(attribute) {
            Ok(_) => access::item(item, attribute),
            Err(_) => Err(wrong("attribute: expected a string or an integer")),
        };
    };
    let mut item = item.clone();
    for part in path.split('.') {
        let part = match !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) {
            true => part
                .parse::<i64>()
                .map_or_else(|_| Value::from(part), Value::from),
            false => Value::from(part),
        };
        item = access::item(&item, &part)?;
        if let (true, Some(default)) = (item.is_undefined(), default) {
            item = default.clone();
        }
    }
    Ok(item)
}

/// Lower case, unless case matters.
fn folded(value: Value, case_sensitive: bool) -> Result<Value, Error> {
    match (case_sensitive, type_of(&value)) {
        (false, Type::Str) => {
            let text = value.as_str().unwrap_or_default();
            meter::charge(text.len())?;
            Ok(Value::from(text.to_lowercase()))
        }
        _ => Ok(value),
    }
}

/// Stable, by Python's `<`; `reverse` keeps the order of what is equal, as Python does.
fn sorted(mut keyed: Vec<(Value, Value)>, reverse: bool) -> Result<Vec<(Value, Value)>, Error> {
    let mut failed = None;
    keyed.sort_by(|(a, _), (b, _)| {
        let order = match failed {
            Some(_) => Ordering::Equal,
            None => compare::order("<", a, b)
                .unwrap_or_else(|error| {
                    failed = Some(error);
                    None
                })
                .unwrap_or(Ordering::Equal),
        };
        if reverse { order.reverse() } else { order }
    });
    match failed {
        None => Ok(keyed),
        Some(error) => Err(error),
    }
}

fn sort(value: &Value, args: &Bound) -> Result<Value, Error> {
    let attributes: Vec<Option<Value>> = match args.some(2) {
        None => vec![None],
        Some(attribute) => match attribute.as_str() {
            Some(text) => text
                .split(',')
                .map(|part| Some(Value::from(part)))
                .collect(),
            None => vec![Some(attribute.clone())],
        },
    };
    let mut keyed = Vec::new();
    for item in iterate(value)? {
        let keys = attributes
            .iter()
            .map(|attribute| folded(read(&item, attribute.as_ref(), None)?, args.truth(1)))
            .collect::<Result<Vec<_>, Error>>()?;
        keyed.push((list(keys)?, item));
    }
    list(
        sorted(keyed, args.truth(0))?
            .into_iter()
            .map(|(_, item)| item)
            .collect(),
    )
}

fn dictsort(value: &Value, args: &Bound) -> Result<Value, Error> {
    let by = match args.text(1)? {
        None | Some("key") => 0,
        Some("value") => 1,
        Some(_) => return Err(args.unfit(1, "key or value")),
    };
    if type_of(value) != Type::Dict {
        return Err(wrong("dictsort: expected a mapping"));
    }
    let mut keyed = Vec::new();
    for pair in pairs(value)? {
        let key = items_of(&pair).unwrap_or_default()[by].clone();
        keyed.push((folded(key, args.truth(0))?, pair));
    }
    list(
        sorted(keyed, args.truth(2))?
            .into_iter()
            .map(|(_, pair)| pair)
            .collect(),
    )
}

fn unique(value: &Value, args: &Bound) -> Result<Value, Error> {
    let mut seen = HashSet::new();
    let mut kept = Vec::new();
    for item in iterate(value)? {
        if seen.insert(Key::of(&folded(
            read(&item, args.some(1), None)?,
            args.truth(0),
        )?)?) {
            kept.push(item);
        }
    }
    generator(kept)
}

/// The first item that is less, or greater, than all others.
fn extreme(value: &Value, args: &Bound, wanted: Ordering) -> Result<Value, Error> {
    let mut best: Option<(Value, Value)> = None;
    for item in iterate(value)? {
        let key = folded(read(&item, args.some(1), None)?, args.truth(0))?;
        let better = match &best {
            None => true,
            Some((other, _)) => {
                compare::order(if wanted.is_lt() { "<" } else { ">" }, &key, other)? == Some(wanted)
            }
        };
        if better {
            best = Some((key, item));
        }
    }
    Ok(best.map(|(_, item)| item).unwrap_or_default())
}

fn groupby(value: &Value, args: &Bound) -> Result<Value, Error> {
    let (attribute, default) = (Some(args.required(0)?), args.some(1));
    let mut keyed = Vec::new();
    for item in iterate(value)? {
        keyed.push((
            folded(read(&item, attribute, default)?, args.truth(2))?,
            item,
        ));
    }
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for (key, item) in sorted(keyed, false)? {
        match groups.last_mut() {
            Some((last, items)) if compare::equal(last, &key)? => items.push(item),
            _ => groups.push((key, vec![item])),
        }
    }
    let groups = groups.into_iter().map(|(key, items)| {
        // The key as the first item has it, not in lower case.
        let key = match args.truth(2) {
            true => key,
            false => read(&items[0], attribute, default)?,
        };
        seq(SeqKind::Group, vec![key, list(items)?])
    });
    list(groups.collect::<Result<_, Error>>()?)
}

fn join(value: &Value, args: &Bound) -> Result<Value, Error> {
    let separator = match args.get(0) {
        None => String::new(),
        Some(separator) => print::str(separator)?.into_owned(),
    };
    let mut out = String::new();
    for (i, item) in iterate(value)?.iter().enumerate() {
        let item = read(item, args.some(1), None)?;
        let text = print::str(&item)?;
        meter::charge(text.len() + separator.len())?;
        out.push_str(if i > 0 { &separator } else { "" });
        out.push_str(&text);
    }
    Ok(Value::from(out))
}

fn sum(value: &Value, args: &Bound) -> Result<Value, Error> {
    let mut sum = args.get(1).cloned().unwrap_or_else(|| Value::from(0));
    if type_of(&sum) == Type::Str {
        return Err(wrong("sum() can't sum strings [use ''.join(seq) instead]"));
    }
    for item in iterate(value)? {
        sum = ops::binary("+", &sum, &read(&item, args.some(0), None)?)?;
    }
    Ok(sum)
}

fn count(args: &Bound) -> Result<usize, Error> {
    args.required(0)?;
    let count = args.int(0, 0)?;
    usize::try_from(count)
        .ok()
        .filter(|count| *count > 0)
        .ok_or_else(|| args.unfit(0, "a positive integer"))
}

fn batch(value: &Value, args: &Bound) -> Result<Value, Error> {
    let size = count(args)?;
    let items = iterate(value)?;
    let mut batches = Vec::new();
    for chunk in items.chunks(size) {
        let mut chunk = chunk.to_vec();
        if let Some(fill) = args.some(1) {
            meter::charge_items(size - chunk.len())?;
            chunk.resize(size, fill.clone());
        }
        batches.push(list(chunk)?);
    }
    generator(batches)
}

fn slice(value: &Value, args: &Bound) -> Result<Value, Error> {
    let slices = count(args)?;
    meter::charge_items(slices)?;
    let items = iterate(value)?;
    let (each, extra) = (items.len() / slices, items.len() % slices);
    let mut at = 0;
    let mut out = Vec::new();
    for number in 0..slices {
        let size = each + usize::from(number < extra);
        let mut part = items[at..at + size].to_vec();
        at += size;
        if let (Some(fill), true) = (args.some(1), number >= extra) {
            part.push(fill.clone());
        }
        out.push(list(part)?);
    }
    generator(out)
}

fn reverse(value: &Value, _: &Bound) -> Result<Value, Error> {
    match (type_of(value), value.as_str()) {
        (Type::Str, Some(text)) => {
            meter::charge(text.len())?;
            Ok(Value::from(text.chars().rev().collect::<String>()))
        }
        (kind, _) => {
            let mut items = iterate(value)?;
            items.reverse();
            match kind {
                Type::Generator => list(items),
                _ => generator(items),
            }
        }
    }
}
