//! A template's text before minijinja parses it: line ends and tags of transformers, which only a lexer tells from text in
//! raw blocks, comments and strings.

use std::collections::HashSet;

use super::value::{DICT_METHODS, KEPT, METHOD_MARK};
use crate::quote;

/// A template's text, at most. Published ones have some 20 KB.
pub const MAX_SOURCE_BYTES: usize = 1 << 20;
/// What one tag holds, at most: parsers recurse in what they read.
const MAX_TAG_BYTES: usize = 16 << 10;
/// A template's statements and printed expressions, at most.
const MAX_TAGS: usize = 10_000;

/// The tags of transformers' environment that minijinja has too.
const TAGS: &str = "if elif else endif for endfor set endset macro endmacro call endcall filter endfilter with endwith \
    break continue raw endraw generation endgeneration";

/// A template's text as minijinja is to parse it.
#[derive(Debug, Default, Clone)]
pub struct Source {
    pub text: String,
    /// The attributes and string literals in its tags.
    pub words: HashSet<String>,
}

/// `generation` blocks only mark what the assistant says: they become `with` blocks, which have a scope of their own too.
/// So have what `set` and `filter` blocks hold in Jinja2, which is put in a `with` block. Where else Jinja2 has scopes
/// otherwise, a template that would show it is refused.
///
/// # Errors
/// One line with the line's number: a tag is not supported, or open at the end, or there is too much of it.
pub fn prepare(source: &str) -> Result<Source, String> {
    if source.len() > MAX_SOURCE_BYTES {
        return Err(format!(
            "found {} bytes, expected at most {MAX_SOURCE_BYTES}",
            source.len()
        ));
    }
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut lexer = Lexer {
        source: &source,
        text: String::with_capacity(source.len()),
        ..Lexer::default()
    };
    let done = lexer.run();
    let line = 1 + source[..lexer.at].matches('\n').count();
    done.map_err(|message| format!("line {line}: {message}"))?;
    let words = lexer.words.into_iter().map(str::to_owned).collect();
    Ok(Source {
        text: lexer.text,
        words,
    })
}

#[derive(Default)]
struct Lexer<'a> {
    source: &'a str,
    at: usize,
    text: String,
    words: HashSet<&'a str>,
    /// The blocks that are open here. `else` is that of a loop.
    open: Vec<&'static str>,
}

/// What is between the signs of a tag.
struct Tag<'a> {
    /// Names but those of attributes.
    names: Vec<&'a str>,
    /// In `set`, how many of the names come before an equals sign that is outside of brackets and strings.
    targets: usize,
    has_comma: bool,
    /// An attribute is set.
    is_attribute: bool,
    /// The sign before its end.
    sign: &'a str,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    /// Copies `length` bytes as they are.
    fn copy(&mut self, length: usize) {
        self.text.push_str(&self.rest()[..length]);
        self.at += length;
    }

    fn run(&mut self) -> Result<(), String> {
        let mut tags = 0;
        while let Some(start) = self.next_mark() {
            self.copy(start);
            tags += 1;
            if tags > MAX_TAGS {
                return Err(format!(
                    "found more than {MAX_TAGS} tags, expected at most that"
                ));
            }
            match &self.rest()[..2] {
                "{#" => {
                    let end = self.rest()[2..]
                        .find("#}")
                        .ok_or("the comment is not closed")?;
                    self.copy(end + 4);
                }
                "{{" => drop(self.tag(2, "}}")?),
                _ => self.block()?,
            }
        }
        self.copy(self.rest().len());
        Ok(())
    }

    fn next_mark(&self) -> Option<usize> {
        let rest = self.rest();
        let mut marks = rest.match_indices('{').map(|(at, _)| at);
        marks.find(|&at| matches!(rest.as_bytes().get(at + 1), Some(b'{' | b'%' | b'#')))
    }

    fn block(&mut self) -> Result<(), String> {
        let rest = self.rest();
        let sign = &rest[2..rest.len() - rest[2..].trim_start_matches(['-', '+']).len()];
        let inner = rest[2 + sign.len()..].trim_start();
        let name = &inner[..inner.find(|c| !is_name(c)).unwrap_or(inner.len())];
        let Some(name) = TAGS.split(' ').find(|tag| *tag == name) else {
            return Err(format!(
                "the tag `{}` is not supported here",
                quote::text(name)
            ));
        };
        let unsupported = |what: &str| Err(format!("{what} is not supported here"));
        if matches!(name, "endset" | "endfilter") {
            self.text.push_str(&format!("{{%{sign} endwith %}}"));
        }
        let before = rest.len() - inner.len();
        let tag = if let "generation" | "endgeneration" = name {
            self.copy(before);
            self.text.push_str(if name == "generation" {
                "with"
            } else {
                "endwith"
            });
            self.at += name.len();
            self.tag(0, "%}")?
        } else {
            self.tag(before, "%}")?
        };
        // The innermost open block that has a scope.
        let scope = self.open.iter().rfind(|open| **open != "if").copied();
        match name {
            "raw" => return self.raw(tag.sign),
            "for" if tag.names.last() == Some(&"recursive") => {
                return unsupported("a recursive loop");
            }
            // Jinja2 has none of the names before it has all of their values.
            "with"
                if tag.has_comma
                    && tag.names.iter().collect::<HashSet<_>>().len() < tag.names.len() =>
            {
                return unsupported("a `with` that names something twice");
            }
            "set" if scope == Some("else") => return unsupported("`set` in the `else` of a loop"),
            "break" | "continue" if !matches!(scope, Some("for" | "with")) => {
                return unsupported("`break` or `continue` in a block in a loop");
            }
            "else" if self.open.last() == Some(&"for") => {
                self.open.pop();
                self.open.push("else");
            }
            name if name.starts_with("end") => drop(self.open.pop()),
            _ => {}
        }
        let opened = match name {
            "filter" | "set" if name == "filter" || tag.targets == 0 => {
                self.text.push_str(&format!("{{% with {}%}}", tag.sign));
                name
            }
            "if" | "for" | "macro" | "call" => name,
            "with" | "generation" => "with",
            _ => return Ok(()),
        };
        self.open.push(opened);
        Ok(())
    }

    /// The text of a raw block. Jinja2 keeps a line end at its start, which `trim_blocks` takes from minijinja's.
    fn raw(&mut self, sign: &str) -> Result<(), String> {
        if sign != "-" && self.rest().starts_with('\n') {
            self.text.push('\n');
        }
        while let Some(at) = self.rest().find("{%") {
            self.copy(at);
            let inner = self.rest()[2..].trim_start_matches(['-', '+']).trim_start();
            if inner.starts_with("endraw") {
                return self.tag(2, "%}").map(drop);
            }
            self.copy(2);
        }
        Err("the raw block is not closed".to_owned())
    }

    /// Copies up to `end`, which counts outside of brackets and strings only. It is looked for after `skipped` bytes.
    fn tag(&mut self, skipped: usize, end: &str) -> Result<Tag<'a>, String> {
        self.copy(skipped);
        let (start, mut depth) = (self.at, 0usize);
        let mut tag = Tag {
            names: Vec::new(),
            targets: 0,
            has_comma: false,
            is_attribute: false,
            sign: "",
        };
        while self.at - start <= MAX_TAG_BYTES {
            let rest = self.rest();
            if depth == 0 && rest.starts_with(end) {
                let inner = &self.source[start..self.at];
                tag.sign = &inner[inner.trim_end_matches(['-', '+']).len()..];
                if tag.targets > 0 {
                    // Where a value stays, it is looked at.
                    self.text.truncate(self.text.len() - tag.sign.len());
                    let attribute = if tag.is_attribute { "(true)" } else { "" };
                    self.text
                        .push_str(&format!(")|{KEPT}{attribute} {}", tag.sign));
                }
                self.copy(end.len());
                return Ok(tag);
            }
            let c = rest
                .chars()
                .next()
                .ok_or_else(|| format!("found the end of the template, expected `{end}`"))?;
            if let Some(method) = method_key(rest)
                && self
                    .text
                    .ends_with(|c| is_name(c) || matches!(c, ')' | ']' | '\'' | '"'))
            {
                // `x['items']` is Python's method where there is no such entry.
                self.text.push_str(&format!("['{method}{METHOD_MARK}']"));
                self.words.insert(method);
                self.at += method.len() + 4;
                continue;
            }
            let mut length = c.len_utf8();
            match c {
                '\'' | '"' => {
                    let literal = literal(rest)?;
                    self.words.insert(&literal[1..literal.len() - 1]);
                    length = literal.len();
                }
                c if is_name(c) => {
                    let name = &rest[..rest.find(|c| !is_name(c)).unwrap_or(rest.len())];
                    match self.text.ends_with('.') {
                        true => drop(self.words.insert(name)),
                        false => tag.names.push(name),
                    }
                    length = name.len();
                }
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' => {
                    depth = depth
                        .checked_sub(1)
                        .ok_or_else(|| format!("unexpected `{c}`"))?
                }
                '.' if depth == 0 && tag.targets == 0 => tag.is_attribute = true,
                '=' if depth == 0 && tag.targets == 0 && tag.names.first() == Some(&"set") => {
                    tag.targets = tag.names.len();
                    self.copy(1);
                    self.text.push('(');
                    continue;
                }
                ',' if depth == 0 => tag.has_comma = true,
                _ => {}
            }
            self.copy(length);
        }
        Err(format!(
            "found a tag of more than {MAX_TAG_BYTES} bytes, expected at most that"
        ))
    }
}

fn is_name(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

/// The name of a dict's method where `text` begins with an item by that name.
fn method_key(text: &str) -> Option<&'static str> {
    DICT_METHODS.split(' ').find(|method| {
        let inner = text.strip_prefix("['").or_else(|| text.strip_prefix("[\""));
        inner
            .and_then(|inner| inner.strip_prefix(*method))
            .is_some_and(|rest| rest.starts_with("']") || rest.starts_with("\"]"))
    })
}

/// The string literal at the start of `text`, with its quotes.
fn literal(text: &str) -> Result<&str, String> {
    let mut characters = text.char_indices();
    let quote = characters.next().map(|(_, quote)| quote);
    while let Some((at, c)) = characters.next() {
        if Some(c) == quote {
            return Ok(&text[..=at]);
        }
        if c == '\\'
            && let Some((_, escaped)) = characters.next()
            // Of these Python and minijinja make other texts.
            && (matches!(escaped, 'a' | 'v' | 'N' | 'U' | '/' | '\n') || !escaped.is_ascii())
        {
            return Err(format!(
                "the escape `\\{}` in a string is not supported here",
                escaped.escape_debug()
            ));
        }
    }
    Err("the string is not closed".to_owned())
}
