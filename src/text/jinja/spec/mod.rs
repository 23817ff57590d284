//! Python's format specifications: `[[fill]align][sign][#][0][width][,][.precision][type]`.

mod percent;

use minijinja::{Error, Value};

use super::value::numbers;
use super::value::{Type, name, type_of, wrong};
use super::{meter, print};
pub use percent::percent;

#[derive(Debug, Clone, Copy)]
pub struct Spec {
    pub fill: char,
    pub align: Option<char>,
    /// '-', '+' or ' '.
    pub sign: char,
    pub alternate: bool,
    pub zero: bool,
    pub width: usize,
    /// ',' or '_', between groups of digits.
    pub grouping: Option<char>,
    pub precision: Option<usize>,
    pub kind: Option<char>,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            fill: ' ',
            align: None,
            sign: '-',
            alternate: false,
            zero: false,
            width: 0,
            grouping: None,
            precision: None,
            kind: None,
        }
    }
}

/// Digits after the point that Rust and Python both print exactly; more is refused.
const MAX_PRECISION: usize = 1000;

fn parse(text: &str) -> Result<Spec, Error> {
    let invalid = || wrong(format!("Invalid format specifier {text:?}"));
    let mut spec = Spec::default();
    let mut chars: std::collections::VecDeque<char> = text.chars().collect();
    let is_align = |c: Option<&char>| c.is_some_and(|c| "<>=^".contains(*c));
    if is_align(chars.get(1)) {
        spec.fill = chars.pop_front().unwrap_or(' ');
        spec.align = chars.pop_front();
    } else if is_align(chars.front()) {
        spec.align = chars.pop_front();
    }
    let mut next_if = |accepts: &dyn Fn(char) -> bool| match chars.front() {
        Some(&c) if accepts(c) => chars.pop_front(),
        _ => None,
    };
    if let Some(sign) = next_if(&|c| "+- ".contains(c)) {
        spec.sign = sign;
    }
    spec.alternate = next_if(&|c| c == '#').is_some();
    if next_if(&|c| c == '0').is_some() {
        spec.zero = true;
    }
    let mut digits = String::new();
    while let Some(digit) = next_if(&|c| c.is_ascii_digit()) {
        digits.push(digit);
    }
    if !digits.is_empty() {
        spec.width = digits
            .parse()
            .map_err(|_| wrong("Too many decimal digits in format string"))?;
    }
    spec.grouping = next_if(&|c| c == ',' || c == '_');
    if next_if(&|c| c == '.').is_some() {
        let mut digits = String::new();
        while let Some(digit) = next_if(&|c| c.is_ascii_digit()) {
            digits.push(digit);
        }
        let precision = digits
            .parse()
            .map_err(|_| wrong("Format specifier missing precision"))?;
        spec.precision = Some(precision);
    }
    spec.kind = next_if(&|_| true);
    match chars.is_empty() {
        true => Ok(spec),
        false => Err(invalid()),
    }
}

/// `format(value, specification)`.
pub fn format(value: &Value, specification: &str) -> Result<String, Error> {
    if specification.is_empty() {
        return print::str(value).map(std::borrow::Cow::into_owned);
    }
    let spec = parse(specification)?;
    match type_of(value) {
        Type::Str => text(value.as_str().unwrap_or_default(), spec),
        Type::Bool | Type::Int if spec.kind.is_none_or(|kind| "bcdoxXn".contains(kind)) => {
            integer(numbers::int(value)?, spec)
        }
        Type::Bool | Type::Int | Type::Float => real(numbers::float(value)?, spec),
        Type::Undefined => Err(wrong("format: the value is undefined")),
        _ => Err(wrong(format!(
            "unsupported format string passed to {}.__format__",
            name(value)
        ))),
    }
}

fn text(text: &str, spec: Spec) -> Result<String, Error> {
    let refused = spec.kind.is_some_and(|kind| kind != 's')
        || spec.sign != '-'
        || spec.alternate
        || spec.grouping.is_some()
        || spec.align == Some('=');
    if refused {
        return Err(wrong(
            "format: found a specification of numbers, expected one of text",
        ));
    }
    let cut: String = match spec.precision {
        Some(precision) => text.chars().take(precision).collect(),
        None => text.to_owned(),
    };
    let fill = if spec.zero && spec.align.is_none() {
        '0'
    } else {
        spec.fill
    };
    pad("", &cut, Spec { fill, ..spec }, '<')
}

/// `sign` and `body` at their place in the width.
fn pad(sign: &str, body: &str, spec: Spec, default: char) -> Result<String, Error> {
    let length = sign.chars().count() + body.chars().count();
    let missing = spec.width.saturating_sub(length);
    meter::charge(missing.saturating_mul(spec.fill.len_utf8()) + sign.len() + body.len())?;
    let fill = |count: usize| spec.fill.to_string().repeat(count);
    Ok(match spec.align.unwrap_or(default) {
        '<' => format!("{sign}{body}{}", fill(missing)),
        '^' => format!(
            "{}{sign}{body}{}",
            fill(missing / 2),
            fill(missing - missing / 2)
        ),
        '=' => format!("{sign}{}{body}", fill(missing)),
        _ => format!("{}{sign}{body}", fill(missing)),
    })
}

fn sign(negative: bool, spec: Spec) -> &'static str {
    match (negative, spec.sign) {
        (true, _) => "-",
        (false, '+') => "+",
        (false, ' ') => " ",
        _ => "",
    }
}

/// Digits in groups, filled with zeros to the width where that is asked for.
fn number(
    sign: &str,
    prefix: &str,
    digits: &str,
    spec: Spec,
    group: usize,
) -> Result<String, Error> {
    let head = [sign, prefix].concat();
    let end = digits
        .find(|c: char| !c.is_ascii_hexdigit())
        .unwrap_or(digits.len());
    let (whole, tail) = digits.split_at(if spec.grouping.is_some() { end } else { 0 });
    let grouped = match spec.grouping {
        None => digits.to_owned(),
        Some(separator) => grouped(whole, separator, group) + tail,
    };
    if spec.zero && spec.align.is_none() {
        if spec.grouping.is_some() {
            return Err(wrong(
                "format: zeros before groups of digits are not supported here",
            ));
        }
        let spec = Spec {
            fill: '0',
            align: Some('='),
            ..spec
        };
        return pad(&head, &grouped, spec, '>');
    }
    pad(&head, &grouped, spec, '>')
}

fn grouped(digits: &str, separator: char, group: usize) -> String {
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(group) {
            out.push(separator);
        }
        out.push(digit);
    }
    out
}

fn integer(value: i128, spec: Spec) -> Result<String, Error> {
    if spec.precision.is_some() {
        return Err(wrong("Precision not allowed in integer format specifier"));
    }
    let absolute = value.unsigned_abs();
    let (prefix, digits, group) = match spec.kind {
        None | Some('d' | 'n') => ("", absolute.to_string(), 3),
        Some('b') => ("0b", format!("{absolute:b}"), 4),
        Some('o') => ("0o", format!("{absolute:o}"), 4),
        Some('x') => ("0x", format!("{absolute:x}"), 4),
        Some('X') => ("0X", format!("{absolute:X}"), 4),
        _ => {
            let c = u32::try_from(value).ok().and_then(char::from_u32);
            let c = c.ok_or_else(|| wrong("%c arg not in range(0x110000)"))?;
            return pad("", &c.to_string(), spec, '<');
        }
    };
    if spec.grouping == Some(',') && group == 4 {
        return Err(wrong("Cannot specify ',' with this type of integer"));
    }
    let prefix = if spec.alternate { prefix } else { "" };
    number(sign(value < 0, spec), prefix, &digits, spec, group)
}

fn real(value: f64, spec: Spec) -> Result<String, Error> {
    let kind = spec.kind;
    if kind.is_some_and(|kind| !"eEfFgGn%".contains(kind)) {
        return Err(wrong(format!(
            "Unknown format code '{}' for object of type 'float'",
            kind.unwrap_or(' ')
        )));
    }
    if spec
        .precision
        .is_some_and(|precision| precision > MAX_PRECISION)
    {
        return Err(wrong(format!(
            "format: the precision is more than {MAX_PRECISION}"
        )));
    }
    let negative = value.is_sign_negative() && !value.is_nan();
    let x = value.abs();
    let digits = float_digits(x, kind, spec.precision, spec.alternate)?;
    number(sign(negative, spec), "", &digits, spec, 3)
}

/// The digits of a positive float in one of Python's presentations.
fn float_digits(
    x: f64,
    kind: Option<char>,
    precision: Option<usize>,
    alternate: bool,
) -> Result<String, Error> {
    if !x.is_finite() {
        let text = if x.is_nan() { "nan" } else { "inf" };
        let upper = kind.is_some_and(|kind| kind.is_ascii_uppercase());
        let percent = if kind == Some('%') { "%" } else { "" };
        return Ok(if upper {
            text.to_uppercase()
        } else {
            text.to_owned()
        } + percent);
    }
    let p = precision.unwrap_or(6);
    Ok(match kind {
        Some('f' | 'F') => fixed(x, p, alternate),
        Some('%') => fixed(x * 100.0, p, alternate) + "%",
        Some('e') => exponent(x, p, 'e'),
        Some('E') => exponent(x, p, 'E'),
        Some('g' | 'n') => general(x, p, 'e', alternate),
        Some('G') => general(x, p, 'E', alternate),
        _ => match precision {
            // Like repr, but with at least one digit after the point.
            None => {
                let mut out = String::new();
                print::float(x, ["nan", "inf"], &mut out);
                out
            }
            Some(p) => {
                let text = general(x, p, 'e', false);
                match text.contains(['.', 'e']) {
                    true => text,
                    false => text + ".0",
                }
            }
        },
    })
}

fn fixed(x: f64, precision: usize, alternate: bool) -> String {
    let point = if alternate && precision == 0 { "." } else { "" };
    format!("{x:.precision$}{point}")
}

fn exponent(x: f64, precision: usize, letter: char) -> String {
    let text = format!("{x:.precision$e}");
    let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
    let power: i32 = power.parse().unwrap_or(0);
    let sign = if power < 0 { '-' } else { '+' };
    format!("{digits}{letter}{sign}{:02}", power.abs())
}

fn general(x: f64, precision: usize, letter: char, alternate: bool) -> String {
    let precision = precision.max(1);
    let rounded = format!("{x:.*e}", precision - 1);
    let power: i64 = rounded
        .split_once('e')
        .and_then(|(_, power)| power.parse().ok())
        .unwrap_or(0);
    let strip = |text: String| match text.contains('.') && !alternate {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    };
    if power < -4 || power >= precision as i64 {
        let text = exponent(x, precision - 1, letter);
        let (digits, tail) = text.split_at(text.find(letter).unwrap_or(text.len()));
        strip(digits.to_owned()) + tail
    } else {
        let after = usize::try_from(precision as i64 - 1 - power).unwrap_or(0);
        strip(format!("{x:.after$}"))
    }
}
