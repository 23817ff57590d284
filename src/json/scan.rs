//! Numbers in the text of JSON, found before it is parsed.

use std::ops::Range;

/// Calls `at` with the rest of `text` at each place outside of strings; it says how many bytes it has dealt with.
pub fn outside_strings<'a>(text: &'a [u8], mut at: impl FnMut(&'a [u8]) -> usize) {
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

/// Where numbers stand that `wanted` says yes to. It is shown whatever stands where a number may.
pub fn numbers(text: &[u8], wanted: impl Fn(&[u8]) -> bool) -> Vec<Range<usize>> {
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
        if wanted(&rest[..length]) {
            found.push(start..start + length);
        }
        length
    });
    found
}

/// A number that f64 does not hold: Python's names for such, or one that is too large.
pub fn is_not_finite(number: &[u8]) -> bool {
    matches!(number, b"NaN" | b"Infinity" | b"-Infinity")
        || (is_number(number)
            && std::str::from_utf8(number)
                .ok()
                .and_then(|text| text.parse::<f64>().ok())
                .is_some_and(f64::is_infinite))
}

/// An integer without point and exponent that neither u64 nor i64 holds.
pub fn is_wide_integer(number: &[u8]) -> bool {
    // Those that 64 bits hold have at most 20 digits, and most numbers have fewer than 19.
    number.len() > 18
        && is_integer(number)
        && std::str::from_utf8(number)
            .is_ok_and(|text| text.parse::<u64>().is_err() && text.parse::<i64>().is_err())
}

pub fn is_integer(number: &[u8]) -> bool {
    !number.iter().any(|b| matches!(b, b'.' | b'e' | b'E')) && is_number(number)
}

/// JSON's grammar of numbers.
fn is_number(text: &[u8]) -> bool {
    fn digits(text: &[u8]) -> (&[u8], &[u8]) {
        let end = text.iter().position(|b| !b.is_ascii_digit());
        text.split_at(end.unwrap_or(text.len()))
    }
    let (whole, mut rest) = digits(text.strip_prefix(b"-").unwrap_or(text));
    if whole.is_empty() || (whole.len() > 1 && whole[0] == b'0') {
        return false;
    }
    if let Some(after) = rest.strip_prefix(b".") {
        let (fraction, after) = digits(after);
        if fraction.is_empty() {
            return false;
        }
        rest = after;
    }
    match rest {
        [] => true,
        [b'e' | b'E', b'+' | b'-', power @ ..] | [b'e' | b'E', power @ ..] => {
            !power.is_empty() && digits(power).1.is_empty()
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_what_json_says() {
        for number in ["0", "-0", "10", "1.5", "-1.25e+3", "2E9", "0.0"] {
            assert!(is_number(number.as_bytes()), "{number}");
        }
        for other in [
            "", "-", "01", "-01", "1.", ".5", "1.e5", "1e", "1e+", "1x", "+1", "1e5.0",
        ] {
            assert!(!is_number(other.as_bytes()), "{other}");
        }
        for wide in ["18446744073709551616", "-9223372036854775809"] {
            assert!(is_wide_integer(wide.as_bytes()), "{wide}");
        }
        for other in [
            "18446744073709551615",
            "-9223372036854775808",
            "018446744073709551616",
            "1e20",
            "100000000000000000000.0",
        ] {
            assert!(!is_wide_integer(other.as_bytes()), "{other}");
        }
        assert!(is_not_finite(b"1e999") && is_not_finite(b"NaN"));
        assert!(!is_not_finite(b"01e999") && !is_not_finite(b"inf"));
    }
}
