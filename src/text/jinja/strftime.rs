//! The time that templates read, and Python's `datetime.strftime` for local times without a zone.

use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

use chrono::{DateTime, NaiveDateTime};

/// One time for all rows of a job, and whether a template has read it. It is shown as [`parse_time`] reads it.
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

/// A time as a template shows it: an offset that is written behind it changes nothing.
///
/// # Errors
/// It is something else; the message says what was expected.
pub fn parse_time(text: &str) -> Result<NaiveDateTime, String> {
    let with_offset = DateTime::parse_from_rfc3339(text).map(|time| time.naive_local());
    with_offset.or_else(|_| text.parse()).map_err(|_| {
        "expected a time such as 2026-03-31T08:00:00 or 2026-03-31T08:00:00+02:00".to_owned()
    })
}

/// `time` in a format of C's strftime, with glibc's flags (`%-d`, `%_d`, `%0d`, `%^a`). As in Python `%f` is
/// six digits of microseconds and zones (`%z`, `%Z`) are empty; what is no directive stays as it is.
pub fn strftime(time: NaiveDateTime, format: &str) -> String {
    let mut text = String::new();
    let mut rest = format;
    while let Some(start) = rest.find('%') {
        text.push_str(&rest[..start]);
        rest = &rest[start..];
        let mut chars = rest[1..].chars();
        let mut directive = chars.next();
        let flag = directive.filter(|c| matches!(c, '-' | '_' | '0' | '^'));
        if flag.is_some() {
            directive = chars.next();
        }
        match directive.and_then(|c| write_directive(time, flag, c)) {
            Some(written) => {
                text.push_str(&written);
                rest = chars.as_str();
            }
            None => {
                text.push('%');
                rest = &rest[1..];
            }
        }
    }
    text.push_str(rest);
    text
}

fn write_directive(time: NaiveDateTime, flag: Option<char>, directive: char) -> Option<String> {
    let specifier = match directive {
        'z' | 'Z' => return Some(String::new()),
        'f' => "%6f".to_owned(),
        c if "aAbBcCdDeFgGhHIjklmMnpPrRsStTuUVwWxXyY%".contains(c) => match flag {
            Some(flag) if flag != '^' => format!("%{flag}{c}"),
            _ => format!("%{c}"),
        },
        _ => return None,
    };
    let mut written = String::new();
    // chrono refuses a flag where it makes no sense (`%-a`): there it changes nothing in glibc.
    if write!(written, "{}", time.format(&specifier)).is_err() {
        written.clear();
        write!(written, "{}", time.format(&format!("%{directive}"))).ok()?;
    }
    Some(match flag {
        Some('^') => written.to_uppercase(),
        _ => written,
    })
}

#[cfg(test)]
mod tests {
    use super::{Clock, parse_time, strftime};

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

    #[test]
    fn directives_are_those_of_python_on_linux() {
        let time = chrono::NaiveDate::from_ymd_opt(2024, 7, 4)
            .unwrap()
            .and_hms_micro_opt(9, 5, 3, 42)
            .unwrap();
        for (format, expected) in [
            ("%d %b %Y", "04 Jul 2024"),
            ("%-d/%-m %H:%M:%S", "4/7 09:05:03"),
            ("%B %A %I%p %j", "July Thursday 09AM 186"),
            ("%Y-%m-%dT%H:%M:%S.%f%z", "2024-07-04T09:05:03.000042"),
            ("%^a %-a %e|%_d|%%", "THU Thu  4| 4|%"),
            ("%c|%x|%X", "Thu Jul  4 09:05:03 2024|07/04/24|09:05:03"),
            ("100%", "100%"),
            ("%é %!", "%é %!"),
        ] {
            assert_eq!(strftime(time, format), expected, "{format}");
        }
    }
}
