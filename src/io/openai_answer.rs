//! Answers to bodies of the OpenAI format, as values: whoever asked gets them in a line of a file, or otherwise.
//!
//! Ids are made of the question's number, which is its line in a file, and `created` is the job's start, which its journal
//! keeps: a resumed run gives the same file. `timing` is ours, as in our own rows, and so is `tool_call_error` of a message in
//! which the model began a call that cannot be read.

use super::codec::Codec;
use super::echo::Echo;
use super::outcome::{Finish, List, Origin, Outcome, TimingMs, TokenEntry, Tokens, Usage, spelled};
use super::row::{Endpoint, OpenAi, RowError};
use super::tool_calls::{self, Call, Found};
use crate::runtime::Timing;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use std::borrow::Cow;

/// The answer to question `number`: `outcomes` of all its choices, each at its end.
pub fn body<'a>(
    repeated: &'a OpenAi,
    number: u64,
    outcomes: &'a [Outcome],
    codec: &'a Codec,
    origin: &'a Origin,
) -> impl Serialize + 'a {
    let object = match repeated.endpoint {
        Endpoint::Chat => "chat.completion",
        Endpoint::Completions => "text_completion",
    };
    let choices = move || {
        let choices = outcomes.iter().enumerate();
        choices.map(move |(index, outcome)| Choice::of(repeated, number, index, outcome, codec))
    };
    Body {
        id: id(repeated.endpoint, number),
        object,
        created: origin.created,
        model: repeated.model.as_deref().unwrap_or(&origin.model),
        choices: List(choices),
        usage: usage(repeated, outcomes.iter().map(Count::from)),
        timing: timing(outcomes),
    }
}

/// What the answer to question `number` is called.
pub(super) fn id(endpoint: Endpoint, number: u64) -> String {
    match endpoint {
        Endpoint::Chat => format!("chatcmpl-{number}"),
        Endpoint::Completions => format!("cmpl-{number}"),
    }
}

/// The answer to a question that cannot be answered.
pub fn error(error: &RowError) -> Value {
    error_of("invalid_request_error", error.code.as_str(), &error.message)
}

/// An error of `kind`, as the format has errors.
pub fn error_of(kind: &str, code: &str, message: &str) -> Value {
    json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
}

#[derive(Serialize)]
struct Body<'a, C> {
    id: String,
    object: &'a str,
    created: u64,
    model: &'a str,
    choices: C,
    usage: Value,
    timing: TimingMs,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<Cow<'a, str>>,
    logprobs: Option<Logprobs<'a>>,
    finish_reason: Value,
}

impl<'a> Choice<'a> {
    fn of(
        repeated: &OpenAi,
        number: u64,
        index: usize,
        outcome: &'a Outcome,
        codec: &'a Codec,
    ) -> Self {
        let chat = repeated.endpoint == Endpoint::Chat;
        let mut choice = Self {
            index,
            message: None,
            text: None,
            logprobs: outcome.logprobs.as_ref().map(|_| Logprobs {
                chat,
                echo: outcome.echo.as_deref(),
                tokens: outcome.tokens(),
                offsets: &outcome.text_offsets,
                codec,
            }),
            finish_reason: json!(outcome.finish),
        };
        if chat {
            let (message, finish_reason) = message(repeated, number, index, outcome, codec);
            choice.message = Some(message);
            choice.finish_reason = finish_reason;
        } else {
            choice.text = Some(match &outcome.echo {
                None => Cow::Borrowed(&outcome.text),
                Some(echo) => Cow::Owned(format!("{}{}", echo.text, outcome.text)),
            });
        }
        choice
    }
}

/// From the first of the answers to the last.
fn timing(outcomes: &[Outcome]) -> TimingMs {
    let timings = || outcomes.iter().map(|outcome| &outcome.timing);
    let began = |outcome: &&Outcome| !outcome.output_ids.is_empty();
    let tokens = outcomes.iter().filter(began);
    let first_token = tokens.map(|outcome| outcome.timing.first_token).min();
    let timing = Timing {
        queue: timings()
            .map(|timing| timing.queue)
            .min()
            .unwrap_or_default(),
        first_token: first_token.unwrap_or_default(),
        total: timings()
            .map(|timing| timing.total)
            .max()
            .unwrap_or_default(),
        ..Timing::default()
    };
    TimingMs::of(&timing, first_token.is_some())
}

/// What the assistant says, and why it ends there.
pub(super) fn message(
    repeated: &OpenAi,
    number: u64,
    index: usize,
    outcome: &Outcome,
    codec: &Codec,
) -> (Value, Value) {
    let mut message = json!({"role": "assistant", "content": outcome.text});
    let found = repeated.tools.then(|| tool_calls::find(outcome, codec));
    match found.unwrap_or(Found::Nothing) {
        Found::Nothing => {}
        Found::Unread(reason) => message["tool_call_error"] = json!(reason),
        // The format has no empty list of calls: there is none.
        Found::Calls { calls, text } if calls.is_empty() => message["content"] = json!(text),
        Found::Calls { calls, text } => {
            let is_alone = text.trim().is_empty();
            message["content"] = if is_alone { Value::Null } else { json!(text) };
            let call = |(place, call): (usize, &Call)| {
                json!({
                    "id": format!("call_{number}_{index}_{place}"),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                })
            };
            message["tool_calls"] = calls.iter().enumerate().map(call).collect();
            if outcome.finish == Finish::Stop {
                return (message, json!("tool_calls"));
            }
        }
    }
    (message, json!(outcome.finish))
}

/// What a choice counts as.
#[derive(Default, Clone, Copy)]
pub(super) struct Count {
    prompt: usize,
    /// Those of the prompt's that were computed for another sequence.
    cached: u32,
    new: usize,
}

impl From<&Outcome> for Count {
    fn from(outcome: &Outcome) -> Self {
        Self {
            prompt: outcome.prompt_tokens,
            cached: outcome.timing.cached_tokens,
            new: outcome.output_ids.len(),
        }
    }
}

/// The usage of all choices. A prompt counts once, however many answers it has, and what of it was cached is what its first
/// answer did not compute. Nothing is thought apart here, for which the format has a field.
pub(super) fn usage(repeated: &OpenAi, choices: impl Iterator<Item = Count> + Clone) -> Value {
    let answers = repeated.n.unwrap_or(1) as usize;
    let prompts = choices.clone().step_by(answers.max(1));
    let cached: u32 = prompts.clone().map(|first| first.cached).sum();
    let prompt = prompts.map(|first| first.prompt).sum();
    let mut usage = json!(Usage::new(prompt, choices.map(|choice| choice.new).sum()));
    usage["prompt_tokens_details"] = json!({"cached_tokens": cached});
    usage["completion_tokens_details"] = json!({"reasoning_tokens": 0});
    usage
}

/// Logprobs of a choice, or of a part of it. Logprobs are written as f64, and those of a prompt's first token as null.
pub(super) struct Logprobs<'a> {
    pub chat: bool,
    /// The prompt, where it is in the part.
    pub echo: Option<&'a Echo>,
    pub tokens: Tokens<'a>,
    /// Where each token begins in the choice's text, in characters.
    pub offsets: &'a [usize],
    pub codec: &'a Codec,
}

impl Serialize for Logprobs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { tokens, codec, .. } = *self;
        let echo = self.echo.map(Tokens::of_echo).unwrap_or_default();
        if self.chat {
            let content = List(|| TokenEntry::all(tokens, codec, true));
            return serializer.collect_map([("content", content)]);
        }
        let tokens = || echo.each().chain(tokens.each());
        let of_echo = || self.echo.iter().flat_map(|echo| &echo.offsets);
        CompletionLogprobs {
            tokens: List(|| tokens().map(|(id, ..)| spell(id, codec))),
            token_logprobs: List(|| tokens().map(|(_, logprob, _)| f64::from(logprob))),
            top_logprobs: List(|| tokens().map(|of_token| completion_top(of_token, codec))),
            text_offset: List(|| of_echo().chain(self.offsets)),
        }
        .serialize(serializer)
    }
}

#[derive(Serialize)]
struct CompletionLogprobs<T, L, M, O> {
    tokens: T,
    token_logprobs: L,
    top_logprobs: M,
    text_offset: O,
}

/// A token that is no whole character is spelled `bytes:\xc3`, in `tokens` and in `top_logprobs`.
fn spell(id: u32, codec: &Codec) -> String {
    spelled(codec.token_bytes(id).as_deref(), "bytes:")
}

/// A token's `top_logprobs`, which has the chosen token whether or not it is among the best. Two tokens may be spelled
/// alike there, such as a special token and the same words as text, or two ids without a token: those but the chosen or
/// best one are `token_id:7`. A prompt's first token has none.
fn completion_top(
    (id, logprob, top): (u32, f32, &[(u32, f32)]),
    codec: &Codec,
) -> Option<Map<String, Value>> {
    if logprob.is_nan() {
        return None;
    }
    let text = spell(id, codec);
    let mut map = Map::new();
    for &(other, logprob) in top {
        let mut name = spell(other, codec);
        if other != id && (name == text || map.contains_key(&name)) {
            name = format!("token_id:{other}");
        }
        map.insert(name, json!(logprob));
    }
    map.entry(text).or_insert_with(|| json!(logprob));
    Some(map)
}
