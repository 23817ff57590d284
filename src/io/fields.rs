//! Fields of a JSON object, read with errors that name the field, what was found and what was expected.
//! `null` counts as absent everywhere.

use super::row::{Code, Id, MAX_ID_BYTES, MAX_NEW_TOKENS, MAX_TIMEOUT_MS, Options, RowError};
use crate::json;
use crate::quote;
use crate::sys::abi::TG_MAX_BIASES;
use serde_json::{Map, Value};
use std::fmt;
use std::ops::RangeInclusive;

pub type Fields = Map<String, Value>;

/// A number with a range, used by rows and by the flags of the same name.
#[derive(Debug, Clone, Copy)]
pub struct Number {
    pub name: &'static str,
    pub expected: &'static str,
    accepts: fn(f32) -> bool,
}

pub const TEMPERATURE: Number = Number {
    name: "temperature",
    expected: "a number from 0 (greedy) to what f32 holds, 3.4e38",
    accepts: |v| v >= 0.0,
};
pub const TOP_P: Number = Number {
    name: "top_p",
    expected: "a number from 0 (keeps the most likely token alone) to 1 (keeps all)",
    accepts: |v| (0.0..=1.0).contains(&v),
};
pub const MIN_P: Number = Number {
    name: "min_p",
    expected: "a number from 0 to 1 (0 keeps all)",
    accepts: |v| (0.0..=1.0).contains(&v),
};
pub const REPETITION_PENALTY: Number = Number {
    name: "repetition_penalty",
    expected: "a number above 0 that f32 holds (1 is none)",
    accepts: |v| v > 0.0,
};

pub const PRESENCE_PENALTY: Number = Number {
    name: "presence_penalty",
    expected: "a number from -2 to 2 (0 is none)",
    accepts: |v| (-2.0..=2.0).contains(&v),
};
pub const FREQUENCY_PENALTY: Number = Number {
    name: "frequency_penalty",
    ..PRESENCE_PENALTY
};

impl Number {
    /// The value as f32 if it lies in the range.
    pub fn check(&self, value: f64) -> Option<f32> {
        let narrow = value as f32;
        (narrow.is_finite() && (self.accepts)(narrow)).then_some(narrow)
    }

    /// Reads the value from text, for a flag.
    pub fn parse(&self, text: &str) -> Result<f32, String> {
        text.parse::<f64>()
            .ok()
            .and_then(|value| self.check(value))
            .ok_or_else(|| format!("expected {}", self.expected))
    }

    /// The field of this name in `fields`.
    pub fn read(&self, fields: &Fields) -> Result<Option<f32>, RowError> {
        read(fields, self.name, self.expected, |value| {
            self.check(json::float(value)?)
        })
    }
}

/// An invalid_request error: `field: found X, expected Y`.
pub fn wrong(field: &str, value: &Value, expected: &str) -> RowError {
    Code::InvalidRequest.error(format!(
        "{field}: found {}, expected {expected}",
        found(value)
    ))
}

/// A value as an error shows it: its JSON, cut where it is long.
pub fn found(value: &Value) -> String {
    match value {
        Value::Array(items) if items.is_empty() => "an empty array".to_owned(),
        Value::Array(items) => format!("an array of {}", items.len()),
        Value::Object(fields) => match (json::as_written(value), fields.get("type")) {
            (Some(number), _) => quote::text(number),
            (None, Some(Value::String(kind))) => format!("an object of type {}", quote::name(kind)),
            (None, _) => "an object".to_owned(),
        },
        Value::String(text) if text.is_empty() => "an empty string".to_owned(),
        other => quote::text(other),
    }
}

/// Refuses numbers that a template cannot show anywhere in `value`, which is handed on to one: NaN, Infinity, and
/// integers of more than 128 bits.
pub fn shown_numbers(name: &str, value: &Value) -> Result<(), RowError> {
    match json::find_written(value, |number| number.parse::<i128>().is_err()) {
        None => Ok(()),
        Some(number) => Err(Code::InvalidRequest.error(format!(
            "{name}: found the number {} in it, expected finite numbers, and integers of at most 128 bits",
            quote::text(number)
        ))),
    }
}

pub fn present<'a>(fields: &'a Fields, name: &str) -> Option<&'a Value> {
    fields.get(name).filter(|value| !value.is_null())
}

/// The field of this name by `take`, whose `None` is an error that says what was `expected`.
fn read<T>(
    fields: &Fields,
    name: &str,
    expected: &str,
    take: impl FnOnce(&Value) -> Option<T>,
) -> Result<Option<T>, RowError> {
    let Some(value) = present(fields, name) else {
        return Ok(None);
    };
    let taken = take(value).ok_or_else(|| wrong(name, value, expected))?;
    Ok(Some(taken))
}

/// An integer in `range`.
pub fn integer<T>(
    fields: &Fields,
    name: &str,
    range: RangeInclusive<T>,
) -> Result<Option<T>, RowError>
where
    T: TryFrom<i128> + PartialOrd + fmt::Display,
{
    let expected = format!("an integer from {} to {}", range.start(), range.end());
    read(fields, name, &expected, |value| {
        let number = T::try_from(json::integer(value)?).ok()?;
        range.contains(&number).then_some(number)
    })
}

/// A limit of new tokens, by either of two names.
pub fn limit(
    fields: &Fields,
    name: &str,
    other: &str,
    least: u32,
) -> Result<Option<u32>, RowError> {
    let read = |name| integer(fields, name, least..=MAX_NEW_TOKENS);
    match (read(name)?, read(other)?) {
        (Some(one), Some(two)) if one != two => Err(Code::InvalidRequest.error(format!(
            "{name}: found {one}, expected {two} like {other}, or only one of them"
        ))),
        (one, two) => Ok(one.or(two)),
    }
}

/// An integer from 0, where 0 keeps all tokens; so does -1, as vLLM's rows spell it.
pub fn top_k(fields: &Fields) -> Result<Option<u32>, RowError> {
    if present(fields, "top_k").and_then(json::integer) == Some(-1) {
        return Ok(Some(0));
    }
    integer(fields, "top_k", 0..=u32::MAX)
}

/// Reads `top_k` from text, for a flag.
pub fn parse_top_k(text: &str) -> Result<u32, String> {
    match text {
        "-1" => Ok(0),
        _ => text.parse().map_err(|_| {
            format!(
                "expected an integer from 0 to {} (0 or -1 keeps all)",
                u32::MAX
            )
        }),
    }
}

const SEED: &str = "a 64-bit integer, from -9223372036854775808 to 18446744073709551615 without point and exponent";

/// Any 64-bit integer; a negative one keeps its bits.
pub fn seed(fields: &Fields) -> Result<Option<u64>, RowError> {
    read(fields, "seed", SEED, |value| {
        seed_bits(json::integer(value)?)
    })
}

fn seed_bits(seed: i128) -> Option<u64> {
    u64::try_from(seed)
        .ok()
        .or_else(|| i64::try_from(seed).ok().map(|negative| negative as u64))
}

/// Reads a seed from text, for a flag.
pub fn parse_seed(text: &str) -> Result<u64, String> {
    text.parse()
        .ok()
        .and_then(seed_bits)
        .ok_or_else(|| format!("expected {SEED}"))
}

pub fn boolean(fields: &Fields, name: &str) -> Result<Option<bool>, RowError> {
    read(fields, name, "true or false", Value::as_bool)
}

pub fn string(fields: &Fields, name: &str) -> Result<Option<String>, RowError> {
    read(fields, name, "a string", |value| {
        Some(value.as_str()?.to_owned())
    })
}

/// Tokens with a bias in a row, at most.
pub const MAX_BIASES: usize = TG_MAX_BIASES as usize;

/// What is added to the logits of tokens, by their ids as strings; a bias of 0 is none. Whether each id lies in the
/// vocabulary is checked against the model later.
pub fn logit_bias(fields: &Fields) -> Result<Option<Vec<(u32, f32)>>, RowError> {
    const NAME: &str = "logit_bias";
    let Some(value) = present(fields, NAME) else {
        return Ok(None);
    };
    let expected = "an object of token ids as strings, each with a number from -100 to 100";
    let given = json::object(value).ok_or_else(|| wrong(NAME, value, expected))?;
    if given.len() > MAX_BIASES {
        return Err(Code::InvalidRequest.error(format!(
            "{NAME}: found {} tokens, expected at most {MAX_BIASES}",
            given.len()
        )));
    }
    let mut biases = Vec::with_capacity(given.len());
    for (key, bias) in given {
        // The text must be the number's own, so that no two keys are one id.
        let id = key.parse::<u32>().ok().filter(|id| id.to_string() == *key);
        let id = id.ok_or_else(|| {
            Code::InvalidRequest.error(format!(
                "{NAME}: found the key {}, expected a token id",
                quote::name(key)
            ))
        })?;
        let number = json::float(bias).filter(|bias| (-100.0..=100.0).contains(bias));
        let name = format!("{NAME}.{id}");
        match number.ok_or_else(|| wrong(&name, bias, "a number from -100 to 100"))? {
            0.0 => {}
            bias => biases.push((id, bias as f32)),
        }
    }
    Ok(Some(biases))
}

/// Stop strings of a row, at most: each is looked for in every token's text.
pub const MAX_STOP_STRINGS: usize = 64;
/// Bytes of a stop string, at most: so much text is held back while it may still become one.
pub const MAX_STOP_BYTES: usize = 4096;

/// Stop strings: one string or an array of them, none empty.
pub fn stop_strings(fields: &Fields, name: &str) -> Result<Option<Vec<String>>, RowError> {
    const EXPECTED: &str = "a string that is not empty, or an array of them";
    let Some(value) = present(fields, name) else {
        return Ok(None);
    };
    let items = match value {
        Value::Array(items) => items.as_slice(),
        one => std::slice::from_ref(one),
    };
    if items.len() > MAX_STOP_STRINGS {
        let expected = format!("at most {MAX_STOP_STRINGS} strings");
        return Err(wrong(name, value, &expected));
    }
    items
        .iter()
        .map(|item| match item.as_str() {
            Some(text) if text.len() > MAX_STOP_BYTES => Err(Code::InvalidRequest.error(format!(
                "{name}: found a string of {} bytes, expected at most {MAX_STOP_BYTES}",
                text.len()
            ))),
            Some(text) if !text.is_empty() => Ok(text.to_owned()),
            _ => Err(wrong(name, item, EXPECTED)),
        })
        .collect::<Result<Vec<_>, _>>()
        .map(Some)
}

/// Token ids; whether each lies in the vocabulary is checked against the model later.
pub fn token_ids(fields: &Fields, name: &str) -> Result<Option<Vec<u32>>, RowError> {
    present(fields, name)
        .map(|value| token_id_array(value, name))
        .transpose()
}

pub fn token_id_array(value: &Value, name: &str) -> Result<Vec<u32>, RowError> {
    let Some(items) = value.as_array() else {
        return Err(wrong(name, value, "an array of token ids"));
    };
    items
        .iter()
        .enumerate()
        .map(
            |(position, item)| match json::integer(item).map(u32::try_from) {
                Some(Ok(id)) => Ok(id),
                Some(Err(_)) => Err(Code::TokenOutOfRange.error(format!(
                    "{name}[{position}]: found {}, expected a token id of the vocabulary",
                    found(item)
                ))),
                _ => Err(wrong(&format!("{name}[{position}]"), item, "a token id")),
            },
        )
        .collect()
}

/// A row's id, from the field `name`.
pub fn id(value: &Value, name: &str) -> Result<Id, RowError> {
    match (value, json::integer(value)) {
        (Value::String(text), _) if text.len() <= MAX_ID_BYTES => Ok(Id::text(text.clone())),
        (Value::String(text), _) => Err(Code::InvalidRequest.error(format!(
            "{name}: found a string of {} bytes, expected at most {MAX_ID_BYTES}",
            text.len()
        ))),
        (_, Some(number)) => Ok(Id::integer(number)),
        _ => Err(wrong(
            name,
            value,
            "a string or an integer of at most 128 bits",
        )),
    }
}

/// The names that [`shared_options`] reads, and two that each format reads for itself.
pub const SHARED: [&str; 16] = [
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "min_tokens",
    "seed",
    "stop",
    "ignore_eos",
    "skip_special_tokens",
    "logprobs",
    "timeout_ms",
];

/// Options that are spelt alike in our rows and in OpenAI bodies (with vLLM's additions).
pub fn shared_options(fields: &Fields) -> Result<Options, RowError> {
    Ok(Options {
        temperature: TEMPERATURE.read(fields)?,
        top_k: top_k(fields)?,
        top_p: TOP_P.read(fields)?,
        min_p: MIN_P.read(fields)?,
        repetition_penalty: REPETITION_PENALTY.read(fields)?,
        presence_penalty: PRESENCE_PENALTY.read(fields)?,
        frequency_penalty: FREQUENCY_PENALTY.read(fields)?,
        logit_bias: logit_bias(fields)?,
        min_tokens: integer(fields, "min_tokens", 0..=MAX_NEW_TOKENS)?,
        seed: seed(fields)?,
        stop: stop_strings(fields, "stop")?,
        ignore_eos: boolean(fields, "ignore_eos")?,
        skip_special_tokens: boolean(fields, "skip_special_tokens")?,
        timeout_ms: integer(fields, "timeout_ms", 1..=MAX_TIMEOUT_MS)?,
        ..Options::default()
    })
}
