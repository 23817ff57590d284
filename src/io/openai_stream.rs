//! Answers to bodies of the OpenAI format in chunks, as their tokens come: each is an event of a stream of server-sent events.
//!
//! The chunks of a choice come to [`super::openai_answer`]'s whole answer: its text, ids of tool calls, logprobs and end are the same,
//! but for `text_offset`, which counts the characters that were out when the token came. Where the question has tools, what stands
//! behind a marker of calls waits for the choice's end, which tells whether it is a call.

use super::codec::Codec;
use super::echo::Echo;
use super::openai_answer::{Count, Logprobs, id, message, usage};
use super::outcome::{Origin, Outcome, Tokens};
use super::row::{Endpoint, OpenAi};
use super::tool_calls;
use crate::runtime::TokenLogprobs;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// What comes behind the last event.
pub const DONE: &[u8] = b"data: [DONE]\n\n";

/// The chunks of one answer.
pub struct Chunks {
    repeated: OpenAi,
    number: u64,
    id: String,
    origin: Origin,
    codec: Arc<Codec>,
    choices: Vec<Choice>,
}

/// How far a choice is.
#[derive(Default)]
struct Choice {
    /// Bytes of its text that are out, and characters, a prompt's among these.
    told: (usize, usize),
    /// Tokens that are out.
    tokens: usize,
    /// Tokens that wait for text, their logprobs, and where they begin in the text.
    ids: Vec<u32>,
    logprobs: Vec<TokenLogprobs>,
    offsets: Vec<usize>,
    /// All that comes waits for the end.
    waits: bool,
    /// What the whole answer counts as.
    count: Count,
}

#[derive(Serialize)]
struct Chunk<'a, C> {
    id: &'a str,
    object: &'a str,
    created: u64,
    model: &'a str,
    choices: &'a [C],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Value>,
}

#[derive(Serialize)]
struct Part<'a, D> {
    index: usize,
    #[serde(flatten)]
    said: D,
    logprobs: Option<Logprobs<'a>>,
    finish_reason: Option<Value>,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Said<'a> {
    Delta(Delta<'a>),
    Text(&'a str),
}

#[derive(Serialize)]
#[serde(untagged)]
enum Delta<'a> {
    Content { content: &'a str },
    More(Map<String, Value>),
}

impl Chunks {
    /// The answer to question `number`, which asks for so many choices.
    pub fn new(
        repeated: OpenAi,
        number: u64,
        choices: usize,
        origin: Origin,
        codec: Arc<Codec>,
    ) -> Self {
        Self {
            id: id(repeated.endpoint, number),
            repeated,
            number,
            origin,
            codec,
            choices: (0..choices).map(|_| Choice::default()).collect(),
        }
    }

    /// Writes who speaks, which chats begin with.
    pub fn begin(&self, out: &mut Vec<u8>) {
        if self.repeated.endpoint == Endpoint::Chat {
            for index in 0..self.choices.len() {
                let role = [("role", "assistant"), ("content", "")];
                let delta = role.map(|(name, value)| (name.to_owned(), json!(value)));
                let said = Said::Delta(Delta::More(delta.into_iter().collect()));
                self.write(out, index, said, None, None);
            }
        }
    }

    /// Writes the prompt that a choice begins with.
    pub fn prompt(&mut self, out: &mut Vec<u8>, index: usize, echo: &Echo) {
        self.choices[index].told.1 = echo.chars();
        let logprobs = echo.logprobs.as_ref().map(|_| Logprobs {
            chat: false,
            echo: Some(echo),
            tokens: Tokens::default(),
            offsets: &[],
            codec: &self.codec,
        });
        self.write(out, index, Said::Text(&echo.text), logprobs, None);
    }

    /// Writes a token of a choice, if its text is there yet.
    pub fn token(
        &mut self,
        out: &mut Vec<u8>,
        index: usize,
        (token, logprobs, text): (u32, Option<TokenLogprobs>, &str),
    ) {
        let is_call = self.repeated.tools && tool_calls::begins(token, &self.codec);
        let choice = &mut self.choices[index];
        choice.waits |= is_call;
        if choice.waits {
            return;
        }
        if let Some(logprobs) = logprobs {
            choice.ids.push(token);
            choice.logprobs.push(logprobs);
            choice.offsets.push(choice.told.1);
        }
        if text.is_empty() {
            return;
        }
        let tokens = std::mem::take(&mut choice.ids);
        let logprobs = std::mem::take(&mut choice.logprobs);
        let offsets = std::mem::take(&mut choice.offsets);
        choice.told.0 += text.len();
        choice.told.1 += text.chars().count();
        choice.tokens += tokens.len();
        let with = (!tokens.is_empty()).then_some(Logprobs {
            chat: self.repeated.endpoint == Endpoint::Chat,
            echo: None,
            tokens: Tokens {
                ids: &tokens,
                logprobs: &logprobs,
            },
            offsets: &offsets,
            codec: &self.codec,
        });
        let said = self.said(text);
        self.write(out, index, said, with, None);
    }

    /// Writes the end of a choice, and what of it is not out.
    pub fn end(&mut self, out: &mut Vec<u8>, index: usize, outcome: &Outcome) {
        let choice = &mut self.choices[index];
        choice.count = outcome.into();
        let Choice { told, tokens, .. } = *choice;
        let chat = self.repeated.endpoint == Endpoint::Chat;
        let left = outcome.tokens().from(tokens);
        let with = (!left.logprobs.is_empty()).then_some(Logprobs {
            chat,
            echo: None,
            tokens: left,
            offsets: outcome.text_offsets.get(tokens..).unwrap_or_default(),
            codec: &self.codec,
        });
        if !chat {
            let said = Said::Text(outcome.text.get(told.0..).unwrap_or_default());
            return self.write(out, index, said, with, Some(json!(outcome.finish)));
        }
        let (mut message, finish) =
            message(&self.repeated, self.number, index, outcome, &self.codec);
        let mut delta = Map::new();
        let content = message["content"].as_str().unwrap_or_default();
        match content.get(told.0..) {
            None | Some("") => {}
            Some(rest) => drop(delta.insert("content".to_owned(), json!(rest))),
        }
        if let Some(Value::Array(calls)) = message.get_mut("tool_calls") {
            for (place, call) in calls.iter_mut().enumerate() {
                call["index"] = json!(place);
            }
        }
        for name in ["tool_calls", "tool_call_error"] {
            if let Some(value) = message.get_mut(name) {
                delta.insert(name.to_owned(), value.take());
            }
        }
        let said = Said::Delta(Delta::More(delta));
        self.write(out, index, said, with, Some(finish));
    }

    /// Writes what comes behind all choices.
    pub fn finish(&self, out: &mut Vec<u8>) {
        if self.repeated.stream.is_some_and(|stream| stream.usage) {
            let choices = self.choices.iter().map(|choice| choice.count);
            let usage = usage(&self.repeated, choices);
            self.chunk::<()>(out, &[], Some(usage));
        }
        out.extend(DONE);
    }

    fn said<'a>(&self, text: &'a str) -> Said<'a> {
        match self.repeated.endpoint {
            Endpoint::Chat => Said::Delta(Delta::Content { content: text }),
            Endpoint::Completions => Said::Text(text),
        }
    }

    fn write(
        &self,
        out: &mut Vec<u8>,
        index: usize,
        said: Said<'_>,
        logprobs: Option<Logprobs<'_>>,
        finish_reason: Option<Value>,
    ) {
        let part = Part {
            index,
            said,
            logprobs,
            finish_reason,
        };
        let usage = self.repeated.stream.filter(|stream| stream.usage);
        self.chunk(out, &[part], usage.map(|_| Value::Null));
    }

    fn chunk<C: Serialize>(&self, out: &mut Vec<u8>, choices: &[C], usage: Option<Value>) {
        let object = match self.repeated.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Completions => "text_completion",
        };
        event(
            out,
            &Chunk {
                id: &self.id,
                object,
                created: self.origin.created,
                model: self.repeated.model.as_deref().unwrap_or(&self.origin.model),
                choices,
                usage,
            },
        );
    }
}

/// Writes one event.
pub fn event(out: &mut Vec<u8>, data: &impl Serialize) {
    out.extend(b"data: ");
    serde_json::to_writer(&mut *out, data).expect("strings, numbers and lists always serialise");
    out.extend(b"\n\n");
}
