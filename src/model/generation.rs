//! generation_config.json: what a checkpoint's makers advise.

use super::config::{ModelConfig, ids_json};
use super::fields::{self, Fields};
use super::files;
use crate::error::Result;
use crate::json;
use serde_json::{Value, json};
use std::path::Path;

/// generation_config.json: defaults of the checkpoint's makers. Token ids here win over config.json's.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationConfig {
    pub bos_token_id: Option<u32>,
    pub eos_token_ids: Option<Vec<u32>>,
    pub pad_token_id: Option<u32>,
    pub do_sample: Option<bool>,
    pub temperature: Option<f32>,
    /// 0 keeps all; the file may spell it -1.
    pub top_k: Option<u32>,
    /// 0 keeps the most likely token alone.
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub max_new_tokens: Option<u32>,
    /// `name value` of each field that would change answers, and does not: there is nothing here that follows it.
    pub unsupported: Vec<String>,
}

/// Fields that change what transformers answers and nothing here, with the numbers that stand for no change, beside null,
/// false and an empty list. Beams' own fields change nothing without `num_beams`.
const UNSUPPORTED: [(&str, Option<f64>); 25] = [
    ("max_length", Some(20.0)),
    ("min_length", Some(0.0)),
    ("min_new_tokens", Some(0.0)),
    ("max_time", None),
    ("stop_strings", None),
    ("num_beams", Some(1.0)),
    ("num_return_sequences", Some(1.0)),
    ("top_h", None),
    ("typical_p", Some(1.0)),
    ("epsilon_cutoff", Some(0.0)),
    ("eta_cutoff", Some(0.0)),
    ("encoder_repetition_penalty", Some(1.0)),
    ("no_repeat_ngram_size", Some(0.0)),
    ("encoder_no_repeat_ngram_size", Some(0.0)),
    ("bad_words_ids", None),
    ("force_words_ids", None),
    ("constraints", None),
    ("forced_bos_token_id", None),
    ("forced_eos_token_id", None),
    ("exponential_decay_length_penalty", None),
    ("suppress_tokens", None),
    ("begin_suppress_tokens", None),
    ("sequence_bias", None),
    ("guidance_scale", Some(1.0)),
    ("token_healing", None),
];
/// Unsupported fields that newer or older releases have for whole ways to decode.
const UNSUPPORTED_WAYS: [(&str, Option<f64>); 3] = [
    ("penalty_alpha", Some(0.0)),
    ("dola_layers", None),
    ("watermarking_config", None),
];

impl GenerationConfig {
    /// Reads generation_config.json at `path`; a file that is not there advises nothing.
    ///
    /// # Errors
    /// Where the file cannot be read, is not a JSON object, or a field does not fit: one line that names it.
    pub fn from_file(path: &Path) -> Result<Self> {
        if files::is_there(path) {
            Self::from_json(&files::read(path, "a JSON object")?, path)
        } else {
            Ok(Self::default())
        }
    }

    /// Parses generation_config.json; `path` is for messages.
    ///
    /// # Errors
    /// See [`GenerationConfig::from_file`].
    pub fn from_json(text: &[u8], path: &Path) -> Result<Self> {
        let root: Value = fields::parse(text, path, "a JSON object")?;
        let fields = Fields::new(path, &root)?;
        let number = |name, expected, valid: fn(f32) -> bool| -> Result<Option<f32>> {
            let number = fields.number(name, expected, |number| {
                (number as f32).is_finite() && valid(number as f32)
            })?;
            Ok(number.map(|number| number as f32))
        };
        let count = |name, least| -> Result<Option<u32>> {
            let count = fields.size(name, least, u64::from(u32::MAX))?;
            Ok(count.map(|count| count as u32))
        };
        Ok(Self {
            bos_token_id: fields.token_id("bos_token_id")?,
            eos_token_ids: fields.token_ids("eos_token_id")?,
            pad_token_id: fields.token_id("pad_token_id")?,
            do_sample: fields.bool("do_sample")?,
            temperature: number("temperature", "a number from 0", |t| t >= 0.0)?,
            top_k: match fields.get("top_k").and_then(json::integer) {
                Some(-1) => Some(0),
                _ => count("top_k", 0)?,
            },
            top_p: number("top_p", "a number from 0 to 1", |p| {
                (0.0..=1.0).contains(&p)
            })?,
            min_p: number("min_p", "a number from 0 to 1", |p| {
                (0.0..=1.0).contains(&p)
            })?,
            repetition_penalty: number("repetition_penalty", "a number above 0", |p| p > 0.0)?,
            // transformers refuses 0 here, too.
            max_new_tokens: count("max_new_tokens", 1)?,
            unsupported: unsupported(&fields),
        })
    }

    /// What to say of a file whose advice is not all followed.
    pub fn warning(&self) -> Option<String> {
        let all = match &self.unsupported[..] {
            [] => return None,
            [one] => {
                return Some(format!(
                    "{one} is not supported: answers are made without it"
                ));
            }
            [others @ .., last] => format!("{} and {last}", others.join(", ")),
        };
        Some(format!(
            "{all} are not supported: answers are made without them"
        ))
    }

    /// The temperature that this advises, 0 being greedy: `do_sample` false overrides `temperature`, and
    /// `do_sample` true without one means 1, as in transformers.
    pub fn default_temperature(&self) -> f32 {
        match self.do_sample {
            Some(false) => 0.0,
            Some(true) => self.temperature.unwrap_or(1.0),
            None => self.temperature.unwrap_or(0.0),
        }
    }

    /// Puts the token ids given here in the place of config.json's.
    pub(super) fn apply_to(&self, config: &mut ModelConfig) {
        config.bos_token_id = self.bos_token_id.or(config.bos_token_id);
        config.pad_token_id = self.pad_token_id.or(config.pad_token_id);
        // Ids that the model does not have end nothing.
        let ids = self.eos_token_ids.iter().flatten().copied();
        let known: Vec<u32> = ids
            .filter(|&id| (id as usize) < config.vocab_size)
            .collect();
        if !known.is_empty() {
            config.eos_token_ids = known;
        }
    }

    /// generation_config.json of a model without advice beyond its token ids.
    pub(super) fn json_for(config: &ModelConfig) -> Value {
        json!({
            "bos_token_id": config.bos_token_id,
            "eos_token_id": ids_json(&config.eos_token_ids),
            "pad_token_id": config.pad_token_id,
        })
    }
}

/// The unsupported fields that ask for something.
fn unsupported(fields: &Fields<'_>) -> Vec<String> {
    let asks = |value: &Value, neutral: Option<f64>| match value {
        Value::Bool(asked) => *asked,
        Value::Array(items) => !items.is_empty(),
        other => json::float(other).is_none_or(|number| Some(number) != neutral),
    };
    let known = UNSUPPORTED.iter().chain(&UNSUPPORTED_WAYS);
    known
        .filter_map(|&(name, neutral)| {
            let value = fields.get(name).filter(|value| asks(value, neutral))?;
            Some(format!("{name} {}", json::shown(value)))
        })
        .collect()
}
