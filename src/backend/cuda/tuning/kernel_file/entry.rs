//! An entry as TOML.

use crate::backend::cuda::tuning::variants::{Experts, Grouped, Linear, Variant};
use crate::plan::graphs::describe;
use crate::quote;
use toml::Value;

const KEYS: [&str; 8] = [
    "products",
    "skinny_stages",
    "experts",
    "tile_rows",
    "grouped_stages",
    "guess",
    "prefetch_mib",
    "ms",
];

/// A variant and its time. Parameters that its families have no use for are errors, and so is one that is missing.
pub(super) fn read_entry(value: &Value) -> Result<(Variant, Option<f64>), String> {
    let Value::Table(fields) = value else {
        return Err(format!(
            "found {}, expected {{ products = ..., experts = ... }}",
            describe(value)
        ));
    };
    // First, since of a misspelled one the parameter is missing too.
    if let Some(key) = fields.keys().find(|key| !KEYS.contains(&key.as_str())) {
        return Err(format!(
            "unknown key '{}': expected {}",
            quote::text(key),
            KEYS.join(", ")
        ));
    }
    let mut left: Vec<&str> = fields.keys().map(String::as_str).collect();
    let mut take = |key: &str| {
        left.retain(|field| *field != key);
        fields.get(key)
    };
    let name = |key: &str, value: Option<&Value>, names: &str| match value {
        None => Err(format!("{key}: missing, expected {names}")),
        Some(value) => value
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| format!("{key}: found {}, expected {names}", describe(value))),
    };
    let number = |key: &str, value: Option<&Value>| {
        let found = value.map_or("nothing".into(), describe);
        value
            .and_then(Value::as_integer)
            .and_then(|n| u32::try_from(n).ok())
            .ok_or_else(|| format!("{key}: found {found}, expected a number"))
    };
    let of_linear = "\"skinny\", \"swap_ab\", \"persistent\" or \"tiled\"";
    let of_experts = "\"skinny\", \"fused\", \"grouped\", \"persistent\" or \"tiled\"";
    let linear = match &name("products", take("products"), of_linear)?[..] {
        "skinny" => Linear::Skinny {
            stages: number("skinny_stages", take("skinny_stages"))?,
        },
        "swap_ab" => Linear::SwapAb,
        "persistent" => Linear::Persistent,
        "tiled" => Linear::Tiled,
        other => {
            let other = quote::text(other);
            return Err(format!("products: found \"{other}\", expected {of_linear}"));
        }
    };
    let experts = match &name("experts", take("experts"), of_experts)?[..] {
        "skinny" => Experts::Skinny,
        "fused" => Experts::Fused,
        "persistent" => Experts::Persistent,
        "grouped" => Experts::Grouped(Grouped {
            tile_rows: number("tile_rows", take("tile_rows"))?,
            stages: number("grouped_stages", take("grouped_stages"))?,
            predict: {
                let value = take("guess");
                let found = value.map_or("nothing".into(), describe);
                value
                    .and_then(Value::as_bool)
                    .ok_or_else(|| format!("guess: found {found}, expected true or false"))?
            },
            prefetch_mib: match take("prefetch_mib") {
                None => 0,
                value => number("prefetch_mib", value)?,
            },
        }),
        "tiled" => Experts::Tiled,
        other => {
            let other = quote::text(other);
            return Err(format!("experts: found \"{other}\", expected {of_experts}"));
        }
    };
    let ms = match take("ms") {
        None => None,
        Some(value) => Some(
            value
                .as_float()
                .filter(|ms| ms.is_finite() && *ms >= 0.0)
                .ok_or_else(|| format!("ms: found {}, expected milliseconds", describe(value)))?,
        ),
    };
    match left.first() {
        None => Ok((Variant { linear, experts }, ms)),
        Some(key) => Err(format!(
            "{}: products {linear} and experts {experts} have no such parameter",
            quote::text(key)
        )),
    }
}

/// Writes what [`read_entry`] takes, without braces and time.
pub(super) fn write_variant(variant: Variant) -> String {
    let linear = match variant.linear {
        Linear::Skinny { stages } => format!("products = \"skinny\", skinny_stages = {stages}"),
        other => format!("products = \"{other}\""),
    };
    let experts = match variant.experts {
        Experts::Grouped(Grouped {
            tile_rows,
            stages,
            predict,
            prefetch_mib,
        }) => {
            let prefetch = match prefetch_mib {
                0 => String::new(),
                mib => format!(", prefetch_mib = {mib}"),
            };
            format!(
                "experts = \"grouped\", tile_rows = {tile_rows}, grouped_stages = {stages}, guess = {predict}{prefetch}"
            )
        }
        other => format!("experts = \"{other}\""),
    };
    format!("{linear}, {experts}")
}
