//! Text to ids and back: a checkpoint's tokenizer.json, or the built-in one of random presets.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use tokenizers::{
    AddedToken, ModelWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper,
};

use super::decoder::{Decoder, Front, Written};
use super::special::{self, Special};
use super::threads::{self, Part};
use super::{TextStream, byte, class, files, guarded};
use crate::{Error, Result};
use crate::{json, quote};

/// The most bytes of a token, which bounds what a generated token writes. Published ones have some hundreds.
const MAX_TOKEN_BYTES: usize = 4096;
/// The most bytes of all added tokens: the crate takes some 60 times as many to look for them.
const MAX_ADDED_BYTES: usize = 8 << 20;
/// How many times as long a part of tokenizer.json may make a text. SentencePiece's table has up to 33 bytes for a
/// character, and `▁` for a space has 3.
const MAX_GROWTH: usize = 256;

/// A tokenizer, cheap to clone and shared between threads.
#[derive(Debug, Clone)]
pub struct Tokenizer(Arc<Kind>);

#[derive(Debug)]
enum Kind {
    /// The built-in tokenizer, which is in `byte`.
    Bytes,
    File(Box<File>),
}

#[derive(Debug)]
struct File {
    tokenizer: tokenizers::Tokenizer,
    decoder: Decoder,
    /// The special tokens that the files beside tokenizer.json name: `eos_token` and the like.
    named: Vec<(String, String)>,
}

impl Tokenizer {
    /// Reads `dir`/tokenizer.json and, beside it, tokenizer_config.json, special_tokens_map.json and added_tokens.json.
    /// Truncation and padding are left out: prompts go in as they are.
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
            return Err(broken(no_tokenizer(&"JSON that is no object")));
        }
        let byte_level = class::has_byte_level(&json);
        let decoder = Decoder::parse(&json["decoder"]).map_err(broken)?;
        for part in ["normalizer", "pre_tokenizer", "post_processor", "decoder"] {
            // The size of a row's text bounds the memory that the row takes, so no part may make a text much longer.
            let times = growth(&json[part]);
            if times > MAX_GROWTH {
                return Err(broken(format!(
                    "field `{part}`: found what makes a text up to {times} times as long, expected at most {MAX_GROWTH} times as long"
                )));
            }
        }
        let rest: Map<String, Value> = ["added_tokens", "padding"]
            .into_iter()
            .map(|field| (field.to_owned(), json[field].clone()))
            .collect();
        let mut tokenizer =
            guarded("reading it", || parse(json)).map_err(|e| broken(no_tokenizer(&e)))?;

        let has = |token: &str| {
            tokenizer
                .get_added_vocabulary()
                .get_vocab()
                .contains_key(token)
        };
        let special = Special::load(dir, &rest.into(), byte_level, has)?;
        let config = |message: String| Error::file(dir.join(files::TOKENIZER_CONFIG), message);
        let is_bpe = matches!(tokenizer.get_model(), ModelWrapper::BPE(_));
        if special.clean_up && (special.clean_up_bpe || !is_bpe) {
            return Err(config(
                "field `clean_up_tokenization_spaces`: found true, expected false: taking spaces out of a text is not supported".to_owned(),
            ));
        }
        guarded("adding its tokens", || add(&mut tokenizer, special.tokens)).map_err(config)?;
        tokenizer.set_encode_special_tokens(special.split);
        Ok(Self(Arc::new(Kind::File(Box::new(File {
            tokenizer,
            decoder,
            named: special.named,
        })))))
    }

    /// The built-in tokenizer of random presets.
    pub fn bytes() -> Self {
        Self(Arc::new(Kind::Bytes))
    }

    /// The ids of `text`. `add_special` adds what the tokenizer puts around a text (BOS); special tokens that are written
    /// out in `text` become single ids either way.
    ///
    /// # Errors
    /// The tokenizer has no token for some of the text.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        match &*self.0 {
            Kind::Bytes => Ok(byte::encode(text, add_special)),
            Kind::File(file) => {
                threads::at(Part::Tokenizer);
                guarded("the tokenizer", || {
                    let encoding = file.tokenizer.encode_fast(text, add_special);
                    let encoding = encoding.map_err(|error| {
                        format!("the text cannot be tokenized: {}", quote::message(error))
                    })?;
                    Ok(encoding.get_ids().to_vec())
                })
                .map_err(Error::Runtime)
            }
        }
    }

    /// The text of `ids`. Invalid UTF-8 becomes U+FFFD; ids that the tokenizer does not have write nothing.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut stream = TextStream::new(self, &[]).with_special(!skip_special);
        for &id in ids {
            stream.push(id);
        }
        stream.finish().text
    }

    /// The bytes that a token writes by itself, which may be a piece of a character. Special tokens write theirs too.
    /// `None` for an id that the tokenizer does not have.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        self.written(id, false).map(|written| match written {
            Written::Text(bytes) => bytes,
            Written::Byte(byte) => vec![byte],
        })
    }

    /// What a token writes, as the first one of a text or anywhere else in it.
    pub(super) fn written(&self, id: u32, is_first: bool) -> Option<Written> {
        match &*self.0 {
            Kind::Bytes => Some(Written::Text(byte::bytes(id))),
            Kind::File(file) => {
                let token = file.tokenizer.id_to_token(id)?;
                Some(file.decoder.written(token, is_first))
            }
        }
    }

    /// What stands between two tokens of a text, and belongs to neither.
    pub(super) fn separator(&self) -> &'static str {
        match &*self.0 {
            Kind::Bytes => "",
            Kind::File(file) => file.decoder.separator,
        }
    }

    /// What a text leaves out at its beginning.
    pub(super) fn front(&self) -> Front {
        match &*self.0 {
            Kind::Bytes => Front::default(),
            Kind::File(file) => file.decoder.front,
        }
    }

    /// Whether `id` is a special token, which texts leave out.
    pub fn is_special(&self, id: u32) -> bool {
        match &*self.0 {
            Kind::Bytes => (id as usize) < byte::SPECIALS.len(),
            Kind::File(file) => file.tokenizer.id_to_token(id).is_some_and(|token| {
                let added = file.tokenizer.get_added_vocabulary();
                added.is_special_token(&token)
            }),
        }
    }

    /// How many ids have a meaning, added tokens included.
    pub fn vocab_size(&self) -> usize {
        match &*self.0 {
            Kind::Bytes => byte::VOCABULARY,
            Kind::File(file) => file.tokenizer.get_vocab_size(true),
        }
    }

    /// The id of the token with exactly this text, such as `<|im_end|>`.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        match &*self.0 {
            Kind::Bytes => byte::SPECIALS
                .iter()
                .position(|&special| special == token)
                .map(|id| id as u32),
            Kind::File(file) => file.tokenizer.token_to_id(token),
        }
    }

    /// The special token of this name in the checkpoint's files: `eos_token` and the like.
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

    /// All named special tokens, each name with its token.
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
}

const EXPECTED: &str = "a tokenizer.json of the tokenizers library";

/// The message about a tokenizer.json that holds something else.
fn no_tokenizer(error: &dyn std::fmt::Display) -> String {
    format!(
        "found no valid tokenizer ({}), expected {EXPECTED}",
        quote::message(error)
    )
}

/// The crate's tokenizer from the object in tokenizer.json, without its decoder, truncation and padding.
fn parse(mut json: Value) -> std::result::Result<tokenizers::Tokenizer, String> {
    let version = &json["version"];
    if !version.is_null() && version != "1.0" {
        let found = json::shown(version);
        return Err(format!("field `version`: found {found}, expected \"1.0\""));
    }
    let dropout = &json["model"]["dropout"];
    if !dropout.is_null() && dropout.as_f64() != Some(0.0) {
        return Err(format!(
            "field `model.dropout`: found {dropout}, expected null or 0: with dropout a text has other ids each time"
        ));
    }
    let model: Option<ModelWrapper> = part(&mut json, "model")?;
    let model =
        model.ok_or("field `model`: is missing, expected BPE, Unigram, WordLevel or WordPiece")?;
    let mut tokenizer = tokenizers::Tokenizer::new(model);
    check_lengths(tokenizer.get_vocab(false).keys())?;
    let normalizer: Option<NormalizerWrapper> = part(&mut json, "normalizer")?;
    tokenizer
        .with_normalizer(normalizer)
        .map_err(quote::message)?;
    tokenizer.with_pre_tokenizer(part::<PreTokenizerWrapper>(&mut json, "pre_tokenizer")?);
    tokenizer.with_post_processor(part::<PostProcessorWrapper>(&mut json, "post_processor")?);
    let added: Option<Vec<AddedToken>> = part(&mut json, "added_tokens")?;
    add(&mut tokenizer, added.unwrap_or_default())?;
    Ok(tokenizer)
}

/// Takes a field out of tokenizer.json; `None` where it is null or missing.
fn part<T: DeserializeOwned>(
    json: &mut Value,
    field: &str,
) -> std::result::Result<Option<T>, String> {
    serde_json::from_value(json[field].take())
        .map_err(|error| format!("field `{field}`: {}", quote::message(error)))
}

/// The bytes of all tokens together.
///
/// # Errors
/// A token is too long.
fn check_lengths<'a>(
    tokens: impl Iterator<Item = &'a String>,
) -> std::result::Result<usize, String> {
    let mut bytes = 0;
    for token in tokens {
        bytes += token.len();
        if token.len() > MAX_TOKEN_BYTES {
            return Err(format!(
                "token {}: found {} bytes, expected at most {MAX_TOKEN_BYTES}",
                quote::name(token),
                token.len()
            ));
        }
    }
    Ok(bytes)
}

/// Adds tokens, or gives other flags to those that are there. A token that the vocabulary has keeps its id, another gets
/// the next free one.
fn add(
    tokenizer: &mut tokenizers::Tokenizer,
    tokens: Vec<AddedToken>,
) -> std::result::Result<(), String> {
    let bytes = check_lengths(tokens.iter().map(|token| &token.content))?;
    if bytes > MAX_ADDED_BYTES {
        return Err(format!(
            "found {bytes} bytes of added tokens, expected at most {MAX_ADDED_BYTES}"
        ));
    }
    tokenizer.add_tokens(tokens).map_err(quote::message)?;
    // If two tokens have the same text once it is normalized, the crate finds one or the other, not the same in each run.
    let added = tokenizer.get_added_vocabulary();
    let mut seen: HashMap<Option<String>, &str> = HashMap::new();
    for (&id, token) in added.get_added_tokens_decoder() {
        let normalized = added.simple_id_to_token(id);
        if token.normalized
            && let Some(other) = seen.insert(normalized, &token.content)
        {
            let mut both = [other, &token.content].map(quote::name);
            both.sort_unstable();
            return Err(format!(
                "tokens {} are the same text after normalization, expected only one of them, or \"normalized\": false",
                both.join(" and ")
            ));
        }
    }
    Ok(())
}

/// How many times as long a part of tokenizer.json makes a text, at most.
fn growth(part: &Value) -> usize {
    let length = |field: &str| part[field].as_str().map_or(0, str::len);
    let parts = ["normalizers", "pretokenizers", "processors", "decoders"]
        .map(|field| part[field].as_array());
    let parts = parts.into_iter().flatten().flatten();
    let own = match part["type"].as_str() {
        Some("Replace") => match part["pattern"]["String"].as_str() {
            Some(text) if !text.is_empty() => length("content").div_ceil(text.len()),
            // A regex may match an empty text before each byte.
            _ => 1 + length("content"),
        },
        Some("Prepend") => 1 + length("prepend"),
        Some("Precompiled") => {
            longest_text(part["precompiled_charsmap"].as_str().unwrap_or_default())
        }
        // A letter of Latin-1 becomes two in GPT-2's alphabet.
        Some("ByteLevel") => 2,
        Some("BertNormalizer" | "Metaspace") => 4,
        Some("TemplateProcessing") => {
            let pieces = part["single"].as_array().into_iter().flatten();
            let ids = pieces.map(|piece| match piece["SpecialToken"]["id"].as_str() {
                None => 1,
                Some(id) => part["special_tokens"][id]["ids"]
                    .as_array()
                    .map_or(0, Vec::len),
            });
            ids.sum()
        }
        _ => 1,
    };
    parts.map(growth).fold(own.max(1), usize::saturating_mul)
}

/// The bytes of the longest text in SentencePiece's table, which is in base64: the length of a trie, the trie, and texts
/// with a NUL behind each.
fn longest_text(table: &str) -> usize {
    let table = STANDARD.decode(table).unwrap_or_default();
    let texts = table
        .split_first_chunk::<4>()
        .and_then(|(length, rest)| rest.get(u32::from_le_bytes(*length) as usize..));
    let texts = texts.unwrap_or_default().split(|&byte| byte == 0);
    texts.map(<[u8]>::len).max().unwrap_or(0)
}
