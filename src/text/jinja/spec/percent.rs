//! Conversions of `'…' % value`, which have the same fields.

use minijinja::{Error, Value};

use super::{Spec, integer, number, pad, real, sign};
use crate::text::jinja::value::numbers;
use crate::text::jinja::value::{Type, name, type_of, wrong};
use crate::text::jinja::{meter, print};

/// `'%…' % value` for one conversion.
pub fn percent(spec: Spec, conversion: char, value: &Value) -> Result<String, Error> {
    let spec = Spec {
        kind: Some(conversion),
        ..spec
    };
    // A left alignment makes zeros void.
    let zero = spec.zero && spec.align.is_none();
    let spec = Spec { zero, ..spec };
    let shown = |text: &str| -> Result<String, Error> {
        let cut: String = match spec.precision {
            Some(precision) => text.chars().take(precision).collect(),
            None => text.to_owned(),
        };
        pad("", &cut, spec, '>')
    };
    match conversion {
        's' => shown(&print::str(value)?),
        'r' => shown(&print::repr(value)?),
        'c' => match value.as_str() {
            Some(text) if text.chars().count() == 1 => shown(text),
            Some(_) => Err(wrong("%c requires int or char")),
            None => integer(
                numbers::int(value)?,
                Spec {
                    align: spec.align.or(Some('>')),
                    ..spec
                },
            ),
        },
        'd' | 'i' | 'u' | 'x' | 'X' | 'o' => {
            let whole = match type_of(value) {
                Type::Float if "diu".contains(conversion) => {
                    let x = numbers::float(value)?;
                    match x.is_finite() && x.abs() < 1e38 {
                        true => x.trunc() as i128,
                        false => return Err(wrong("cannot convert this float to an integer")),
                    }
                }
                Type::Bool | Type::Int => numbers::int(value)?,
                _ => {
                    return Err(wrong(format!(
                        "%{conversion} format: a real number is required, not {}",
                        name(value)
                    )));
                }
            };
            let least = spec.precision.unwrap_or(0);
            meter::charge(least)?;
            let absolute = whole.unsigned_abs();
            let (prefix, digits) = match conversion {
                'x' => ("0x", format!("{absolute:x}")),
                'X' => ("0X", format!("{absolute:X}")),
                'o' => ("0o", format!("{absolute:o}")),
                _ => ("", absolute.to_string()),
            };
            let digits = "0".repeat(least.saturating_sub(digits.len())) + &digits;
            let prefix = if spec.alternate { prefix } else { "" };
            number(
                sign(whole < 0, spec),
                prefix,
                &digits,
                Spec {
                    precision: None,
                    ..spec
                },
                3,
            )
        }
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => match numbers::is_number(value) {
            true => real(numbers::float(value)?, spec),
            false => Err(wrong(format!("must be real number, not {}", name(value)))),
        },
        other => Err(wrong(format!("unsupported format character {other:?}"))),
    }
}
