//! What came of a row, and the parts of answers that every format has.

use super::codec::Codec;
use super::echo::Echo;
use super::row::{Format, Id};
use crate::runtime::{Timing, TokenLogprobs};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use std::borrow::Cow;

/// Why a served row ends where it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Finish {
    /// An end-of-sequence id, a stop id or a stop string.
    Stop,
    /// max_new_tokens reached.
    Length,
    /// timeout_ms passed; counts as failed.
    Timeout,
}

impl Finish {
    /// Whether the row counts as served, for good.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Stop | Self::Length)
    }
}

/// What came of a row that ran.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    pub output_ids: Vec<u32>,
    pub text: String,
    /// For each of `output_ids`, how many characters of the answer are complete before it, a prompt's among them.
    pub text_offsets: Vec<usize>,
    pub finish: Finish,
    pub prompt_tokens: usize,
    /// One for each of `output_ids` where the row asked for them.
    pub logprobs: Option<Vec<TokenLogprobs>>,
    /// The prompt, where the row asks for it before the text, of which it is no part here.
    pub echo: Option<Box<Echo>>,
    pub timing: Timing,
}

/// What answers in the OpenAI format say of the job that they are of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Where a row names none.
    pub model: String,
    /// When the job began, in seconds since 1970; one that is resumed began when it first did.
    pub created: u64,
}

/// A row as its answer names it.
#[derive(Debug, Clone, PartialEq)]
pub struct Label {
    pub line: u64,
    pub id: Id,
    pub format: Format,
}

#[derive(Serialize)]
pub(super) struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    cached_tokens: Option<u32>,
}

impl Usage {
    pub(super) fn new(prompt_tokens: usize, completion_tokens: usize) -> Self {
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            cached_tokens: None,
        }
    }

    /// So many of the prompt's tokens were computed for another sequence; 0 is not said.
    pub(super) fn cached(self, tokens: u32) -> Self {
        Self {
            cached_tokens: (tokens > 0).then_some(tokens),
            ..self
        }
    }
}

#[derive(Serialize)]
pub(super) struct TimingMs {
    queue_ms: f64,
    ttft_ms: Option<f64>,
    total_ms: f64,
}

impl TimingMs {
    /// `any`: whether a token came.
    pub(super) fn of(timing: &Timing, any: bool) -> Self {
        // To the microsecond: more digits are noise.
        let ms = |time: std::time::Duration| time.as_micros() as f64 / 1e3;
        Self {
            queue_ms: ms(timing.queue),
            ttft_ms: any.then(|| ms(timing.first_token)),
            total_ms: ms(timing.total),
        }
    }
}

impl Outcome {
    /// Its tokens, with their logprobs where the row asked for them.
    pub(super) fn tokens(&self) -> Tokens<'_> {
        Tokens {
            ids: &self.output_ids,
            logprobs: self.logprobs.as_deref().unwrap_or_default(),
        }
    }
}

/// Tokens of an answer, and as many logprobs.
#[derive(Clone, Copy, Default)]
pub(super) struct Tokens<'a> {
    pub ids: &'a [u32],
    pub logprobs: &'a [TokenLogprobs],
}

impl<'a> Tokens<'a> {
    /// Those of the prompt.
    pub fn of_echo(echo: &'a Echo) -> Self {
        Self {
            ids: &echo.ids,
            logprobs: echo.logprobs.as_deref().unwrap_or_default(),
        }
    }

    /// Each token with its logprob and the best ones beside it.
    pub fn each(self) -> impl Iterator<Item = (u32, f32, &'a [(u32, f32)])> {
        let with_id = self.ids.iter().zip(self.logprobs);
        with_id.map(|(&id, of_token)| (id, of_token.logprob, of_token.top.as_slice()))
    }

    /// Those from `first` on.
    pub fn from(self, first: usize) -> Self {
        Self {
            ids: self.ids.get(first..).unwrap_or_default(),
            logprobs: self.logprobs.get(first..).unwrap_or_default(),
        }
    }
}

/// A list whose items are made as they are written: an answer's logprobs as values take many times the memory of what they
/// are made of.
pub(super) struct List<F>(pub F);

impl<F, I> Serialize for List<F>
where
    F: Fn() -> I,
    I: Iterator<Item: Serialize>,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

/// A token as logprobs show it.
pub(super) struct TokenEntry<'a> {
    id: u32,
    logprob: f32,
    /// The best tokens in its place, of one that was chosen.
    top: Option<&'a [(u32, f32)]>,
    codec: &'a Codec,
    /// The spelling of chat completions. There `token` shows a piece of a character as `\xc3`, and an id without a token has no
    /// `bytes`.
    is_openai: bool,
}

impl<'a> TokenEntry<'a> {
    /// The entries of tokens.
    pub fn all(
        tokens: Tokens<'a>,
        codec: &'a Codec,
        is_openai: bool,
    ) -> impl Iterator<Item = Self> {
        tokens.each().map(move |(id, logprob, top)| Self {
            id,
            logprob,
            top: Some(top),
            codec,
            is_openai,
        })
    }
}

impl Serialize for TokenEntry<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let bytes = self.codec.token_bytes(self.id);
        if self.is_openai {
            map.serialize_entry("token", &spelled(bytes.as_deref(), ""))?;
            map.serialize_entry("logprob", &f64::from(self.logprob))?;
            map.serialize_entry("bytes", &bytes)?;
        } else {
            let shown = String::from_utf8_lossy(bytes.as_deref().unwrap_or_default());
            map.serialize_entry("token", &shown)?;
            // Lossy text is a new one.
            if matches!(shown, Cow::Owned(_)) {
                map.serialize_entry("bytes", &bytes)?;
            }
            map.serialize_entry("id", &self.id)?;
            map.serialize_entry("logprob", &self.logprob)?;
        }
        if let Some(top) = self.top {
            let entry = |&(id, logprob): &(u32, f32)| Self {
                id,
                logprob,
                top: None,
                ..*self
            };
            let name = if self.is_openai {
                "top_logprobs"
            } else {
                "top"
            };
            map.serialize_entry(name, &List(|| top.iter().map(entry)))?;
        }
        map.end()
    }
}

/// Text as it is; bytes that are none behind `prefix`, each as `\xc3`.
pub(super) fn spelled(bytes: Option<&[u8]>, prefix: &str) -> String {
    let bytes = bytes.unwrap_or_default();
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold(prefix.to_owned(), |text, byte| {
            format!("{text}\\x{byte:02x}")
        }),
    }
}
