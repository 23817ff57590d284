//! [`Echo`]: a prompt as its answer repeats it, where a row asks for that.

use super::codec::Codec;
use super::row::Prompt;
use crate::runtime::TokenLogprobs;
use crate::text::StopMatcher;

#[derive(Debug, Clone, PartialEq)]
pub struct Echo {
    pub ids: Vec<u32>,
    /// A text as it was given. The text of token ids, and of messages, is theirs.
    pub text: String,
    /// For each of `ids`, how many characters of the text are complete before it.
    pub offsets: Vec<usize>,
    /// One for each of `ids`, as far as they have come, where the row asks for them. The first is
    /// [`TokenLogprobs::UNKNOWN`].
    pub logprobs: Option<Vec<TokenLogprobs>>,
}

impl Echo {
    /// `ids` are the tokens of `prompt`. `special`: special tokens among ids are part of their text.
    pub fn new(prompt: &Prompt, ids: &[u32], special: bool, logprobs: bool, codec: &Codec) -> Self {
        let given = match prompt {
            Prompt::Text(text) => Some(text),
            Prompt::Ids(_) | Prompt::Messages(_) => None,
        };
        let stream = codec.stream(StopMatcher::new(&[]), special || given.is_some());
        let end = stream.map(|mut stream| {
            ids.iter().for_each(|&id| _ = stream.push(id));
            stream.finish()
        });
        let (mut text, mut offsets) = match end {
            Some(end) => (end.text, end.offsets),
            None => (String::new(), vec![0; ids.len()]),
        };
        if let Some(given) = given {
            // What a tokenizer puts before a text is no part of it.
            let before = text.rfind(given).unwrap_or(0);
            let (before, length) = (text[..before].chars().count(), given.chars().count());
            for offset in &mut offsets {
                *offset = offset.saturating_sub(before).min(length);
            }
            text.clone_from(given);
        }
        Self {
            ids: ids.to_vec(),
            text,
            offsets,
            logprobs: logprobs.then(Vec::new),
        }
    }

    /// Logprobs are wanted that have not come.
    pub fn is_waiting(&self) -> bool {
        let came = self.logprobs.as_ref();
        came.is_some_and(|logprobs| logprobs.len() < self.ids.len())
    }

    /// Characters of its text.
    pub fn chars(&self) -> usize {
        self.text.chars().count()
    }
}
