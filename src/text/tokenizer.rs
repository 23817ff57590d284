//! Text to ids and back: a checkpoint's tokenizer.json, or the built-in one of random presets.

use serde_json::{Map, Value};
use std::path::Path;
use std::sync::Arc;

use super::decoder::Chain;
use super::pipeline::Pipeline;
use super::special::{self, Special};
use super::threads::{self, Part};
use super::{Detokenizer, byte, class, files, guarded};
use crate::quote;
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
    pipeline: Pipeline,
    pub(super) chain: Chain,
    /// `eos_token` and the like of the files beside tokenizer.json.
    named: Vec<(String, String)>,
}

impl Tokenizer {
    /// Reads `dir`/tokenizer.json with what tokenizer_config.json, special_tokens_map.json and added_tokens.json say
    /// beside it. Its truncation and padding are left out: prompts go in as they are.
    ///
    /// # Errors
    /// A file is missing, is not what it should be, or asks for something that is not supported.
    pub fn load(dir: &Path) -> Result<Self> {
        threads::at(Part::Tokenizer);
        let path = dir.join(files::TOKENIZER);
        let Some(text) = files::read(&path, files::MAX_TOKENIZER_BYTES)? else {
            let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
            return Err(Error::open(&path, &missing, "the model's tokenizer"));
        };
        let broken = |message: String| Error::file(&path, message);
        let json: Value = serde_json::from_str(&text).map_err(|e| {
            let mistaken = files::mistaken(&text, EXPECTED);
            broken(mistaken.unwrap_or_else(|| no_tokenizer(&e)))
        })?;
        drop(text);
        if !json.is_object() {
            return Err(broken(no_tokenizer(&"it is no JSON object")));
        }
        // Named fields of it that other files need; its vocabulary is large and goes to the pipeline.
        let rest: Map<String, Value> = ["added_tokens", "padding", "decoder"]
            .into_iter()
            .map(|field| (field.to_owned(), json[field].clone()))
            .collect();
        let rest = Value::from(rest);
        let byte_level = class::has_byte_level(&json);
        let chain = Chain::parse(&rest["decoder"]).map_err(broken)?;
        let mut pipeline = guarded("reading it", || Pipeline::parse(json))
            .map_err(|e| broken(no_tokenizer(&e)))?;

        let special = Special::load(dir, &rest, byte_level, |token| pipeline.has_added(token))?;
        let config = |message: String| Error::file(dir.join(files::TOKENIZER_CONFIG), message);
        if special.clean_up && (special.clean_up_bpe || !pipeline.is_bpe()) {
            return Err(config(
                "field `clean_up_tokenization_spaces`: found true, expected false: taking spaces out of a text is not supported".to_owned(),
            ));
        }
        guarded("adding its tokens", || pipeline.add(special.tokens)).map_err(config)?;
        if special.split {
            pipeline.split_special_tokens();
        }
        Ok(Self(Arc::new(Kind::File(Box::new(File {
            pipeline,
            chain,
            named: special.named,
        })))))
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
            Kind::File(file) => {
                threads::at(Part::Tokenizer);
                guarded("the tokenizer", || file.pipeline.encode(text, add_special))
                    .map_err(Error::Runtime)
            }
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

    /// The bytes that a token has of its own, a special one's too: a piece of a character where it is one. `None` for
    /// an id that the tokenizer does not have.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        match &*self.0 {
            Kind::Bytes => byte::bytes(id, false).map(Into::into),
            Kind::File(file) => file.token(id, false).map(|token| file.chain.bytes(&token)),
        }
    }

    /// What stands between two tokens of a text, and belongs to neither.
    pub fn separator(&self) -> &'static str {
        match &*self.0 {
            Kind::Bytes => "",
            Kind::File(file) => file.chain.separator(),
        }
    }

    /// Whether `id` is a special token, which texts leave out.
    pub fn is_special(&self, id: u32) -> bool {
        match &*self.0 {
            Kind::Bytes => (id as usize) < byte::SPECIALS.len(),
            Kind::File(file) => file.token(id, false).is_some() && file.token(id, true).is_none(),
        }
    }

    /// How many ids have a meaning, added tokens included.
    pub fn vocab_size(&self) -> usize {
        match &*self.0 {
            Kind::Bytes => byte::VOCABULARY,
            Kind::File(file) => file.pipeline.vocab_size(),
        }
    }

    /// The id of a token written exactly so, such as `<|im_end|>`.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        match &*self.0 {
            Kind::Bytes => byte::SPECIALS
                .iter()
                .position(|&special| special == token)
                .map(|id| id as u32),
            Kind::File(file) => file.pipeline.token_id(token),
        }
    }

    /// The special token that the checkpoint's files give such a name: `eos_token` and the like.
    pub fn named(&self, name: &str) -> Option<&str> {
        match &*self.0 {
            Kind::Bytes => match name {
                "bos_token" => Some(byte::SPECIALS[byte::BOS as usize]),
                "eos_token" => Some(byte::SPECIALS[byte::EOS as usize]),
                "pad_token" => Some(byte::SPECIALS[byte::PAD as usize]),
                _ => None,
            },
            Kind::File(file) => file
                .named
                .iter()
                .find(|(known, _)| known == name)
                .map(|(_, token)| token.as_str()),
        }
    }

    /// All names of special tokens and the tokens.
    pub(super) fn all_named(&self) -> Vec<(&str, &str)> {
        match &*self.0 {
            Kind::Bytes => special::NAMES
                .into_iter()
                .filter_map(|name| Some((name, self.named(name)?)))
                .collect(),
            Kind::File(file) => {
                let named = file.named.iter();
                named
                    .map(|(name, token)| (name.as_str(), token.as_str()))
                    .collect()
            }
        }
    }

    pub(super) fn kind(&self) -> &Kind {
        &self.0
    }
}

const EXPECTED: &str = "a tokenizer.json of the tokenizers library";

/// tokenizer.json is something else.
fn no_tokenizer(error: &dyn std::fmt::Display) -> String {
    format!(
        "found no valid tokenizer ({}), expected {EXPECTED}",
        quote::message(error)
    )
}

impl File {
    /// The token with this id as the vocabulary writes it; `None` for an unknown id and for a special token
    /// that is to be skipped.
    pub(super) fn token(&self, id: u32, skip_special: bool) -> Option<String> {
        let token = self.pipeline.token(id)?;
        let skipped = skip_special && self.pipeline.is_special(&token);
        (!skipped).then_some(token)
    }
}
