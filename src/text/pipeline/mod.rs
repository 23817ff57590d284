//! tokenizer.json at work: text to ids through the `tokenizers` crate's own parts, one after the other.
//!
//! The crate's `Tokenizer` runs the same parts in the same order. Here they are run one by one because a
//! tokenizer.json may come from anywhere: patterns and sizes have bounds (`regex`, `normalize`; its time has one in
//! [`super::Threads`]), and an error of a normalizer, which the crate forgets, is an error.
//!
//! `normalize` and `split` read the parts that can run wild; the rest is the crate's as it is.

mod normalize;
mod regex;
mod split;

use crate::json;
use crate::quote;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::HashMap;
use tokenizers::{
    AddedToken, AddedVocabulary, Model as _, ModelWrapper, OffsetType, PostProcessor as _,
    PostProcessorWrapper,
};

use self::normalize::{Normalizer, Run};
use self::split::PreTokenizer;

/// What is wrong with a part of tokenizer.json.
type Bad = String;

/// Bytes of a token: what a generated token writes has a bound. Published ones have some hundreds at most.
const MAX_TOKEN_BYTES: usize = 4096;
/// Pieces of a post-processor's template and ids it adds, at most: published ones have one or two.
const MAX_TEMPLATE: usize = 1024;
/// How often a template may repeat the text.
const MAX_REPEATS: usize = 4;

#[derive(Debug)]
pub struct Pipeline {
    normalizer: Option<Normalizer>,
    pre_tokenizer: Option<PreTokenizer>,
    added: AddedVocabulary,
    model: ModelWrapper,
    post_processor: Option<PostProcessorWrapper>,
}

impl Pipeline {
    /// From the object in tokenizer.json, whose `decoder`, `truncation` and `padding` are left to others.
    pub fn parse(mut json: Value) -> Result<Self, Bad> {
        let version = &json["version"];
        if !version.is_null() && version != "1.0" {
            return Err(format!(
                "field `version`: found {}, expected \"1.0\"",
                json::shown(version)
            ));
        }
        let named = |field: &'static str| move |error| format!("field `{field}`: {error}");
        let optional = |field| Some(&json[field]).filter(|part: &&Value| !part.is_null());
        let mut pipeline = Self {
            normalizer: optional("normalizer")
                .map(Normalizer::parse)
                .transpose()
                .map_err(named("normalizer"))?,
            pre_tokenizer: optional("pre_tokenizer")
                .map(PreTokenizer::parse)
                .transpose()
                .map_err(named("pre_tokenizer"))?,
            post_processor: optional("post_processor")
                .map(post_processor)
                .transpose()
                .map_err(named("post_processor"))?,
            added: AddedVocabulary::new(),
            model: model(json["model"].take()).map_err(named("model"))?,
        };
        for (token, id) in pipeline.model.get_vocab() {
            check_length(&token, &format!("token {id}")).map_err(named("model"))?;
        }
        let added = match json["added_tokens"].take() {
            Value::Null => Vec::new(),
            added => part(&added).map_err(named("added_tokens"))?,
        };
        pipeline.add(added).map_err(named("added_tokens"))?;
        Ok(pipeline)
    }

    /// Adds tokens, or gives those that are there other flags. One that the vocabulary has keeps its id, another gets
    /// the next free one.
    pub fn add(&mut self, tokens: Vec<AddedToken>) -> Result<(), Bad> {
        for token in &tokens {
            check_length(&token.content, "a token")?;
        }
        let normalizer = self.normalizer.as_ref().map(Run::new);
        self.added
            .add_tokens(tokens, &self.model, normalizer.as_ref())
            .map_err(quote::message)?;
        self.check_alike()
    }

    /// Two added tokens that are the same text once they are normalized: the library finds either of them, another one
    /// in the next run.
    fn check_alike(&self) -> Result<(), Bad> {
        let mut seen: HashMap<String, &str> = HashMap::new();
        for (&id, token) in self.added.get_added_tokens_decoder() {
            if !token.normalized {
                continue;
            }
            let text = self.token(id).unwrap_or_default();
            if let Some(other) = seen.insert(text, &token.content) {
                let mut both = [other, &token.content];
                both.sort_unstable();
                let [one, two] = both;
                return Err(format!(
                    "tokens {} and {} are the same text after normalization, expected one of them or \"normalized\": false",
                    quote::name(one),
                    quote::name(two)
                ));
            }
        }
        Ok(())
    }

    /// Special tokens written out in a text are text like any other.
    pub fn split_special_tokens(&mut self) {
        self.added.set_encode_special_tokens(true);
    }

    /// Ids of `text`; `add_special` adds what the post-processor puts around it.
    ///
    /// # Errors
    /// There is no token for some of the text, or a bound is reached.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, String> {
        let broken = |error: tokenizers::Error| {
            format!("the text cannot be tokenized: {}", quote::message(error))
        };
        let normalizer = self.normalizer.as_ref().map(Run::new);
        let mut words = self.added.extract_and_normalize(normalizer.as_ref(), text);
        if let Some(trouble) = normalizer.and_then(|run| run.trouble.into_inner()) {
            return Err(broken(trouble.into()));
        }
        if let Some(pre_tokenizer) = &self.pre_tokenizer {
            pre_tokenizer
                .apply(&mut words)
                .map_err(|error| broken(error.into()))?;
        }
        words
            .tokenize(|word| self.model.tokenize(word.get()))
            .map_err(broken)?;
        let encoding = words
            .into_encoding(None, 0, OffsetType::None)
            .map_err(broken)?;
        let encoding = match &self.post_processor {
            None => encoding,
            Some(post_processor) => post_processor
                .process(encoding, None, add_special)
                .map_err(broken)?,
        };
        Ok(encoding.get_ids().to_vec())
    }

    /// How many ids have a token.
    pub fn vocab_size(&self) -> usize {
        let added = self.added.get_vocab().keys();
        self.model.get_vocab_size()
            + added
                .filter(|token| self.model.token_to_id(token).is_none())
                .count()
    }

    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.added.token_to_id(token, &self.model)
    }

    /// The token with this id as the vocabulary writes it.
    pub fn token(&self, id: u32) -> Option<String> {
        self.added
            .simple_id_to_token(id)
            .or_else(|| self.model.id_to_token(id))
    }

    pub fn is_special(&self, token: &str) -> bool {
        self.added.is_special_token(token)
    }

    pub fn has_added(&self, token: &str) -> bool {
        self.added.get_vocab().contains_key(token)
    }

    /// BPE, whose texts transformers never tidies up.
    pub fn is_bpe(&self) -> bool {
        matches!(self.model, ModelWrapper::BPE(_))
    }
}

fn check_length(token: &str, which: &str) -> Result<(), Bad> {
    match token.len() <= MAX_TOKEN_BYTES {
        true => Ok(()),
        false => Err(format!(
            "{which}: found {} bytes, expected at most {MAX_TOKEN_BYTES}",
            token.len()
        )),
    }
}

fn model(json: Value) -> Result<ModelWrapper, Bad> {
    let dropout = &json["dropout"];
    if !dropout.is_null() && dropout.as_f64() != Some(0.0) {
        return Err(format!(
            "field `dropout`: found {dropout}, expected null or 0: with it a text has other ids each time"
        ));
    }
    if json.is_null() {
        return Err("is missing, expected BPE, Unigram, WordLevel or WordPiece".to_owned());
    }
    serde_json::from_value(json).map_err(quote::message)
}

fn post_processor(json: &Value) -> Result<PostProcessorWrapper, Bad> {
    check_templates(json)?;
    let post_processor: PostProcessorWrapper = part(json)?;
    let adds = post_processor.added_tokens(false);
    match adds <= MAX_TEMPLATE {
        true => Ok(post_processor),
        false => Err(format!(
            "adds {adds} tokens to each text, expected at most {MAX_TEMPLATE}"
        )),
    }
}

/// Templates that repeat the text, here or in the processors of a Sequence.
fn check_templates(json: &Value) -> Result<(), Bad> {
    if let Some(processors) = json["processors"].as_array() {
        processors.iter().try_for_each(check_templates)?;
    }
    let Some(pieces) = json["single"].as_array() else {
        return Ok(());
    };
    let repeats = pieces
        .iter()
        .filter(|piece| !piece["Sequence"].is_null() || piece.as_str().is_some())
        .count();
    match pieces.len() <= MAX_TEMPLATE && repeats <= MAX_REPEATS {
        true => Ok(()),
        false => Err(format!(
            "field `single`: found {} pieces, {repeats} of them the text, expected at most {MAX_TEMPLATE} and {MAX_REPEATS}",
            pieces.len()
        )),
    }
}

/// A part that the crate reads.
fn part<T: DeserializeOwned>(json: &Value) -> Result<T, Bad> {
    T::deserialize(json).map_err(quote::message)
}

/// The parts of a Sequence.
fn parts_of<'a>(json: &'a Value, field: &str) -> Result<&'a [Value], Bad> {
    json[field]
        .as_array()
        .map(Vec::as_slice)
        .ok_or_else(|| format!("Sequence: expected a list in `{field}`"))
}
