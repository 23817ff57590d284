//! Tool calls in what a model writes: lists of calls as Python spells them, between LFM2's markers.
//!
//! `<|tool_call_start|>[get_weather(city="Paris", days=3)]<|tool_call_end|>`: each call becomes a name and its arguments
//! as JSON. All of an answer's calls are read, or none.

mod python;

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

/// The calls of an answer. Markers are tokens of their own, whether the text shows them or not.
pub fn find(outcome: &Outcome, codec: &dyn Codec) -> Found {
    let marks = |id: u32, marker: &[u8]| codec.token_bytes(id).is_some_and(|bytes| bytes == marker);
    let ids = &outcome.output_ids;
    let mut calls = Vec::new();
    let mut around = String::new();
    let mut text = Ahead::of(&outcome.text);
    // Behind the last token is the text's end.
    let place = |token: usize| {
        let known = outcome.text_offsets.get(token).copied();
        known.unwrap_or(usize::MAX)
    };
    let mut at = 0;
    while let Some(start) = (at..ids.len()).find(|&token| marks(ids[token], START)) {
        let Some(end) = (start + 1..ids.len()).find(|&token| marks(ids[token], END)) else {
            return Found::Unread("a call begins and does not end".to_owned());
        };
        around.push_str(text.until(place(start)));
        text.until(place(start + 1));
        match python::calls(text.until(place(end)).trim()) {
            Ok(found) => calls.extend(found),
            Err(reason) => return Found::Unread(reason),
        }
        text.until(place(end + 1));
        at = end + 1;
    }
    if at == 0 {
        return Found::Nothing;
    }
    around.push_str(text.until(usize::MAX));
    Found::Calls {
        calls,
        text: around,
    }
}

/// A text that is read once from its start to its end, by places in characters.
struct Ahead<'a> {
    rest: &'a str,
    at: usize,
}

impl<'a> Ahead<'a> {
    fn of(text: &'a str) -> Self {
        Self { rest: text, at: 0 }
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
