//! Which layers are short convolutions and which are attention: `layer_types`, or `full_attn_idxs`.

use super::fields::Fields;
use crate::error::Result;
use crate::json;
use serde_json::Value;

/// What mixes tokens in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerType {
    Conv,
    FullAttention,
}

impl LayerType {
    /// The name in config.json.
    pub fn name(self) -> &'static str {
        match self {
            Self::Conv => "conv",
            Self::FullAttention => "full_attention",
        }
    }
}

/// From `layer_types`, or our own `full_attn_idxs`; where both are given they must agree.
pub(super) fn read(fields: &Fields<'_>, layers: usize) -> Result<Vec<LayerType>> {
    let from_names = named(fields, layers)?;
    let from_indices = indexed(fields, layers)?;
    match (from_names, from_indices) {
        (Some(named), Some(indexed)) => match (0..layers).find(|&i| named[i] != indexed[i]) {
            None => Ok(named),
            Some(i) => Err(fields.error(
                "full_attn_idxs",
                format!(
                    "makes layer {i} {}, expected {} as layer_types says; remove one of the two",
                    indexed[i].name(),
                    named[i].name()
                ),
            )),
        },
        (Some(types), None) | (None, Some(types)) => Ok(types),
        (None, None) => Err(fields.error(
            "layer_types",
            format!("is missing, expected a list of {layers} layer types"),
        )),
    }
}

fn named(fields: &Fields<'_>, layers: usize) -> Result<Option<Vec<LayerType>>> {
    let Some(list) = fields.optional("layer_types", "a list of layer types", Value::as_array)?
    else {
        return Ok(None);
    };
    if list.len() != layers {
        return Err(fields.error(
            "layer_types",
            format!(
                "found {} entries, expected num_hidden_layers ({layers})",
                list.len()
            ),
        ));
    }
    let types = list.iter().enumerate().map(|(i, value)| {
        [LayerType::Conv, LayerType::FullAttention]
            .into_iter()
            .find(|kind| value.as_str() == Some(kind.name()))
            .ok_or_else(|| {
                fields.error(
                    "layer_types",
                    format!(
                        "found {} at index {i}, expected \"conv\" or \"full_attention\"",
                        json::shown(value)
                    ),
                )
            })
    });
    types.collect::<Result<_>>().map(Some)
}

fn indexed(fields: &Fields<'_>, layers: usize) -> Result<Option<Vec<LayerType>>> {
    let expected = "a list of layer indices";
    let Some(list) = fields.optional("full_attn_idxs", expected, Value::as_array)? else {
        return Ok(None);
    };
    let mut types = vec![LayerType::Conv; layers];
    for value in list {
        match json::integer(value) {
            Some(i) if (0..layers as i128).contains(&i) => {
                types[i as usize] = LayerType::FullAttention;
            }
            _ => {
                return Err(fields.wrong(
                    "full_attn_idxs",
                    value,
                    &format!("layer indices below num_hidden_layers ({layers})"),
                ));
            }
        }
    }
    Ok(Some(types))
}
