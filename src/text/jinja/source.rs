//! A template's text, changed so that minijinja makes of it what transformers does. A lexer does that, since tags look like
//! the text of raw blocks, comments and strings.

use std::collections::HashSet;

use super::value::{DICT_METHODS, JOINED, KEPT, LOOPED, METHOD_MARK};
use crate::quote;

/// The most bytes of a template. Published ones have some 20 KB.
pub const MAX_SOURCE_BYTES: usize = 1 << 20;
/// The most bytes of a tag: minijinja's parser recurses in what a tag holds.
const MAX_TAG_BYTES: usize = 16 << 10;
/// The most statements, printed expressions and comments of a template.
const MAX_TAGS: usize = 10_000;

/// The tags of transformers' environment that are supported.
const TAGS: &str = "if elif else endif for endfor set endset macro endmacro call endcall filter endfilter with endwith \
    break continue raw endraw generation endgeneration";

/// A template's text as minijinja is to parse it.
#[derive(Debug, Default, Clone)]
pub struct Source {
    pub text: String,
    /// The attributes and string literals in its tags.
    pub words: HashSet<String>,
}

/// Changes a template's text for minijinja:
///
/// - `generation` blocks, which only mark what the assistant says, become `with` blocks: both have a scope of their own.
/// - The values that `set` keeps and the operands of `~` go through filters of ours.
/// - What `set` and `filter` blocks hold is put in a `with` block, since it has a scope of its own in Jinja2.
/// - An item with the name of one of a dict's methods, as in `x['items']`, is asked for by a name with a mark.
///
/// A template that would show other differences between Jinja2's scopes and minijinja's is refused.
///
/// # Errors
/// A tag is not supported or not closed, or the template or a tag is too long. The message has the line's number.
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
    /// The blocks that are open here. `else` is the `else` of a loop.
    open: Vec<&'static str>,
}

/// What is known of the operand that is being read.
#[derive(Default)]
struct Operand {
    /// Whether it is an operand of `~`.
    is_joined: bool,
    /// Whether it has operators that bind closer than `~`.
    is_product: bool,
    /// Where it begins in the text that minijinja is to parse.
    start: Option<usize>,
}

/// What stands between the ends of a tag.
struct Tag<'a> {
    text: &'a str,
    /// Names, except those of attributes.
    names: Vec<&'a str>,
    /// Whether there is a comma outside of brackets and strings.
    has_comma: bool,
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
                "{{" => {
                    self.copy(2);
                    self.tag("}}", String::new())?;
                }
                _ => self.block()?,
            }
        }
        self.copy(self.rest().len());
        Ok(())
    }

    /// How far the next tag or comment is from here.
    fn next_mark(&self) -> Option<usize> {
        let rest = self.rest();
        let mut marks = rest.match_indices('{').map(|(at, _)| at);
        marks.find(|&at| matches!(rest.as_bytes().get(at + 1), Some(b'{' | b'%' | b'#')))
    }

    /// Copies a statement's tag with the changes that it needs.
    fn block(&mut self) -> Result<(), String> {
        let rest = self.rest();
        let inner = rest[2..].trim_start_matches(['-', '+']).trim_start();
        let name = &inner[..inner.find(|c| !is_name(c)).unwrap_or(inner.len())];
        let Some(name) = TAGS.split(' ').find(|tag| *tag == name) else {
            return Err(format!(
                "the tag `{}` is not supported here",
                quote::text(name)
            ));
        };
        if matches!(name, "endset" | "endfilter") {
            let sign = rest[2..rest.len() - inner.len()].trim_end();
            self.text.push_str(&format!("{{%{sign} endwith %}}"));
        }
        self.copy(rest.len() - inner.len());
        // The names and attributes that are set have no equals sign in them.
        let target = inner.find(['=', '|', '%']).map(|at| inner.split_at(at));
        let mut suffix = String::new();
        let opened = match (name, target) {
            ("generation" | "endgeneration", _) => {
                self.text.push_str(&name.replace("generation", "with"));
                self.at += name.len();
                "with"
            }
            ("set", Some((target, value)))
                if value.starts_with('=') && target.len() <= MAX_TAG_BYTES =>
            {
                self.copy(target.len() + 1);
                self.text.push('(');
                suffix = format!(")|{KEPT}({}) ", target.contains('.'));
                ""
            }
            ("for", _) => {
                let header = inner.split('%').next().unwrap_or_default();
                let mut words = header.split_inclusive(|c| !is_name(c));
                let targets = words
                    .by_ref()
                    .take_while(|word| word.trim_end_matches(|c| !is_name(c)) != "in");
                let targets: usize = targets.map(str::len).sum();
                if targets < header.len() {
                    self.copy(targets + 2);
                    self.text.push('(');
                    suffix = format!(")|{LOOPED} ");
                }
                name
            }
            ("set" | "filter" | "if" | "macro" | "call" | "with", _) => name,
            _ => "",
        };
        let tag = self.tag("%}", suffix)?;
        // The innermost open block that has a scope.
        let scope = self.open.iter().rfind(|open| **open != "if").copied();
        let unsupported = |what: &str| Err(format!("{what} is not supported here"));
        match name {
            "raw" => return self.raw(!tag.text.ends_with('-')),
            "for" if tag.names.last() == Some(&"recursive") => {
                return unsupported("a recursive loop");
            }
            // Jinja2 evaluates all of the values before it sets any of the names.
            "with" if tag.has_comma && has_twins(&tag.names) => {
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
            _ if opened.is_empty() => {}
            _ => self.open.push(opened),
        }
        if matches!(opened, "set" | "filter") {
            let sign = &tag.text[tag.text.trim_end_matches(['-', '+']).len()..];
            self.text.push_str(&format!("{{% with {sign}%}}"));
        }
        Ok(())
    }

    /// Copies a raw block. Jinja2 keeps a line end at its start, which minijinja drops under `trim_blocks`.
    fn raw(&mut self, keeps_line_end: bool) -> Result<(), String> {
        if keeps_line_end && self.rest().starts_with('\n') {
            self.text.push('\n');
        }
        while let Some(at) = self.rest().find("{%") {
            self.copy(at);
            let inner = self.rest()[2..].trim_start_matches(['-', '+']).trim_start();
            self.copy(2);
            if inner.starts_with("endraw") {
                return self.tag("%}", String::new()).map(drop);
            }
        }
        Err("the raw block is not closed".to_owned())
    }

    /// Puts the operand that ends here through the filter that makes a text of it, if it is an operand of `~`.
    fn end_operand(&mut self, operand: &mut Operand) {
        if operand.is_joined {
            self.join(operand);
        }
        *operand = Operand::default();
    }

    /// Puts the operand of `~` that ends here through the filter that makes a text of it. A filter binds closer than the
    /// operators of a product, so that a product gets brackets.
    fn join(&mut self, operand: &Operand) {
        if operand.is_product
            && let Some(start) = operand.start
        {
            self.text.insert(start, '(');
            self.text.push(')');
        }
        self.text.push_str(&format!("|{JOINED} "));
    }

    /// Copies a tag up to `end`, and puts `suffix` before that, or before a loop's condition. In brackets and strings `end` is
    /// no end.
    fn tag(&mut self, end: &str, mut suffix: String) -> Result<Tag<'a>, String> {
        let start = self.at;
        let (mut names, mut has_comma) = (Vec::new(), false);
        // The operand that is read in the tag, and in each bracket that is open.
        let mut operands = vec![Operand::default()];
        while self.at - start <= MAX_TAG_BYTES {
            let rest = self.rest();
            let depth = operands.len() - 1;
            if depth == 0 && rest.starts_with(end) {
                self.end_operand(&mut operands[0]);
                let text = &self.source[start..self.at];
                let sign = &text[text.trim_end_matches(['-', '+']).len()..];
                if !suffix.is_empty() {
                    self.text.truncate(self.text.len() - sign.len());
                    self.text.push_str(&suffix);
                    self.text.push_str(sign);
                }
                self.copy(end.len());
                return Ok(Tag {
                    text,
                    names,
                    has_comma,
                });
            }
            let c = rest
                .chars()
                .next()
                .ok_or_else(|| format!("found the end of the template, expected `{end}`"))?;
            let mut length = c.len_utf8();
            let operand = &mut operands[depth];
            if !c.is_whitespace() {
                operand.start.get_or_insert(self.text.len());
            }
            match c {
                ')' | ']' | '}' | ',' | ':' | '=' | '!' | '<' | '>' | '+' | '-' => {
                    self.end_operand(operand);
                }
                '~' => {
                    self.join(operand);
                    *operand = Operand {
                        is_joined: true,
                        ..Operand::default()
                    };
                    self.copy(length);
                    continue;
                }
                '*' if rest.starts_with("**") && !self.text.trim_end().ends_with(['(', ',']) => {
                    return Err("the operator `**` is not supported here".to_owned());
                }
                '*' | '/' | '%' => operand.is_product = true,
                _ => {}
            }
            match c {
                '\'' | '"' => {
                    let literal = literal(rest)?;
                    length = literal.len();
                    let word = &literal[1..literal.len() - 1];
                    self.words.insert(word);
                    let before = self.text.as_str();
                    let is_attribute = before.ends_with("attr(") || before.ends_with("attribute=");
                    let is_item = before.strip_suffix('[').is_some_and(|before| {
                        before.ends_with(|c| is_name(c) || matches!(c, ')' | ']' | '\'' | '"'))
                    });
                    if DICT_METHODS.split(' ').any(|method| method == word) {
                        if is_attribute {
                            return Err(format!(
                                "an attribute by the name `{word}` of a dict's method is not supported here"
                            ));
                        }
                        if is_item {
                            // Jinja2 gives `x['items']` as the dict's method where there is no such entry.
                            self.copy(length - 1);
                            self.text.push_str(METHOD_MARK);
                            length = 1;
                        }
                    }
                }
                c if is_name(c) => {
                    let name = &rest[..rest.find(|c| !is_name(c)).unwrap_or(rest.len())];
                    match name {
                        "if" | "else" | "and" | "or" | "in" | "not" => self.end_operand(operand),
                        _ => {}
                    }
                    match name {
                        "if" if depth == 0 && suffix.contains(LOOPED) => {
                            self.text.push_str(&std::mem::take(&mut suffix));
                        }
                        "is" if operands[depth].is_joined => {
                            return Err("`is` behind `~` is not supported here: expected brackets"
                                .to_owned());
                        }
                        _ => {}
                    }
                    if self.text.ends_with('.') {
                        self.words.insert(name);
                    } else {
                        names.push(name);
                    }
                    length = name.len();
                }
                '(' | '[' | '{' => operands.push(Operand::default()),
                ')' | ']' | '}' if depth == 0 => {
                    return Err(format!("found `{c}`, expected no closing bracket"));
                }
                ')' | ']' | '}' => drop(operands.pop()),
                ',' if depth == 0 => has_comma = true,
                _ => {}
            }
            self.copy(length);
        }
        Err(format!(
            "found a tag of more than {MAX_TAG_BYTES} bytes, expected at most that"
        ))
    }
}

/// Whether a name is there twice.
fn has_twins(names: &[&str]) -> bool {
    names.iter().collect::<HashSet<_>>().len() < names.len()
}

fn is_name(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
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
            // Python and minijinja make different texts of these.
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
