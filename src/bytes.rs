//! Sizes as people write them: `22GiB`, `512MB`, and numbers with SI prefixes in tables.

use std::fmt;

const UNITS: [(&str, u64); 9] = [
    ("B", 1),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// Reads a size in bytes: a number, which may have a fraction, and a unit: `B`, `KB`, `MB`, `GB`, `TB` (powers of
/// 1000), `KiB`, `MiB`, `GiB`, `TiB` (powers of 1024), in any case. No unit: bytes.
///
/// # Errors
/// One line that says what was found and what was expected; the caller names the option.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = |what: &str| {
        format!("'{text}' {what}: expected a number with a unit, such as 22GiB, 512MB or 1.5GiB")
    };
    let trimmed = text.trim();
    let split = trimmed
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(trimmed.len());
    let (number, unit) = (&trimmed[..split], trimmed[split..].trim_start());
    let scale = if unit.is_empty() {
        1
    } else {
        UNITS
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(unit))
            .map(|&(_, scale)| scale)
            .ok_or_else(|| wrong("has an unknown unit"))?
    };
    let value: f64 = number.parse().map_err(|_| wrong("is not a size"))?;
    let bytes = value * scale as f64;
    if bytes >= u64::MAX as f64 {
        return Err(wrong("is too large"));
    }
    if bytes < 1.0 {
        return Err(wrong("is less than a byte"));
    }
    // A whole number is taken exactly: f64 is not above 2^53.
    match number.parse::<u64>() {
        Ok(whole) => whole
            .checked_mul(scale)
            .ok_or_else(|| wrong("is too large")),
        Err(_) => Ok(bytes.round() as u64),
    }
}

/// Shows a size in memory in powers of 1024: `12.0 KiB`, `15.5 GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut value = self.0 as f64;
        let mut unit = "B";
        for next in ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"] {
            // 1023.95 would print as 1024.0.
            if value < 1023.95 {
                break;
            }
            value /= 1024.0;
            unit = next;
        }
        let text = if unit == "B" {
            format!("{value} B")
        } else {
            format!("{value:.1} {unit}")
        };
        f.pad(&text)
    }
}

/// Shows an amount moved or computed with an SI prefix and four digits: `3.115 G`, `268.4 M`, `12.58 k`. Bandwidths
/// are powers of 1000, so bytes beside them are too.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Si(pub f64);

impl fmt::Display for Si {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut value = self.0;
        let mut prefix = "";
        for next in ["k", "M", "G", "T", "P", "E"] {
            if value < 999.95 {
                break;
            }
            value /= 1000.0;
            prefix = next;
        }
        let digits = match value {
            _ if prefix.is_empty() && value.fract() == 0.0 => 0,
            v if v < 9.9995 => 3,
            v if v < 99.995 => 2,
            _ => 1,
        };
        let text = format!("{value:.digits$} {prefix}");
        f.pad(text.trim_end())
    }
}

/// A size computed in f64 as whole bytes; beyond u64 it stays at the largest.
pub fn whole_bytes(bytes: f64) -> u64 {
    bytes.ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse() {
        for (text, bytes) in [
            ("22GiB", 22 << 30),
            ("512MB", 512_000_000),
            ("512 mb", 512_000_000),
            ("1.5GiB", 3 << 29),
            ("4096", 4096),
            (" 64kib ", 65536),
            ("9007199254740993", 9007199254740993),
            ("1B", 1),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn wrong_sizes_say_what_was_expected() {
        for text in [
            "",
            "GiB",
            "22G",
            "22Gib/s",
            "-1GiB",
            "1.2.3GiB",
            "0",
            "0GiB",
            "99999999TiB",
            "1e9",
            "nan",
            "١GiB",
        ] {
            let message = parse_bytes(text).unwrap_err();
            assert!(message.contains(&format!("'{text}'")), "{message}");
            assert!(message.contains("such as 22GiB"), "{message}");
        }
    }

    #[test]
    fn sizes_print() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (12 * 1024, "12.0 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (16_680_000_000, "15.5 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        for (value, text) in [
            (0.0, "0"),
            (999.0, "999"),
            (1000.0, "1.000 k"),
            (12_582.0, "12.58 k"),
            (268_435_456.0, "268.4 M"),
            (3.115e9, "3.115 G"),
            (0.5, "0.500"),
            (999_960.0, "1.000 M"),
        ] {
            assert_eq!(Si(value).to_string(), text);
        }
    }
}
