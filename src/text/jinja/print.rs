//! The texts of values: Python's `str` and `repr`, and the filter `tojson`.

use minijinja::value::{DynObject, Kwargs, ValueKind};
use minijinja::{Error, State, Value};

use super::value::{Safe, is_engines, is_list, refused};
use crate::quote;

/// Python's `str` of a value.
///
/// # Errors
/// Python prints an address in the value, or prints it in a way that is not known here.
pub fn text(state: &State, value: &Value) -> Result<String, Error> {
    if let Some(Safe(text)) = value.downcast_object_ref() {
        return Ok(text.clone());
    }
    match value.kind() {
        ValueKind::String => Ok(value.as_str().unwrap_or_default().to_owned()),
        ValueKind::Undefined => Ok(String::new()),
        _ => Writer::new(state).write(value),
    }
}

/// The filter `tojson` of transformers: Python's `json.dumps` with `ensure_ascii=False`.
///
/// # Errors
/// The value holds what JSON cannot, or there is no fuel left for it.
pub fn tojson(state: &State, value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let is_ascii: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let between = if indent.is_some() { "," } else { ", " };
    let separators = separators.unwrap_or_else(|| vec![between.to_owned(), ": ".to_owned()]);
    if indent > Some(64) || separators.len() != 2 {
        return Err(refused(
            "tojson: expected an indent of at most 64 and two separators",
        ));
    }
    let writer = Writer {
        is_json: true,
        is_ascii: is_ascii.unwrap_or(false),
        indent,
        between: &separators[0],
        after_key: &separators[1],
        ..Writer::new(state)
    };
    writer.write(value)
}

/// Writes values as JSON or as Python's `repr`.
struct Writer<'a, 'b> {
    state: &'a State<'b, 'b>,
    is_json: bool,
    is_ascii: bool,
    /// Spaces for each open container, where every item has a line of its own.
    indent: Option<usize>,
    between: &'a str,
    after_key: &'a str,
    /// How many containers are open.
    depth: usize,
    out: String,
}

impl<'a, 'b> Writer<'a, 'b> {
    /// A writer of Python's `repr`.
    fn new(state: &'a State<'b, 'b>) -> Self {
        Self {
            state,
            is_json: false,
            is_ascii: false,
            indent: None,
            between: ", ",
            after_key: ": ",
            depth: 0,
            out: String::new(),
        }
    }

    fn write(mut self, value: &Value) -> Result<String, Error> {
        self.value(value)?;
        Ok(self.out)
    }

    fn value(&mut self, value: &Value) -> Result<(), Error> {
        let is_json = self.is_json;
        match value.kind() {
            ValueKind::String => self.string(value.as_str().unwrap_or_default())?,
            ValueKind::None => self.out.push_str(if is_json { "null" } else { "None" }),
            ValueKind::Bool if is_json => {
                self.out
                    .push_str(if value.is_true() { "true" } else { "false" })
            }
            ValueKind::Bool => self
                .out
                .push_str(if value.is_true() { "True" } else { "False" }),
            ValueKind::Number if value.is_integer() => self.out.push_str(&value.to_string()),
            ValueKind::Number => self.float(f64::try_from(value.clone())?),
            ValueKind::Map if !is_engines(value) => {
                let pairs = value.as_object().and_then(DynObject::try_iter_pairs);
                self.container(
                    ["{", "}"],
                    pairs.into_iter().flatten(),
                    |writer, (key, value)| {
                        writer.key(&key)?;
                        writer.value(&value)
                    },
                )?;
            }
            _ if is_list(value) => {
                let ends = match (value.is_tuple() && !is_json, value.len()) {
                    (true, Some(1)) => ["(", ",)"],
                    (true, _) => ["(", ")"],
                    (false, _) => ["[", "]"],
                };
                self.container(ends, value.try_iter()?, |writer, item| writer.value(&item))?;
            }
            kind => {
                return Err(refused(format!(
                    "found a value of type {kind} to print, expected one whose text in Python is known here"
                )));
            }
        }
        Ok(())
    }

    fn container<T>(
        &mut self,
        [open, close]: [&str; 2],
        items: impl Iterator<Item = T>,
        mut write: impl FnMut(&mut Self, T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push_str(open);
        self.depth += 1;
        let mut is_empty = true;
        for item in items {
            self.charge(self.between.len() + self.after_key.len())?;
            if !is_empty {
                self.out.push_str(self.between);
            }
            is_empty = false;
            self.new_line()?;
            write(self, item)?;
        }
        self.depth -= 1;
        if !is_empty {
            self.new_line()?;
        }
        self.out.push_str(close);
        Ok(())
    }

    /// Takes fuel for an item or a text before it is written. minijinja takes it for the finished text, which is too late: a
    /// list may hold another one many times.
    fn charge(&self, bytes: usize) -> Result<(), Error> {
        self.state.consume_fuel(1 + bytes as u64 / 16)
    }

    fn new_line(&mut self) -> Result<(), Error> {
        if let Some(indent) = self.indent {
            self.charge(indent * self.depth)?;
            self.out.push('\n');
            self.out.push_str(&" ".repeat(indent * self.depth));
        }
        Ok(())
    }

    /// Writes a dict's key and what separates it from its value. JSON has a key that is a number, bool or null as a string.
    fn key(&mut self, key: &Value) -> Result<(), Error> {
        let quote = match key.kind() {
            ValueKind::None | ValueKind::Bool | ValueKind::Number if self.is_json => "\"",
            kind if kind != ValueKind::String && self.is_json => {
                return Err(refused(format!(
                    "tojson: found a key of type {kind}, expected a string"
                )));
            }
            _ => "",
        };
        self.out.push_str(quote);
        self.value(key)?;
        self.out.push_str(quote);
        self.out.push_str(self.after_key);
        Ok(())
    }

    fn float(&mut self, value: f64) {
        // Rust prints the digits that Python prints, and an exponent in the same places, but as e7 for e+07.
        let text = match (value.is_finite(), self.is_json) {
            (true, _) | (false, true) => format!("{value:?}").replace("inf", "Infinity"),
            (false, false) => value.to_string().to_lowercase(),
        };
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, ""));
        self.out.push_str(digits);
        if let Ok(exponent) = exponent.parse::<i32>() {
            self.out.push_str(&format!("e{exponent:+03}"));
        }
    }

    fn string(&mut self, text: &str) -> Result<(), Error> {
        self.charge(text.len())?;
        let has_apostrophe = text.contains('\'') && !text.contains('"');
        let quote = if self.is_json || has_apostrophe {
            '"'
        } else {
            '\''
        };
        self.out.push(quote);
        for c in text.chars() {
            match (c, self.is_json) {
                ('\n', _) => self.out.push_str("\\n"),
                ('\r', _) => self.out.push_str("\\r"),
                ('\t', _) => self.out.push_str("\\t"),
                ('\u{8}', true) => self.out.push_str("\\b"),
                ('\u{c}', true) => self.out.push_str("\\f"),
                _ if c == quote || c == '\\' => self.out.extend(['\\', c]),
                (' '..='~', _) => self.out.push(c),
                (_, false) if quote::is_printable(c) => self.out.push(c),
                (_, false) => self.out.push_str(&match u32::from(c) {
                    code @ 0..=0xff => format!("\\x{code:02x}"),
                    code @ 0x100..=0xffff => format!("\\u{code:04x}"),
                    code => format!("\\U{code:08x}"),
                }),
                (' '.., _) if !self.is_ascii => self.out.push(c),
                _ => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
            }
        }
        self.out.push(quote);
        Ok(())
    }
}
