//! Text to ids and back: a checkpoint's tokenizer.json, or the built-in one of random presets.

use std::path::Path;
use std::sync::Arc;

use super::decoder::Chain;
use super::{Detokenizer, byte, guarded, one_line};
use crate::{Error, Result};

/// A tokenizer, cheap to clone and shared between threads.
#[derive(Debug, Clone)]
pub struct Tokenizer(Arc<Kind>);

#[derive(Debug)]
pub(super) enum Kind {
    /// The built-in tokenizer, see `byte`.
    Bytes,
    File(Box<File>),
}

#[derive(Debug)]
pub(super) struct File {
    tokenizer: tokenizers::Tokenizer,
    pub(super) chain: Chain,
}

impl Tokenizer {
    /// Reads `dir`/tokenizer.json. Its truncation and padding are left out: prompts go in as they are.
    ///
    /// # Errors
    /// The file is missing, is not a tokenizer, or decodes in a way that is not supported.
    pub fn load(dir: &Path) -> Result<Self> {
        let path = dir.join("tokenizer.json");
        let bytes = std::fs::read(&path)
            .map_err(|error| Error::open(&path, &error, "the model's tokenizer"))?;
        let file = guarded("reading it", || File::parse(&bytes))
            .map_err(|message| Error::file(&path, message))?;
        Ok(Self(Arc::new(Kind::File(Box::new(file)))))
    }

    /// The built-in tokenizer of random presets.
    pub fn bytes() -> Self {
        Self(Arc::new(Kind::Bytes))
    }

    /// `add_special` adds what the tokenizer puts around a text (BOS); special tokens written out in `text`
    /// become single ids either way.
    ///
    /// # Errors
    /// The tokenizer has no token for some of the text.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        match &*self.0 {
            Kind::Bytes => Ok(byte::encode(text, add_special)),
            Kind::File(file) => guarded("the tokenizer", || {
                file.tokenizer
                    .encode_fast(text, add_special)
                    .map(|encoding| encoding.get_ids().to_vec())
                    .map_err(|error| {
                        format!(
                            "the text cannot be tokenized: {}",
                            one_line(&error.to_string())
                        )
                    })
            })
            .map_err(Error::Runtime),
        }
    }

    /// The text of `ids`. Invalid UTF-8 becomes U+FFFD; ids that the tokenizer does not have write nothing.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut detokenizer = Detokenizer::new(self, skip_special);
        let mut text = String::new();
        for &id in ids {
            text.push_str(detokenizer.push(id));
        }
        text.push_str(detokenizer.finish());
        text
    }

    /// How many ids have a meaning, added tokens included.
    pub fn vocab_size(&self) -> usize {
        match &*self.0 {
            Kind::Bytes => byte::VOCABULARY,
            Kind::File(file) => file.tokenizer.get_vocab_size(true),
        }
    }

    /// The id of a token written exactly so, such as `<|im_end|>`.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        match &*self.0 {
            Kind::Bytes => byte::SPECIALS
                .iter()
                .position(|&special| special == token)
                .map(|id| id as u32),
            Kind::File(file) => file.tokenizer.token_to_id(token),
        }
    }

    pub(super) fn kind(&self) -> &Kind {
        &self.0
    }
}

impl File {
    fn parse(bytes: &[u8]) -> std::result::Result<Self, String> {
        let broken = |error: &dyn std::fmt::Display| {
            format!(
                "found no valid tokenizer ({}), expected a tokenizer.json of the tokenizers library",
                one_line(&error.to_string())
            )
        };
        // As a value first: the crate panics on a syntax error inside `decoder`.
        let json: serde_json::Value = serde_json::from_slice(bytes).map_err(|e| broken(&e))?;
        let chain = Chain::parse(&json["decoder"])?;
        let mut tokenizer: tokenizers::Tokenizer =
            serde_json::from_value(json).map_err(|e| broken(&e))?;
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|e| broken(&e))?;
        Ok(Self { tokenizer, chain })
    }

    /// The token with this id as the vocabulary writes it; `None` for an unknown id and for a special token
    /// that is to be skipped.
    pub(super) fn token(&self, id: u32, skip_special: bool) -> Option<String> {
        let token = self.tokenizer.id_to_token(id)?;
        let skipped = skip_special
            && self
                .tokenizer
                .get_added_vocabulary()
                .is_special_token(&token);
        (!skipped).then_some(token)
    }
}
