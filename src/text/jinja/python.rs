//! Values as Python writes them: `str()`, `repr()` and `json.dumps()`.

use std::fmt::Write as _;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// Python's `str(value)`; an undefined value is empty, as where Jinja2 prints one.
pub fn str(value: &Value) -> String {
    match value.kind() {
        ValueKind::Undefined => String::new(),
        ValueKind::String => value.as_str().unwrap_or_default().to_owned(),
        _ => {
            let mut out = String::new();
            repr(value, &mut out);
            out
        }
    }
}

fn repr(value: &Value, out: &mut String) {
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => number(value, out),
        ValueKind::String => repr_str(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (i, item) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(&item, out);
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(&key, out);
                out.push_str(": ");
                repr(&value.get_item(&key).unwrap_or_default(), out);
            }
            out.push('}');
        }
        // Macros, namespaces, bytes: Python writes an address, nothing a template can mean.
        _ => _ = write!(out, "{value}"),
    }
}

fn number(value: &Value, out: &mut String) {
    if value.is_integer() {
        _ = write!(out, "{value}");
    } else {
        float(
            f64::try_from(value.clone()).unwrap_or(f64::NAN),
            ["nan", "inf"],
            out,
        );
    }
}

/// Python's `repr(float)`: the shortest digits that read back the same, as a power of ten below 1e-4 and
/// from 1e16 on. `names` are those of not-a-number and infinity.
fn float(x: f64, names: [&str; 2], out: &mut String) {
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
fn repr_str(text: &str, out: &mut String) {
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
            c if is_printable(c) => out.push(c),
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
}

/// Python's `str.isprintable` for the characters in use: not controls, formats, private use or any space
/// but U+0020. (Characters that Unicode has not assigned yet count as printable here.)
fn is_printable(c: char) -> bool {
    c == ' '
        || !(c.is_control()
            || c.is_whitespace()
            || matches!(c, '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{180e}'
                | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
                | '\u{e000}'..='\u{f8ff}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{10ffff}'))
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
            let message = format!("tojson: a value of type {} has no JSON form", value.kind());
            Error::new(ErrorKind::InvalidOperation, message)
        };
        match value.kind() {
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.write_all(["[", "]"], by, depth, &items, out, |item, out| {
                    self.write(item, by, depth + 1, out)
                })
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.write_all(["{", "}"], by, depth, &keys, out, |key, out| {
                    match key.kind() {
                        ValueKind::String => self.write_str(key.as_str().unwrap_or_default(), out),
                        ValueKind::Bool | ValueKind::None | ValueKind::Number => {
                            out.push('"');
                            self.write(key, by, depth + 1, out)?;
                            out.push('"');
                        }
                        _ => return Err(unfit()),
                    }
                    out.push_str(by[1]);
                    self.write(&value.get_item(key)?, by, depth + 1, out)
                })
            }
            ValueKind::None => {
                out.push_str("null");
                Ok(())
            }
            ValueKind::Bool => {
                out.push_str(if value.is_true() { "true" } else { "false" });
                Ok(())
            }
            ValueKind::Number if value.is_integer() => {
                _ = write!(out, "{value}");
                Ok(())
            }
            ValueKind::Number => {
                let x = f64::try_from(value.clone()).unwrap_or(f64::NAN);
                float(x, ["NaN", "Infinity"], out);
                Ok(())
            }
            ValueKind::String => {
                self.write_str(value.as_str().unwrap_or_default(), out);
                Ok(())
            }
            _ => Err(unfit()),
        }
    }

    fn write_all(
        &self,
        brackets: [&str; 2],
        by: [&str; 2],
        depth: usize,
        items: &[Value],
        out: &mut String,
        mut write: impl FnMut(&Value, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let line = |depth: usize, out: &mut String| {
            if let (Some(indent), false) = (&self.indent, items.is_empty()) {
                out.push('\n');
                out.push_str(&indent.repeat(depth));
            }
        };
        out.push_str(brackets[0]);
        for (i, item) in items.iter().enumerate() {
            out.push_str(if i > 0 { by[0] } else { "" });
            line(depth + 1, out);
            write(item, out)?;
        }
        line(depth, out);
        out.push_str(brackets[1]);
        Ok(())
    }

    fn write_str(&self, text: &str, out: &mut String) {
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
            assert_eq!(str(&Value::from(x)), expected);
        }
    }

    #[test]
    fn containers_are_written_as_in_python() {
        let value = Value::from_serialize(serde_json::json!(
            {"a": [true, null, 1, -2.0, "it's", "say \"it's\"", "\u{7}\u{a0}é\\"], "b": {}, "c": []}
        ));
        assert_eq!(
            str(&value),
            r#"{'a': [True, None, 1, -2.0, "it's", 'say "it\'s"', '\x07\xa0é\\'], 'b': {}, 'c': []}"#
        );
    }
}
