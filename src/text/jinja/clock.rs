//! The time that templates read, and `strftime_now`, which shows it.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use chrono::{DateTime, NaiveDateTime};
use minijinja::{Environment, Error};

use super::value::refused;
use crate::quote;

/// One time for all rows of a job, and whether a template has read it. Its text is one that [`parse_time`] reads.
#[derive(Debug)]
pub struct Clock {
    now: NaiveDateTime,
    read: AtomicBool,
}

impl Clock {
    pub fn at(now: NaiveDateTime) -> Self {
        Self {
            now,
            read: AtomicBool::new(false),
        }
    }

    pub fn read(&self) -> NaiveDateTime {
        self.read.store(true, Ordering::Relaxed);
        self.now
    }

    pub fn was_read(&self) -> bool {
        self.read.load(Ordering::Relaxed)
    }
}

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.now.format("%Y-%m-%dT%H:%M:%S%.f").fmt(f)
    }
}

/// Reads a time as templates show it: an offset behind it changes nothing.
///
/// # Errors
/// The text is no such time; the message says what was expected.
pub fn parse_time(text: &str) -> Result<NaiveDateTime, String> {
    let with_offset = DateTime::parse_from_rfc3339(text).map(|time| time.naive_local());
    with_offset.or_else(|_| text.parse()).map_err(|_| {
        "expected a time such as 2026-03-31T08:00:00 or 2026-03-31T08:00:00+02:00".to_owned()
    })
}

/// Gives templates `strftime_now`, which shows the time of `clock`.
pub fn add(environment: &mut Environment<'_>, clock: Arc<Clock>) {
    environment.add_function("strftime_now", move |format: &str| {
        strftime(clock.read(), format)
    });
}

/// `strftime_now` of transformers: Python's `strftime`, with the directives that it and chrono write alike.
fn strftime(time: NaiveDateTime, format: &str) -> Result<String, Error> {
    const DIRECTIVES: &str = "aAbBcdDeFgGhHIjklmMnpPrRStTuUVwWxXyY";
    let unsupported = || {
        refused(format!(
            "strftime_now: the format {} is not supported, expected at most 1000 bytes of directives that Python and chrono write alike",
            quote::name(format)
        ))
    };
    let mut pieces = format.split('%');
    let mut ours = pieces.next().unwrap_or_default().to_owned();
    while let Some(piece) = pieces.next() {
        let directive = piece.trim_start_matches('-');
        match directive.chars().next() {
            // `%%`: the percent sign is where the next piece begins.
            None if piece.is_empty() => {
                ours.push_str("%%");
                ours.push_str(pieces.next().ok_or_else(unsupported)?);
            }
            // Microseconds; a time here has no zone.
            Some('f') => ours.push_str(&format!("%6f{}", &directive[1..])),
            Some('z' | 'Z') => ours.push_str(&directive[1..]),
            Some(c) if DIRECTIVES.contains(c) => ours.push_str(&format!("%{piece}")),
            _ => return Err(unsupported()),
        }
    }
    let mut out = String::new();
    // minijinja charges fuel for the text once it is made, so the format's length bounds it.
    if format.len() > 1000 || write!(out, "{}", time.format(&ours)).is_err() {
        return Err(unsupported());
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::{Clock, parse_time};

    #[test]
    fn a_time_is_read_as_it_is_shown() {
        for (text, shown) in [
            ("2026-03-31T08:00:00", "2026-03-31T08:00:00"),
            ("2026-03-31T08:00:00.000042", "2026-03-31T08:00:00.000042"),
            ("2026-03-31T08:00:00+02:00", "2026-03-31T08:00:00"),
            ("2026-03-31 08:00:00.5Z", "2026-03-31T08:00:00.500"),
        ] {
            let clock = Clock::at(parse_time(text).unwrap());
            assert_eq!(clock.to_string(), shown);
            assert_eq!(parse_time(shown).unwrap(), clock.now);
        }
        for text in ["", "now", "2026-03-31", "08:00", "2026-02-30T08:00:00"] {
            assert!(parse_time(text).unwrap_err().contains("expected a time"));
        }
    }
}
