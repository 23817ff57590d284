//! What config.json says of weights in 8 bits: compressed-tensors' `float-quantized`, and fine-grained FP8. Whatever else it says is
//! refused by its name, before any tensor is looked at: quantized matrices are not what their shapes say.
//!
//! Activations stay in `--dtype`, however such a checkpoint would have them quantized. Which matrices are in 8 bits the types of the
//! tensors say.

use crate::error::Result;
use crate::json;
use crate::model::fields::Fields;
use serde_json::{Value, json};

/// Weights in 8 bits: which elements of a matrix share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Quantization {
    /// All.
    Tensor,
    /// Those of a row, which is an output channel.
    Channel,
    /// Blocks of so many rows and columns, some smaller at the end.
    Block(usize, usize),
}

const SUPPORTED: &str = "compressed-tensors of format \"float-quantized\", or \"fp8\"";

/// What the file says, if anything.
///
/// # Errors
/// It says something that is not understood.
pub(super) fn read(fields: &Fields<'_>) -> Result<Option<Quantization>> {
    // compression_config is the older spelling of compressed-tensors.
    for name in ["quantization_config", "compression_config"] {
        let Some(object) = fields.object(name)?.filter(|object| !object.is_empty()) else {
            continue;
        };
        let text = |name| object.get(name).and_then(Value::as_str);
        let read = match (text("quant_method"), text("format")) {
            (Some("compressed-tensors"), Some("float-quantized")) => compressed_tensors,
            (Some("fp8"), None) => fine_grained,
            _ => return Err(other(fields, name, &object)),
        };
        return read(&object).map(Some);
    }
    Ok(None)
}

/// The error about a method that is not read.
fn other(fields: &Fields<'_>, name: &str, object: &Fields<'_>) -> crate::Error {
    let says = ["quant_method", "quant_algo", "format", "fmt"];
    let says = says
        .iter()
        .filter_map(|key| Some(format!("{key} {}", json::shown(object.get(key)?))));
    let says: Vec<String> = says.collect();
    let found = if says.is_empty() {
        "one that names no quant_method".to_owned()
    } else {
        says.join(", ")
    };
    fields.error(
        name,
        format!(
            "found {found}, expected {SUPPORTED}: take such a checkpoint, or the one in bf16, f16 or f32"
        ),
    )
}

fn compressed_tensors(object: &Fields<'_>) -> Result<Quantization> {
    object.check_names(&[
        "quant_method",
        "format",
        "config_groups",
        "ignore",
        "kv_cache_scheme",
        "sparsity_config",
        "transform_config",
        "quantization_status",
        "global_compression_ratio",
        "version",
    ])?;
    object.check("quantization_status", &[json!("compressed")])?;
    object.check("kv_cache_scheme", &[])?;
    object.check("transform_config", &[json!({})])?;
    if let Some(sparsity) = object.object("sparsity_config")? {
        sparsity.check("format", &[json!("dense")])?;
    }
    let expected = "an object with a group of matrices";
    let groups = object.object("config_groups")?;
    let groups = groups
        .ok_or_else(|| object.error("config_groups", format!("is missing, expected {expected}")))?;
    let mut found: Option<Quantization> = None;
    for name in groups.names() {
        let group = groups
            .object(name)?
            .ok_or_else(|| groups.wrong(name, &Value::Null, "an object"))?;
        let of_group = group_of(&group)?;
        if found.is_some_and(|found| found != of_group) {
            return Err(groups.error(
                name,
                "found scales of another kind than the groups before, expected one kind for all",
            ));
        }
        found = Some(of_group);
    }
    found.ok_or_else(|| object.error("config_groups", format!("is empty, expected {expected}")))
}

fn group_of(group: &Fields<'_>) -> Result<Quantization> {
    group.check_names(&[
        "targets",
        "weights",
        "input_activations",
        "output_activations",
        "format",
    ])?;
    group.check("format", &[json!("float-quantized")])?;
    group.check("output_activations", &[])?;
    let Some(weights) = group.object("weights")? else {
        return Err(group.error(
            "weights",
            "is missing, expected how the group's weights are quantized",
        ));
    };
    weights.check_names(&[
        "num_bits",
        "type",
        "symmetric",
        "dynamic",
        "strategy",
        "block_structure",
        "group_size",
        "actorder",
        "observer",
        "observer_kwargs",
        "scale_dtype",
        "zp_dtype",
    ])?;
    weights.check("num_bits", &[json!(8)])?;
    weights.check("type", &[json!("float")])?;
    if weights.get("type").is_none() {
        return Err(weights.error(
            "type",
            "is missing, which means integers, expected \"float\"",
        ));
    }
    weights.check("symmetric", &[json!(true)])?;
    weights.check("dynamic", &[json!(false)])?;
    weights.check("group_size", &[])?;
    weights.check("actorder", &[])?;
    weights.check("strategy", &["tensor", "channel", "block"].map(Value::from))?;
    match weights.get("strategy").and_then(Value::as_str) {
        Some("channel") => Ok(Quantization::Channel),
        Some("block") => block(&weights, "block_structure")?.ok_or_else(|| {
            weights.error(
                "block_structure",
                "is missing, expected the rows and columns of a block",
            )
        }),
        _ => Ok(Quantization::Tensor),
    }
}

fn fine_grained(object: &Fields<'_>) -> Result<Quantization> {
    object.check_names(&[
        "quant_method",
        "fmt",
        "activation_scheme",
        "weight_block_size",
        "modules_to_not_convert",
        "ignored_layers",
    ])?;
    object.check("fmt", &[json!("e4m3")])?;
    Ok(block(object, "weight_block_size")?.unwrap_or(Quantization::Tensor))
}

/// Rows and columns of a block.
fn block(fields: &Fields<'_>, name: &str) -> Result<Option<Quantization>> {
    let expected = "two numbers from 1, the rows and columns of a block";
    fields.optional(name, expected, |value| {
        let sizes: Vec<usize> = serde_json::from_value(value.clone()).ok()?;
        match sizes[..] {
            [rows, columns] if rows > 0 && columns > 0 => Some(Quantization::Block(rows, columns)),
            _ => None,
        }
    })
}

impl Quantization {
    /// compressed-tensors' block of config.json. Parsing it gives an equal one.
    pub(super) fn to_json(self) -> Value {
        let (strategy, block) = match self {
            Self::Tensor => ("tensor", Value::Null),
            Self::Channel => ("channel", Value::Null),
            Self::Block(rows, columns) => ("block", json!([rows, columns])),
        };
        json!({
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "quantization_status": "compressed",
            "ignore": ["lm_head", "re:.*feed_forward\\.gate$"],
            "config_groups": {"group_0": {
                "targets": ["Linear"],
                "weights": {
                    "num_bits": 8,
                    "type": "float",
                    "symmetric": true,
                    "dynamic": false,
                    "strategy": strategy,
                    "block_structure": block,
                },
                "input_activations": null,
            }},
        })
    }
}
