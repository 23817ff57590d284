//! Decoders of tokenizer.json, one token at a time.
//!
//! The `tokenizers` crate decodes whole sequences; here the same decoders keep what little state they need
//! between tokens, so that the cost of a token does not grow with the text before it. A decoder is a chain:
//! steps that see tokens one by one, then a join of the tokens, then strips that see the joined text.

use serde::Deserialize;
use tokenizers::Decoder as _;
use tokenizers::normalizers::replace::Replace;

use super::utf8::{Utf8, alphabet_byte};

/// What tokenizer.json asks for.
#[derive(Debug, Clone)]
pub struct Chain {
    steps: Vec<Step>,
    join: Join,
    strips: Vec<Strip>,
}

#[derive(Debug, Clone)]
enum Step {
    Replace(Replace),
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
            ("Replace", false) => self.steps.push(Step::Replace(
                Replace::deserialize(decoder).map_err(broken)?,
            )),
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
    /// ByteFallback: the run of byte tokens that has not ended.
    run: Vec<u8>,
}

#[derive(Debug, Clone, Default)]
struct Joiner {
    started: bool,
    utf8: Utf8,
}

#[derive(Debug, Clone, Default)]
struct StripState {
    /// How many characters may still be removed at the front.
    front: usize,
    /// `content` characters at the end of the text so far that are held back, at most `stop`.
    held: usize,
}

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
                    held: 0,
                })
                .collect(),
        }
    }

    /// Appends to `out` what `token` makes certain.
    pub fn push(&mut self, chain: &Chain, token: &str, out: &mut String) {
        let Self {
            steps,
            join,
            strips,
        } = self;
        let mut joined = String::new();
        step(&chain.steps, steps, token, &mut |token| {
            join.push(chain.join, token, &mut joined);
        });
        strip(&chain.strips, strips, &joined, out);
    }

    /// Appends to `out` what was held back.
    pub fn finish(&mut self, chain: &Chain, out: &mut String) {
        let Self {
            steps,
            join,
            strips,
        } = self;
        let mut joined = String::new();
        // In order: what one step lets go of still passes through those after it.
        for i in 0..chain.steps.len() {
            let (ending, later) = steps[i..].split_at_mut(1);
            end_run(&mut ending[0].run, &mut |token| {
                step(&chain.steps[i + 1..], later, token, &mut |token| {
                    join.push(chain.join, token, &mut joined);
                });
            });
        }
        join.utf8.finish(&mut joined);
        strip(&chain.strips, strips, &joined, out);
    }
}

/// Passes `token` through `steps`; `sink` gets what comes out, zero or more tokens.
fn step(steps: &[Step], states: &mut [StepState], token: &str, sink: &mut dyn FnMut(&str)) {
    let (Some((first, steps)), Some((state, states))) =
        (steps.split_first(), states.split_first_mut())
    else {
        return sink(token);
    };
    match first {
        Step::Replace(replace) => {
            // One token alone: `decode_chain` treats each by itself and fails for no string.
            let replaced = replace
                .decode_chain(vec![token.to_owned()])
                .unwrap_or_default()
                .concat();
            step(steps, states, &replaced, sink);
        }
        Step::ByteFallback => match fallback_byte(token) {
            Some(byte) => state.run.push(byte),
            None => {
                end_run(&mut state.run, &mut |text| step(steps, states, text, sink));
                step(steps, states, token, sink);
            }
        },
        Step::Metaspace {
            replacement,
            prefix,
        } => {
            let space = if *prefix && !state.started { "" } else { " " };
            state.started = true;
            step(steps, states, &token.replace(*replacement, space), sink);
        }
        Step::Strip(strip) => {
            let mut token = token;
            for _ in 0..strip.start {
                let Some(rest) = token.strip_prefix(strip.content) else {
                    break;
                };
                token = rest;
            }
            for _ in 0..strip.stop {
                let Some(rest) = token.strip_suffix(strip.content) else {
                    break;
                };
                token = rest;
            }
            step(steps, states, token, sink);
        }
    }
}

/// `<0xE5>` is byte 0xE5.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2)
        .then(|| u8::from_str_radix(digits, 16).ok())
        .flatten()
}

/// A run of byte tokens is text if all of it is UTF-8, else one U+FFFD a byte: nothing of it is certain
/// before it ends.
fn end_run(run: &mut Vec<u8>, sink: &mut dyn FnMut(&str)) {
    if run.is_empty() {
        return;
    }
    match std::str::from_utf8(run) {
        Ok(text) => sink(text),
        Err(_) => run.iter().for_each(|_| sink("\u{fffd}")),
    }
    run.clear();
}

impl Joiner {
    fn push(&mut self, join: Join, token: &str, out: &mut String) {
        match join {
            Join::Concatenate => out.push_str(token),
            Join::Spaces => {
                if self.started {
                    out.push(' ');
                }
                out.push_str(token);
            }
            Join::Bytes => {
                let bytes: Option<Vec<u8>> = token.chars().map(alphabet_byte).collect();
                match bytes {
                    Some(bytes) => self.utf8.push(&bytes, out),
                    // An added token with a character outside the alphabet stands for itself.
                    None => self.utf8.push(token.as_bytes(), out),
                }
            }
        }
        self.started = true;
    }
}

/// Passes `text` through `strips`.
fn strip(strips: &[Strip], states: &mut [StripState], text: &str, out: &mut String) {
    let (Some((first, strips)), Some((state, states))) =
        (strips.split_first(), states.split_first_mut())
    else {
        return out.push_str(text);
    };
    let mut kept = String::with_capacity(text.len());
    for c in text.chars() {
        if c == first.content {
            if state.front > 0 {
                state.front -= 1;
            } else if state.held < first.stop {
                state.held += 1;
            } else {
                kept.push(c);
            }
        } else {
            state.front = 0;
            kept.extend(std::iter::repeat_n(first.content, state.held));
            state.held = 0;
            kept.push(c);
        }
    }
    strip(strips, states, &kept, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::DecoderWrapper;

    /// The incremental chain and the crate's decoder over the same tokens.
    fn both(decoder: serde_json::Value, tokens: &[&str]) -> (String, String) {
        let chain = Chain::parse(&decoder).unwrap();
        let mut state = ChainState::new(&chain);
        let mut text = String::new();
        for token in tokens {
            state.push(&chain, token, &mut text);
        }
        state.finish(&chain, &mut text);
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
}
