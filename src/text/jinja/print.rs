//! Values as Python writes them: `str()`, `repr()` and `json.dumps()`.

use std::borrow::Cow;
use std::fmt::Write as _;

use minijinja::{Error, Value};

use super::value::numbers;
use super::value::{Dict, Namespace, Seq, SeqKind, Type, iterate, name, type_of, wrong};
use super::{characters, compare, meter};

/// Python's `str(value)`; an undefined value is empty, as where Jinja2 prints one.
///
/// # Errors
/// Python would write an address in memory, or the text is more than the rendering may still make.
pub fn str(value: &Value) -> Result<Cow<'_, str>, Error> {
    match type_of(value) {
        Type::Undefined => Ok(Cow::Borrowed("")),
        Type::Str => Ok(Cow::Borrowed(value.as_str().unwrap_or_default())),
        _ => repr(value).map(Cow::Owned),
    }
}

/// Python's `repr(value)`.
///
/// # Errors
/// As for [`str()`].
pub fn repr(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    write_repr(value, &mut out)?;
    Ok(out)
}

/// A value in a message: cut where it is long.
pub fn brief(value: &Value) -> String {
    let text = repr(value).unwrap_or_else(|_| format!("a value of type '{}'", name(value)));
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn write_repr(value: &Value, out: &mut String) -> Result<(), Error> {
    match type_of(value) {
        Type::Undefined => out.push_str("Undefined"),
        Type::None => out.push_str("None"),
        Type::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        Type::Int => _ = write!(out, "{value}"),
        Type::Float => float(numbers::float(value)?, ["nan", "inf"], out),
        Type::Str if value.is_safe() => {
            out.push_str("Markup(");
            repr_str(value.as_str().unwrap_or_default(), out)?;
            out.push(')');
        }
        Type::Str => repr_str(value.as_str().unwrap_or_default(), out)?,
        Type::Dict => match value.downcast_object_ref::<Dict>() {
            Some(dict) => write_dict(dict.iter().map(|(key, value)| (key, value)), out)?,
            None => return Err(wrong("keyword arguments cannot be printed here")),
        },
        Type::Namespace => {
            let pairs = value
                .downcast_object_ref::<Namespace>()
                .map(Namespace::pairs);
            let pairs: Vec<(Value, Value)> = pairs
                .unwrap_or_default()
                .into_iter()
                .map(|(name, value)| (Value::from(name), value))
                .collect();
            out.push_str("<Namespace ");
            write_dict(pairs.iter().map(|(name, value)| (name, value)), out)?;
            out.push('>');
        }
        Type::Generator | Type::Other => {
            return Err(wrong(format!(
                "found a value of type '{}' to print, which Python shows as an address in memory; expected text (a call of it, or `| list`)",
                name(value)
            )));
        }
        Type::List | Type::Tuple | Type::Range | Type::View => {
            match value.downcast_object_ref::<Seq>() {
                Some(seq) => write_seq(seq, out)?,
                None => out.push_str("[]"),
            }
        }
    }
    meter::charge(8)
}

fn write_dict<'a>(
    pairs: impl Iterator<Item = (&'a Value, &'a Value)>,
    out: &mut String,
) -> Result<(), Error> {
    out.push('{');
    for (i, (key, value)) in pairs.enumerate() {
        out.push_str(if i > 0 { ", " } else { "" });
        write_repr(key, out)?;
        out.push_str(": ");
        write_repr(value, out)?;
    }
    out.push('}');
    Ok(())
}

fn write_seq(seq: &Seq, out: &mut String) -> Result<(), Error> {
    let (open, close) = match seq.kind {
        SeqKind::List => ("[", "]"),
        SeqKind::Tuple | SeqKind::Group if seq.items.len() == 1 => ("(", ",)"),
        SeqKind::Tuple | SeqKind::Group => ("(", ")"),
        SeqKind::Keys => ("dict_keys([", "])"),
        SeqKind::Values => ("dict_values([", "])"),
        SeqKind::Items => ("dict_items([", "])"),
        SeqKind::Range { start, stop, step } => {
            _ = match step {
                1 => write!(out, "range({start}, {stop})"),
                _ => write!(out, "range({start}, {stop}, {step})"),
            };
            return Ok(());
        }
    };
    out.push_str(open);
    for (i, item) in seq.items.iter().enumerate() {
        out.push_str(if i > 0 { ", " } else { "" });
        write_repr(item, out)?;
    }
    out.push_str(close);
    Ok(())
}

/// HTML's special characters as markupsafe writes them.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
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

/// Python's `repr(float)`: the shortest digits that read back the same, as a power of ten below 1e-4 and
/// from 1e16 on. `names` are those of not-a-number and infinity.
pub fn float(x: f64, names: [&str; 2], out: &mut String) {
    if x.is_nan() {
        return out.push_str(names[0]);
    }
    if x.is_infinite() {
        out.push_str(if x < 0.0 { "-" } else { "" });
        return out.push_str(names[1]);
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        // Debug writes a fraction always, and no exponent in this range.
        _ = match format!("{x:?}") {
            text if !text.contains('e') => write!(out, "{text}"),
            _ => write!(out, "{x}"),
        };
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        _ = write!(out, "{digits}e{sign}{:02}", exponent.abs());
    }
}

/// Single quotes unless only those are inside; what Python does not count as printable is escaped.
fn repr_str(text: &str, out: &mut String) -> Result<(), Error> {
    meter::charge(text.len())?;
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if characters::is_printable(c) => out.push(c),
            c => {
                let code = u32::from(c);
                _ = match code {
                    0..=0xff => write!(out, "\\x{code:02x}"),
                    0x100..=0xffff => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
    Ok(())
}

/// The arguments of Python's `json.dumps` that transformers' `tojson` passes on.
#[derive(Debug, Default)]
pub struct JsonStyle {
    pub ensure_ascii: bool,
    /// What one level is indented by; `None` for one line.
    pub indent: Option<String>,
    /// Between items, and between key and value.
    pub separators: Option<(String, String)>,
    pub sort_keys: bool,
}

impl JsonStyle {
    /// # Errors
    /// `value` holds something JSON has no form for (an undefined value, a macro).
    pub fn dumps(&self, value: &Value) -> Result<String, Error> {
        let (item, key) = match &self.separators {
            Some((item, key)) => (item.as_str(), key.as_str()),
            None if self.indent.is_some() => (",", ": "),
            None => (", ", ": "),
        };
        let mut out = String::new();
        self.write(value, [item, key], 0, &mut out)?;
        Ok(out)
    }

    fn write(
        &self,
        value: &Value,
        by: [&str; 2],
        depth: usize,
        out: &mut String,
    ) -> Result<(), Error> {
        let unfit = || {
            wrong(format!(
                "tojson: Object of type {} is not JSON serializable",
                name(value)
            ))
        };
        meter::charge(8)?;
        match type_of(value) {
            Type::List | Type::Tuple => {
                let items = iterate(value)?;
                self.write_all(["[", "]"], by, depth, &items, out, |item, out| {
                    self.write(item, by, depth + 1, out)
                })
            }
            Type::Dict => {
                let dict = value.downcast_object_ref::<Dict>().ok_or_else(unfit)?;
                let mut pairs: Vec<&(Value, Value)> = dict.iter().collect();
                if self.sort_keys {
                    let mut failed = None;
                    pairs.sort_by(|(a, _), (b, _)| {
                        compare::order("<", a, b)
                            .unwrap_or_else(|error| {
                                failed = Some(error);
                                None
                            })
                            .unwrap_or(std::cmp::Ordering::Equal)
                    });
                    if let Some(error) = failed {
                        return Err(error);
                    }
                }
                self.write_all(["{", "}"], by, depth, &pairs, out, |(key, value), out| {
                    match type_of(key) {
                        Type::Str => self.write_str(key.as_str().unwrap_or_default(), out)?,
                        Type::Bool | Type::None | Type::Int | Type::Float => {
                            out.push('"');
                            self.write(key, by, depth + 1, out)?;
                            out.push('"');
                        }
                        _ => return Err(unfit()),
                    }
                    out.push_str(by[1]);
                    self.write(value, by, depth + 1, out)
                })
            }
            Type::None => {
                out.push_str("null");
                Ok(())
            }
            Type::Bool => {
                out.push_str(if value.is_true() { "true" } else { "false" });
                Ok(())
            }
            Type::Int => {
                _ = write!(out, "{value}");
                Ok(())
            }
            Type::Float => {
                float(numbers::float(value)?, ["NaN", "Infinity"], out);
                Ok(())
            }
            Type::Str => self.write_str(value.as_str().unwrap_or_default(), out),
            _ => Err(unfit()),
        }
    }

    fn write_all<T>(
        &self,
        brackets: [&str; 2],
        by: [&str; 2],
        depth: usize,
        items: &[T],
        out: &mut String,
        mut write: impl FnMut(&T, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let line = |depth: usize, out: &mut String| -> Result<(), Error> {
            if let (Some(indent), false) = (&self.indent, items.is_empty()) {
                meter::charge(indent.len().saturating_mul(depth) + by[0].len())?;
                out.push('\n');
                out.push_str(&indent.repeat(depth));
            }
            Ok(())
        };
        out.push_str(brackets[0]);
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                meter::charge(by[0].len())?;
                out.push_str(by[0]);
            }
            line(depth + 1, out)?;
            write(item, out)?;
        }
        line(depth, out)?;
        out.push_str(brackets[1]);
        Ok(())
    }

    fn write_str(&self, text: &str, out: &mut String) -> Result<(), Error> {
        meter::charge(text.len())?;
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && c > '~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_in_python() {
        for (x, expected) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.5, "1.5"),
            (100000.0, "100000.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.25e22, "1.25e+22"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (0.1 + 0.2, "0.30000000000000004"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(str(&Value::from(x)).unwrap(), expected);
        }
    }

    #[test]
    fn containers_are_written_as_in_python() {
        let value = super::super::value::from_json(&serde_json::json!(
            {"a": [true, null, 1, -2.0, "it's", "say \"it's\"", "\u{7}\u{a0}é\\"], "b": {}, "c": []}
        ))
        .unwrap();
        assert_eq!(
            str(&value).unwrap(),
            r#"{'a': [True, None, 1, -2.0, "it's", 'say "it\'s"', '\x07\xa0é\\'], 'b': {}, 'c': []}"#
        );
    }
}
