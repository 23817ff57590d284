//! Decoders of tokenizer.json, one token at a time.
//!
//! The `tokenizers` crate decodes whole sequences; here the same decoders keep what little state they need
//! between tokens, so that the cost of a token does not grow with the text before it. A decoder is a chain:
//! steps that see tokens one by one, then a join of the tokens, then strips that see the joined text.
//!
//! Every character of the text goes with its *origin*: which token, counted from 0, its last byte came with. A token's
//! own bytes ([`Chain::bytes`]) need no state.

use serde::Deserialize;
use std::collections::VecDeque;

use super::utf8::{Chunk, Utf8, alphabet_byte};

/// Bytes that a Replace may put in the place of others: published ones put one.
const MAX_CONTENT_BYTES: usize = 64;

/// What tokenizer.json asks for.
#[derive(Debug, Clone)]
pub struct Chain {
    steps: Vec<Step>,
    join: Join,
    strips: Vec<Strip>,
}

#[derive(Debug, Clone)]
enum Step {
    Replace {
        pattern: String,
        content: String,
    },
    ByteFallback,
    /// `prefix`: the first token's replacement characters stand for a prefix that was not in the text.
    Metaspace {
        replacement: char,
        prefix: bool,
    },
    Strip(Strip),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Join {
    /// No decoder: tokens with a space between them.
    Spaces,
    Concatenate,
    /// Tokens are bytes in GPT-2's printable alphabet.
    Bytes,
}

/// Removes `content` up to `start` times from the front and up to `stop` times from the back.
#[derive(Debug, Clone, Copy, Deserialize)]
struct Strip {
    content: char,
    start: usize,
    stop: usize,
}

impl Chain {
    /// From tokenizer.json's `decoder`. Errors name a type that is not supported here.
    pub fn parse(decoder: &serde_json::Value) -> Result<Self, String> {
        let mut chain = Self {
            steps: Vec::new(),
            join: Join::Concatenate,
            strips: Vec::new(),
        };
        if decoder.is_null() {
            chain.join = Join::Spaces;
        } else {
            chain.add(decoder, &mut false)?;
        }
        Ok(chain)
    }

    fn add(&mut self, decoder: &serde_json::Value, joined: &mut bool) -> Result<(), String> {
        let kind = decoder["type"].as_str().unwrap_or("without a type");
        if kind == "Sequence" {
            for part in decoder["decoders"].as_array().into_iter().flatten() {
                self.add(part, joined)?;
            }
            return Ok(());
        }
        let broken = |error: serde_json::Error| format!("decoder {kind}: {error}");
        match (kind, *joined) {
            ("Fuse", _) => *joined = true,
            ("ByteLevel", false) => {
                self.join = Join::Bytes;
                *joined = true;
            }
            ("Strip", true) => self
                .strips
                .push(Strip::deserialize(decoder).map_err(broken)?),
            ("Strip", false) => self
                .steps
                .push(Step::Strip(Strip::deserialize(decoder).map_err(broken)?)),
            ("Replace", false) => self.steps.push(replace(decoder)?),
            ("ByteFallback", false) => self.steps.push(Step::ByteFallback),
            ("Metaspace", false) => self.steps.push(Step::Metaspace {
                replacement: decoder["replacement"]
                    .as_str()
                    .and_then(|text| text.chars().next())
                    .ok_or("decoder Metaspace: `replacement` is missing")?,
                prefix: decoder["prepend_scheme"] != "never",
            }),
            (_, true) => {
                return Err(format!(
                    "decoder {kind} after the tokens are joined: found in `decoder`, expected Strip or Fuse"
                ));
            }
            (_, false) => {
                return Err(format!(
                    "decoder {kind}: found in `decoder`, expected ByteLevel, ByteFallback, Fuse, Metaspace, \
                     Replace, Strip or a Sequence of them"
                ));
            }
        }
        Ok(())
    }

    /// What stands between two tokens.
    pub fn separator(&self) -> &'static str {
        match self.join {
            Join::Spaces => " ",
            Join::Concatenate | Join::Bytes => "",
        }
    }

    /// The bytes that `token` has of its own, wherever it stands: what it adds to a text, but for what is left out at
    /// the text's beginning and end, and for spaces that join tokens.
    pub fn bytes(&self, token: &str) -> Vec<u8> {
        let mut token = std::borrow::Cow::Borrowed(token);
        for step in &self.steps {
            token = match step {
                Step::Replace { pattern, content } => token.replace(pattern, content).into(),
                Step::ByteFallback => match fallback_byte(&token) {
                    Some(byte) => return vec![byte],
                    None => token,
                },
                Step::Metaspace { replacement, .. } => token.replace(*replacement, " ").into(),
                Step::Strip(strip) => strip.of(&token).to_owned().into(),
            };
        }
        match self.join {
            Join::Bytes => alphabet_bytes(&token),
            Join::Concatenate | Join::Spaces => token.into_owned().into_bytes(),
        }
    }
}

impl Strip {
    fn of<'a>(&self, mut token: &'a str) -> &'a str {
        for _ in 0..self.start {
            let Some(rest) = token.strip_prefix(self.content) else {
                break;
            };
            token = rest;
        }
        for _ in 0..self.stop {
            let Some(rest) = token.strip_suffix(self.content) else {
                break;
            };
            token = rest;
        }
        token
    }
}

/// A Replace of one text by another. A pattern would have to be matched with every token that is written.
fn replace(decoder: &serde_json::Value) -> Result<Step, String> {
    let pattern = decoder["pattern"]["String"].as_str();
    let content = decoder["content"].as_str();
    match (pattern, content) {
        (Some(pattern), Some(content))
            if !pattern.is_empty() && content.len() <= MAX_CONTENT_BYTES =>
        {
            Ok(Step::Replace {
                pattern: pattern.to_owned(),
                content: content.to_owned(),
            })
        }
        _ => Err(format!(
            "decoder Replace: expected {{\"String\": …}} in `pattern`, and a text of up to {MAX_CONTENT_BYTES} bytes in `content`"
        )),
    }
}

/// A [`Chain`] in the middle of a sequence.
#[derive(Debug, Clone, Default)]
pub struct ChainState {
    steps: Vec<StepState>,
    join: Joiner,
    strips: Vec<StripState>,
}

/// What a step remembers; steps that see each token alone use none of it.
#[derive(Debug, Clone, Default)]
struct StepState {
    /// Metaspace: a token was seen.
    started: bool,
    /// ByteFallback: the run of byte tokens that has not ended, and each byte's origin.
    run: Vec<u8>,
    origins: Vec<usize>,
}

#[derive(Debug, Clone, Default)]
struct Joiner {
    /// The origin of the last token; none yet where nothing was joined.
    last: Option<usize>,
    utf8: Utf8,
}

#[derive(Debug, Clone, Default)]
struct StripState {
    /// How many characters may still be removed at the front.
    front: usize,
    /// Origins of `content` characters at the end of the text so far that are held back, at most `stop`.
    held: VecDeque<usize>,
}

/// What comes out of a step: a token, and its bytes' origins where they have several, else the one that all have.
type Sink<'a> = &'a mut dyn FnMut(&str, &[usize]);

impl ChainState {
    pub fn new(chain: &Chain) -> Self {
        Self {
            steps: vec![StepState::default(); chain.steps.len()],
            join: Joiner::default(),
            strips: chain
                .strips
                .iter()
                .map(|strip| StripState {
                    front: strip.start,
                    held: VecDeque::new(),
                })
                .collect(),
        }
    }

    /// Appends to `out` what `token`, of that origin, makes certain.
    pub fn push(&mut self, chain: &Chain, token: &str, origin: usize, out: &mut Chunk) {
        let Self {
            steps,
            join,
            strips,
        } = self;
        let mut joined = Chunk::default();
        step(
            &chain.steps,
            steps,
            token,
            &[origin],
            &mut |token, origins| {
                join.push(chain.join, token, origins, &mut joined);
            },
        );
        strip(&chain.strips, strips, joined, out);
    }

    /// Appends to `out` what was held back.
    pub fn finish(&mut self, chain: &Chain, out: &mut Chunk) {
        let Self {
            steps,
            join,
            strips,
        } = self;
        let mut joined = Chunk::default();
        // In order: what one step lets go of still passes through those after it.
        for i in 0..chain.steps.len() {
            let (ending, later) = steps[i..].split_at_mut(1);
            ending[0].end_run(&mut |token, origins| {
                step(
                    &chain.steps[i + 1..],
                    later,
                    token,
                    origins,
                    &mut |token, origins| {
                        join.push(chain.join, token, origins, &mut joined);
                    },
                );
            });
        }
        join.utf8.finish(&mut joined);
        strip(&chain.strips, strips, joined, out);
    }
}

/// Passes `token` through `steps`; `sink` gets what comes out, zero or more tokens.
fn step(steps: &[Step], states: &mut [StepState], token: &str, origins: &[usize], sink: Sink<'_>) {
    let (Some((first, steps)), Some((state, states))) =
        (steps.split_first(), states.split_first_mut())
    else {
        return sink(token, origins);
    };
    match first {
        Step::Replace { pattern, content } => {
            let replaced = token.replace(pattern, content);
            step(steps, states, &replaced, origins, sink);
        }
        Step::ByteFallback => match fallback_byte(token) {
            Some(byte) => {
                state.run.push(byte);
                state.origins.extend(origins.last());
            }
            None => {
                state.end_run(&mut |text, origins| step(steps, states, text, origins, sink));
                step(steps, states, token, origins, sink);
            }
        },
        Step::Metaspace {
            replacement,
            prefix,
        } => {
            let space = if *prefix && !state.started { "" } else { " " };
            state.started = true;
            let spaced = token.replace(*replacement, space);
            step(steps, states, &spaced, origins, sink);
        }
        Step::Strip(strip) => step(steps, states, strip.of(token), origins, sink),
    }
}

/// `<0xE5>` is byte 0xE5.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2)
        .then(|| u8::from_str_radix(digits, 16).ok())
        .flatten()
}

/// The bytes that a token in GPT-2's alphabet stands for. An added token with a character outside it stands for itself.
fn alphabet_bytes(token: &str) -> Vec<u8> {
    token
        .chars()
        .map(alphabet_byte)
        .collect::<Option<Vec<u8>>>()
        .unwrap_or_else(|| token.as_bytes().to_vec())
}

impl StepState {
    /// A run of byte tokens is text if all of it is UTF-8, else one U+FFFD a byte: nothing of it is certain
    /// before it ends.
    fn end_run(&mut self, sink: Sink<'_>) {
        if self.run.is_empty() {
            return;
        }
        match std::str::from_utf8(&self.run) {
            Ok(text) => sink(text, &self.origins),
            Err(_) => self
                .origins
                .iter()
                .for_each(|&origin| sink("\u{fffd}", &[origin])),
        }
        self.run.clear();
        self.origins.clear();
    }
}

impl Joiner {
    fn push(&mut self, join: Join, token: &str, origins: &[usize], out: &mut Chunk) {
        let Some(&last) = origins.last() else {
            return;
        };
        match join {
            Join::Concatenate => out.push_text(token, origins),
            Join::Spaces => {
                // It is the end of the token before it, as in [`super::stream`].
                if let Some(before) = self.last {
                    out.push(' ', before);
                }
                out.push_text(token, origins);
            }
            Join::Bytes => self.utf8.push(&alphabet_bytes(token), last, out),
        }
        self.last = Some(last);
    }
}

/// Passes `text` through `strips`.
fn strip(strips: &[Strip], states: &mut [StripState], text: Chunk, out: &mut Chunk) {
    let (Some((first, strips)), Some((state, states))) =
        (strips.split_first(), states.split_first_mut())
    else {
        return out.append(text);
    };
    let mut kept = Chunk::default();
    for (c, origin) in text.characters() {
        if c != first.content {
            state.front = 0;
            state
                .held
                .drain(..)
                .for_each(|origin| kept.push(first.content, origin));
            kept.push(c, origin);
        } else if state.front > 0 {
            state.front -= 1;
        } else {
            state.held.push_back(origin);
            if state.held.len() > first.stop {
                // No longer among the last ones.
                let oldest = state.held.pop_front().unwrap_or(origin);
                kept.push(c, oldest);
            }
        }
    }
    strip(strips, states, kept, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::{Decoder as _, DecoderWrapper};

    /// The incremental chain and the crate's decoder over the same tokens.
    fn both(decoder: serde_json::Value, tokens: &[&str]) -> (String, String) {
        let chain = Chain::parse(&decoder).unwrap();
        let mut state = ChainState::new(&chain);
        let mut out = Chunk::default();
        for (origin, token) in tokens.iter().enumerate() {
            state.push(&chain, token, origin, &mut out);
        }
        state.finish(&chain, &mut out);
        let origins: Vec<usize> = out.characters().map(|(_, origin)| origin).collect();
        assert!(origins.is_sorted(), "{origins:?}");
        let text: String = out.characters().map(|(c, _)| c).collect();
        let whole: DecoderWrapper = serde_json::from_value(decoder).unwrap();
        let tokens = tokens.iter().map(|&t| t.to_owned()).collect();
        (text, whole.decode(tokens).unwrap())
    }

    #[test]
    fn the_alphabet_is_that_of_the_crate() {
        let decoder = serde_json::json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true});
        for code in 0..0x250 {
            let token = char::from_u32(code).unwrap().to_string();
            let (text, whole) = both(decoder.clone(), &[&token]);
            assert_eq!(text, whole, "U+{code:04X}");
        }
    }

    #[test]
    fn strips_and_fallback_runs_hold_back_what_is_not_certain() {
        let decoder = serde_json::json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 2, "stop": 2}]});
        for tokens in [
            &[
                "▁",
                "▁",
                "▁a",
                "<0xE5>",
                "<0x8F>",
                "<0xAB>",
                "▁",
                "b",
                "▁▁▁",
            ][..],
            &["<0xE5>", "<0x8F>", "x", "<0xE5>"],
            &[
                "<0x20>", "<0x20>", "<0x20>", "y", "<0x20>", "<0xZZ>", "<0x2>",
            ],
        ] {
            let (text, whole) = both(decoder.clone(), tokens);
            assert_eq!(text, whole, "{tokens:?}");
        }
    }

    #[test]
    fn metaspace_drops_the_first_tokens_prefix_only() {
        for scheme in ["always", "first", "never"] {
            let decoder = serde_json::json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true});
            let (text, whole) = both(decoder, &["▁a", "▁b▁", "c"]);
            assert_eq!(text, whole, "{scheme}");
        }
    }

    #[test]
    fn an_unsupported_decoder_is_named() {
        let error = Chain::parse(&serde_json::json!({"type": "CTC"})).unwrap_err();
        assert!(error.contains("CTC"), "{error}");
    }

    #[test]
    fn characters_have_the_origin_of_their_last_byte() {
        let origins = |decoder: serde_json::Value, tokens: &[&str]| -> Vec<(char, usize)> {
            let chain = Chain::parse(&decoder).unwrap();
            let mut state = ChainState::new(&chain);
            let mut out = Chunk::default();
            for (origin, token) in tokens.iter().enumerate() {
                state.push(&chain, token, origin, &mut out);
            }
            state.finish(&chain, &mut out);
            out.characters().collect()
        };
        let bytes = serde_json::json!({"type": "ByteLevel"});
        // é in two parts; a lone 0xC3 before x; a character that is never whole.
        assert_eq!(
            origins(bytes, &["aÃ", "©b", "Ã", "x", "â", "Ĥ"]),
            [
                ('a', 0),
                ('é', 1),
                ('b', 1),
                ('\u{fffd}', 2),
                ('x', 3),
                ('\u{fffd}', 5)
            ]
        );
        let fallback = serde_json::json!({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]});
        assert_eq!(
            origins(fallback, &["<0xC3>", "<0xA9>", "<0x61>", "z", "<0xC3>"]),
            [('é', 1), ('a', 2), ('z', 3), ('\u{fffd}', 4)]
        );
    }

    #[test]
    fn a_tokens_own_bytes_do_not_depend_on_its_place() {
        let bytes =
            |decoder: serde_json::Value, token: &str| Chain::parse(&decoder).unwrap().bytes(token);
        let byte_level = serde_json::json!({"type": "ByteLevel"});
        assert_eq!(bytes(byte_level.clone(), "Ã"), [0xc3]);
        assert_eq!(bytes(byte_level.clone(), "Ġthe"), b" the");
        assert_eq!(bytes(byte_level, "漢"), "漢".as_bytes());
        let pieces = serde_json::json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]});
        assert_eq!(bytes(pieces.clone(), "▁the"), b" the");
        assert_eq!(bytes(pieces, "<0xE5>"), [0xe5]);
        let metaspace = serde_json::json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"});
        assert_eq!(bytes(metaspace, "▁a"), b" a");
    }
}
