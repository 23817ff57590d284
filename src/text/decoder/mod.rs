//! Decoders of tokenizer.json, one token at a time.
//!
//! The `tokenizers` crate decodes whole sequences; here the same decoders keep what little state they need
//! between tokens, so that the cost of a token does not grow with the text before it. A decoder is a chain:
//! steps that see tokens one by one, then a join of the tokens, then strips that see the joined text.
//!
//! Every character of the text goes with its *origin*: which token, counted from 0, its last byte came with. A token's
//! own bytes ([`Chain::bytes`]) need no state.
//!
//! - here: what tokenizer.json asks for
//! - `state`: the chain at work

mod state;

use crate::quote;
use serde::Deserialize;

use super::utf8::alphabet_byte;
pub use state::ChainState;

/// How many times as long as a token its text may be: published decoders make it no longer.
const MAX_GROWTH: usize = 64;
/// Decoders of a Sequence, at most: published ones have four or so.
const MAX_DECODERS: usize = 64;

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
        // Answers are made by the thread that serves all rows: what they take is bounded here, and not by a deadline.
        let decoders = chain.steps.len() + chain.strips.len();
        if decoders > MAX_DECODERS {
            return Err(format!(
                "found {decoders} decoders, expected at most {MAX_DECODERS}"
            ));
        }
        let growth = chain.steps.iter().map(Step::growth);
        match growth.fold(1, usize::saturating_mul) {
            0..=MAX_GROWTH => Ok(chain),
            times => Err(format!(
                "decoder Replace: what stands in `content` makes a text up to {times} times as long, expected at most {MAX_GROWTH} times"
            )),
        }
    }

    fn add(&mut self, decoder: &serde_json::Value, joined: &mut bool) -> Result<(), String> {
        let kind = decoder["type"].as_str().unwrap_or("without a type");
        let shown = quote::text(kind);
        if kind == "Sequence" {
            for part in decoder["decoders"].as_array().into_iter().flatten() {
                self.add(part, joined)?;
            }
            return Ok(());
        }
        let broken =
            |error: serde_json::Error| format!("decoder {shown}: {}", quote::message(error));
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
                    "decoder {shown} after the tokens are joined: found in `decoder`, expected Strip or Fuse"
                ));
            }
            (_, false) => {
                return Err(format!(
                    "decoder {shown}: found in `decoder`, expected ByteLevel, ByteFallback, Fuse, Metaspace, \
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

impl Step {
    /// How many times as long it may make a token.
    fn growth(&self) -> usize {
        match self {
            Self::Replace { pattern, content } => content.len().div_ceil(pattern.len()).max(1),
            Self::ByteFallback | Self::Metaspace { .. } | Self::Strip(_) => 1,
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
        (Some(pattern), Some(content)) if !pattern.is_empty() => Ok(Step::Replace {
            pattern: pattern.to_owned(),
            content: content.to_owned(),
        }),
        _ => Err(
            "decoder Replace: expected {\"String\": …} in `pattern`, and a text in `content`"
                .to_owned(),
        ),
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

#[cfg(test)]
mod tests {
    use super::super::utf8::Chunk;
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
