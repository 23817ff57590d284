//! The filter `tojson` of transformers: Python's `json.dumps` with `ensure_ascii=False`.

use minijinja::value::{DynObject, Kwargs, ValueKind};
use minijinja::{Error, State, Value};

use super::value::{WideFloat, float_text, is_list, refused};

/// The filter.
///
/// # Errors
/// The value holds what JSON has none of, or there is no fuel left for it.
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
    let mut writer = Writer {
        state,
        is_ascii: is_ascii.unwrap_or(false),
        indent,
        between: &separators[0],
        after_key: &separators[1],
        depth: 0,
        out: String::new(),
    };
    writer.value(value)?;
    Ok(writer.out)
}

struct Writer<'a, 'b> {
    state: &'a State<'b, 'b>,
    is_ascii: bool,
    indent: Option<usize>,
    between: &'a str,
    after_key: &'a str,
    depth: usize,
    out: String,
}

impl Writer<'_, '_> {
    fn value(&mut self, value: &Value) -> Result<(), Error> {
        match value.kind() {
            ValueKind::String => self.text(value.as_str().unwrap_or_default()),
            ValueKind::Map => {
                let pairs = value.as_object().and_then(DynObject::try_iter_pairs);
                self.container(
                    '{',
                    '}',
                    pairs.into_iter().flatten(),
                    |writer, (key, value)| {
                        let key = match key.as_str() {
                            Some(key) => key.to_owned(),
                            None => writer.scalar(&key)?,
                        };
                        writer.text(&key);
                        writer.out.push_str(writer.after_key);
                        writer.value(&value)
                    },
                )?;
            }
            _ if is_list(value) => {
                self.container('[', ']', value.try_iter()?, |writer, item| {
                    writer.value(&item)
                })?;
            }
            _ => {
                let text = self.scalar(value)?;
                self.out.push_str(&text);
            }
        }
        Ok(())
    }

    fn scalar(&self, value: &Value) -> Result<String, Error> {
        let number = |number: f64| match number {
            f64::INFINITY => "Infinity".to_owned(),
            f64::NEG_INFINITY => "-Infinity".to_owned(),
            number if number.is_nan() => "NaN".to_owned(),
            number => float_text(number),
        };
        Ok(match value.kind() {
            ValueKind::None => "null".to_owned(),
            ValueKind::Bool => if value.is_true() { "true" } else { "false" }.to_owned(),
            ValueKind::Number if value.is_integer() => value.to_string(),
            ValueKind::Number => number(f64::try_from(value.clone())?),
            kind => match value.downcast_object_ref::<WideFloat>() {
                Some(float) => number(float.0),
                None => {
                    return Err(refused(format!(
                        "tojson: found a value of type {kind}, expected what JSON has"
                    )));
                }
            },
        })
    }

    fn container<T>(
        &mut self,
        open: char,
        close: char,
        items: impl Iterator<Item = T>,
        mut write: impl FnMut(&mut Self, T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        self.depth += 1;
        let mut is_empty = true;
        for item in items {
            // What is charged when the text is there already comes too late where a list holds itself many times.
            self.state.consume_fuel(1)?;
            if !is_empty {
                self.out.push_str(self.between);
            }
            is_empty = false;
            self.new_line();
            write(self, item)?;
        }
        self.depth -= 1;
        if !is_empty {
            self.new_line();
        }
        self.out.push(close);
        Ok(())
    }

    fn new_line(&mut self) {
        if let Some(indent) = self.indent {
            self.out.push('\n');
            self.out.push_str(&" ".repeat(indent * self.depth));
        }
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || self.is_ascii && !(' '..='~').contains(&c) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}
