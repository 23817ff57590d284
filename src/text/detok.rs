//! Ids to text as it becomes certain.

use super::byte;
use super::decoder::ChainState;
use super::tokenizer::{Kind, Tokenizer};
use super::utf8::Utf8;

/// The text of one sequence, id by id. All pushes and [`Detokenizer::finish`] together give what
/// [`Tokenizer::decode`] gives for all ids; a push costs the same however long the text already is.
///
/// Text is held back while later ids may change it: a character whose last bytes have not come, a run of
/// byte tokens (`<0xE5>`) that has not ended, spaces that a decoder strips from the end.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    skip_special: bool,
    /// Of a tokenizer.json.
    chain: ChainState,
    /// Of the built-in tokenizer.
    utf8: Utf8,
    /// What the last call made certain.
    text: String,
}

impl Detokenizer {
    pub fn new(tokenizer: &Tokenizer, skip_special: bool) -> Self {
        Self {
            tokenizer: tokenizer.clone(),
            skip_special,
            chain: match tokenizer.kind() {
                Kind::Bytes => ChainState::default(),
                Kind::File(file) => ChainState::new(&file.chain),
            },
            utf8: Utf8::default(),
            text: String::new(),
        }
    }

    /// The text that `id` makes certain, often of this and some earlier ids; empty where nothing is yet.
    /// An id that the tokenizer does not have (a model's vocabulary may be larger) writes nothing.
    pub fn push(&mut self, id: u32) -> &str {
        self.text.clear();
        match self.tokenizer.kind() {
            Kind::Bytes => {
                if let Some(bytes) = byte::bytes(id, self.skip_special) {
                    self.utf8.push(&bytes, &mut self.text);
                }
            }
            Kind::File(file) => {
                if let Some(token) = file.token(id, self.skip_special) {
                    self.chain.push(&file.chain, &token, &mut self.text);
                }
            }
        }
        &self.text
    }

    /// What was held back: no more ids will come. Bytes of an incomplete character become U+FFFD.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        match self.tokenizer.kind() {
            Kind::Bytes => self.utf8.finish(&mut self.text),
            Kind::File(file) => self.chain.finish(&file.chain, &mut self.text),
        }
        &self.text
    }
}
