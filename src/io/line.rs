//! A line of JSON as a row: of our own, or an OpenAI batch row, whose envelope is `custom_id, method, url, body`.

use super::elsewhere;
use super::fields::{self, Fields, found, present, wrong};
use super::openai;
use super::own;
use super::row::{
    Ask, Code, Endpoint, Format, IGNORED_AT_MOST, Id, MAX_VALUES, OpenAi, Row, RowError,
};
use crate::json;
use crate::quote;
use serde_json::Value;
use std::fmt::Display;

/// Reads one line. Never fails: what is wrong with the line is in `ask`.
pub fn parse(line: &[u8], number: u64) -> Row {
    match object(line, &format!("line {number}"), true) {
        Ok(fields) => row(fields, number),
        Err(error) => unreadable(line, number, error),
    }
}

/// The object that a text of JSON holds, of which messages speak as `what`. `is_line`: it is of a file, and messages advise so.
///
/// # Errors
/// It is none, or has more values than a row may have.
pub fn object(text: &[u8], what: &str, is_line: bool) -> Result<Fields, RowError> {
    let broken = |message: String| Code::InvalidJson.error(message);
    if text.len() > MAX_VALUES && json::count_values(text) > MAX_VALUES {
        return Err(broken(format!(
            "{what}: found more than {MAX_VALUES} values, expected a row of fewer"
        )));
    }
    let value: Value = json::exact(text).map_err(|error| {
        let why = describe(&error);
        let advice = if !is_line || looks_like_json(text) {
            ""
        } else {
            "; `generate --lines` takes each line of a text as a prompt"
        };
        broken(format!("{what} is not JSON: {why}{advice}"))
    })?;
    // A number may be kept as an object: it is none.
    let is_object = json::object(&value).is_some();
    match value {
        Value::Object(fields) if is_object => Ok(fields),
        other => {
            let advice = if is_line && other.is_array() {
                " a line; jq -c '.[]' FILE makes lines of a file that is one array"
            } else {
                ""
            };
            Err(broken(format!(
                "{what}: found {}, expected a JSON object{advice}",
                found(&other)
            )))
        }
    }
}

fn row(fields: Fields, number: u64) -> Row {
    let is_batch_row = is_batch_row(&fields);
    let id_name = if is_batch_row { "custom_id" } else { "id" };
    let id = present(&fields, id_name).map(|id| fields::id(id, id_name));
    let mut row = if is_batch_row {
        batch_row(&fields, number)
    } else {
        own_row(fields, number)
    };
    match id {
        None => {}
        Some(Ok(id)) => {
            row.id = id;
            row.claims_id = true;
        }
        Some(Err(error)) => {
            row.ask = Err(error);
            if is_batch_row {
                row.id = Id::unread(number);
            }
        }
    }
    row
}

fn own_row(mut fields: Fields, number: u64) -> Row {
    let ask = own::ask(&mut fields);
    let unknown = |name: &&String| !own::is_known(name) && !elsewhere::is_known(name);
    Row {
        tells_format: fields.keys().any(|name| own::is_known(name)),
        ignored: shown(fields.keys().filter(unknown)),
        ..Row::new(number, ask)
    }
}

fn batch_row(fields: &Fields, number: u64) -> Row {
    const ENVELOPE: [&str; 4] = ["custom_id", "method", "url", "body"];
    let around = fields
        .keys()
        .filter(|name| !ENVELOPE.contains(&name.as_str()));
    let body = fields.get("body").and_then(Value::as_object);
    let within = body.into_iter().flat_map(openai::unknown);
    let (ask, repeated) = match carried(fields) {
        Ok((ask, repeated)) => (Ok(ask), repeated),
        Err(error) => (Err(error), OpenAi::default()),
    };
    Row {
        format: Format::OpenAi(repeated),
        tells_format: true,
        ignored: shown(around.cloned().chain(within)),
        ..Row::new(number, ask)
    }
}

/// Names as messages show them, as many as are told of.
pub fn shown(names: impl Iterator<Item: Display>) -> Vec<String> {
    names.take(IGNORED_AT_MOST).map(quote::text).collect()
}

/// Whether an object means to be a batch row. One of ours may have such names too, of which it has no use, but then it
/// has a prompt beside them.
fn is_batch_row(row: &Fields) -> bool {
    let has = |name: &str| row.contains_key(name);
    let has_prompt = ["prompt", "input_ids", "messages"].into_iter().any(has);
    let (body, url) = (has("body"), has("url"));
    has("custom_id") || (body && url) || ((body || url) && !has_prompt)
}

/// What the body in a batch row asks.
fn carried(row: &Fields) -> Result<(Ask, OpenAi), RowError> {
    const URLS: &str = "\"/v1/chat/completions\" or \"/v1/completions\"";
    if let Some(method) = present(row, "method").filter(|method| *method != "POST") {
        return Err(wrong("method", method, "\"POST\""));
    }
    let url = row.get("url").unwrap_or(&Value::Null);
    let endpoint = match url.as_str() {
        Some("/v1/chat/completions") => Endpoint::Chat,
        Some("/v1/completions") => Endpoint::Completions,
        _ => return Err(wrong("url", url, URLS)),
    };
    let body = row.get("body").unwrap_or(&Value::Null);
    openai::ask(endpoint, openai::Carrier::Row, body)
}

/// The custom_id of a line that is no JSON, or of which only the beginning is known: where its name stands, and a
/// whole value after it. A name within a string would have a backslash before its quotes.
fn recover_id(line: &[u8]) -> Option<Id> {
    const NAME: &[u8] = b"\"custom_id\"";
    /// The envelope comes before a long body; ids are shorter.
    const SEARCHED_BYTES: usize = 1 << 16;
    let line = &line[..line.len().min(SEARCHED_BYTES)];
    let after = line.windows(NAME.len()).position(|bytes| bytes == NAME)? + NAME.len();
    let value = line[after..].trim_ascii_start().strip_prefix(b":")?;
    let mut values = serde_json::Deserializer::from_slice(value).into_iter::<Value>();
    fields::id(&values.next()?.ok()?, "custom_id").ok()
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
    let mut row = Row::new(number, Err(error));
    if let Some(id) = recover_id(line) {
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
