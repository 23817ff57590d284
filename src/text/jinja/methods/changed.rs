//! Methods of a str that return another.

use minijinja::{Error, Value};

use crate::text::jinja::args::bind;
use crate::text::jinja::characters::{is_space, recased};
use crate::text::jinja::meter;
use crate::text::jinja::value::numbers;
use crate::text::jinja::value::{Type, iterate, name, type_of, wrong};

/// Methods that return a string.
pub fn changed(s: &str, method: &str, args: &[Value]) -> Result<Option<String>, Error> {
    Ok(Some(match method {
        "strip" | "lstrip" | "rstrip" => {
            let args = bind("strip", &["chars"], args)?;
            let chars = args.text(0)?;
            let cut = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
            match method {
                "strip" => s.trim_matches(cut),
                "lstrip" => s.trim_start_matches(cut),
                _ => s.trim_end_matches(cut),
            }
            .to_owned()
        }
        "upper" | "lower" | "casefold" | "capitalize" | "title" | "swapcase" => {
            bind("the method", &[], args)?;
            recased(s, method)
        }
        "removeprefix" => {
            let args = bind("removeprefix", &["prefix"], args)?;
            s.strip_prefix(args.required_text(0)?)
                .unwrap_or(s)
                .to_owned()
        }
        "removesuffix" => {
            let args = bind("removesuffix", &["suffix"], args)?;
            s.strip_suffix(args.required_text(0)?)
                .unwrap_or(s)
                .to_owned()
        }
        "replace" => {
            // Only Python 3.13 takes `count` by name.
            let args = bind("replace", &["old", "new", "count"], args)?;
            replaced(
                s,
                args.required_text(0)?,
                args.required_text(1)?,
                args.int(2, -1)?,
            )?
        }
        "join" => {
            let args = bind("join", &["iterable"], args)?;
            joined(s, &iterate(args.required(0)?)?)?
        }
        "expandtabs" => expanded(s, bind("expandtabs", &["tabsize"], args)?.int(0, 8)?)?,
        "ljust" | "rjust" | "center" | "zfill" => padded(s, method, args)?,
        _ => return Ok(None),
    }))
}

fn joined(separator: &str, items: &[Value]) -> Result<String, Error> {
    let mut joined = String::new();
    for (i, item) in items.iter().enumerate() {
        let text = item
            .as_str()
            .filter(|_| type_of(item) == Type::Str)
            .ok_or_else(|| {
                wrong(format!(
                    "sequence item {i}: expected str instance, {} found",
                    name(item)
                ))
            })?;
        meter::charge(text.len() + separator.len())?;
        joined.push_str(if i > 0 { separator } else { "" });
        joined.push_str(text);
    }
    Ok(joined)
}

/// `text.replace(old, new, count)`; a negative count is no limit.
pub fn replaced(text: &str, old: &str, new: &str, count: i128) -> Result<String, Error> {
    let limit = usize::try_from(count).unwrap_or(usize::MAX);
    let found = text.matches(old).count().min(limit);
    meter::charge(text.len().saturating_add(found.saturating_mul(new.len())))?;
    Ok(text.replacen(old, new, limit))
}

fn expanded(text: &str, size: i128) -> Result<String, Error> {
    let size = usize::try_from(size).unwrap_or(0);
    meter::charge(text.matches('\t').count().saturating_mul(size))?;
    let (mut out, mut column) = (String::new(), 0);
    for c in text.chars() {
        match c {
            '\t' => {
                let spaces = if size == 0 { 0 } else { size - column % size };
                out.push_str(&" ".repeat(spaces));
                column += spaces;
            }
            '\n' | '\r' => {
                out.push(c);
                column = 0;
            }
            c => {
                out.push(c);
                column += 1;
            }
        }
    }
    Ok(out)
}

fn padded(s: &str, method: &str, args: &[Value]) -> Result<String, Error> {
    let args = bind("the method", &["width", "fillchar"], args)?;
    args.required(0)?;
    let width = usize::try_from(args.int(0, 0)?).unwrap_or(0);
    let mut fill = args.text(1)?.unwrap_or(" ").to_owned();
    if fill.chars().count() != 1 {
        return Err(args.unfit(1, "one character"));
    }
    let missing = width.saturating_sub(s.chars().count());
    meter::charge(missing.saturating_mul(fill.len()))?;
    let (mut sign, mut s) = ("", s);
    let left = match method {
        "ljust" => 0,
        "rjust" => missing,
        // CPython puts the odd one left where the width is odd.
        "center" => missing / 2 + (missing & width & 1),
        _ => {
            fill = "0".to_owned();
            (sign, s) = s.split_at(s.starts_with(['+', '-']).into());
            missing
        }
    };
    Ok([sign, &fill.repeat(left), s, &fill.repeat(missing - left)].concat())
}

/// `text.center(width)`.
pub fn centered(text: &str, width: i128) -> Result<String, Error> {
    padded(text, "center", &[numbers::from_int(width)])
}
