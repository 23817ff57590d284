//! `normalizer` of tokenizer.json: the crate's, with patterns in bounded memory and texts of bounded size.

use crate::quote;
use serde_json::Value;
use std::sync::OnceLock;
use tokenizers::normalizers::{NormalizerWrapper, Prepend, Replace};
use tokenizers::{NormalizedString, Normalizer as _};

use super::regex::{Found, Matches, Regex};
use super::{Bad, part, parts_of};

/// Bytes of a text after normalization, at most: each takes 17 bytes of memory, with its place in the original.
const MAX_NORMALIZED_BYTES: usize = 16 << 20;

#[derive(Debug)]
pub enum Normalizer {
    Sequence(Vec<Self>),
    Replace {
        pattern: Needle,
        content: String,
    },
    Prepend(Prepend, usize),
    /// SentencePiece's table, and the longest text that it has in the place of another.
    Precompiled(NormalizerWrapper, usize),
    Other(NormalizerWrapper),
}

/// What is looked for.
#[derive(Debug)]
pub enum Needle {
    Text(String),
    Regex(Regex),
}

impl Needle {
    /// `{"String": …}` or `{"Regex": …}`.
    pub fn parse(json: &Value) -> Result<Self, String> {
        match (json["String"].as_str(), json["Regex"].as_str()) {
            // Nothing is found in every place; Oniguruma knows which places these are.
            (Some(text), _) if !text.is_empty() => Ok(Self::Text(text.to_owned())),
            (Some(text), _) | (None, Some(text)) => Regex::new(text).map(Self::Regex),
            (None, None) => Err(
                "field `pattern`: expected {\"String\": …} or {\"Regex\": …} with a text"
                    .to_owned(),
            ),
        }
    }

    pub fn matches(&self, text: &str) -> Result<Matches, String> {
        match self {
            Self::Regex(regex) => regex.matches(text),
            Self::Text(_) if text.is_empty() => Ok(vec![((0, 0), false)]),
            Self::Text(needle) => {
                let mut matches = Matches::new();
                let mut done = 0;
                for (start, found) in text.match_indices(needle) {
                    if done != start {
                        matches.push(((done, start), false));
                    }
                    done = start + found.len();
                    matches.push(((start, done), true));
                }
                if done != text.len() {
                    matches.push(((done, text.len()), false));
                }
                Ok(matches)
            }
        }
    }
}

impl Normalizer {
    pub fn parse(json: &Value) -> Result<Self, Bad> {
        match json["type"].as_str() {
            Some("Sequence") => parts_of(json, "normalizers")?
                .iter()
                .map(Self::parse)
                .collect::<Result<_, _>>()
                .map(Self::Sequence),
            Some("Replace") => {
                // The crate's own type says what is wrong with the fields.
                let _: Replace = part(json)?;
                Ok(Self::Replace {
                    pattern: Needle::parse(&json["pattern"])?,
                    content: json["content"].as_str().unwrap_or_default().to_owned(),
                })
            }
            Some("Prepend") => {
                let prepend: Prepend = part(json)?;
                let bytes = prepend.prepend.len();
                Ok(Self::Prepend(prepend, bytes))
            }
            Some("Precompiled") => {
                // The table's last part is the texts, a NUL behind each: base64 of n bytes holds none longer.
                let table = json["precompiled_charsmap"].as_str().unwrap_or_default();
                Ok(Self::Precompiled(part(json)?, longest_text(table)))
            }
            _ if json["normalizers"].is_array() => {
                Err("expected `type` to be Sequence where there are `normalizers`".into())
            }
            _ => part(json).map(Self::Other),
        }
    }

    fn apply(&self, text: &mut NormalizedString) -> Result<(), String> {
        let bytes = text.get().len();
        let broken = |error: tokenizers::Error| quote::message(error);
        match self {
            Self::Sequence(parts) => parts.iter().try_for_each(|part| part.apply(text)),
            Self::Replace { pattern, content } => {
                let matches = pattern.matches(text.get())?;
                let (mut kept, mut replaced) = (0, 0usize);
                for ((start, end), is_match) in &matches {
                    match is_match {
                        true => replaced += 1,
                        false => kept += end - start,
                    }
                }
                check_size(
                    kept.saturating_add(replaced.saturating_mul(content.len())),
                    "normalizer Replace",
                )?;
                text.replace(Found(matches), content).map_err(broken)
            }
            Self::Prepend(prepend, more) => {
                check_size(bytes.saturating_add(*more), "normalizer Prepend")?;
                prepend.normalize(text).map_err(broken)
            }
            Self::Precompiled(table, longest) => {
                // Each of the text's characters may become the longest text.
                if bytes.saturating_mul(*longest) > MAX_NORMALIZED_BYTES {
                    let characters = text.get().chars().count();
                    check_size(
                        characters.saturating_mul(*longest),
                        "normalizer Precompiled",
                    )?;
                }
                table.normalize(text).map_err(broken)
            }
            Self::Other(other) => {
                other.normalize(text).map_err(broken)?;
                check_size(text.get().len(), "the normalizer")
            }
        }
    }
}

/// A text is about to have `bytes` bytes after the step `doing`.
fn check_size(bytes: usize, doing: &str) -> Result<(), String> {
    match bytes <= MAX_NORMALIZED_BYTES {
        true => Ok(()),
        false => Err(format!(
            "{doing} makes {bytes} bytes of the text, expected at most {MAX_NORMALIZED_BYTES}"
        )),
    }
}

/// Of a SentencePiece table in base64: the length of the table's trie, the trie, and texts with a NUL behind each.
fn longest_text(table: &str) -> usize {
    let bytes = base64(table);
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else {
        return 0;
    };
    let texts = rest
        .get(u32::from_le_bytes(*length) as usize..)
        .unwrap_or_default();
    texts
        .split(|&byte| byte == 0)
        .map(<[u8]>::len)
        .max()
        .unwrap_or(0)
}

/// What `text` stands for, up to the first character that base64 does not have.
fn base64(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut buffer, mut bits) = (0u32, 0);
    for byte in text.bytes() {
        let six = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => break,
        };
        buffer = (buffer << 6 | u32::from(six)) & 0xffff;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((buffer >> bits) as u8);
        }
    }
    bytes
}

/// A normalizer at work on one text, as the crate wants it: what goes wrong is kept here, because the crate forgets it.
pub struct Run<'a> {
    pub normalizer: &'a Normalizer,
    pub trouble: OnceLock<String>,
}

impl<'a> Run<'a> {
    pub fn new(normalizer: &'a Normalizer) -> Self {
        Self {
            normalizer,
            trouble: OnceLock::new(),
        }
    }
}

impl tokenizers::Normalizer for Run<'_> {
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        if let Some(trouble) = self.trouble.get() {
            return Err(trouble.clone().into());
        }
        self.normalizer.apply(text).map_err(|error| {
            let _ = self.trouble.set(error.clone());
            error.into()
        })
    }
}
