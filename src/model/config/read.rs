//! config.json as it is read: defaults, limits, and what concerns more than one field.

use super::{MODEL_TYPE, ModelConfig, rotary};
use crate::error::Result;
use crate::json;
use crate::model::fields::{self, Fields};
use crate::model::tensors::model_parameters;
use crate::model::{files, layer_types};
use serde_json::Value;
use std::path::Path;

/// Limits far above any model of this kind, so that products of sizes fit 64 bits and a slip of the pen in
/// config.json is found there rather than as a failed allocation.
mod limit {
    pub const VOCAB: u64 = 1 << 24;
    pub const WIDTH: u64 = 1 << 20;
    pub const LAYERS: u64 = 1 << 10;
    pub const HEADS: u64 = 1 << 12;
    pub const EXPERTS: u64 = 1 << 12;
    pub const CONV_TAPS: u64 = 1 << 6;
    /// f32 has such positions exactly, for their angles, and kernels find their pages without a division.
    pub const POSITIONS: u64 = 1 << 24;
    /// Of the whole model: 2^46 elements are 281 TB as f32.
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
        check_model_type(&fields)?;
        refuse_quantization(&fields)?;
        let num_hidden_layers = fields.required_size("num_hidden_layers", 1, limit::LAYERS)?;
        let hidden_size = fields.required_size("hidden_size", 1, limit::WIDTH)?;
        let num_attention_heads = fields.required_size("num_attention_heads", 1, limit::HEADS)?;
        let config = Self {
            vocab_size: fields.required_size("vocab_size", 1, limit::VOCAB)?,
            hidden_size,
            num_hidden_layers,
            intermediate_size: fields.required_size("intermediate_size", 1, limit::WIDTH)?,
            moe_intermediate_size: fields.required_size(
                "moe_intermediate_size",
                1,
                limit::WIDTH,
            )?,
            num_attention_heads,
            num_key_value_heads: fields.required_size("num_key_value_heads", 1, limit::HEADS)?,
            head_dim: head_dim(&fields, hidden_size, num_attention_heads)?,
            num_dense_layers: fields.required_size(
                "num_dense_layers",
                0,
                num_hidden_layers as u64,
            )?,
            num_experts: num_experts(&fields)?,
            num_experts_per_tok: fields.required_size("num_experts_per_tok", 1, limit::EXPERTS)?,
            use_expert_bias: fields.bool("use_expert_bias")?.unwrap_or(true),
            norm_topk_prob: fields.bool("norm_topk_prob")?.unwrap_or(true),
            routed_scaling_factor: single(&fields, "routed_scaling_factor")?.unwrap_or(1.0),
            conv_l_cache: fields
                .size("conv_L_cache", 1, limit::CONV_TAPS)?
                .unwrap_or(3),
            conv_bias: fields.bool("conv_bias")?.unwrap_or(false),
            norm_eps: single(&fields, "norm_eps")?.unwrap_or(1e-5),
            max_position_embeddings: fields
                .size("max_position_embeddings", 1, limit::POSITIONS)?
                .unwrap_or(128_000),
            rope_theta: rotary::theta(&fields)?,
            tie_word_embeddings: match fields.bool("tie_embedding")? {
                Some(tied) => tied,
                None => fields.bool("tie_word_embeddings")?.unwrap_or(true),
            },
            layer_types: layer_types::read(&fields, num_hidden_layers)?,
            bos_token_id: fields.token_id("bos_token_id")?,
            eos_token_ids: fields.token_ids("eos_token_id")?.unwrap_or_default(),
            pad_token_id: fields.token_id("pad_token_id")?,
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

fn check_model_type(fields: &Fields<'_>) -> Result<()> {
    match fields.get("model_type") {
        Some(Value::String(found)) if found == MODEL_TYPE => Ok(()),
        Some(found) => Err(fields.wrong("model_type", found, &format!("\"{MODEL_TYPE}\""))),
        None => Err(fields.error(
            "model_type",
            format!("is missing, expected \"{MODEL_TYPE}\""),
        )),
    }
}

/// Quantized matrices are not what their shapes say, so this is refused by its name before any tensor is looked at.
fn refuse_quantization(fields: &Fields<'_>) -> Result<()> {
    // compression_config is the older spelling of compressed-tensors.
    for name in ["quantization_config", "compression_config"] {
        let expected = "an object";
        let Some(object) = fields.optional(name, expected, Value::as_object)? else {
            continue;
        };
        if object.is_empty() {
            continue;
        }
        let method: Vec<String> = ["quant_method", "quant_algo", "format", "fmt"]
            .iter()
            .filter_map(|key| Some(format!("{key} {}", json::shown(object.get(*key)?))))
            .collect();
        let found = match method.is_empty() {
            true => "one that names no quant_method".to_owned(),
            false => method.join(", "),
        };
        return Err(fields.error(
            name,
            format!(
                "found {found}, expected none: quantized checkpoints are not supported, take the one in bf16, f16 or f32"
            ),
        ));
    }
    Ok(())
}

/// `num_experts`, which some exports call `num_local_experts`; where both are given they must agree.
fn num_experts(fields: &Fields<'_>) -> Result<usize> {
    const ALIAS: &str = "num_local_experts";
    let alias = fields.size(ALIAS, 1, limit::EXPERTS)?;
    match (fields.size("num_experts", 1, limit::EXPERTS)?, alias) {
        (Some(experts), Some(other)) if experts != other => Err(fields.error(
            ALIAS,
            format!("found {other}, expected {experts} like num_experts"),
        )),
        (Some(experts), _) | (None, Some(experts)) => Ok(experts),
        (None, None) => fields.required_size("num_experts", 1, limit::EXPERTS),
    }
}

/// A number that is finite as f32 and not negative.
fn single(fields: &Fields<'_>, name: &str) -> Result<Option<f32>> {
    let valid = |number: f64| number >= 0.0 && (number as f32).is_finite();
    let number = fields.number(name, "a number from 0 that f32 can hold", valid)?;
    Ok(number.map(|number| number as f32))
}

fn head_dim(fields: &Fields<'_>, hidden_size: usize, heads: usize) -> Result<usize> {
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
