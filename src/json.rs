//! JSON as files and rows in the wild have it: what Python's `json` reads is read here too.
//!
//! Python writes and reads `NaN`, `Infinity`, `-Infinity` and numbers past f64's range (`1e400`), which strict JSON
//! has not. They may stand in fields that nobody reads. Where a field is read, such a number is no valid value of it:
//! it is kept as a [`Value`] that is neither number nor string, and that errors show as it was written.

use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use std::ops::Range;

/// The only name in the object that stands for a number that is not finite.
const NOT_FINITE: &str = "$not_finite";

/// The deepest nesting that is read; a deeper one is an error, as it is in serde_json.
pub const MAX_DEPTH: usize = 127;

/// Parses JSON, and Python's additions to it.
///
/// # Errors
/// The text is not even what Python reads, or is not a `T`.
pub fn from_slice<T: DeserializeOwned>(text: &[u8]) -> serde_json::Result<T> {
    let strict = match serde_json::from_slice(text) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    let numbers = not_finite(text);
    if numbers.is_empty() {
        return Err(strict);
    }
    // With zeros as long as what they replace, so that an error elsewhere is said to be where it is.
    let zero = |number: &[u8]| format!("0{}", " ".repeat(number.len() - 1));
    serde_json::from_slice::<IgnoredAny>(&replace(text, &numbers, zero))?;
    let marker = |number: &[u8]| {
        let number = String::from_utf8_lossy(number);
        format!("{{\"{NOT_FINITE}\":\"{number}\"}}")
    };
    serde_json::from_slice(&replace(text, &numbers, marker))
}

/// How a number that is not finite was written, if `value` stands for one.
pub fn as_not_finite(value: &Value) -> Option<&str> {
    let object = value.as_object().filter(|object| object.len() == 1)?;
    object.get(NOT_FINITE)?.as_str()
}

/// The first number that is not finite anywhere in `value`.
pub fn find_not_finite(value: &Value) -> Option<&str> {
    match value {
        Value::Array(items) => items.iter().find_map(find_not_finite),
        Value::Object(fields) => {
            as_not_finite(value).or_else(|| fields.values().find_map(find_not_finite))
        }
        _ => None,
    }
}

/// An integer, also where it is written as `2.0` or `1e1`: JSON has one type of numbers. f64 has integers up to 2^53
/// exactly; a larger one must be written without point and exponent.
pub fn integer(value: &Value) -> Option<i128> {
    const EXACT: f64 = (1_u64 << 53) as f64;
    let whole = value.as_i64().map(i128::from);
    whole.or(value.as_u64().map(i128::from)).or_else(|| {
        let number = value.as_f64()?;
        (number.fract() == 0.0 && number.abs() <= EXACT).then_some(number as i128)
    })
}

/// Values in `text` at least: commas and openings outside of strings. Costs one pass and no memory, so that what a
/// text takes when parsed is known before.
pub fn count_values(text: &[u8]) -> usize {
    let mut values = 1;
    outside_strings(text, |rest| {
        values += usize::from(matches!(rest[0], b',' | b'[' | b'{'));
        1
    });
    values
}

/// Numbers outside of strings that f64 does not hold.
fn not_finite(text: &[u8]) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    outside_strings(text, |rest| {
        let length = match rest[0] {
            b'N' | b'I' | b'-' | b'0'..=b'9' => rest
                .iter()
                .position(|&b| !(b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.')))
                .unwrap_or(rest.len()),
            _ => return 1,
        };
        let start = text.len() - rest.len();
        if is_not_finite(&rest[..length]) {
            found.push(start..start + length);
        }
        length
    });
    found
}

fn is_not_finite(number: &[u8]) -> bool {
    match number {
        b"NaN" | b"Infinity" | b"-Infinity" => true,
        // Rust's own spellings (`inf`) begin with no digit.
        [b'0'..=b'9', ..] | [b'-', b'0'..=b'9', ..] => std::str::from_utf8(number)
            .ok()
            .and_then(|text| text.parse::<f64>().ok())
            .is_some_and(f64::is_infinite),
        _ => false,
    }
}

/// Calls `at` with the rest of `text` at each place outside of strings; it says how many bytes it has dealt with.
fn outside_strings<'a>(text: &'a [u8], mut at: impl FnMut(&'a [u8]) -> usize) {
    let mut position = 0;
    let mut inside = false;
    while position < text.len() {
        position += match (text[position], inside) {
            (b'\\', true) => 2,
            (b'"', _) => {
                inside = !inside;
                1
            }
            (_, true) => 1,
            (_, false) => at(&text[position..]),
        };
    }
}

fn replace(text: &[u8], ranges: &[Range<usize>], with: impl Fn(&[u8]) -> String) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut from = 0;
    for range in ranges {
        out.extend_from_slice(&text[from..range.start]);
        out.extend_from_slice(with(&text[range.clone()]).as_bytes());
        from = range.end;
    }
    out.extend_from_slice(&text[from..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(text: &str) -> serde_json::Result<Value> {
        from_slice(text.as_bytes())
    }

    #[test]
    fn numbers_that_are_not_finite_are_kept_as_they_are_written() {
        let text = r#"{"a":[1.5,NaN,-Infinity],"b":{"c":1e400},"d":"NaN \" Infinity","e":-1E+999}"#;
        let value = read(text).unwrap();
        let spelled = |pointer| as_not_finite(value.pointer(pointer).unwrap());
        assert_eq!(spelled("/a/0"), None);
        assert_eq!(spelled("/a/1"), Some("NaN"));
        assert_eq!(spelled("/a/2"), Some("-Infinity"));
        assert_eq!(spelled("/b/c"), Some("1e400"));
        assert_eq!(spelled("/e"), Some("-1E+999"));
        assert_eq!(value["d"], "NaN \" Infinity");
        assert_eq!(find_not_finite(&value["b"]), Some("1e400"));
        assert_eq!(find_not_finite(&json!([1, "Infinity", {}])), None);
        assert_eq!(value["a"][1].as_f64(), None);
    }

    #[test]
    fn other_mistakes_stay_errors_where_they_are() {
        for text in [
            "-NaN",
            "[Infinity1]",
            "Inf",
            "nan",
            "{\"a\":NaN",
            "[NaN}",
            "[1e400x]",
        ] {
            read(text).expect_err(text);
        }
        let error = read("{\"a\": Infinity,\n\"b\": -Infinity, oops}").unwrap_err();
        assert_eq!((error.line(), error.column()), (2, 17), "{error}");
    }

    #[test]
    fn integers_may_have_a_point() {
        assert_eq!(integer(&json!(2.0)), Some(2));
        assert_eq!(integer(&read("1e1").unwrap()), Some(10));
        assert_eq!(integer(&json!(-0.0)), Some(0));
        assert_eq!(integer(&json!(u64::MAX)), Some(i128::from(u64::MAX)));
        assert_eq!(integer(&json!(i64::MIN)), Some(i128::from(i64::MIN)));
        for other in [
            "2.5",
            "1e300",
            "18446744073709551616",
            "\"2\"",
            "true",
            "null",
            "NaN",
        ] {
            assert_eq!(integer(&read(other).unwrap()), None, "{other}");
        }
    }

    #[test]
    fn values_are_counted_before_they_are_made() {
        for (text, least) in [("1", 1), ("[1,2,3]", 3), ("{\"a\":[[],\"x,[{\\\"\"]}", 4)] {
            let counted = count_values(text.as_bytes());
            assert!((least..=least + 1).contains(&counted), "{text}: {counted}");
        }
    }
}
