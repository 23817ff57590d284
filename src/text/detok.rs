//! Ids to text as it becomes certain.

use super::byte;
use super::decoder::ChainState;
use super::tokenizer::{Kind, Tokenizer};
use super::utf8::{Chunk, Utf8};

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
    certain: Chunk,
    /// What the last call made certain.
    text: String,
    /// For each id, how many characters of the certain text end with it.
    ends: Vec<usize>,
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
            certain: Chunk::default(),
            text: String::new(),
            ends: Vec::new(),
        }
    }

    /// The text that `id` makes certain, often of this and some earlier ids; empty where nothing is yet.
    /// An id that the tokenizer does not have (a model's vocabulary may be larger) writes nothing.
    pub fn push(&mut self, id: u32) -> &str {
        let origin = self.ends.len();
        self.ends.push(0);
        match self.tokenizer.kind() {
            Kind::Bytes => {
                if let Some(bytes) = byte::bytes(id, self.skip_special) {
                    self.utf8.push(&bytes, origin, &mut self.certain);
                }
            }
            Kind::File(file) => {
                if let Some(token) = file.token(id, self.skip_special) {
                    self.chain
                        .push(&file.chain, &token, origin, &mut self.certain);
                }
            }
        }
        self.take()
    }

    /// An id that is no part of the text, though it may be one of a written token.
    pub fn skip(&mut self) {
        self.ends.push(0);
    }

    /// What was held back: no more ids will come. Bytes of an incomplete character become U+FFFD.
    pub fn finish(&mut self) -> &str {
        match self.tokenizer.kind() {
            Kind::Bytes => self.utf8.finish(&mut self.certain),
            Kind::File(file) => self.chain.finish(&file.chain, &mut self.certain),
        }
        self.take()
    }

    /// For each id, how many characters of the text are complete before it. An id that goes on with a character has
    /// the place of that character. Of the whole text once it is finished.
    pub fn offsets(&self) -> Vec<usize> {
        let mut before = 0;
        let place = |ended: &usize| {
            let place = before;
            before += ended;
            place
        };
        self.ends.iter().map(place).collect()
    }

    fn take(&mut self) -> &str {
        self.text.clear();
        for (c, origin) in self.certain.characters() {
            self.text.push(c);
            self.ends[origin] += 1;
        }
        self.certain.clear();
        &self.text
    }
}
