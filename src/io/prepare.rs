//! A question against the model: prompt to tokens, options to numbers, everything checked that would
//! otherwise fail on the device.

mod text_size;

use super::codec::Codec;
use super::echo::Echo;
use super::hash::{Fnv64, mix64};
use super::row::{Ask, Code, FieldNames, Options, Prompt, RowError};
use crate::model::GenerationConfig;
use crate::runtime::{Logits, Request, Sampling};
use crate::sys::abi::TG_MAX_STOP_IDS;
use crate::text::StopMatcher;
use std::time::Duration;

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
    /// The command line's options over generation_config.json's, of which `advised_new_tokens` is apart.
    pub defaults: Options,
    /// generation_config.json's max_new_tokens: advice, which ends where the context does.
    pub advised_new_tokens: Option<u32>,
    /// The sampling key of a row without a seed, with the row's place in the input.
    pub run_seed: u64,
    /// Rows may ask for logits of their prompts.
    pub prompt_logprobs: bool,
}

/// A row that can run.
#[derive(Debug, Clone, PartialEq)]
pub struct Prepared {
    pub request: Request,
    /// Finds stop strings once the request has its least tokens, which are its pieces.
    pub stop: StopMatcher,
    /// The text has special tokens too.
    pub special: bool,
    /// What the answer repeats of the prompt.
    pub echo: Option<Box<Echo>>,
}

/// Sequences of a row that the device has not taken, in the order of the row's answers. What they share is there once.
#[derive(Debug, Default)]
pub struct Waiting {
    /// A sequence of each prompt.
    prompts: Vec<Prepared>,
    /// To each prompt.
    answers: usize,
    /// The row's sampling key.
    key: u64,
    taken: usize,
}

impl Waiting {
    /// How many they are.
    pub fn left(&self) -> usize {
        self.prompts.len() * self.answers - self.taken
    }

    /// Each prompt, and how many sequences it has.
    pub fn prompts(&self) -> impl Iterator<Item = (&[u32], usize)> {
        let prompts = self.prompts.iter();
        prompts.map(|prepared| (&prepared.request.prompt[..], self.answers))
    }

    /// The next one.
    pub fn peek(&mut self) -> Option<&mut Prepared> {
        let prepared = self
            .prompts
            .get_mut(self.taken.checked_div(self.answers)?)?;
        // The first has the row's own.
        prepared.request.sampling.key = match self.taken as u64 {
            0 => self.key,
            choice => sampling_key(self.key, choice),
        };
        Some(prepared)
    }

    /// The device has taken the next one.
    pub fn take(&mut self) {
        self.taken += 1;
    }
}

/// generation_config.json as options: what it advises where neither row nor flag says anything. Its max_new_tokens is
/// for [`Rules::advised_new_tokens`].
pub fn generation_options(generation: &GenerationConfig) -> Options {
    Options {
        temperature: Some(generation.default_temperature()),
        top_k: generation.top_k,
        top_p: generation.top_p,
        min_p: generation.min_p,
        repetition_penalty: generation.repetition_penalty,
        ..Options::default()
    }
}

/// The key of a row without a seed of its own, from its place in the whole input (counted from 0): never its slot or
/// its order of service, so companions do not matter.
pub fn sampling_key(run_seed: u64, row: u64) -> u64 {
    mix64(
        Fnv64::default()
            .with(&run_seed.to_le_bytes())
            .with(&row.to_le_bytes())
            .finish(),
    )
}

/// The tokens of a prompt, each below `vocab_size`, at least one. Text that cannot fit `max_context` is an error
/// before all of it is encoded; whether the tokens of the rest fit is the caller's to check.
pub fn prompt_tokens(
    prompt: &Prompt,
    names: &FieldNames,
    vocab_size: u32,
    max_context: u32,
    codec: &Codec,
) -> Result<Vec<u32>, RowError> {
    let (field, tokens) = encode(prompt, None, names, max_context, codec)?;
    if tokens.is_empty() {
        return Err(
            Code::EmptyPrompt.error(format!("{field}: found no tokens, expected at least one"))
        );
    }
    check_tokens(field, &tokens, vocab_size)?;
    Ok(tokens)
}

/// The tokens of a prompt, of which there may be none, and what messages call it. `special`: with those that the tokenizer puts
/// around texts, as a text has them and messages, whose template writes them, do not unless this says otherwise.
///
/// # Errors
/// The prompt cannot be rendered or encoded, or could not fit `max_context`.
pub fn encode(
    prompt: &Prompt,
    special: Option<bool>,
    names: &FieldNames,
    max_context: u32,
    codec: &Codec,
) -> Result<(&'static str, Vec<u32>), RowError> {
    let text_tokens = |field, text: &str, special, wrong: Code| {
        let encode = |text: &str, special| {
            let tokens = codec.encode(text, special);
            tokens.map_err(|message| wrong.error(message))
        };
        text_size::check(field, text, max_context, |part| encode(part, false))?;
        Ok((field, encode(text, special)?))
    };
    match prompt {
        Prompt::Ids(ids) => Ok((names.ids, ids.clone())),
        Prompt::Text(text) => text_tokens(
            "prompt",
            text,
            special.unwrap_or(true),
            Code::InvalidRequest,
        ),
        Prompt::Messages(chat) => {
            let text = codec.render(chat)?;
            text_tokens(
                "messages",
                &text,
                special.unwrap_or(false),
                Code::ChatTemplate,
            )
        }
    }
}

fn check_tokens(field: &str, tokens: &[u32], vocab_size: u32) -> Result<(), RowError> {
    match tokens.iter().position(|&token| token >= vocab_size) {
        None => Ok(()),
        Some(position) => Err(Code::TokenOutOfRange.error(format!(
            "{field}[{position}]: found {}, expected a token id below the vocabulary size {vocab_size}",
            tokens[position]
        ))),
    }
}

/// The request that row `row` of the input, counted from 0, makes.
///
/// # Errors
/// What is wrong with it; one that asks for several answers, which are [`prepare_all`]'s.
pub fn prepare(rules: &Rules, codec: &Codec, row: u64, ask: &Ask) -> Result<Prepared, RowError> {
    match ask.choices.count() {
        1 => {
            let mut waiting = prepare_all(rules, codec, row, ask)?;
            Ok(waiting.peek().expect("one prompt, one answer").clone())
        }
        several => Err(Code::Unsupported.error(format!(
            "found a question for {several} answers, expected one for 1"
        ))),
    }
}

/// All requests that a row makes: for each prompt as many as answers are asked for, in the order of these.
///
/// # Errors
/// Fails as [`prepare`] does for any of the prompts.
pub fn prepare_all(rules: &Rules, codec: &Codec, row: u64, ask: &Ask) -> Result<Waiting, RowError> {
    let options = ask.options.clone().or(&rules.defaults);
    let stop = StopMatcher::new(options.stop.as_deref().unwrap_or_default());
    if let Some(why) = codec.no_text().filter(|_| !stop.is_empty()) {
        return Err(Code::InvalidRequest.error(format!("stop: {why}")));
    }
    let key = options.seed;
    let key = key.unwrap_or_else(|| sampling_key(rules.run_seed, row));
    let prompts = std::iter::once(&ask.prompt).chain(&ask.choices.more);
    let prepared = prompts.enumerate().map(|(place, prompt)| {
        let prepared = prepare_one(rules, codec, ask, prompt, &options, &stop);
        prepared.map_err(|error| {
            if ask.choices.more.is_empty() {
                return error;
            }
            error
                .code
                .error(format!("prompt[{place}]: {}", error.message))
        })
    });
    let prompts = prepared.collect::<Result<_, _>>()?;
    Ok(Waiting {
        prompts,
        answers: ask.choices.n as usize,
        key,
        taken: 0,
    })
}

/// A prompt's request, whose key [`Waiting`] knows.
fn prepare_one(
    rules: &Rules,
    codec: &Codec,
    ask: &Ask,
    prompt: &Prompt,
    options: &Options,
    stop: &StopMatcher,
) -> Result<Prepared, RowError> {
    let (vocab_size, max_context) = (rules.vocab_size, rules.max_context);
    let given = prompt;
    let prompt = prompt_tokens(given, ask.names, vocab_size, max_context, codec)?;
    let (max_new_tokens, unlimited) = limit(rules, prompt.len() as u64, ask)?;
    let logits = match (ask.echo, options.logprobs, max_new_tokens) {
        (true, Some(_), _) => Logits::All,
        // A prompt is read for its own sake.
        (_, _, 0) => Logits::Last,
        _ => Logits::None,
    };
    if logits != Logits::None && !rules.prompt_logprobs {
        return Err(Code::Unsupported.error(
            "echo: found it with logprobs, or without new tokens, in a run whose GPU is not ready for that, expected a run with --prompt-logprobs",
        ));
    }
    let special = options.skip_special_tokens == Some(false);
    let logprobs = options.logprobs.is_some();
    let repeated = || Box::new(Echo::new(given, &prompt, special, logprobs, codec));
    let echo = ask.echo.then(repeated);
    let biases = options.logit_bias.clone().unwrap_or_default();
    if let Some((id, _)) = biases.iter().find(|&&(id, _)| id >= vocab_size) {
        return Err(Code::TokenOutOfRange.error(format!(
            "logit_bias: found the key {id}, expected token ids below the vocabulary size {vocab_size}"
        )));
    }
    let min_new_tokens = min_new_tokens(rules, max_new_tokens, ask)?;
    let request = Request {
        max_new_tokens,
        unlimited,
        stop_ids: stop_ids(rules, ask)?,
        min_new_tokens,
        biases,
        sampling: Sampling {
            repetition_penalty: options.repetition_penalty.unwrap_or(1.0),
            presence_penalty: options.presence_penalty.unwrap_or(0.0),
            frequency_penalty: options.frequency_penalty.unwrap_or(0.0),
            temperature: temperature(options),
            top_k: options.top_k.unwrap_or(0),
            top_p: options.top_p.unwrap_or(1.0),
            min_p: options.min_p.unwrap_or(0.0),
            key: 0,
            logprobs: options.logprobs,
        },
        timeout: options.timeout_ms.map(Duration::from_millis),
        logits,
        borders: vec![],
        followers: 0,
        prompt,
    };
    Ok(Prepared {
        request,
        stop: stop.clone().from_piece(min_new_tokens as usize),
        special,
        echo,
    })
}

/// Tokens that a row may generate, and whether they are what the context leaves. A limit that the row or a flag names must
/// fit beside the prompt; one that nobody asked for is cut to what the context leaves.
fn limit(rules: &Rules, prompt_tokens: u64, ask: &Ask) -> Result<(u32, bool), RowError> {
    let context = u64::from(rules.max_context);
    let asked = ask.options.max_new_tokens.or(rules.defaults.max_new_tokens);
    let wanted = prompt_tokens + u64::from(asked.unwrap_or(1));
    if wanted > context {
        let (new, shorten) = match asked {
            Some(asked) => (
                format!("{asked} new ones"),
                format!("shorten the prompt, lower {}", limit_name(ask)),
            ),
            None => (
                "at least 1 new one".to_owned(),
                "shorten the prompt".to_owned(),
            ),
        };
        let advice = if rules.max_context < rules.model_context {
            " or raise --max-context"
        } else {
            "; that is the model's own limit"
        };
        return Err(Code::ContextLength.error(format!(
            "found {prompt_tokens} prompt tokens + {new} = {wanted}, expected at most {context} together: {shorten}{advice}"
        )));
    }
    let rest = (context - prompt_tokens) as u32;
    let named = asked.or_else(|| Some(rules.advised_new_tokens.or(ask.unasked)?.min(rest)));
    Ok((named.unwrap_or(rest), named.is_none()))
}

/// Tokens that a row must generate before one may end it.
fn min_new_tokens(rules: &Rules, max_new_tokens: u32, ask: &Ask) -> Result<u32, RowError> {
    let (least, name) = match (ask.options.min_tokens, rules.defaults.min_tokens) {
        (Some(least), _) => (least, "min_tokens"),
        (None, least) => (least.unwrap_or(0), "--min-tokens"),
    };
    if least <= max_new_tokens {
        return Ok(least);
    }
    Err(Code::InvalidRequest.error(format!(
        "{name}: found {least}, expected at most the {max_new_tokens} new tokens that the row may have: raise {}",
        limit_name(ask)
    )))
}

/// Who has set the limit: the row, or the flag for all rows.
fn limit_name(ask: &Ask) -> &'static str {
    match ask.options.max_new_tokens {
        Some(_) => ask.names.max_new_tokens,
        None => "--max-new-tokens",
    }
}

/// Below this a temperature is 0. So small a one divides logits by less than the steps that f32 has at their size
/// (7.6e-6 at 100), so that nothing but ties is left to draw from, and then past what f32 holds. vLLM takes the same.
pub const GREEDY_BELOW: f32 = 1e-5;

/// The temperature of a row. To keep the most likely token alone (top_p 0) is to be greedy.
fn temperature(options: &Options) -> f32 {
    let temperature = options.temperature.unwrap_or(0.0);
    if temperature < GREEDY_BELOW || options.top_p == Some(0.0) {
        return 0.0;
    }
    temperature
}

fn stop_ids(rules: &Rules, ask: &Ask) -> Result<Vec<u32>, RowError> {
    let (given, name) = match (&ask.options.stop_ids, &rules.defaults.stop_ids) {
        (Some(ids), _) => (ids.as_slice(), ask.names.stop_ids),
        (None, ids) => (ids.as_deref().unwrap_or_default(), "--stop-ids"),
    };
    check_tokens(name, given, rules.vocab_size)?;
    let mut ids = given.to_vec();
    let ignore_eos = ask.options.ignore_eos.or(rules.defaults.ignore_eos);
    if !ignore_eos.unwrap_or(false) {
        ids.extend(rules.eos_ids.iter().filter(|&&id| id < rules.vocab_size));
    }
    ids.sort_unstable();
    ids.dedup();
    if ids.len() > TG_MAX_STOP_IDS as usize {
        return Err(Code::InvalidRequest.error(format!(
            "{name}: found {} ids with the end-of-sequence ids, expected at most {TG_MAX_STOP_IDS}",
            ids.len()
        )));
    }
    Ok(ids)
}
