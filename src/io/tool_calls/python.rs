//! Calls as Python spells them, of literals alone: nothing is computed.

use super::Call;
use std::collections::HashSet;
use std::iter::Peekable;
use std::str::Chars;

/// How deep lists and dictionaries may lie in each other.
const MAX_DEPTH: usize = 64;

type Read<T> = Result<T, String>;

/// The calls of a list such as `[f(x=1), g.h(y="a")]`. Numbers keep their digits.
pub(super) fn calls(text: &str) -> Read<Vec<Call>> {
    let mut reader = Reader {
        rest: text.chars().peekable(),
    };
    reader.expect('[')?;
    let calls = reader.items(']', Reader::call)?;
    reader.blank();
    match reader.rest.next() {
        None => Ok(calls),
        Some(c) => Err(format!("found {c:?} after the list of calls")),
    }
}

struct Reader<'a> {
    rest: Peekable<Chars<'a>>,
}

impl Reader<'_> {
    fn blank(&mut self) {
        while self.rest.next_if(|c| c.is_whitespace()).is_some() {}
    }

    fn takes(&mut self, wanted: char) -> bool {
        self.blank();
        self.rest.next_if_eq(&wanted).is_some()
    }

    fn expect(&mut self, wanted: char) -> Read<()> {
        match self.takes(wanted) {
            true => Ok(()),
            false => Err(self.wrong(&format!("{wanted:?}"))),
        }
    }

    fn wrong(&mut self, expected: &str) -> String {
        match self.rest.peek() {
            None => format!("found the end of the calls, expected {expected}"),
            Some(c) => format!("found {c:?}, expected {expected}"),
        }
    }

    /// What stands between commas up to `close`; the last may have one too.
    fn items<T>(&mut self, close: char, item: impl Fn(&mut Self) -> Read<T>) -> Read<Vec<T>> {
        self.items_and_comma(close, item).map(|(items, _)| items)
    }

    /// [`Self::items`], and whether the last has a comma.
    fn items_and_comma<T>(
        &mut self,
        close: char,
        item: impl Fn(&mut Self) -> Read<T>,
    ) -> Read<(Vec<T>, bool)> {
        let mut items = Vec::new();
        loop {
            if self.takes(close) {
                let comma = !items.is_empty();
                return Ok((items, comma));
            }
            items.push(item(self)?);
            if !self.takes(',') {
                self.expect(close)?;
                return Ok((items, false));
            }
        }
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
        let mut seen = HashSet::new();
        if let Some((twice, _)) = arguments.iter().find(|(name, _)| !seen.insert(name)) {
            return Err(format!(
                "found the argument {twice} twice in a call of {name}"
            ));
        }
        let fields: Vec<String> = arguments
            .iter()
            .map(|(name, value)| format!("{}: {value}", quoted(name)))
            .collect();
        Ok(Call {
            name,
            arguments: format!("{{{}}}", fields.join(", ")),
        })
    }

    /// A literal, as JSON.
    fn value(&mut self, depth: usize) -> Read<String> {
        if depth > MAX_DEPTH {
            return Err(format!("found nesting deeper than {MAX_DEPTH}"));
        }
        self.blank();
        match self.rest.peek() {
            Some('"' | '\'') => self.strings().map(|text| quoted(&text)),
            Some('[') => self.list(depth, '[', ']'),
            Some('(') => self.list(depth, '(', ')'),
            Some('{') => self.dictionary(depth),
            Some(c) if c.is_ascii_digit() || matches!(c, '-' | '+' | '.') => self.number(),
            _ => match self.name()?.as_str() {
                "True" => Ok("true".to_owned()),
                "False" => Ok("false".to_owned()),
                "None" => Ok("null".to_owned()),
                other => Err(format!("found the name {other}, expected a value")),
            },
        }
    }

    fn list(&mut self, depth: usize, open: char, close: char) -> Read<String> {
        self.expect(open)?;
        let (items, comma) = self.items_and_comma(close, |reader| reader.value(depth + 1))?;
        // A value in parentheses without a comma is that value in Python, and no tuple.
        match open == '(' && items.len() == 1 && !comma {
            true => Err("found a value in parentheses, expected it without".to_owned()),
            false => Ok(format!("[{}]", items.join(", "))),
        }
    }

    fn dictionary(&mut self, depth: usize) -> Read<String> {
        self.expect('{')?;
        let items = self.items('}', |reader| {
            reader.blank();
            let key = match reader.rest.peek() {
                Some('"' | '\'') => reader.strings()?,
                _ => return Err(reader.wrong("a string as a key")),
            };
            reader.expect(':')?;
            Ok((key, reader.value(depth + 1)?))
        })?;
        // The last of one key counts, in the place of the first.
        let mut fields: indexmap::IndexMap<String, String> = indexmap::IndexMap::new();
        for (key, value) in items {
            fields.insert(key, value);
        }
        let fields: Vec<String> = fields
            .iter()
            .map(|(key, value)| format!("{}: {value}", quoted(key)))
            .collect();
        Ok(format!("{{{}}}", fields.join(", ")))
    }

    /// JSON's own numbers, with a sign before them.
    fn number(&mut self) -> Read<String> {
        let mut text = String::new();
        while let Some(c) = self
            .rest
            .next_if(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.' | '_'))
        {
            text.push(c);
        }
        let unsigned = text.strip_prefix('+').unwrap_or(&text);
        match serde_json::from_str::<serde_json::Number>(unsigned) {
            Ok(_) => Ok(unsigned.to_owned()),
            Err(_) => Err(format!("found {text}, expected a decimal number")),
        }
    }

    /// One string, or several after each other, which are one.
    fn strings(&mut self) -> Read<String> {
        let mut text = String::new();
        loop {
            self.blank();
            let Some(quote) = self.rest.next_if(|c| matches!(c, '"' | '\'')) else {
                return Ok(text);
            };
            let mut long = false;
            if self.rest.next_if_eq(&quote).is_some() {
                if self.rest.next_if_eq(&quote).is_none() {
                    continue;
                }
                long = true;
            }
            self.string(quote, long, &mut text)?;
        }
    }

    /// Behind its opening quotes, which are three where it is `long`.
    fn string(&mut self, quote: char, long: bool, text: &mut String) -> Read<()> {
        let closing = if long { 3 } else { 1 };
        let mut quotes = 0;
        loop {
            let Some(c) = self.rest.next() else {
                return Err("found a string without its end".to_owned());
            };
            if c == quote {
                quotes += 1;
                if quotes == closing {
                    return Ok(());
                }
                continue;
            }
            text.extend(std::iter::repeat_n(quote, quotes));
            quotes = 0;
            match c {
                '\\' => self.escape(text)?,
                '\n' if !long => return Err("found a string without its end".to_owned()),
                c => text.push(c),
            }
        }
    }

    fn escape(&mut self, text: &mut String) -> Read<()> {
        let Some(c) = self.rest.next() else {
            return Err("found a string without its end".to_owned());
        };
        let plain = match c {
            '\n' => return Ok(()),
            '\\' | '\'' | '"' => c,
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'a' => '\u{7}',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'v' => '\u{b}',
            'x' => self.code(2, 16)?,
            'u' => self.code(4, 16)?,
            'U' => self.code(8, 16)?,
            '0'..='7' => {
                let mut code = c.to_digit(8).unwrap_or(0);
                for _ in 0..2 {
                    match self.rest.next_if(|c| c.is_digit(8)) {
                        Some(c) => code = code * 8 + c.to_digit(8).unwrap_or(0),
                        None => break,
                    }
                }
                char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            'N' => return Err("found a character by its name, expected itself".to_owned()),
            // As Python has it: the backslash stays.
            other => {
                text.push('\\');
                other
            }
        };
        text.push(plain);
        Ok(())
    }

    fn code(&mut self, digits: usize, radix: u32) -> Read<char> {
        let mut code = 0u32;
        for _ in 0..digits {
            let digit = self.rest.next().and_then(|c| c.to_digit(radix));
            let digit = digit.ok_or("found a broken escape in a string")?;
            code = code.wrapping_mul(radix).wrapping_add(digit);
        }
        char::from_u32(code)
            .ok_or_else(|| "found half of a surrogate pair, expected a character".to_owned())
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
