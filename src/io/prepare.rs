//! A question against the model: prompt to tokens, options to numbers, everything checked that would
//! otherwise fail on the device.

use super::codec::Codec;
use super::hash::{Fnv64, mix64};
use super::row::{Ask, Code, Options, Prompt, RowError};
use crate::model::GenerationConfig;
use crate::runtime::{Logits, Request, Sampling};
use crate::sys::abi::TG_MAX_STOP_IDS;
use std::time::Duration;

/// Tokens generated where nobody says otherwise.
pub const DEFAULT_MAX_NEW_TOKENS: u32 = 128;

/// What rows are checked against and what fills their gaps.
#[derive(Debug, Clone)]
pub struct Rules {
    pub vocab_size: u32,
    /// prompt + max_new_tokens, at most.
    pub max_context: u32,
    /// What the model itself has room for: max_position_embeddings.
    pub model_context: u32,
    /// End-of-sequence ids, unless a row ignores them.
    pub eos_ids: Vec<u32>,
    /// The command line's options over generation_config.json's.
    pub defaults: Options,
    /// With a row's id, its sampling key where the row has no seed.
    pub run_seed: u64,
}

/// A row that can run.
#[derive(Debug, Clone, PartialEq)]
pub struct Prepared {
    pub request: Request,
    /// Stop strings, which the host looks for.
    pub stop: Vec<String>,
}

/// generation_config.json as options: what it advises where neither row nor flag says anything.
pub fn generation_options(generation: &GenerationConfig) -> Options {
    Options {
        max_new_tokens: generation.max_new_tokens,
        temperature: Some(generation.default_temperature()),
        top_k: generation.top_k,
        top_p: generation.top_p,
        min_p: generation.min_p,
        repetition_penalty: generation.repetition_penalty,
        ..Options::default()
    }
}

/// The key of a row without a seed of its own: never its slot or its order, so companions do not matter.
pub fn sampling_key(run_seed: u64, id: &str) -> u64 {
    mix64(
        Fnv64::default()
            .with(&run_seed.to_le_bytes())
            .with(id.as_bytes())
            .finish(),
    )
}

/// The tokens of a prompt, each below `vocab_size`, at least one. A template has `timeout` to render it, or less.
pub fn prompt_tokens(
    prompt: &Prompt,
    vocab_size: u32,
    codec: &dyn Codec,
    timeout: Option<Duration>,
) -> Result<Vec<u32>, RowError> {
    let chat_error = |message| RowError::new(Code::ChatTemplate, message);
    let (field, tokens) = match prompt {
        Prompt::Ids(ids) => ("input_ids", ids.clone()),
        Prompt::Text(text) if text.is_empty() => {
            return Err(empty("prompt: found an empty string, expected text"));
        }
        Prompt::Text(text) => (
            "prompt",
            codec
                .encode(text, true)
                .map_err(|message| RowError::new(Code::InvalidRequest, message))?,
        ),
        Prompt::Messages(chat) => {
            let text = codec.render(chat, timeout).map_err(chat_error)?;
            ("messages", codec.encode(&text, false).map_err(chat_error)?)
        }
    };
    if tokens.is_empty() {
        return Err(empty(&format!(
            "{field}: found no tokens, expected at least one"
        )));
    }
    check_tokens(field, &tokens, vocab_size)?;
    Ok(tokens)
}

fn empty(message: &str) -> RowError {
    RowError::new(Code::EmptyPrompt, message)
}

fn check_tokens(field: &str, tokens: &[u32], vocab_size: u32) -> Result<(), RowError> {
    match tokens.iter().position(|&token| token >= vocab_size) {
        None => Ok(()),
        Some(position) => Err(RowError::new(
            Code::TokenOutOfRange,
            format!(
                "{field}[{position}]: found {}, expected a token id below the vocabulary size {vocab_size}",
                tokens[position]
            ),
        )),
    }
}

/// The request a row makes.
pub fn prepare(
    rules: &Rules,
    codec: &dyn Codec,
    id: &str,
    ask: &Ask,
) -> Result<Prepared, RowError> {
    let options = ask.options.clone().or(&rules.defaults);
    let timeout = options.timeout_ms.map(Duration::from_millis);
    let prompt = prompt_tokens(&ask.prompt, rules.vocab_size, codec, timeout)?;
    let max_new_tokens = options.max_new_tokens.unwrap_or(DEFAULT_MAX_NEW_TOKENS);
    let wanted = prompt.len() as u64 + u64::from(max_new_tokens);
    if wanted > u64::from(rules.max_context) {
        return Err(RowError::new(
            Code::ContextLength,
            format!(
                "found {} prompt tokens + {max_new_tokens} new ones = {wanted}, expected at most {} together: {}",
                prompt.len(),
                rules.max_context,
                match rules.max_context < rules.model_context {
                    true => "shorten the prompt, lower max_new_tokens or raise --max-context",
                    false =>
                        "shorten the prompt or lower max_new_tokens; that is the model's own limit",
                }
            ),
        ));
    }
    let request = Request {
        max_new_tokens,
        stop_ids: stop_ids(rules, &options)?,
        sampling: Sampling {
            repetition_penalty: options.repetition_penalty.unwrap_or(1.0),
            temperature: options.temperature.unwrap_or(0.0),
            top_k: options.top_k.unwrap_or(0),
            top_p: options.top_p.unwrap_or(1.0),
            min_p: options.min_p.unwrap_or(0.0),
            key: options
                .seed
                .unwrap_or_else(|| sampling_key(rules.run_seed, id)),
            logprobs: options.logprobs,
        },
        timeout,
        logits: Logits::None,
        prompt,
    };
    Ok(Prepared {
        request,
        stop: options.stop.unwrap_or_default(),
    })
}

fn stop_ids(rules: &Rules, options: &Options) -> Result<Vec<u32>, RowError> {
    let mut ids = options.stop_ids.clone().unwrap_or_default();
    check_tokens("stop_ids", &ids, rules.vocab_size)?;
    if !options.ignore_eos.unwrap_or(false) {
        ids.extend(rules.eos_ids.iter().filter(|&&id| id < rules.vocab_size));
    }
    ids.sort_unstable();
    ids.dedup();
    if ids.len() > TG_MAX_STOP_IDS as usize {
        return Err(RowError::new(
            Code::InvalidRequest,
            format!(
                "stop_ids: found {} ids with the end-of-sequence ids, expected at most {TG_MAX_STOP_IDS}",
                ids.len()
            ),
        ));
    }
    Ok(ids)
}
