//! What Python's str knows of characters, and what it makes of them in another case.
//!
//! The tables are those of ICU4X, of a later Unicode than a Python may have: what was not assigned yet in Python's is
//! a letter, number or symbol here.

use icu_casemap::CaseMapper;
use icu_casemap::options::{LeadingAdjustment, TitlecaseOptions};
use icu_locale_core::LanguageIdentifier;
use icu_properties::props::{
    CaseIgnorable, Cased, GeneralCategory, Lowercase, NumericType, Uppercase, XidContinue, XidStart,
};
use icu_properties::{CodePointMapData, CodePointSetData};

fn category(c: char) -> GeneralCategory {
    CodePointMapData::<GeneralCategory>::new().get(c)
}

fn number(c: char) -> NumericType {
    CodePointMapData::<NumericType>::new().get(c)
}

/// Python's `str.isspace`, which also counts the four separators of ASCII.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

pub fn is_letter(c: char) -> bool {
    use GeneralCategory as Is;
    matches!(
        category(c),
        Is::UppercaseLetter
            | Is::LowercaseLetter
            | Is::TitlecaseLetter
            | Is::ModifierLetter
            | Is::OtherLetter
    )
}

/// A letter or a number of any kind.
pub fn is_alphanumeric(c: char) -> bool {
    is_letter(c) || number(c) != NumericType::None
}

/// What `repr` writes as it is: not controls, formats, private use, unassigned ones or any space but U+0020.
pub fn is_printable(c: char) -> bool {
    use GeneralCategory as Is;
    c == ' '
        || !matches!(
            category(c),
            Is::Control
                | Is::Format
                | Is::Surrogate
                | Is::PrivateUse
                | Is::Unassigned
                | Is::LineSeparator
                | Is::ParagraphSeparator
                | Is::SpaceSeparator
        )
}

fn is_upper(c: char) -> bool {
    CodePointSetData::new::<Uppercase>().contains(c)
}

fn is_lower(c: char) -> bool {
    CodePointSetData::new::<Lowercase>().contains(c)
}

fn is_title(c: char) -> bool {
    category(c) == GeneralCategory::TitlecaseLetter
}

fn is_cased(c: char) -> bool {
    CodePointSetData::new::<Cased>().contains(c)
}

/// Methods without arguments that say what a string consists of.
pub fn holds(s: &str, method: &str) -> Option<bool> {
    let all = |is: fn(char) -> bool| !s.is_empty() && s.chars().all(is);
    let cased = |is: fn(char) -> bool, other: fn(char) -> bool| {
        s.chars().any(is) && !s.chars().any(|c| other(c) || is_title(c))
    };
    Some(match method {
        "isspace" => all(is_space),
        "isdecimal" => all(|c| number(c) == NumericType::Decimal),
        "isdigit" => all(|c| matches!(number(c), NumericType::Decimal | NumericType::Digit)),
        "isnumeric" => all(|c| number(c) != NumericType::None),
        "isprintable" => s.chars().all(is_printable),
        "isidentifier" => {
            let first = |c| c == '_' || CodePointSetData::new::<XidStart>().contains(c);
            s.chars().next().is_some_and(first)
                && s.chars()
                    .all(|c| CodePointSetData::new::<XidContinue>().contains(c))
        }
        "isalpha" => all(is_letter),
        "isalnum" => all(is_alphanumeric),
        "isascii" => s.is_ascii(),
        "islower" => cased(is_lower, is_upper),
        "isupper" => cased(is_upper, is_lower),
        "istitle" => is_titled(s),
        _ => return None,
    })
}

/// Capitals after what has no case, small letters after what has one.
fn is_titled(s: &str) -> bool {
    let (mut any, mut after_cased) = (false, false);
    for c in s.chars() {
        let begins = is_upper(c) || is_title(c);
        let goes_on = !begins && is_lower(c);
        if begins && after_cased || goes_on && !after_cased {
            return false;
        }
        after_cased = begins || goes_on;
        any |= after_cased;
    }
    any
}

/// `upper`, `lower`, `casefold`, `capitalize`, `title` or `swapcase`.
pub fn recased(s: &str, method: &str) -> String {
    match method {
        "upper" => return s.to_uppercase(),
        "lower" => return s.to_lowercase(),
        "casefold" => return CaseMapper::new().fold_string(s).into_owned(),
        _ => {}
    }
    let mut out = String::with_capacity(s.len());
    let mut after_cased = false;
    for (at, c) in s.char_indices() {
        match method {
            "capitalize" if at == 0 => push_title(c, &mut out),
            "capitalize" => push_lower(s, at, c, &mut out),
            "swapcase" if is_upper(c) => push_lower(s, at, c, &mut out),
            "swapcase" if is_lower(c) => out.extend(c.to_uppercase()),
            "swapcase" => out.push(c),
            _ if after_cased => push_lower(s, at, c, &mut out),
            _ => push_title(c, &mut out),
        }
        after_cased = is_cased(c);
    }
    out
}

fn push_title(c: char, out: &mut String) {
    let mut buffer = [0; 4];
    let mut options = TitlecaseOptions::default();
    options.leading_adjustment = Some(LeadingAdjustment::None);
    out.push_str(
        &CaseMapper::new().titlecase_segment_with_only_case_data_to_string(
            c.encode_utf8(&mut buffer),
            &LanguageIdentifier::UNKNOWN,
            options,
        ),
    );
}

/// The character of `s` at this byte in lower case. A sigma at a word's end has a form of its own.
fn push_lower(s: &str, at: usize, c: char, out: &mut String) {
    let is_ignored = |c: &char| CodePointSetData::new::<CaseIgnorable>().contains(*c);
    if c == 'Σ' {
        let before = s[..at].chars().rev().find(|c| !is_ignored(c));
        let after = s[at + c.len_utf8()..].chars().find(|c| !is_ignored(c));
        let ends = before.is_some_and(is_cased) && !after.is_some_and(is_cased);
        out.push(if ends { 'ς' } else { 'σ' });
    } else {
        out.extend(c.to_lowercase());
    }
}
