//! Text that nobody has checked, as a message shows it: on one line, without characters that a terminal obeys or hides,
//! and cut where it is long. Whatever a message quotes of a row, a template or a file goes through here.

use std::fmt::Display;

/// Characters of a name or a value, at most.
const PART_CHARACTERS: usize = 80;
/// Characters of another program's message, at most.
const MESSAGE_CHARACTERS: usize = 300;
/// Characters of a whole message, at most.
const WHOLE_CHARACTERS: usize = 1000;

/// A name or a value as it stands.
#[must_use]
pub fn text(text: impl Display) -> String {
    cut(&text.to_string(), PART_CHARACTERS)
}

/// A name between double quotes.
#[must_use]
pub fn name(name: &str) -> String {
    format!("\"{}\"", text(name))
}

/// What another program says, a parser of some format for one: a part of a message of ours.
#[must_use]
pub fn message(message: impl Display) -> String {
    cut(&joined(&message.to_string()), MESSAGE_CHARACTERS)
}

/// A whole message. Its parts are cut where they are quoted; this holds for all of them together.
#[must_use]
pub fn whole(message: &str) -> String {
    cut(&joined(message), WHOLE_CHARACTERS)
}

/// `text` with what cannot be seen escaped, whatever its length: a path.
#[must_use]
pub fn visible(text: impl Display) -> String {
    cut(&text.to_string(), usize::MAX)
}

/// Lines become one: those of a parser's message are parts of a sentence.
fn joined(text: &str) -> String {
    let lines = text.split(['\n', '\r']).map(str::trim);
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    lines.join(" ")
}

fn cut(text: &str, characters: usize) -> String {
    let mut shown = String::new();
    // An escape is longer than its character, and counts as what it takes.
    let mut left = characters;
    for c in text.chars() {
        let escape = (!is_printable(c)).then(|| c.escape_default());
        let width = escape.as_ref().map_or(1, ExactSizeIterator::len);
        if width > left {
            shown.push_str("...");
            break;
        }
        left -= width;
        match escape {
            Some(escape) => shown.extend(escape),
            None => shown.push(c),
        }
    }
    shown
}

/// Whether a character is a letter, mark, number, sign or U+0020. Neither Rust's `Debug` nor Python's `repr` escapes these.
pub fn is_printable(c: char) -> bool {
    // Rust escapes a mark that begins a text, so a letter stands before it.
    let mut buffer = [b'a'; 5];
    let length = 1 + c.encode_utf8(&mut buffer[1..]).len();
    let text = std::str::from_utf8(&buffer[..length]).unwrap_or_default();
    matches!(c, '"' | '\'' | '\\') || text.escape_debug().nth(1) == Some(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_seen_is_kept_and_what_is_not_is_escaped() {
        assert_eq!(
            text("a\n\u{1b}[2J\u{85}\u{2028}\u{202e}é 😀"),
            r"a\n\u{1b}[2J\u{85}\u{2028}\u{202e}é 😀"
        );
        assert_eq!(name("\t"), r#""\t""#);
        assert_eq!(
            message("at  2:\r\n  ^ here\n\u{7f}"),
            r"at  2: ^ here \u{7f}"
        );
    }

    #[test]
    fn what_is_long_is_cut_between_characters() {
        assert_eq!(text("é".repeat(80)), "é".repeat(80));
        assert_eq!(text("é".repeat(81)), "é".repeat(80) + "...");
        assert_eq!(text("\u{2028}".repeat(81)), r"\u{2028}".repeat(10) + "...");
        assert!(message("b".repeat(10_000)).len() < 310 && whole(&"c".repeat(10_000)).len() < 1010);
        assert_eq!(visible("d".repeat(10_000)).len(), 10_000);
    }
}
