//! Long text against the context, before all of it is encoded: a tokenizer takes minutes and a hundred times the
//! text's bytes for what could never run.
//!
//! The text is encoded a part at a time, and each part's tokens are forgotten, until there are clearly more than the
//! context holds. So the work is bounded by the context and not by the text. A cut can make more tokens of a text than
//! it has as a whole, by a few at each place; parts are long, and only an eighth more than the context is too many.

use crate::io::row::{Code, RowError};

/// Text up to this is encoded as a whole in any case.
const PART_BYTES: usize = 1 << 18;

/// Refuses a text whose tokens are clearly more than `max_context`; `field` is what it is called.
pub(super) fn check(
    field: &str,
    text: &str,
    max_context: u32,
    encode: impl Fn(&str) -> Result<Vec<u32>, RowError>,
) -> Result<(), RowError> {
    if text.len() <= PART_BYTES {
        return Ok(());
    }
    let too_many = u64::from(max_context) + u64::from(max_context) / 8;
    let mut tokens = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let (part, after) = split(rest);
        tokens += encode(part)?.len() as u64;
        rest = after;
        if tokens > too_many {
            return Err(Code::ContextLength.error(format!(
                "{field}: found {} bytes of text, of which the first {} make more than {max_context} tokens, expected at most {max_context} tokens",
                text.len(),
                text.len() - rest.len()
            )));
        }
    }
    Ok(())
}

/// A part to encode and what follows it, cut before white space where there is some: words stay whole.
fn split(text: &str) -> (&str, &str) {
    if text.len() <= PART_BYTES {
        return (text, "");
    }
    let boundary = (0..=PART_BYTES).rev().find(|&at| text.is_char_boundary(at));
    let end = boundary.unwrap_or(text.len());
    let cut = text[..end].rfind(char::is_whitespace);
    text.split_at(cut.filter(|&cut| cut > PART_BYTES / 2).unwrap_or(end))
}
