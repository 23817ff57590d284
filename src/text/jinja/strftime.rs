//! Python's `datetime.strftime` for local times without a zone.

use std::fmt::Write as _;

use chrono::NaiveDateTime;

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
    use super::strftime;

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
