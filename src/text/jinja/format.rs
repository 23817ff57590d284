//! Python's two ways to format: `'%s' % value` and `'{}'.format(value)`.

use crate::quote;
use minijinja::{Error, Value};

use super::value::numbers;
use super::value::{Dict, Key, Type, items_of, type_of, wrong};
use super::{access, args, meter, print, spec, value};

/// `template % values`.
pub fn percent(template: &Value, values: &Value) -> Result<Value, Error> {
    if template.is_safe() {
        return Err(wrong(
            "% of text that `escape` or `safe` made is not supported here",
        ));
    }
    let text = template.as_str().unwrap_or_default();
    let one = [values.clone()];
    let positional = match type_of(values) {
        Type::Tuple => items_of(values).unwrap_or_default(),
        _ => &one,
    };
    percent_with(text, positional, Some(values)).map(Value::from)
}

/// The same with the values in a slice. `whole` is what `%` was applied to: a dict may have more than is used.
pub fn percent_with(
    text: &str,
    positional: &[Value],
    whole: Option<&Value>,
) -> Result<String, Error> {
    let mut out = String::new();
    let mut next = 0;
    let mut named = false;
    let mut take = || -> Result<Value, Error> {
        let value = positional
            .get(next)
            .cloned()
            .ok_or_else(|| wrong("not enough arguments for format string"))?;
        next += 1;
        Ok(value)
    };
    let mut chars = text.chars().peekable();
    meter::charge(text.len())?;
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut value = None;
        if chars.next_if_eq(&'(').is_some() {
            let mut key = String::new();
            let mut depth = 1;
            loop {
                let c = chars.next().ok_or_else(|| wrong("incomplete format key"))?;
                depth += i32::from(c == '(') - i32::from(c == ')');
                if depth == 0 {
                    break;
                }
                key.push(c);
            }
            let dict = whole.filter(|whole| type_of(whole) == Type::Dict);
            let dict = dict.ok_or_else(|| wrong("format requires a mapping"))?;
            value = Some(
                value::entry(dict, &Key::Str(key.as_str().into())).ok_or_else(|| {
                    wrong(format!(
                        "the format names {key:?}, which the mapping has not"
                    ))
                })?,
            );
            named = true;
        }
        let mut spec = spec::Spec::default();
        while let Some(flag) = chars.next_if(|c| "-+ 0#".contains(*c)) {
            match flag {
                '-' => spec.align = Some('<'),
                '+' => spec.sign = '+',
                ' ' if spec.sign != '+' => spec.sign = ' ',
                '0' => spec.zero = true,
                '#' => spec.alternate = true,
                _ => {}
            }
        }
        let number = |chars: &mut std::iter::Peekable<std::str::Chars>,
                      take: &mut dyn FnMut() -> Result<Value, Error>|
         -> Result<Option<i128>, Error> {
            if chars.next_if_eq(&'*').is_some() {
                return numbers::int(&take()?).map(Some);
            }
            let mut digits = String::new();
            while let Some(digit) = chars.next_if(char::is_ascii_digit) {
                digits.push(digit);
            }
            match digits.is_empty() {
                true => Ok(None),
                false => digits.parse().map(Some).map_err(|_| wrong("width too big")),
            }
        };
        if let Some(width) = number(&mut chars, &mut take)? {
            if width < 0 {
                spec.align = Some('<');
            }
            spec.width =
                usize::try_from(width.unsigned_abs()).map_err(|_| wrong("width too big"))?;
        }
        if chars.next_if_eq(&'.').is_some() {
            let precision = number(&mut chars, &mut take)?.unwrap_or(0).max(0);
            spec.precision = Some(usize::try_from(precision).unwrap_or(usize::MAX));
        }
        while chars.next_if(|c| "hlL".contains(*c)).is_some() {}
        let conversion = chars.next().ok_or_else(|| wrong("incomplete format"))?;
        if conversion == '%' {
            if spec.width > 0 || spec.precision.is_some() {
                return Err(wrong("a width before %% is not supported here"));
            }
            out.push('%');
            continue;
        }
        let value = match value {
            Some(value) => value,
            None => take()?,
        };
        out.push_str(&spec::percent(spec, conversion, &value)?);
    }
    let whole_is_dict = whole.is_some_and(|whole| type_of(whole) == Type::Dict);
    let unused = next < positional.len() && !named && !whole_is_dict;
    // A list, too, may be left: Python takes it for a mapping.
    let mapping = whole.is_some_and(|whole| matches!(type_of(whole), Type::List | Type::Range));
    match unused && !mapping {
        true => Err(wrong(
            "not all arguments converted during string formatting",
        )),
        false => Ok(out),
    }
}

/// `template.format(arguments)`.
pub fn braces(template: &Value, arguments: &[Value]) -> Result<Value, Error> {
    if template.is_safe() {
        return Err(wrong(
            "format of text that `escape` or `safe` made is not supported here",
        ));
    }
    let (positional, named) = args::split(arguments)?;
    let named = |name: &str| {
        named
            .as_ref()
            .and_then(|named| named.peek::<Value>(name).ok())
    };
    let mut fields = Fields {
        positional,
        named: &named,
        next: Some(0),
        manual: false,
    };
    fields
        .format(template.as_str().unwrap_or_default(), 3)
        .map(Value::from)
}

/// `template.format_map(mapping)`.
pub fn map(template: &Value, mapping: &Value) -> Result<Value, Error> {
    let dict = mapping
        .downcast_object_ref::<Dict>()
        .ok_or_else(|| wrong("format_map: expected a mapping"))?;
    let named = |name: &str| dict.get(&Key::Str(name.into())).cloned();
    let mut fields = Fields {
        positional: &[],
        named: &named,
        next: Some(0),
        manual: false,
    };
    fields
        .format(template.as_str().unwrap_or_default(), 3)
        .map(Value::from)
}

struct Fields<'a> {
    positional: &'a [Value],
    named: &'a dyn Fn(&str) -> Option<Value>,
    /// The number of the next `{}`.
    next: Option<usize>,
    /// Whether some field had a number of its own.
    manual: bool,
}

impl Fields<'_> {
    fn format(&mut self, text: &str, depth: usize) -> Result<String, Error> {
        if depth == 0 {
            return Err(wrong("Max string recursion exceeded"));
        }
        meter::charge(text.len())?;
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            out.push_str(&rest[..at]);
            let brace = &rest[at..=at];
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix(brace) {
                out.push_str(brace);
                rest = after;
                continue;
            }
            if brace == "}" {
                return Err(wrong("Single '}' encountered in format string"));
            }
            let (field, conversion, spec, after) = split_field(rest)?;
            rest = after;
            let value = self.value(field)?;
            let spec = self.format(spec, depth - 1)?;
            out.push_str(&match conversion {
                None => spec::format(&value, &spec)?,
                Some("s") => spec::format(&Value::from(print::str(&value)?.as_ref()), &spec)?,
                Some("r") => spec::format(&Value::from(print::repr(&value)?), &spec)?,
                Some(other) => {
                    return Err(wrong(format!(
                        "the conversion !{} of a format is not supported here, expected !s or !r",
                        quote::text(other)
                    )));
                }
            });
        }
        out.push_str(rest);
        Ok(out)
    }

    /// The value of `name.attribute[item]`.
    fn value(&mut self, field: &str) -> Result<Value, Error> {
        let end = field.find(['.', '[']).unwrap_or(field.len());
        let (first, mut rest) = field.split_at(end);
        let mut value = if first.is_empty() || first.bytes().all(|byte| byte.is_ascii_digit()) {
            let at = match first {
                "" if self.manual => {
                    return Err(wrong(
                        "cannot switch from manual field specification to automatic field numbering",
                    ));
                }
                "" => {
                    let at = self.next.unwrap_or(0);
                    self.next = Some(at + 1);
                    at
                }
                digits => {
                    if self.next.is_some_and(|next| next > 0) {
                        return Err(wrong(
                            "cannot switch from automatic field numbering to manual field specification",
                        ));
                    }
                    self.manual = true;
                    digits
                        .parse()
                        .map_err(|_| wrong("Too many decimal digits in format string"))?
                }
            };
            self.positional.get(at).cloned().ok_or_else(|| {
                wrong(format!(
                    "the format has a field {at}, which no argument fills"
                ))
            })?
        } else {
            (self.named)(first).ok_or_else(|| {
                wrong(format!(
                    "the format has a field {first:?}, which no argument fills"
                ))
            })?
        };
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix('[') {
                let (key, after) = after
                    .split_once(']')
                    .ok_or_else(|| wrong("Missing ']' in format string"))?;
                let key = match key.parse::<i64>() {
                    Ok(number) if key.bytes().all(|byte| byte.is_ascii_digit()) => {
                        Value::from(number)
                    }
                    _ => Value::from(key),
                };
                value = access::item(&value, &key)?;
                rest = after;
            } else {
                let after = rest.strip_prefix('.').ok_or_else(|| {
                    wrong("Only '.' or '[' may follow ']' in format field specifier")
                })?;
                let end = after.find(['.', '[']).unwrap_or(after.len());
                value = access::attribute(&value, &after[..end])?;
                rest = &after[end..];
            }
        }
        Ok(value)
    }
}

type Field<'a> = (&'a str, Option<&'a str>, &'a str, &'a str);

/// What follows a `{`: the field, its conversion, its specification, and the rest of the text.
fn split_field(text: &str) -> Result<Field<'_>, Error> {
    let mut depth = 1usize;
    let mut end = None;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            end = Some(at);
            break;
        }
    }
    let end = end.ok_or_else(|| wrong("expected '}' before end of string"))?;
    let (inner, rest) = (&text[..end], &text[end + 1..]);
    let stop = inner.find(['!', ':']).unwrap_or(inner.len());
    let (field, tail) = inner.split_at(stop);
    if let Some(tail) = tail.strip_prefix('!') {
        let (conversion, spec) = match tail.split_once(':') {
            Some((conversion, spec)) => (conversion, spec),
            None => (tail, ""),
        };
        return Ok((field, Some(conversion), spec, rest));
    }
    Ok((field, None, tail.strip_prefix(':').unwrap_or(""), rest))
}
