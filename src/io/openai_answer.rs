//! Answers to OpenAI batch rows: `{"id", "custom_id", "response": {"status_code", "request_id", "body"}, "error"}`.
//!
//! Ids are made of the line number, and `created` is the job's start, which its journal keeps: a resumed run gives the same
//! file. `body.timing` is ours, as in our own rows, and so is `tool_call_error` of a message in which the model began a call
//! that cannot be read. A row that is not a valid request has status 400 with the error in its body
//! and beside it; one that was interrupted, timed out or lost its device has no response at all.

use super::codec::Codec;
use super::outcome::{ErrorBody, Finish, Label, List, Origin, Outcome, TimingMs, Usage, to_json};
use super::row::{Code, Endpoint, Id, OpenAi, RowError, TIMED_OUT};
use super::tool_calls::{self, Call, Found};
use crate::runtime::Timing;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

pub(super) fn served(
    label: &Label,
    format: &OpenAi,
    outcomes: &[Outcome],
    codec: &dyn Codec,
    origin: &Origin,
) -> String {
    if outcomes.iter().any(|outcome| !outcome.finish.is_final()) {
        return failed(label, &RowError::new(Code::Timeout, TIMED_OUT));
    }
    let (kind, object) = match format.endpoint {
        Some(Endpoint::Chat) => ("chatcmpl", "chat.completion"),
        _ => ("cmpl", "text_completion"),
    };
    let choices = || {
        let choices = outcomes.iter().enumerate();
        choices.map(|(index, outcome)| Choice::of(label, format, index, outcome, codec))
    };
    let body = Body {
        id: format!("{kind}-{}", label.line),
        object,
        created: origin.created,
        model: format.model.as_deref().unwrap_or(&origin.model),
        choices: List(choices),
        usage: usage(format, outcomes),
        timing: timing(outcomes),
    };
    line(label, Some(response(label, 200, body)), None)
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
    text: Option<&'a str>,
    logprobs: Option<Logprobs<'a>>,
    finish_reason: Value,
}

impl<'a> Choice<'a> {
    fn of(
        label: &Label,
        format: &OpenAi,
        index: usize,
        outcome: &'a Outcome,
        codec: &'a dyn Codec,
    ) -> Self {
        let chat = format.endpoint == Some(Endpoint::Chat);
        let mut choice = Self {
            index,
            message: None,
            text: None,
            logprobs: outcome.logprobs.as_ref().map(|_| Logprobs {
                chat,
                outcome,
                codec,
            }),
            finish_reason: json!(outcome.finish),
        };
        if chat {
            let (message, calls) = message(label, format, index, outcome, codec);
            choice.message = Some(message);
            if calls && outcome.finish == Finish::Stop {
                choice.finish_reason = json!("tool_calls");
            }
        } else {
            choice.text = Some(&outcome.text);
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

/// What the assistant says, and whether there are calls in it.
fn message(
    label: &Label,
    format: &OpenAi,
    index: usize,
    outcome: &Outcome,
    codec: &dyn Codec,
) -> (Value, bool) {
    let mut message = json!({"role": "assistant", "content": outcome.text});
    let found = match format.tools {
        true => tool_calls::find(outcome, codec),
        false => Found::Nothing,
    };
    match found {
        Found::Nothing => (message, false),
        Found::Unread(reason) => {
            message["tool_call_error"] = json!(reason);
            (message, false)
        }
        // The format has no empty list of calls: there is none.
        Found::Calls { calls, text } if calls.is_empty() => {
            message["content"] = json!(text);
            (message, false)
        }
        Found::Calls { calls, text } => {
            message["content"] = match text.trim().is_empty() {
                true => Value::Null,
                false => json!(text),
            };
            let call = |(number, call): (usize, &Call)| {
                json!({
                    "id": format!("call_{}_{index}_{number}", label.line),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                })
            };
            message["tool_calls"] = calls.iter().enumerate().map(call).collect();
            (message, true)
        }
    }
}

/// A prompt counts once, however many answers it has. Nothing is cached or thought apart here, for which the format has
/// fields.
fn usage(format: &OpenAi, outcomes: &[Outcome]) -> Value {
    let answers = format.n.unwrap_or(1) as usize;
    let prompts = outcomes.iter().step_by(answers.max(1));
    let prompt = prompts.map(|outcome| outcome.prompt_tokens).sum();
    let new = outcomes.iter().map(|outcome| outcome.output_ids.len());
    let mut usage = json!(Usage::new(prompt, new.sum()));
    usage["prompt_tokens_details"] = json!({"cached_tokens": 0});
    usage["completion_tokens_details"] = json!({"reasoning_tokens": 0});
    usage
}

pub(super) fn failed(label: &Label, error: &RowError) -> String {
    let response = (!error.code.may_succeed_later()).then(|| {
        let body = json!({"error": {
            "message": error.message,
            "type": "invalid_request_error",
            "param": null,
            "code": error.code.as_str(),
        }});
        response(label, 400, body)
    });
    line(label, response, Some(ErrorBody::of(error)))
}

#[derive(Serialize)]
struct Response<B> {
    status_code: u16,
    request_id: String,
    body: B,
}

fn response<B>(label: &Label, status_code: u16, body: B) -> Response<B> {
    Response {
        status_code,
        request_id: format!("req_{}", label.line),
        body,
    }
}

#[derive(Serialize)]
struct Line<'a, B> {
    id: String,
    custom_id: &'a Id,
    response: Option<Response<B>>,
    error: Option<ErrorBody<'a>>,
}

fn line<B: Serialize>(
    label: &Label,
    response: Option<Response<B>>,
    error: Option<ErrorBody<'_>>,
) -> String {
    to_json(&Line {
        id: format!("batch_req_{}", label.line),
        custom_id: &label.id,
        response,
        error,
    })
}

/// Logprobs of a choice. Logprobs are written as f64.
struct Logprobs<'a> {
    chat: bool,
    outcome: &'a Outcome,
    codec: &'a dyn Codec,
}

impl Serialize for Logprobs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { outcome, codec, .. } = *self;
        let tokens = || outcome.tokens();
        if self.chat {
            let content = || {
                tokens().map(|(id, logprob, top)| {
                    let top = move || {
                        let entry = |&(id, logprob)| ChatEntry::of(id, logprob, None::<()>, codec);
                        top.iter().map(entry)
                    };
                    ChatEntry::of(id, logprob, Some(List(top)), codec)
                })
            };
            return ChatLogprobs {
                content: List(content),
            }
            .serialize(serializer);
        }
        CompletionLogprobs {
            tokens: List(|| tokens().map(|(id, ..)| spell(id, codec))),
            token_logprobs: List(|| tokens().map(|(_, logprob, _)| f64::from(logprob))),
            top_logprobs: List(|| tokens().map(|of_token| completion_top(of_token, codec))),
            text_offset: &outcome.text_offsets,
        }
        .serialize(serializer)
    }
}

#[derive(Serialize)]
struct ChatLogprobs<C> {
    content: C,
}

/// `token` shows a piece of a character as `\xc3`, and `bytes` are the token's own; an id without a token has none.
#[derive(Serialize)]
struct ChatEntry<T> {
    token: String,
    logprob: f64,
    bytes: Option<Vec<u8>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<T>,
}

impl<T> ChatEntry<T> {
    fn of(id: u32, logprob: f32, top_logprobs: Option<T>, codec: &dyn Codec) -> Self {
        let bytes = codec.token_bytes(id);
        Self {
            token: spelled(bytes.as_deref(), ""),
            logprob: logprob.into(),
            bytes,
            top_logprobs,
        }
    }
}

#[derive(Serialize)]
struct CompletionLogprobs<'a, T, L, M> {
    tokens: T,
    token_logprobs: L,
    top_logprobs: M,
    text_offset: &'a [usize],
}

/// A token that is no whole character is spelled `bytes:\xc3`, in `tokens` and in `top_logprobs`.
fn spell(id: u32, codec: &dyn Codec) -> String {
    spelled(codec.token_bytes(id).as_deref(), "bytes:")
}

/// A token's `top_logprobs`, which has the chosen token whether or not it is among the best. Two tokens may be spelled
/// alike there, such as a special token and the same words as text, or two ids without a token: those but the chosen or
/// best one are `token_id:7`.
fn completion_top(
    (id, logprob, top): (u32, f32, &[(u32, f32)]),
    codec: &dyn Codec,
) -> Map<String, Value> {
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
    map
}

/// Text as it is; bytes that are none behind `prefix`, each as `\xc3`.
fn spelled(bytes: Option<&[u8]>, prefix: &str) -> String {
    let bytes = bytes.unwrap_or_default();
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold(prefix.to_owned(), |text, byte| {
            format!("{text}\\x{byte:02x}")
        }),
    }
}
