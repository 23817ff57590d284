//! What is done to a template's source before minijinja parses it: where its tags, texts and comments lie, by the
//! rules of Jinja2's lexer.

mod literal;

use crate::quote;
use literal::{unescape, write_literal};

/// A tag with more tokens than this is refused: parsers recurse over what is nested in one.
const MAX_TOKENS: usize = 4000;
/// More than any published template has.
pub const MAX_SOURCE_BYTES: usize = 1 << 20;
/// `elif` and nesting recurse too.
const MAX_TAGS: usize = 10_000;

/// Words after which an operand comes.
const BEFORE_OPERANDS: [&str; 9] = [
    "and",
    "or",
    "not",
    "in",
    "is",
    "if",
    "else",
    "elif",
    "recursive",
];

/// Line ends become `\n`, string literals are written with escapes that minijinja reads as Python does, raw blocks
/// become string literals (their line ends are trimmed differently there), and `{% generation %}`, a tag of
/// transformers that only marks what the assistant wrote, becomes a `with` block, which is a scope of its own too.
///
/// # Errors
/// One line with the line's number: something is open at the end, a tag is unknown, or there is too much of it.
pub fn prepare(source: &str) -> Result<String, String> {
    if source.len() > MAX_SOURCE_BYTES {
        return Err(format!(
            "found {} bytes, expected at most {MAX_SOURCE_BYTES}",
            source.len()
        ));
    }
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    // As Jinja2: one line end at the end is dropped.
    let mut lexer = Lexer {
        source: source.strip_suffix('\n').unwrap_or(&source),
        at: 0,
        out: String::with_capacity(source.len()),
        tags: 0,
    };
    lexer
        .run()
        .map_err(|message| format!("line {}: {message}", lexer.line()))?;
    Ok(lexer.out)
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    out: String,
    tags: usize,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    fn line(&self) -> usize {
        1 + self.source[..self.at].matches('\n').count()
    }

    /// Copies `length` bytes as they are.
    fn copy(&mut self, length: usize) {
        self.out.push_str(&self.rest()[..length]);
        self.at += length;
    }

    fn run(&mut self) -> Result<(), String> {
        while let Some(start) = self.next_mark() {
            self.copy(start);
            self.tags += 1;
            if self.tags > MAX_TAGS {
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
                    self.tag("}}")?;
                }
                _ => self.block()?,
            }
        }
        self.copy(self.rest().len());
        Ok(())
    }

    fn next_mark(&self) -> Option<usize> {
        let rest = self.rest();
        let marks = rest.match_indices('{').map(|(at, _)| at);
        marks
            .into_iter()
            .find(|&at| matches!(rest.as_bytes().get(at + 1), Some(b'{' | b'%' | b'#')))
    }

    fn block(&mut self) -> Result<(), String> {
        let rest = self.rest();
        let inner = rest[2..].trim_start_matches(['-', '+']);
        let word = inner.trim_start();
        let end = word
            .find(|c: char| !(c == '_' || c.is_alphanumeric()))
            .unwrap_or(word.len());
        let (name, tail) = word.split_at(end);
        let open = &rest[2..rest.len() - inner.len()];
        match name {
            "raw" => {
                if let Some((sign, after)) = closed_end(tail) {
                    if sign == "+" {
                        return Err("Encountered unknown tag 'raw'.".to_owned());
                    }
                    return self.raw(open, after);
                }
            }
            "generation" | "endgeneration" => {
                let after = closed(tail)
                    .ok_or_else(|| format!("unexpected text in the tag `{}`", quote::text(name)))?;
                let with = if name == "generation" {
                    "with"
                } else {
                    "endwith"
                };
                self.out.push_str(&format!("{{%{open} {with} "));
                // From the sign before `%}`, so that it keeps its meaning.
                self.at = self.source.len() - after.len() - 2;
                if self.source[..self.at].ends_with(['-', '+']) {
                    self.at -= 1;
                }
                self.copy(self.source.len() - after.len() - self.at);
                return Ok(());
            }
            // Extensions of Jinja2 that transformers does not turn on, and minijinja knows.
            "do" => return Err(format!("Encountered unknown tag '{name}'.")),
            "autoescape" => {
                return Err(format!(
                    "the tag `{name}` is not supported here, though Jinja2 has it"
                ));
            }
            _ => {}
        }
        self.copy(2);
        self.tag("%}")
    }

    /// A raw block whose begin tag ends before `after`, as an expression that prints what is in it.
    fn raw(&mut self, open: &str, after: &str) -> Result<(), String> {
        let strip_first = self.source[..self.source.len() - after.len()].ends_with("-%}");
        let mut from = 0;
        let (text, sign, tail) = loop {
            let at = from
                + after[from..]
                    .find("{%")
                    .ok_or("the raw block is not closed")?;
            let inner = &after[at + 2..];
            let word = inner.strip_prefix(['-', '+']).unwrap_or(inner);
            let sign = &inner[..inner.len() - word.len()];
            let end = word
                .trim_start()
                .strip_prefix("endraw")
                .and_then(closed_end);
            match end {
                Some(tail) => break (&after[..at], sign, tail),
                None => from = at + 2,
            }
        };
        let mut text = if strip_first { text.trim_start() } else { text };
        if sign == "-" {
            text = text.trim_end();
        } else if sign.is_empty() {
            let start = text.rfind('\n').map_or(0, |at| at + 1);
            if start > 0 && text[start..].chars().all(char::is_whitespace) {
                text = &text[..start];
            }
        }
        // Between comments, whose signs trim what comes before and after as the tags' do.
        self.out.push_str(&format!("{{#{open} #}}"));
        self.out.push_str("{{ ");
        write_literal(text, '"', &mut self.out);
        let (sign, after) = tail;
        self.out.push_str(&format!(" }}}}{{# {sign}#}}"));
        self.at = self.source.len() - after.len();
        Ok(())
    }

    /// Copies up to `end`, which counts outside of brackets and strings only.
    fn tag(&mut self, end: &str) -> Result<(), String> {
        let (mut depth, mut tokens) = (0usize, 0);
        // Whether what comes next begins an operand: a plus is a sign then. Right after the tag's begin it is the tag's.
        let mut at_operand = false;
        loop {
            let rest = self.rest();
            if depth == 0 && rest.starts_with(end) {
                self.copy(end.len());
                return Ok(());
            }
            let c = rest
                .chars()
                .next()
                .ok_or_else(|| format!("found the end of the template, expected `{end}`"))?;
            match c {
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' => {
                    depth = depth
                        .checked_sub(1)
                        .ok_or_else(|| format!("unexpected `{c}`"))?;
                }
                _ => {}
            }
            tokens += usize::from(!c.is_whitespace());
            match c {
                '\'' | '"' => {
                    self.string(c)?;
                    at_operand = false;
                }
                _ if c == '_' || c.is_alphanumeric() => {
                    let more = |c: char| c == '_' || c.is_alphanumeric();
                    let word = &rest[..rest.find(|c| !more(c)).unwrap_or(rest.len())];
                    self.copy(word.len());
                    at_operand = BEFORE_OPERANDS.contains(&word);
                }
                // minijinja has no such sign. Twice the other one is the same, and as much an error of what is no number.
                '+' if at_operand => {
                    self.out.push_str("- -");
                    self.at += 1;
                }
                _ => {
                    self.copy(c.len_utf8());
                    at_operand = match c {
                        ')' | ']' | '}' => false,
                        c if c.is_whitespace() => at_operand || (tokens == 0 && end == "}}"),
                        _ => tokens > 1 || c != '+',
                    };
                }
            }
            if tokens > MAX_TOKENS {
                return Err(format!(
                    "found more than {MAX_TOKENS} tokens in one tag, expected at most that"
                ));
            }
        }
    }

    fn string(&mut self, quote: char) -> Result<(), String> {
        let body = &self.rest()[1..];
        let mut escaped = false;
        let end = body.char_indices().find(|&(_, c)| {
            let found = c == quote && !escaped;
            escaped = c == '\\' && !escaped;
            found
        });
        let (end, _) = end.ok_or("the string is not closed")?;
        let text = unescape(&body[..end])?;
        write_literal(&text, quote, &mut self.out);
        // Line ends stay, after the literal, so that lines keep their numbers.
        self.out
            .push_str(&"\n".repeat(body[..end].matches('\n').count()));
        self.at += end + 2;
        Ok(())
    }
}

/// What follows `%}`, if nothing but its sign comes before it.
fn closed(tail: &str) -> Option<&str> {
    closed_end(tail).map(|(_, after)| after)
}

/// The sign before `%}`, and what follows.
fn closed_end(tail: &str) -> Option<(&str, &str)> {
    let tail = tail.trim_start();
    let after = tail.strip_prefix(['-', '+']).unwrap_or(tail);
    let sign = &tail[..tail.len() - after.len()];
    Some((sign, after.strip_prefix("%}")?))
}

#[cfg(test)]
mod tests {
    use super::prepare;

    #[test]
    fn generation_tags_keep_their_whitespace_control() {
        assert_eq!(
            prepare("a{%- generation -%}b\r\n{% endgeneration+%}{%generation%}{% generations %}")
                .unwrap(),
            "a{%- with -%}b\n{% endwith +%}{% with %}{% generations %}"
        );
        for text in [
            "{{ '{% generation %}' }}",
            "{# {% generation %} #}",
            "a {% if x %}",
            "{}{ %}",
        ] {
            assert_eq!(prepare(text).unwrap(), text);
        }
        assert_eq!(
            prepare("{% raw %}\n{% generation %}\"{% endraw %}\n{# c #}").unwrap(),
            "{# #}{{ \"\\n{% generation %}\\\"\" }}{# #}\n{# c #}"
        );
    }

    #[test]
    fn what_is_too_much_or_open_is_refused_by_its_line() {
        for (source, message) in [
            (
                format!("a\n{{{{ {}1 }}}}", "not ".repeat(100_000)),
                "line 2: found more than",
            ),
            ("{{ 'a".to_owned(), "line 1: the string is not closed"),
            ("\n\n{# a".to_owned(), "line 3: the comment is not closed"),
            ("{% raw %}".to_owned(), "the raw block is not closed"),
            ("{{ a ]".to_owned(), "unexpected `]`"),
            ("{% if a".to_owned(), "expected `%}`"),
            ("{% do x() %}".to_owned(), "unknown tag 'do'"),
            ("{% a %}".repeat(10_001), "tags"),
            ("x".repeat((1 << 20) + 1), "bytes"),
        ] {
            let error = prepare(&source).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }
}
