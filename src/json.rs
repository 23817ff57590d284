//! JSON as files and rows in the wild have it: what Python's `json` reads is read here too, with the same value.
//!
//! Python writes and reads `NaN`, `Infinity`, `-Infinity` and numbers past f64's range (`1e400`), which strict JSON
//! has not. They may stand in fields that nobody reads. Where a field is read, such a number is no valid value of it.
//! Python also keeps every digit of an integer, of which serde_json keeps 64 bits: [`exact`] keeps them too.
//!
//! Both kinds of numbers are kept as a [`Value`] that is neither number nor string: an object with one field, which has
//! the number as it was written. Its name is another in every process, so that no text can have such an object itself.

mod scan;

use crate::error::{Error, Result};
use crate::quote;
use scan::{is_integer, is_not_finite, is_wide_integer, outside_strings};
use serde::de::{DeserializeOwned, Error as _, IgnoredAny};
use serde_json::{Map, Value};
use std::hash::BuildHasher;
use std::ops::Range;
use std::path::Path;
use std::sync::LazyLock;

/// The only name in the object that stands for a number.
static WRITTEN: LazyLock<String> = LazyLock::new(|| {
    let random = std::hash::RandomState::new();
    format!("$number {:016x}", random.hash_one(0))
});

/// The deepest nesting that is read; a deeper one is an error, as it is in serde_json.
pub const MAX_DEPTH: usize = 127;

/// Numbers of a text that are kept as they are written, at most: each takes hundreds of bytes.
pub const MAX_WRITTEN: usize = 1 << 16;

/// Parses JSON, and Python's additions to it.
///
/// # Errors
/// The text is not even what Python reads, or is not a `T`.
pub fn from_slice<T: DeserializeOwned>(text: &[u8]) -> serde_json::Result<T> {
    let strict = match serde_json::from_slice(text) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    let numbers = scan::numbers(text, is_not_finite);
    if numbers.is_empty() {
        Err(strict)
    } else {
        parse(text, &numbers)
    }
}

/// Reads JSON with integers of any size: [`integer`] and [`float`] read them, [`as_written`] has their digits.
///
/// # Errors
/// Fails as [`from_slice`] does.
pub fn exact<T: DeserializeOwned>(text: &[u8]) -> serde_json::Result<T> {
    let wanted = |number: &[u8]| {
        // Python reads -0 as the integer 0, serde_json as the float -0.0.
        number == b"-0" || is_wide_integer(number) || is_not_finite(number)
    };
    let numbers = scan::numbers(text, wanted);
    if numbers.is_empty() {
        serde_json::from_slice(text)
    } else {
        parse(text, &numbers)
    }
}

/// Reads a file of one array or of JSON lines: what our commands write as `--format json` and `--format jsonl`.
///
/// # Errors
/// The file cannot be read, has something else, or nothing: the error says what was `expected`.
pub fn rows<T: DeserializeOwned>(path: &Path, expected: &str) -> Result<Vec<T>> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| Error::open(path, &error, expected))?;
    let rows: serde_json::Result<Vec<T>> = if text.trim_start().starts_with('[') {
        serde_json::from_str(&text)
    } else {
        // One stream, and not line by line: an error has its line in the file.
        serde_json::Deserializer::from_str(&text)
            .into_iter()
            .collect()
    };
    let found = match rows {
        Ok(rows) if !rows.is_empty() => return Ok(rows),
        Ok(_) => "found no results".to_owned(),
        Err(error) => quote::message(error),
    };
    Err(Error::file(path, format!("{found}, expected {expected}")))
}

/// `text`, in which `numbers` are kept as they are written.
fn parse<T: DeserializeOwned>(text: &[u8], numbers: &[Range<usize>]) -> serde_json::Result<T> {
    if numbers.len() > MAX_WRITTEN {
        return Err(serde_json::Error::custom(format!(
            "found more than {MAX_WRITTEN} numbers that 64 bits do not hold, expected fewer"
        )));
    }
    // With zeros as long as what they replace, so that an error elsewhere is said to be where it is.
    let zero = |number: &[u8]| format!("0{}", " ".repeat(number.len() - 1));
    serde_json::from_slice::<IgnoredAny>(&replace(text, numbers, zero))?;
    let written = |number: &[u8]| match number {
        b"-0" => "0".to_owned(),
        _ => format!(
            "{{\"{}\":\"{}\"}}",
            *WRITTEN,
            String::from_utf8_lossy(number)
        ),
    };
    serde_json::from_slice(&replace(text, numbers, written))
}

/// How a number was written, if `value` stands for one that serde_json does not hold.
pub fn as_written(value: &Value) -> Option<&str> {
    let object = value.as_object().filter(|object| object.len() == 1)?;
    object.get(WRITTEN.as_str())?.as_str()
}

/// The same, of one that is not finite.
pub fn as_not_finite(value: &Value) -> Option<&str> {
    as_written(value).filter(|number| !is_integer(number.as_bytes()))
}

/// A value as a message shows it.
pub fn shown(value: &Value) -> String {
    match as_written(value) {
        Some(number) => quote::text(number),
        None => quote::text(value),
    }
}

/// The fields of what the text has as an object.
pub fn object(value: &Value) -> Option<&Map<String, Value>> {
    value.as_object().filter(|_| as_written(value).is_none())
}

/// The first number anywhere in `value` that `wanted` says yes to, of those kept as they were written.
pub fn find_written(value: &Value, wanted: fn(&str) -> bool) -> Option<&str> {
    match value {
        Value::Array(items) => items.iter().find_map(|item| find_written(item, wanted)),
        Value::Object(fields) => match as_written(value) {
            Some(number) => Some(number).filter(|number| wanted(number)),
            None => fields
                .values()
                .find_map(|field| find_written(field, wanted)),
        },
        _ => None,
    }
}

/// An integer, also where it is written as `2.0` or `1e1`: JSON has one type of numbers. f64 has integers up to 2^53
/// exactly; a larger one must be written without point and exponent.
pub fn integer(value: &Value) -> Option<i128> {
    const EXACT: f64 = (1_u64 << 53) as f64;
    if let Some(number) = as_written(value) {
        return number.parse().ok();
    }
    let whole = value.as_i64().map(i128::from);
    whole.or(value.as_u64().map(i128::from)).or_else(|| {
        let number = value.as_f64()?;
        (number.fract() == 0.0 && number.abs() <= EXACT).then_some(number as i128)
    })
}

/// A finite number.
pub fn float(value: &Value) -> Option<f64> {
    let number = match as_written(value) {
        Some(number) => number.parse().ok(),
        None => value.as_f64(),
    };
    number.filter(|number| number.is_finite())
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
        assert_eq!(find_written(&value["b"], |_| true), Some("1e400"));
        assert_eq!(find_written(&json!([1, "Infinity", {}]), |_| true), None);
        assert_eq!(value["a"][1].as_f64(), None);
    }

    #[test]
    fn other_mistakes_stay_errors_where_they_are() {
        for text in [
            "-NaN",
            "[Infinity1]",
            "nan",
            "{\"a\":NaN",
            "[NaN}",
            "01e400",
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
            "NaN",
        ] {
            assert_eq!(integer(&read(other).unwrap()), None, "{other}");
        }
    }

    #[test]
    fn integers_keep_their_digits() {
        let text = r#"{"a":18446744073709551616,"b":[-9223372036854775809,18446744073709551615],"c":"99999999999999999999","d":1e20,"e":-0,"f":-0.0}"#;
        let value: Value = exact(text.as_bytes()).unwrap();
        assert_eq!(as_written(&value["a"]), Some("18446744073709551616"));
        assert_eq!(as_not_finite(&value["a"]), None);
        assert_eq!(integer(&value["a"]), Some(1 << 64));
        assert_eq!(float(&value["a"]), Some(18_446_744_073_709_551_616.0));
        assert_eq!(integer(&value["b"][0]), Some(i128::from(i64::MIN) - 1));
        assert_eq!(value["b"][1], json!(u64::MAX));
        assert_eq!(value["c"], "99999999999999999999");
        assert!(value["d"].is_f64());
        assert_eq!(value["e"].as_u64(), Some(0));
        assert!(value["f"].is_f64());
        assert!(object(&value["a"]).is_none() && object(&value).is_some());
        let digits = "7".repeat(400);
        let value: Value = exact(digits.as_bytes()).unwrap();
        assert_eq!(as_written(&value), Some(digits.as_str()));
        assert_eq!((integer(&value), float(&value)), (None, None));
        for other in ["0123456789012345678901234567890", "-", "--0", "-0x"] {
            exact::<Value>(other.as_bytes()).expect_err(other);
        }
    }

    #[test]
    fn rows_are_an_array_or_lines_and_mistakes_have_their_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows");
        let rows = |text: &str| {
            std::fs::write(&path, text).unwrap();
            super::rows::<Map<String, Value>>(&path, "rows").map_err(|error| error.to_string())
        };
        for text in ["{\"a\":1}\n\n{\"b\":2}", " [{\"a\":1},\n{\"b\":2}]\n"] {
            let names: Vec<String> = rows(text)
                .unwrap()
                .into_iter()
                .flat_map(|row| row.into_iter().map(|(name, _)| name))
                .collect();
            assert_eq!(names, ["a", "b"], "{text}");
        }
        for (text, found) in [
            ("[]", "found no results, expected rows"),
            ("{\"a\":1}\n\n7", "at line 3 column 1, expected rows"),
        ] {
            let error = rows(text).unwrap_err();
            assert!(error.ends_with(found), "{error}");
        }
    }

    /// What an object is called that stands for a number cannot be known to whoever writes a text.
    #[test]
    fn no_object_is_taken_for_a_number() {
        let value: Value = exact(br#"{"$number":"5","a":{"$not_finite":"NaN"}}"#).unwrap();
        assert!(as_written(&value).is_none() && as_written(&value["a"]).is_none());
    }

    #[test]
    fn numbers_kept_as_written_are_bounded() {
        let text = |numbers: usize| format!("[{}NaN]", "NaN,".repeat(numbers - 1));
        assert!(read(&text(MAX_WRITTEN)).is_ok());
        let error = read(&text(MAX_WRITTEN + 1)).unwrap_err().to_string();
        assert!(
            error.starts_with("found more than 65536 numbers"),
            "{error}"
        );
    }

    #[test]
    fn values_are_counted_before_they_are_made() {
        for (text, least) in [("1", 1), ("[1,2,3]", 3), ("{\"a\":[[],\"x,[{\\\"\"]}", 4)] {
            let counted = count_values(text.as_bytes());
            assert!((least..=least + 1).contains(&counted), "{text}: {counted}");
        }
    }
}
