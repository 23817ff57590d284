//! What rows need of a tokenizer and a chat template, whichever they are.

use crate::text::{Chat, Doubt, StopMatcher, Unrendered};

/// Text to tokens and back. Errors are one line and become the row's.
pub trait Codec: Send + Sync {
    /// Why tokens have no text, where they have none: then there are no stop strings to look for either.
    fn no_text(&self) -> Option<&str> {
        None
    }
    /// Token ids of `text`; with `special`, as a prompt of its own (a leading BOS where the tokenizer has one).
    fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, String>;
    /// The conversation as text.
    fn render(&self, chat: &Chat) -> Result<String, Unrendered>;
    /// What the template may not show of the conversation as it is meant.
    fn doubts(&self, chat: &Chat) -> Vec<Doubt>;
    /// The bytes that a token has of its own, special tokens included: a piece of a character where it is one. `None`
    /// for an id without a token.
    fn token_bytes(&self, id: u32) -> Option<Vec<u8>>;
    /// A sequence to be fed token by token, which are the pieces of `stop`, and ends before what that finds. `special`: its
    /// text has special tokens too, other than those that end it.
    fn stream(&self, stop: StopMatcher, special: bool) -> Box<dyn TextStream>;
}

/// Whether a sequence goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextProgress {
    Continue,
    /// The token just pushed completed a stop string.
    Stopped,
}

/// Text of one sequence as its tokens come.
pub trait TextStream: Send {
    fn push(&mut self, id: u32) -> TextProgress;
    /// A stop id: it ends the text as a stop string does, without being part of it. A stop string may end with it.
    fn push_last(&mut self, id: u32);
    /// The text that has become certain since the last call: neither a later token nor a stop string takes it back. All of
    /// it together is how the text of [`TextStream::finish`] begins.
    fn certain(&mut self) -> String;
    fn finish(self: Box<Self>) -> TextEnd;
}

/// What a sequence came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextEnd {
    /// Without special tokens, ending before a stop string if one was found.
    pub text: String,
    /// Pushed tokens up to the one that completed a stop string; `None` where there was none.
    pub stop_tokens: Option<usize>,
    /// For each token, up to that one, how many characters of the text are complete before it.
    pub offsets: Vec<usize>,
}
