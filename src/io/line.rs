//! A line of JSON as a row of whichever format it has.

use super::fields::found;
use super::openai;
use super::own;
use super::row::{Code, MAX_VALUES, Row, RowError};
use crate::json;
use serde_json::Value;

/// Reads one line. Never fails: what is wrong with the line is in `ask`.
pub fn parse(line: &[u8], number: u64) -> Row {
    let broken =
        |message: String| unreadable(line, number, RowError::new(Code::InvalidJson, message));
    if line.len() > MAX_VALUES && json::count_values(line) > MAX_VALUES {
        return broken(format!(
            "line {number}: found more than {MAX_VALUES} values, expected a row of fewer"
        ));
    }
    let value: Value = match json::exact(line) {
        Ok(value) => value,
        Err(error) => {
            return broken(format!(
                "line {number} is not JSON: {}{}",
                describe(&error),
                match looks_like_json(line) {
                    true => "",
                    false => "; `generate --lines` takes each line of a text as a prompt",
                }
            ));
        }
    };
    // A number may be kept as an object: it is none.
    let is_object = json::object(&value).is_some();
    match value {
        Value::Object(fields) if is_object && openai::is_batch_row(&fields) => {
            openai::row(&fields, number)
        }
        Value::Object(fields) if is_object => own::row(fields, number),
        other => broken(format!(
            "line {number}: found {}, expected a JSON object{}",
            found(&other),
            advice(&other)
        )),
    }
}

/// What to do about a line of JSON that is no object.
fn advice(value: &Value) -> &'static str {
    match value {
        Value::Array(_) => " a line; jq -c '.[]' FILE makes lines of a file that is one array",
        _ => "",
    }
}

/// serde_json's message without its "at line 1 column C": the line is ours to say.
fn describe(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let what = match text.split(" at line ").next().unwrap_or(&text) {
        "recursion limit exceeded" => {
            return format!(
                "found nesting deeper than {}, expected at most that (column {})",
                json::MAX_DEPTH,
                error.column()
            );
        }
        "EOF while parsing an object"
        | "EOF while parsing a list"
        | "EOF while parsing a value" => {
            "it ends too early, expected a whole JSON object in one line"
        }
        "unexpected end of hex escape" | "lone leading surrogate in hex escape" => {
            "half of a surrogate pair in a \\u escape, expected whole characters"
        }
        what => what,
    };
    format!("{what} (column {})", error.column())
}

/// A line that is no row, for the reason that `error` gives. Of its text there is `line`, which need not be all: where a
/// batch row's id is found in it, the answer has that.
pub(super) fn unreadable(line: &[u8], number: u64, error: RowError) -> Row {
    let mut row = Row::unreadable(number, error);
    if let Some(id) = openai::recover_id(line) {
        row.be_batch_row(id);
        row.claims_id = true;
    }
    row
}

/// Whether a line may be meant as JSON. A prompt may begin with quotes, but then seldom all of them do.
pub(super) fn looks_like_json(line: &[u8]) -> bool {
    matches!(line.trim_ascii_start().first(), Some(b'{' | b'[' | b'"'))
        || serde_json::from_slice::<serde::de::IgnoredAny>(line).is_ok()
}
