//! Tool calls in what a model writes between LFM2's markers, as Python or as JSON.
//!
//! `<|tool_call_start|>[get_weather(city="Paris", days=3)]<|tool_call_end|>`: each call becomes a name and its arguments
//! as JSON. All of an answer's calls are read, or none. Between `<think>` and `</think>` a call is a draft, and none.

mod grammar;

use super::codec::Codec;
use super::outcome::Outcome;

/// One call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    pub name: String,
    /// An object of JSON.
    pub arguments: String,
}

/// What a text with calls in it comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// There is no call.
    Nothing,
    Calls {
        calls: Vec<Call>,
        /// The text around them.
        text: String,
    },
    /// Something between the markers is no list of calls, for this reason: the text is what there is.
    Unread(String),
}

const START: &[u8] = b"<|tool_call_start|>";
const END: &[u8] = b"<|tool_call_end|>";
const THINK: &[u8] = b"<think>";
const THOUGHT: &[u8] = b"</think>";

/// The calls of an answer. Markers of calls are tokens of their own, whether the text shows them or not; those of
/// reasoning may be spelled by several tokens.
pub fn find(outcome: &Outcome, codec: &Codec) -> Found {
    let mut text = Ahead::of(&outcome.text);
    let mut around = String::new();
    // Behind the last token is the text's end.
    let place = |token: usize| {
        let known = outcome.text_offsets.get(token).copied();
        known.unwrap_or(usize::MAX)
    };
    let mut blocks = Vec::new();
    let mut in_block = false;
    let mut thinking = false;
    // What was written outside of blocks and may still become a marker of reasoning.
    let mut written = Vec::new();
    for (token, &id) in outcome.output_ids.iter().enumerate() {
        let bytes = codec.token_bytes(id).unwrap_or_default();
        if in_block {
            if bytes == END {
                blocks.push(grammar::calls(text.until(place(token)).trim()));
                text.until(place(token + 1));
                in_block = false;
            }
        } else if bytes == START && !thinking {
            around.push_str(text.until(place(token)));
            text.until(place(token + 1));
            in_block = true;
        } else {
            written.extend(bytes);
            while let Some((thinks, behind)) = reasoning(&written) {
                // A prompt may end with the `<think>` of this `</think>`: all that stands before it was reasoning.
                if !thinks && !thinking {
                    blocks.clear();
                    around = text.before().to_owned();
                }
                thinking = thinks;
                written.drain(..behind);
            }
            written.drain(..written.len().saturating_sub(THOUGHT.len() - 1));
        }
    }
    if in_block {
        blocks.push(Err("a call begins and does not end".to_owned()));
    }
    if blocks.is_empty() {
        return Found::Nothing;
    }
    match blocks.into_iter().collect::<Result<Vec<_>, _>>() {
        Ok(calls) => Found::Calls {
            calls: calls.concat(),
            text: around + text.until(usize::MAX),
        },
        Err(reason) => Found::Unread(reason),
    }
}

/// Whether a call may begin with this token.
pub fn begins(id: u32, codec: &Codec) -> bool {
    codec.token_bytes(id).is_some_and(|bytes| bytes == START)
}

/// The first marker of reasoning in `bytes`: whether it begins reasoning, and where the bytes behind it start.
fn reasoning(bytes: &[u8]) -> Option<(bool, usize)> {
    (0..bytes.len()).find_map(|at| {
        let is = |marker: &[u8]| bytes[at..].starts_with(marker);
        let begins = is(THINK).then(|| (true, at + THINK.len()));
        begins.or_else(|| is(THOUGHT).then(|| (false, at + THOUGHT.len())))
    })
}

/// A text that is read once from its start to its end, by places in characters.
struct Ahead<'a> {
    text: &'a str,
    rest: &'a str,
    at: usize,
}

impl<'a> Ahead<'a> {
    fn of(text: &'a str) -> Self {
        Self {
            text,
            rest: text,
            at: 0,
        }
    }

    /// What was read so far.
    fn before(&self) -> &'a str {
        &self.text[..self.text.len() - self.rest.len()]
    }

    /// What is before `place` and was not read yet.
    fn until(&mut self, place: usize) -> &'a str {
        let wanted = place.saturating_sub(self.at);
        let mut starts = self.rest.char_indices();
        let bytes = starts.nth(wanted).map_or(self.rest.len(), |(byte, _)| byte);
        let (read, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        // Places only grow, so one behind the end is as good as the end.
        self.at = self.at.max(place);
        read
    }
}
