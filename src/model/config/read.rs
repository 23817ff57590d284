//! config.json as it is read: defaults, limits, and what concerns more than one field.

use super::{Family, ModelConfig, quantization};
use crate::error::Result;
use crate::model::fields::{self, Fields};
use crate::model::tensors::model_parameters;
use crate::model::{FAMILIES, files};
use serde_json::Value;
use std::path::Path;

/// Limits far above any model of this kind, so that products of sizes fit 64 bits and a slip of the pen in
/// config.json is found there rather than as a failed allocation.
pub(in crate::model) mod limit {
    pub const VOCAB: u64 = 1 << 24;
    pub const WIDTH: u64 = 1 << 20;
    pub const LAYERS: u64 = 1 << 10;
    pub const HEADS: u64 = 1 << 12;
    pub const EXPERTS: u64 = 1 << 12;
    pub const CONV_TAPS: u64 = 1 << 6;
    /// f32 has such positions exactly, for their angles, and kernels find their pages without a division.
    pub const POSITIONS: u64 = 1 << 24;
    /// Parameters of the whole model: 2^46 elements are 281 TB as f32.
    pub const PARAMETERS: f64 = (1_u64 << 46) as f64;
}

impl ModelConfig {
    /// Reads config.json at `path`.
    ///
    /// # Errors
    /// Where the file cannot be read, is not a JSON object, or describes something that this is not: a single
    /// line that names the field, what was found and what was expected.
    pub fn from_file(path: &Path) -> Result<Self> {
        Self::from_json(&files::read(path, "a JSON object")?, path)
    }

    /// Parses config.json; `path` is for messages.
    ///
    /// # Errors
    /// See [`ModelConfig::from_file`].
    pub fn from_json(text: &[u8], path: &Path) -> Result<Self> {
        let root: Value = fields::parse(text, path, "a JSON object")?;
        let fields = Fields::new(path, &root)?;
        let family = family(&fields)?;
        let quantization = quantization::read(&fields)?;
        let config = Self {
            quantization,
            ..(family.read)(&fields)?
        };
        config.check(&fields)?;
        Ok(config)
    }

    /// What concerns more than one field.
    fn check(&self, fields: &Fields<'_>) -> Result<()> {
        if !self
            .num_attention_heads
            .is_multiple_of(self.num_key_value_heads)
        {
            return Err(fields.error(
                "num_key_value_heads",
                format!(
                    "found {}, expected a divisor of num_attention_heads ({})",
                    self.num_key_value_heads, self.num_attention_heads
                ),
            ));
        }
        if self.num_experts_per_tok > self.num_experts {
            return Err(fields.error(
                "num_experts_per_tok",
                format!(
                    "found {}, expected at most num_experts ({})",
                    self.num_experts_per_tok, self.num_experts
                ),
            ));
        }
        if model_parameters(self) <= limit::PARAMETERS {
            return Ok(());
        }
        Err(fields.error(
            "hidden_size",
            format!(
                "found {}, which with the other sizes makes more than {} parameters",
                self.hidden_size,
                limit::PARAMETERS
            ),
        ))
    }
}

/// The family that the file says it is of.
fn family(fields: &Fields<'_>) -> Result<&'static Family> {
    let named = |family: &&&Family| {
        fields
            .get("model_type")
            .is_some_and(|found| found == family.model_type)
    };
    if let Some(family) = FAMILIES.iter().find(named) {
        return Ok(family);
    }
    let expected: Vec<_> = FAMILIES
        .iter()
        .map(|family| format!("\"{}\"", family.model_type))
        .collect();
    let expected = expected.join(" or ");
    Err(match fields.get("model_type") {
        Some(found) => fields.wrong("model_type", found, &expected),
        None => fields.error("model_type", format!("is missing, expected {expected}")),
    })
}

/// A number that is finite as f32 and not negative.
pub(in crate::model) fn single(fields: &Fields<'_>, name: &str) -> Result<Option<f32>> {
    let valid = |number: f64| number >= 0.0 && (number as f32).is_finite();
    let number = fields.number(name, "a number from 0 that f32 can hold", valid)?;
    Ok(number.map(|number| number as f32))
}

pub(in crate::model) fn head_dim(
    fields: &Fields<'_>,
    hidden_size: usize,
    heads: usize,
) -> Result<usize> {
    let given = fields.size("head_dim", 1, limit::WIDTH)?;
    let head_dim = match given {
        Some(head_dim) => head_dim,
        None if hidden_size.is_multiple_of(heads) => hidden_size / heads,
        None => {
            return Err(fields.error(
                "num_attention_heads",
                format!("found {heads}, expected a divisor of hidden_size ({hidden_size}), or a head_dim"),
            ));
        }
    };
    if !head_dim.is_multiple_of(2) {
        let from = match given {
            Some(_) => String::new(),
            None => format!(" (hidden_size {hidden_size} / num_attention_heads {heads})"),
        };
        return Err(fields.error(
            "head_dim",
            format!(
                "found {head_dim}{from}, expected an even number: rotary embeddings turn pairs"
            ),
        ));
    }
    Ok(head_dim)
}
