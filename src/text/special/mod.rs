//! Tokens that a checkpoint's other files add to tokenizer.json's, as `AutoTokenizer.from_pretrained` of transformers
//! 5.24 takes them.
//!
//! - tokenizer_config.json: `added_tokens_decoder` with each token's flags, the named tokens (`bos_token` and the like),
//!   and `extra_special_tokens` (a list, or an object of more named ones; `additional_special_tokens` is its old name)
//! - special_tokens_map.json and added_tokens.json, only where there is no `added_tokens_decoder`
//!
//! Ids in these files give the tokens' order and nothing else: a token that the vocabulary has keeps its id there, another
//! gets the next free one. `add_bos_token` and `add_eos_token` have no effect in tokenizer_config.json.
//!
//! `token` is one token as these files write it, and `named` those that have names.

mod named;
mod token;

use indexmap::IndexSet;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use tokenizers::AddedToken;

use super::files::{self, CONFIG, TOKENIZER_CONFIG};
use crate::json;
use crate::quote;
use crate::{Error, Result};
use named::{Named, Tokens};
use token::Token;

const SPECIAL_TOKENS_MAP: &str = "special_tokens_map.json";
const ADDED_TOKENS: &str = "added_tokens.json";

/// The usual names of special tokens, in tokenizer_config.json and for templates.
pub(super) const NAMES: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// What the files beside tokenizer.json say.
#[derive(Debug, Default)]
pub struct Special {
    /// The tokens to add to the vocabulary, in order.
    pub tokens: Vec<AddedToken>,
    /// Names and tokens, such as `eos_token`, the 7 usual ones first.
    pub named: Vec<(String, String)>,
    /// Whether special tokens that are written out in a text are encoded as text.
    pub split: bool,
    /// Whether decoding takes out spaces before punctuation, and whether it does so for a BPE too.
    pub clean_up: bool,
    pub clean_up_bpe: bool,
}

/// What is wrong with a file, for a message that names the file.
type Wrong = String;

impl Special {
    /// Reads the files of `dir`. `tokenizer` has the fields `added_tokens` and `padding` of its tokenizer.json, `byte_level`
    /// tells whether that has the word ByteLevel somewhere, and `has` whether it adds a token.
    ///
    /// # Errors
    /// A file is not what it should be, or asks for something that is not supported.
    pub fn load(
        dir: &Path,
        tokenizer: &Value,
        byte_level: bool,
        has: impl Fn(&str) -> bool,
    ) -> Result<Self> {
        let path = dir.join(TOKENIZER_CONFIG);
        let mut fields = files::object(&path)?.unwrap_or_default();
        check_config(dir, &fields, byte_level)?;
        let wrong = |message: Wrong| Error::file(&path, message);

        if !truthy(fields.get("extra_special_tokens"))
            && let Some(additional) = fields.shift_remove("additional_special_tokens")
        {
            fields.insert("extra_special_tokens".to_owned(), additional);
        }
        let mut more = Named::default();
        more.take_from(&mut fields).map_err(wrong)?;

        let mut decoder: BTreeMap<i64, Token> = BTreeMap::new();
        match fields.get("added_tokens_decoder") {
            None | Some(Value::Null) => {
                let map_path = dir.join(SPECIAL_TOKENS_MAP);
                if let Some(map) = files::object(&map_path)? {
                    merge_map(&mut fields, map)
                        .and_then(|()| more.take_extra(&mut fields))
                        .map_err(|message| Error::file(&map_path, message))?;
                }
                legacy_tokens(dir, &fields, &mut decoder)?;
                for token in tokenizer["added_tokens"].as_array().into_iter().flatten() {
                    if let (Some(id), Ok(token)) = (token["id"].as_i64(), Token::parse(token)) {
                        decoder.insert(id, token);
                    }
                }
            }
            Some(Value::Object(tokens)) => {
                for (id, token) in tokens {
                    let named = |message| {
                        let id = quote::text(id);
                        format!("field `added_tokens_decoder.{id}`: {message}")
                    };
                    let number = id
                        .trim()
                        .parse()
                        .map_err(|_| wrong(named("expected a token id as its name".to_owned())))?;
                    let token = Token::parse(token).map_err(|m| wrong(named(m)))?;
                    decoder.insert(number, token);
                }
            }
            Some(other) => {
                return Err(wrong(format!(
                    "field `added_tokens_decoder`: found {}, expected an object of tokens by id",
                    json::shown(other)
                )));
            }
        }
        let padding = &tokenizer["padding"]["pad_token"];
        if !fields.contains_key("pad_token") && padding.is_string() {
            fields.insert("pad_token".to_owned(), padding.clone());
        }
        let named = more.all(&fields, &decoder).map_err(wrong)?;
        let extra = extra_tokens(&fields).map_err(wrong)?;
        let flag = |name: &str| truthy(fields.get(name));
        Ok(Self {
            tokens: in_order(decoder, &named, extra, has),
            split: flag("split_special_tokens"),
            clean_up: flag("clean_up_tokenization_spaces"),
            clean_up_bpe: flag(
                "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
            ),
            named: named
                .into_iter()
                .map(|(name, token)| (name, token.content))
                .collect(),
        })
    }
}

/// Python's idea of true.
fn truthy(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => false,
        Some(Value::Bool(flag)) => *flag,
        Some(Value::Number(number)) => number.as_f64() != Some(0.0),
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(items)) => !items.is_empty(),
        Some(Value::Object(fields)) => !fields.is_empty(),
    }
}

/// Puts special_tokens_map.json's fields in the place of tokenizer_config.json's; lists of extra tokens are joined.
fn merge_map(
    fields: &mut Map<String, Value>,
    map: Map<String, Value>,
) -> std::result::Result<(), Wrong> {
    for (name, mut value) in map {
        match &mut value {
            // Every token of this file is special, whatever its flag says.
            Value::Object(token) if name != "extra_special_tokens" => {
                token.insert("special".to_owned(), true.into());
            }
            Value::Array(tokens) if name == "extra_special_tokens" => {
                for token in tokens.iter_mut() {
                    if let Value::Object(token) = token {
                        token.insert("special".to_owned(), true.into());
                    }
                }
                let mut all: IndexSet<Value> = match fields.get_mut(&name) {
                    Some(Value::Array(known)) => known.drain(..).collect(),
                    _ => IndexSet::new(),
                };
                all.extend(tokens.drain(..));
                value = all.into_iter().collect();
            }
            _ => {}
        }
        if name == "add_bos_token" || name == "add_eos_token" {
            return Err(format!(
                "field `{name}`: found one in this file, expected none: tokenizer.json's `post_processor` says what is put around a text"
            ));
        }
        fields.insert(name, value);
    }
    Ok(())
}

/// Reads added_tokens.json, which has ids by token. A token that other files name is special.
fn legacy_tokens(
    dir: &Path,
    fields: &Map<String, Value>,
    decoder: &mut BTreeMap<i64, Token>,
) -> Result<()> {
    let path = dir.join(ADDED_TOKENS);
    let Some(tokens) = files::object(&path)? else {
        return Ok(());
    };
    let content = |value: &Value| {
        value
            .as_str()
            .or(value["content"].as_str())
            .map(str::to_owned)
    };
    let mut special: HashSet<String> = NAMES
        .iter()
        .filter_map(|name| fields.get(*name).and_then(content))
        .collect();
    if let Some(Value::Array(extra)) = fields.get("extra_special_tokens") {
        special.extend(extra.iter().filter_map(content));
    }
    for (token, id) in tokens {
        let Some(number) = id.as_i64() else {
            return Err(Error::file(
                &path,
                format!(
                    "token {}: found {}, expected its id",
                    quote::name(&token),
                    json::shown(&id)
                ),
            ));
        };
        let is_special = special.contains(&token);
        let mut token = Token::special(&token);
        token.normalized = Some(!is_special);
        token.special = is_special;
        decoder.insert(number, token);
    }
    Ok(())
}

fn extra_tokens(fields: &Map<String, Value>) -> std::result::Result<Vec<Token>, Wrong> {
    let field = match fields.get("extra_special_tokens") {
        None => "additional_special_tokens",
        Some(_) => "extra_special_tokens",
    };
    match fields.get(field) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(tokens)) => tokens
            .iter()
            .map(|token| {
                Token::parse(token).map_err(|message| format!("field `{field}`: {message}"))
            })
            .collect(),
        Some(other) => Err(format!(
            "field `{field}`: found {}, expected a list of tokens",
            json::shown(other)
        )),
    }
}

/// The tokens in the order in which they are added: by their ids those that have one, then named and extra ones that are
/// nowhere else.
fn in_order(
    decoder: BTreeMap<i64, Token>,
    named: &Tokens,
    extra: Vec<Token>,
    has: impl Fn(&str) -> bool,
) -> Vec<AddedToken> {
    let decoded: HashSet<String> = decoder.values().map(|t| t.content.clone()).collect();
    let others = named.values().cloned().chain(extra);
    let others = others.filter(|token| !has(&token.content) && !decoded.contains(&token.content));
    let names: HashSet<&str> = named.values().map(|token| &*token.content).collect();
    let all = decoder.into_values().chain(others).map(|mut token| {
        token.special |= names.contains(&*token.content);
        token.added()
    });
    all.collect()
}

/// Refuses settings that change ids in ways that are not supported.
fn check_config(dir: &Path, fields: &Map<String, Value>, byte_level: bool) -> Result<()> {
    let path = dir.join(TOKENIZER_CONFIG);
    let wrong = |path: &Path, message: String| Err(Error::file(path, message));
    let versions = fields.get("fast_tokenizer_files").and_then(Value::as_array);
    let versioned = |name: &Value| {
        name.as_str()
            .is_some_and(|name| name.contains("tokenizer.") && name != "tokenizer.json")
    };
    if let Some(name) = versions.and_then(|names| names.iter().find(|name| versioned(name))) {
        return wrong(
            &path,
            format!(
                "field `fast_tokenizer_files`: found {}, expected tokenizer.json alone",
                json::shown(name)
            ),
        );
    }
    let class = |fields: &Map<String, Value>| {
        let class = fields.get("tokenizer_class").and_then(Value::as_str);
        class.map(str::to_owned)
    };
    let code = fields
        .get("auto_map")
        .is_some_and(|map| map.is_array() || !map["AutoTokenizer"].is_null());
    if code && !class(fields).is_some_and(|class| super::class::is_plain(&class)) {
        return wrong(
            &path,
            "field `auto_map`: found the checkpoint's own code for its tokenizer, expected \"tokenizer_class\" to be \"PreTrainedTokenizerFast\": such code is not run".to_owned(),
        );
    }
    if let Some(class) = class(fields) {
        return super::class::check(&class, byte_level).or_else(|message| wrong(&path, message));
    }
    let path = dir.join(CONFIG);
    match files::object(&path)?.as_ref().and_then(class) {
        Some(class) => {
            super::class::check(&class, byte_level).or_else(|message| wrong(&path, message))
        }
        None => Ok(()),
    }
}
