//! tokenizer.json's `decoder`: what each token writes.
//!
//! The `tokenizers` crate decodes whole sequences to text. Stop strings, log-probabilities and answers that are shown while
//! they are generated need the bytes of each token, even where these are a piece of a character. So the decoders that write
//! each token by itself are implemented here, and a test holds them to the crate's.

use crate::quote;
use serde::Deserialize;
use serde_json::Value;
use std::ops::Range;
use std::sync::LazyLock;

/// The most decoders of a Sequence: published ones have four or so.
const MAX_DECODERS: usize = 16;

/// How tokens are written as bytes.
#[derive(Debug, Default)]
pub struct Decoder {
    replaces: Vec<Replace>,
    bytes: Bytes,
    /// What stands between two tokens of a text, and belongs to neither.
    pub separator: &'static str,
    pub front: Front,
    /// The character for a space that the first token of a text leaves out.
    prefix: Option<char>,
}

/// What a text leaves out at its beginning: `content`, up to `count` times.
#[derive(Debug, Clone, Copy, Default)]
pub struct Front {
    content: char,
    count: usize,
}

/// Which bytes a token stands for.
#[derive(Debug, Clone, Copy, Default)]
enum Bytes {
    /// The bytes of its characters.
    #[default]
    Own,
    /// One byte for each character, which is one of GPT-2's alphabet.
    ByteLevel,
    /// The byte 0xE5 for `<0xE5>`, and the bytes of its characters for any other token.
    Fallback,
}

/// What a token writes.
#[derive(Debug, PartialEq)]
pub enum Written {
    Text(Vec<u8>),
    /// One of a run of bytes. If the run is UTF-8 it is that text, else each of its bytes is a U+FFFD.
    Byte(u8),
}

#[derive(Debug, Deserialize)]
struct Replace {
    pattern: Pattern,
    content: String,
}

#[derive(Debug, Deserialize)]
struct Pattern {
    #[serde(rename = "String")]
    text: String,
}

#[derive(Deserialize)]
struct Strip {
    content: char,
    start: usize,
    stop: usize,
}

#[derive(Deserialize)]
struct Metaspace {
    replacement: char,
    #[serde(default)]
    prepend_scheme: String,
}

impl Decoder {
    /// Reads the field `decoder`.
    ///
    /// # Errors
    /// The message names a decoder that is not supported here.
    pub fn parse(json: &Value) -> Result<Self, String> {
        let mut decoder = Self::default();
        if json.is_null() {
            decoder.separator = " ";
            return Ok(decoder);
        }
        let one = std::slice::from_ref(json);
        let parts = json["decoders"].as_array().map_or(one, Vec::as_slice);
        if parts.len() > MAX_DECODERS {
            return Err(format!(
                "field `decoder`: found {} decoders, expected at most {MAX_DECODERS}",
                parts.len()
            ));
        }
        let mut is_joined = false;
        for part in parts {
            decoder.add(part, &mut is_joined).map_err(|error| {
                let kind = part["type"].as_str().unwrap_or("without a type");
                format!("field `decoder`: decoder {}: {error}", quote::text(kind))
            })?;
        }
        Ok(decoder)
    }

    fn add(&mut self, part: &Value, is_joined: &mut bool) -> Result<(), String> {
        let broken = |error: serde_json::Error| quote::message(error);
        match (part["type"].as_str(), *is_joined) {
            (Some("Fuse"), _) => *is_joined = true,
            (Some("ByteLevel"), false) => {
                self.bytes = Bytes::ByteLevel;
                *is_joined = true;
            }
            (Some("ByteFallback"), false) => self.bytes = Bytes::Fallback,
            (Some("Replace"), false) => {
                let replace = Replace::deserialize(part).map_err(broken)?;
                if replace.pattern.text.is_empty() {
                    return Err("found an empty `pattern`, expected a text".to_owned());
                }
                self.replaces.push(replace);
            }
            (Some("Metaspace"), false) => {
                let space = Metaspace::deserialize(part).map_err(broken)?;
                if space.prepend_scheme != "never" {
                    self.prefix = Some(space.replacement);
                }
                self.replaces.push(Replace {
                    pattern: Pattern {
                        text: space.replacement.into(),
                    },
                    content: " ".to_owned(),
                });
            }
            (Some("Strip"), true) if self.front.count == 0 => {
                let strip = Strip::deserialize(part).map_err(broken)?;
                if strip.stop > 0 {
                    return Err(format!(
                        "found {} in `stop`, expected 0: the end of a text is not known while it is shown",
                        strip.stop
                    ));
                }
                self.front = Front {
                    content: strip.content,
                    count: strip.start,
                };
            }
            _ => {
                return Err(
                    "is not supported here, expected ByteLevel, or a Sequence of Replace, ByteFallback, Metaspace, Fuse and \
                     then Strip"
                        .to_owned(),
                );
            }
        }
        Ok(())
    }

    /// What `token` writes, without the separator. `is_first`: it is the first token of a text, of which [`Front::strip`]
    /// then takes what the text leaves out.
    pub fn written(&self, mut token: String, is_first: bool) -> Written {
        if is_first && let Some(prefix) = self.prefix {
            token = token.replace(prefix, "");
        }
        for Replace { pattern, content } in &self.replaces {
            token = token.replace(&pattern.text, content);
        }
        let byte = match self.bytes {
            Bytes::Own => None,
            Bytes::ByteLevel => return Written::Text(alphabet_bytes(token)),
            Bytes::Fallback => fallback_byte(&token),
        };
        byte.map_or_else(|| Written::Text(token.into_bytes()), Written::Byte)
    }
}

impl Front {
    /// Takes from the next characters of a text what the text leaves out, and notes what it may still leave out.
    pub fn strip(&mut self, characters: &mut Vec<(char, usize)>) {
        let leading = characters.iter().take(self.count);
        let leading = leading.take_while(|(c, _)| *c == self.content).count();
        characters.drain(..leading);
        self.count -= leading;
        if !characters.is_empty() {
            self.count = 0;
        }
    }
}

/// The byte of a token such as `<0xE5>`.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2)
        .then(|| u8::from_str_radix(digits, 16).ok())
        .flatten()
}

/// The bytes that a token in GPT-2's alphabet stands for. An added token with a character outside it stands for itself.
fn alphabet_bytes(token: String) -> Vec<u8> {
    let bytes: Option<_> = token.chars().map(alphabet_byte).collect();
    bytes.unwrap_or_else(|| token.into_bytes())
}

/// The byte that a character of GPT-2's alphabet stands for: printable Latin-1 is itself, the other bytes follow from
/// U+0100 in order.
fn alphabet_byte(c: char) -> Option<u8> {
    static OTHERS: LazyLock<Vec<u8>> =
        LazyLock::new(|| (0..=255).filter(|&b| !is_printable(b)).collect());
    match u32::from(c) {
        code @ 0..=255 => Some(code as u8).filter(|&b| is_printable(b)),
        code => OTHERS.get(code as usize - 256).copied(),
    }
}

fn is_printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)
}

/// The characters of `bytes[from..to]`, each with the place in `bytes` where it ends. What is no UTF-8 becomes U+FFFD, as in
/// [`String::from_utf8_lossy`]; in one of the `runs` of [`Written::Byte`] that is not all UTF-8, each byte becomes one.
pub fn characters(
    bytes: &[u8],
    runs: &[Range<usize>],
    from: usize,
    to: usize,
) -> Vec<(char, usize)> {
    let mut all = Vec::new();
    let mut at = from;
    let first = runs.partition_point(|run| run.end <= from);
    for run in &runs[first..] {
        let run = run.start.max(from)..run.end.min(to);
        if run.is_empty() {
            break;
        }
        lossy(&bytes[at..run.start], at, &mut all);
        match std::str::from_utf8(&bytes[run.clone()]) {
            Ok(_) => lossy(&bytes[run.clone()], run.start, &mut all),
            Err(_) => all.extend(run.clone().map(|byte| ('\u{fffd}', byte + 1))),
        }
        at = run.end;
    }
    lossy(&bytes[at..to], at, &mut all);
    all
}

/// Adds to `all` the characters of `bytes`, which begin at place `at`.
fn lossy(bytes: &[u8], mut at: usize, all: &mut Vec<(char, usize)>) {
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            at += c.len_utf8();
            all.push((c, at));
        }
        if !chunk.invalid().is_empty() {
            at += chunk.invalid().len();
            all.push(('\u{fffd}', at));
        }
    }
}
