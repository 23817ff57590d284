//! `pre_tokenizer` of tokenizer.json: the crate's, with patterns in bounded memory.

use crate::quote;
use serde_json::Value;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::split::Split;
use tokenizers::{PreTokenizedString, PreTokenizer as _, SplitDelimiterBehavior};

use super::normalize::Needle;
use super::regex::Found;
use super::{Bad, part, parts_of};

#[derive(Debug)]
pub enum PreTokenizer {
    Sequence(Vec<Self>),
    Split {
        pattern: Needle,
        behavior: SplitDelimiterBehavior,
        invert: bool,
    },
    Other(PreTokenizerWrapper),
}

impl PreTokenizer {
    pub fn parse(json: &Value) -> Result<Self, Bad> {
        match json["type"].as_str() {
            Some("Sequence") => parts_of(json, "pretokenizers")?
                .iter()
                .map(Self::parse)
                .collect::<Result<_, _>>()
                .map(Self::Sequence),
            Some("Split") => {
                let split: Split = part(json)?;
                Ok(Self::Split {
                    pattern: Needle::parse(&json["pattern"])?,
                    behavior: split.behavior,
                    invert: split.invert,
                })
            }
            _ if json["pretokenizers"].is_array() => {
                Err("expected `type` to be Sequence where there are `pretokenizers`".into())
            }
            _ => part(json).map(Self::Other),
        }
    }

    pub fn apply(&self, text: &mut PreTokenizedString) -> Result<(), String> {
        match self {
            Self::Sequence(parts) => parts.iter().try_for_each(|part| part.apply(text)),
            Self::Split {
                pattern,
                behavior,
                invert,
            } => text
                .split(|_, piece| {
                    let mut matches = pattern.matches(piece.get())?;
                    if *invert {
                        for (_, is_match) in &mut matches {
                            *is_match = !*is_match;
                        }
                    }
                    piece.split(Found(matches), *behavior)
                })
                .map_err(quote::message),
            Self::Other(other) => other.pre_tokenize(text).map_err(quote::message),
        }
    }
}
