//! The one grammar of calls: Python's calls and JSON's objects, of literals as either of them spells them. Nothing is
//! computed.

use super::Call;
use crate::quote;
use indexmap::IndexMap;
use std::iter::Peekable;
use std::str::Chars;

/// How deep lists and dictionaries may lie in each other.
const MAX_DEPTH: usize = 64;

type Read<T> = Result<T, String>;

/// Fields in their order; values are JSON.
type Fields = IndexMap<String, String>;

/// A call or a list of calls, such as `[f(x=1), g.h(y="a")]` and `{"name": "f", "arguments": {"x": 1}}`. Numbers keep
/// their digits.
pub(super) fn calls(text: &str) -> Read<Vec<Call>> {
    let mut reader = Reader::of(text);
    let calls = if reader.takes('[') {
        reader.items(']', Reader::call)?
    } else {
        vec![reader.call()?]
    };
    reader.end(calls)
}

struct Reader<'a> {
    rest: Peekable<Chars<'a>>,
    /// Within an object that is a call: `\/` is JSON's slash there, and two characters in Python.
    in_object: bool,
}

impl<'a> Reader<'a> {
    fn of(text: &'a str) -> Self {
        Self {
            rest: text.chars().peekable(),
            in_object: false,
        }
    }

    /// `read`, behind which there must be nothing.
    fn end<T>(mut self, read: T) -> Read<T> {
        self.blank();
        match self.rest.next() {
            None => Ok(read),
            Some(c) => Err(format!("found {c:?} after the calls")),
        }
    }

    fn blank(&mut self) {
        while self.rest.next_if(|c| c.is_whitespace()).is_some() {}
    }

    fn takes(&mut self, wanted: char) -> bool {
        self.blank();
        self.rest.next_if_eq(&wanted).is_some()
    }

    fn expect(&mut self, wanted: char) -> Read<()> {
        if self.takes(wanted) {
            return Ok(());
        }
        Err(self.wrong(&format!("{wanted:?}")))
    }

    fn wrong(&mut self, expected: &str) -> String {
        match self.rest.peek() {
            None => format!("found the end of the calls, expected {expected}"),
            Some(c) => format!("found {c:?}, expected {expected}"),
        }
    }

    /// What stands between commas up to `close`; the last may have one too.
    fn items<T>(&mut self, close: char, item: impl Fn(&mut Self) -> Read<T>) -> Read<Vec<T>> {
        let mut items = Vec::new();
        while !self.takes(close) {
            items.push(item(self)?);
            if !self.takes(',') {
                self.expect(close)?;
                break;
            }
        }
        Ok(items)
    }

    fn name(&mut self) -> Read<String> {
        self.blank();
        let mut name = String::new();
        let begins = |c: &char| c.is_alphabetic() || *c == '_';
        match self.rest.next_if(begins) {
            Some(c) => name.push(c),
            None => return Err(self.wrong("a name")),
        }
        while let Some(c) = self.rest.next_if(|c| c.is_alphanumeric() || *c == '_') {
            name.push(c);
        }
        Ok(name)
    }

    fn call(&mut self) -> Read<Call> {
        self.blank();
        if self.rest.peek() == Some(&'{') {
            return self.object_call();
        }
        let mut name = self.name()?;
        while self.takes('.') {
            name = format!("{name}.{}", self.name()?);
        }
        self.expect('(')?;
        let arguments = self.items(')', |reader| {
            let name = reader.name()?;
            reader.expect('=')?;
            Ok((name, reader.value(0)?))
        })?;
        let mut fields = Fields::new();
        for (argument, value) in arguments {
            if fields.insert(argument.clone(), value).is_some() {
                return Err(format!(
                    "found the argument {argument} twice in a call of {name}"
                ));
            }
        }
        Ok(Call {
            name,
            arguments: object(&fields),
        })
    }

    /// A call as an object with a name and arguments (or `parameters`), which may be a text that has them. What else
    /// stands beside both, such as an id, is not the call's.
    fn object_call(&mut self) -> Read<Call> {
        self.in_object = true;
        let fields = self.dictionary(0)?;
        self.in_object = false;
        let name = fields.get("name").and_then(|name| text_of(name));
        let name = name.ok_or("found an object without a name, expected a call")?;
        let given = match (fields.get("arguments"), fields.get("parameters")) {
            (Some(given), None) | (None, Some(given)) => given.clone(),
            (None, None) if fields.len() == 1 => object(&Fields::new()),
            _ => {
                let name = quote::name(&name);
                return Err(format!(
                    "found a call of {name} without arguments or with both, expected arguments or parameters"
                ));
            }
        };
        let arguments = match text_of(&given) {
            Some(text) => {
                let mut reader = Reader::of(&text);
                reader.in_object = true;
                let value = reader.value(0)?;
                reader.end(value)?
            }
            None => given,
        };
        if arguments.starts_with('{') {
            return Ok(Call { name, arguments });
        }
        let (found, name) = (quote::text(arguments), quote::name(&name));
        Err(format!(
            "found {found}, expected an object as the arguments of {name}"
        ))
    }

    /// A literal, as JSON.
    fn value(&mut self, depth: usize) -> Read<String> {
        if depth > MAX_DEPTH {
            return Err(format!("found nesting deeper than {MAX_DEPTH}"));
        }
        self.blank();
        match self.rest.peek() {
            Some('"' | '\'') => self.string().map(|text| quoted(&text)),
            Some('[') => {
                self.expect('[')?;
                let items = self.items(']', |reader| reader.value(depth + 1))?;
                Ok(format!("[{}]", items.join(", ")))
            }
            Some('{') => Ok(object(&self.dictionary(depth)?)),
            Some(c) if c.is_ascii_digit() || matches!(c, '-' | '+' | '.') => self.number(),
            _ => match self.name()?.as_str() {
                "True" | "true" => Ok("true".to_owned()),
                "False" | "false" => Ok("false".to_owned()),
                "None" | "null" => Ok("null".to_owned()),
                other => Err(format!("found the name {other}, expected a value")),
            },
        }
    }

    /// Reads the fields of an object; where several have one name the last counts, in the place of the first.
    fn dictionary(&mut self, depth: usize) -> Read<Fields> {
        self.expect('{')?;
        let items = self.items('}', |reader| {
            reader.blank();
            let key = match reader.rest.peek() {
                Some('"' | '\'') => reader.string()?,
                _ => return Err(reader.wrong("a string as a key")),
            };
            reader.expect(':')?;
            Ok((key, reader.value(depth + 1)?))
        })?;
        Ok(items.into_iter().collect())
    }

    /// JSON's own numbers, with a sign before them, and Python's with nothing before or behind the point.
    fn number(&mut self) -> Read<String> {
        let mut text = String::new();
        while let Some(c) = self
            .rest
            .next_if(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.' | '_'))
        {
            text.push(c);
        }
        let unsigned = text.strip_prefix('+').unwrap_or(&text);
        if serde_json::from_str::<serde_json::Number>(unsigned).is_ok() {
            return Ok(unsigned.to_owned());
        }
        let pointed = unsigned.contains('.').then(|| unsigned.parse().ok());
        match pointed.flatten().and_then(serde_json::Number::from_f64) {
            Some(number) => Ok(number.to_string()),
            None => Err(format!("found {text}, expected a decimal number")),
        }
    }

    /// A string in quotes, or in three as Python may have them.
    fn string(&mut self) -> Read<String> {
        let mut text = String::new();
        let quote = self.rest.next().unwrap_or('"');
        let mut closing = 1;
        if self.rest.next_if_eq(&quote).is_some() {
            if self.rest.next_if_eq(&quote).is_none() {
                return Ok(text);
            }
            closing = 3;
        }
        let mut quotes = 0;
        while let Some(c) = self.rest.next() {
            if c == quote {
                quotes += 1;
                if quotes == closing {
                    return Ok(text);
                }
                continue;
            }
            text.extend(std::iter::repeat_n(quote, quotes));
            quotes = 0;
            match c {
                '\\' => self.escape(&mut text)?,
                c => text.push(c),
            }
        }
        Err("found a string without its end".to_owned())
    }

    fn escape(&mut self, text: &mut String) -> Read<()> {
        let Some(c) = self.rest.next() else {
            return Err("found a string without its end".to_owned());
        };
        let plain = match c {
            '\\' | '\'' | '"' => c,
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'x' => character(self.code(2)?)?,
            'u' => self.utf16()?,
            'U' => character(self.code(8)?)?,
            '/' if self.in_object => '/',
            '\n' | 'a' | 'v' | 'N' | '0'..='7' => {
                return Err(format!(
                    "found the escape \\{} in a string, expected the character itself",
                    c.escape_default()
                ));
            }
            // The backslash stays, which is Python's rule.
            other => {
                text.push('\\');
                other
            }
        };
        text.push(plain);
        Ok(())
    }

    /// JSON spells a character beyond 16 bits as two of 16, each with its escape.
    fn utf16(&mut self) -> Read<char> {
        let first = self.code(4)?;
        let halves = (0xd800..0xdc00).contains(&first);
        if halves && self.rest.next_if_eq(&'\\').is_some() && self.rest.next_if_eq(&'u').is_some() {
            let second = self.code(4)?;
            let mut pair = char::decode_utf16([first as u16, second as u16]);
            if let Some(Ok(c)) = pair.next() {
                return Ok(c);
            }
        }
        character(first)
    }

    fn code(&mut self, digits: usize) -> Read<u32> {
        let mut code = 0u32;
        for _ in 0..digits {
            let digit = self.rest.next().and_then(|c| c.to_digit(16));
            let digit = digit.ok_or("found a broken escape in a string")?;
            code = code.wrapping_mul(16).wrapping_add(digit);
        }
        Ok(code)
    }
}

fn character(code: u32) -> Read<char> {
    char::from_u32(code)
        .ok_or_else(|| "found half of a surrogate pair, expected a character".to_owned())
}

/// An object of JSON.
fn object(fields: &Fields) -> String {
    let fields = fields.iter();
    let fields: Vec<String> = fields
        .map(|(name, value)| format!("{}: {value}", quoted(name)))
        .collect();
    format!("{{{}}}", fields.join(", "))
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The text that a value of JSON is, if it is one.
fn text_of(value: &str) -> Option<String> {
    serde_json::from_str(value).ok()
}
