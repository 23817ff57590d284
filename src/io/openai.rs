//! Rows of the OpenAI batch format: `custom_id, method, url, body`, for chat completions and completions.
//!
//! Fields that ask for what this program does not do are errors of the row; those that nobody knows are warned of. vLLM's
//! additions to the body (top_k, min_p, repetition_penalty, min_tokens,
//! stop_token_ids, ignore_eos, skip_special_tokens) are taken, and so is timeout_ms.

use super::elsewhere;
use super::fields::{self, Fields, found, present, wrong};
use super::messages;
use super::row::{
    Ask, Choices, Code, Endpoint, FieldNames, Format, IGNORED_AT_MOST, Id, MAX_CHOICES,
    MAX_LOGPROBS, OpenAi, Options, Prompt, Row, RowError, Unasked,
};
use crate::json;
use crate::quote;
use serde_json::Value;

/// Of `n`, as the format has it.
const MAX_N: u32 = 128;

/// Whether an object means to be a batch row. One of ours may have such names too, of which it has no use, but then it
/// has a prompt beside them.
pub(super) fn is_batch_row(row: &Fields) -> bool {
    let has = |name: &str| row.contains_key(name);
    let envelope = has("body") || has("url");
    has("custom_id")
        || (has("body") && has("url"))
        || (envelope
            && !["prompt", "input_ids", "messages"]
                .iter()
                .any(|name| has(name)))
}

/// The custom_id of a line that is no JSON, or of which only the beginning is known: where its name stands, and a
/// whole value after it. A name within a string would have a backslash before its quotes.
pub(super) fn recover_id(line: &[u8]) -> Option<Id> {
    const NAME: &[u8] = b"\"custom_id\"";
    /// The envelope comes before a long body; ids are shorter.
    const SEARCHED_BYTES: usize = 1 << 16;
    let line = &line[..line.len().min(SEARCHED_BYTES)];
    let after = line.windows(NAME.len()).position(|bytes| bytes == NAME)? + NAME.len();
    let value = line[after..].trim_ascii_start().strip_prefix(b":")?;
    let mut values = serde_json::Deserializer::from_slice(value).into_iter::<Value>();
    fields::id(&values.next()?.ok()?, "custom_id").ok()
}

/// A batch row of line `number`.
pub(super) fn row(row: &Fields, number: u64) -> Row {
    let given = present(row, "custom_id").map(|id| fields::id(id, "custom_id"));
    let (format, ask) = question(row);
    let (id, ask) = match given {
        Some(Ok(id)) => (Some(id), ask),
        Some(Err(error)) => (None, Err(error)),
        None => (None, ask),
    };
    Row {
        line: number,
        claims_id: id.is_some(),
        id: id.unwrap_or_else(|| match present(row, "custom_id") {
            Some(_) => Id::unread(number),
            None => Id::line(number),
        }),
        format: Format::OpenAi(format),
        tells_format: true,
        ask,
        ignored: unknown(row)
            .take(IGNORED_AT_MOST)
            .map(quote::text)
            .collect(),
    }
}

/// The question in a batch row, and what its answer repeats of it.
fn question(row: &Fields) -> (OpenAi, Result<Ask, RowError>) {
    let mut format = OpenAi::default();
    let ask = ask(row, &mut format);
    (format, ask)
}

fn ask(row: &Fields, format: &mut OpenAi) -> Result<Ask, RowError> {
    const URLS: &str = "\"/v1/chat/completions\" or \"/v1/completions\"";
    if let Some(method) = present(row, "method")
        && method.as_str() != Some("POST")
    {
        return Err(wrong("method", method, "\"POST\""));
    }
    let url = row.get("url").unwrap_or(&Value::Null);
    let endpoint = match url.as_str() {
        Some("/v1/chat/completions") => Endpoint::Chat,
        Some("/v1/completions") => Endpoint::Completions,
        _ => return Err(wrong("url", url, URLS)),
    };
    format.endpoint = Some(endpoint);
    let body = match row.get("body") {
        Some(value @ Value::Object(body)) if json::object(value).is_some() => body,
        other => return Err(wrong("body", other.unwrap_or(&Value::Null), "an object")),
    };
    format.model = fields::string(body, "model")?;
    refuse_what_we_cannot(body, endpoint)?;
    let mut options = fields::shared_options(body)?;
    options.max_new_tokens = fields::limit(body, "max_tokens", "max_completion_tokens")?;
    options.stop_ids = fields::token_ids(body, "stop_token_ids")?;
    let (prompt, more, unasked) = match endpoint {
        Endpoint::Chat => (chat(body, &mut options)?, Vec::new(), Unasked::Rest),
        Endpoint::Completions => {
            let (prompt, more) = completion(body, &mut options)?;
            (prompt, more, Unasked::Tokens(16))
        }
    };
    let n = fields::integer_u32(body, "n", 1, MAX_N)?.unwrap_or(1);
    format.n = (n > 1).then_some(n);
    let choices = Choices { n, more };
    if choices.count() > MAX_CHOICES {
        return Err(RowError::new(
            Code::InvalidRequest,
            format!(
                "n: found {} for each of {} prompts, expected at most {MAX_CHOICES} answers a row",
                choices.n,
                1 + choices.more.len()
            ),
        ));
    }
    format.tools = matches!(&prompt, Prompt::Messages(chat) if chat.tools.is_some());
    Ok(Ask {
        prompt,
        options,
        unasked,
        names: &FieldNames::OPENAI,
        choices,
    })
}

fn chat(body: &Fields, options: &mut Options) -> Result<Prompt, RowError> {
    let wanted = fields::boolean(body, "logprobs")?.unwrap_or(false);
    let top = fields::integer_u32(body, "top_logprobs", 0, MAX_LOGPROBS)?;
    options.logprobs = match (wanted, top) {
        (true, top) => Some(top.unwrap_or(0)),
        // 0 asks for nothing, which is what there is without logprobs.
        (false, None | Some(0)) => None,
        (false, Some(top)) => {
            return Err(RowError::new(
                Code::InvalidRequest,
                format!(
                    "top_logprobs: found {top} without logprobs, expected \"logprobs\": true beside it"
                ),
            ));
        }
    };
    fields::numbers_within(body, &["messages", "tools", "chat_template_kwargs"])?;
    let with_tools = !messages::forbids_tools(body);
    Ok(Prompt::Messages(Box::new(messages::chat(
        body, with_tools,
    )?)))
}

/// `prompt` is a string, an array of token ids, or an array of several of those: the first, and the others.
fn completion(body: &Fields, options: &mut Options) -> Result<(Prompt, Vec<Prompt>), RowError> {
    options.logprobs = fields::integer_u32(body, "logprobs", 0, MAX_LOGPROBS)?;
    let given = body.get("prompt").unwrap_or(&Value::Null);
    let several = match given.as_array().map(Vec::as_slice) {
        Some(several @ [Value::String(_) | Value::Array(_), ..]) => several,
        _ => std::slice::from_ref(given),
    };
    let name = |place: usize| match several.len() {
        1 => "prompt".to_owned(),
        _ => format!("prompt[{place}]"),
    };
    let read = |(place, value): (usize, &Value)| match value {
        Value::String(text) => Ok(Prompt::Text(text.clone())),
        Value::Array(_) => Ok(Prompt::Ids(fields::token_id_array(value, &name(place))?)),
        other => Err(wrong(
            &name(place),
            other,
            "a string or an array of token ids",
        )),
    };
    let mut prompts = several.iter().enumerate().map(read);
    let first = prompts
        .next()
        .unwrap_or_else(|| Err(wrong("prompt", given, "a string or an array of token ids")))?;
    Ok((first, prompts.collect::<Result<_, _>>()?))
}

/// Every field that is not read elsewhere: either it changes nothing at this value, or the row is refused.
fn refuse_what_we_cannot(body: &Fields, endpoint: Endpoint) -> Result<(), RowError> {
    for (name, value) in body.iter().filter(|(_, value)| !value.is_null()) {
        let expected = match is_known(name, endpoint) {
            true if AT_ONE_VALUE.contains(&name.as_str()) => elsewhere::refusal(name, value),
            true => None,
            false => misplaced(name, value),
        };
        if let Some(expected) = expected {
            return Err(RowError::new(
                Code::Unsupported,
                format!(
                    "body.{}: found {}, expected {expected}",
                    quote::text(name),
                    found(value)
                ),
            ));
        }
    }
    Ok(())
}

/// Fields of the format that may have the one value at which they ask for nothing, as in our own rows.
const AT_ONE_VALUE: [&str; 7] = [
    "best_of",
    "echo",
    "modalities",
    "response_format",
    "stream",
    "suffix",
    "tool_choice",
];

/// What is expected in place of a field that means something elsewhere; `None` for one that nobody knows, or that asks for
/// nothing.
fn misplaced(name: &str, value: &Value) -> Option<&'static str> {
    let own = OWN_NAMES.iter().find(|(own, _)| *own == name);
    match own {
        Some((_, expected)) => Some(expected),
        None if is_known_somewhere(name) => Some("no such field of this url, leave it out"),
        None => elsewhere::refusal(name, value),
    }
}

/// What our own rows call a field.
const OWN_NAMES: [(&str, &str); 3] = [
    ("max_new_tokens", "max_tokens in rows of this format"),
    ("stop_ids", "stop_token_ids in rows of this format"),
    ("input_ids", "prompt, with url \"/v1/completions\""),
];

fn is_known_somewhere(name: &str) -> bool {
    [Endpoint::Chat, Endpoint::Completions]
        .iter()
        .any(|&endpoint| is_known(name, endpoint))
}

/// Fields that nobody knows, by their names.
fn unknown(row: &Fields) -> impl Iterator<Item = String> {
    const ENVELOPE: [&str; 4] = ["custom_id", "method", "url", "body"];
    let around = row
        .iter()
        .filter(|(name, _)| !ENVELOPE.contains(&name.as_str()));
    let around = around.map(|(name, _)| name.clone());
    let body = row.get("body").and_then(Value::as_object);
    let unknown = |(name, value): &(&String, &Value)| {
        let known = is_known_somewhere(name)
            || OWN_NAMES.iter().any(|(own, _)| own == name)
            || elsewhere::is_known(name);
        !known && !value.is_null()
    };
    let within = body.into_iter().flatten().filter(unknown);
    around.chain(within.map(|(name, _)| format!("body.{name}")))
}

/// Whether a field is of the format of this url.
fn is_known(name: &str, endpoint: Endpoint) -> bool {
    const BOTH: [&str; 24] = [
        "model",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "seed",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "skip_special_tokens",
        "timeout_ms",
        "logprobs",
        "n",
        "stream",
        "frequency_penalty",
        "presence_penalty",
        "logit_bias",
        "min_tokens",
        "user",
        "stream_options",
        "metadata",
    ];
    const CHAT: [&str; 16] = [
        "messages",
        "tools",
        "tool_choice",
        "chat_template_kwargs",
        "continue_final_message",
        "add_generation_prompt",
        "top_logprobs",
        "response_format",
        "parallel_tool_calls",
        "modalities",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
    ];
    const COMPLETIONS: [&str; 4] = ["prompt", "best_of", "echo", "suffix"];
    BOTH.contains(&name)
        || match endpoint {
            Endpoint::Chat => CHAT.contains(&name),
            Endpoint::Completions => COMPLETIONS.contains(&name),
        }
}
