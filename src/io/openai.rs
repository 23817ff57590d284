//! Bodies of the OpenAI format, for chat completions and completions, whatever carries them.
//!
//! Fields that ask for what this program does not do are errors; those that nobody knows are warned of. vLLM's
//! additions (top_k, min_p, repetition_penalty, min_tokens, stop_token_ids, ignore_eos, skip_special_tokens) are taken,
//! and so is timeout_ms.

use super::elsewhere;
use super::fields::{self, Fields, wrong};
use super::messages;
use super::row::{
    Ask, Choices, Code, Endpoint, FieldNames, MAX_CHOICES, MAX_LOGPROBS, OpenAi, Options, Prompt,
    RowError, Stream,
};
use crate::json;
use serde_json::Value;

/// The largest `n` that the format allows.
const MAX_N: u32 = 128;

/// What brings a body, and takes the answer to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// A row of a batch file: answers are written whole.
    Row,
    /// A request that waits for its answer, and may ask for it as it comes.
    Request,
}

/// What a body asks of `endpoint`, and what the answer repeats of it.
///
/// # Errors
/// What is wrong with the body, or asks for what is not done here.
pub fn ask(endpoint: Endpoint, carrier: Carrier, body: &Value) -> Result<(Ask, OpenAi), RowError> {
    let Some(body) = json::object(body) else {
        return Err(wrong("body", body, "an object"));
    };
    let model = fields::string(body, "model")?;
    elsewhere::refuse(body, "body.", |name, value| {
        if carrier == Carrier::Request && name == "stream" {
            return None;
        }
        if !is_known(name, endpoint) {
            return misplaced(name, value);
        }
        let at_one_value = AT_ONE_VALUE.contains(&name);
        elsewhere::refusal(name, value).filter(|_| at_one_value)
    })?;
    let mut options = fields::shared_options(body)?;
    let echo = endpoint == Endpoint::Completions && fields::boolean(body, "echo")?.unwrap_or(false);
    let least = u32::from(!echo);
    options.max_new_tokens = fields::limit(body, "max_tokens", "max_completion_tokens", least)?;
    options.stop_ids = fields::token_ids(body, "stop_token_ids")?;
    let (prompt, more, unasked) = match endpoint {
        Endpoint::Chat => (chat(body, &mut options)?, Vec::new(), None),
        Endpoint::Completions => {
            let (prompt, more) = completion(body, &mut options)?;
            (prompt, more, Some(16))
        }
    };
    let n = fields::integer(body, "n", 1..=MAX_N)?.unwrap_or(1);
    let choices = Choices { n, more };
    if choices.count() > MAX_CHOICES {
        return Err(Code::InvalidRequest.error(format!(
            "n: found {n} for each of {} prompts, expected at most {MAX_CHOICES} answers a row",
            1 + choices.more.len()
        )));
    }
    let repeated = OpenAi {
        endpoint,
        model,
        tools: matches!(&prompt, Prompt::Messages(chat) if chat.tools.is_some()),
        n: (n > 1).then_some(n),
        stream: stream(body)?,
    };
    let ask = Ask {
        prompt,
        options,
        unasked,
        names: &FieldNames::OPENAI,
        choices,
        echo,
    };
    Ok((ask, repeated))
}

/// How the answer is to come, where it is not to be whole.
fn stream(body: &Fields) -> Result<Option<Stream>, RowError> {
    let options = match fields::present(body, "stream_options") {
        None => &Fields::new(),
        Some(options) => {
            json::object(options).ok_or_else(|| wrong("stream_options", options, "an object"))?
        }
    };
    let usage = fields::boolean(options, "include_usage")?.unwrap_or(false);
    let is_wanted = fields::boolean(body, "stream")?.unwrap_or(false);
    Ok(is_wanted.then_some(Stream { usage }))
}

fn chat(body: &Fields, options: &mut Options) -> Result<Prompt, RowError> {
    let wanted = fields::boolean(body, "logprobs")?.unwrap_or(false);
    let top = fields::integer(body, "top_logprobs", 0..=MAX_LOGPROBS)?;
    options.logprobs = match (wanted, top) {
        (true, top) => Some(top.unwrap_or(0)),
        // 0 asks for nothing, which is what there is without logprobs.
        (false, None | Some(0)) => None,
        (false, Some(top)) => {
            return Err(Code::InvalidRequest.error(format!(
                "top_logprobs: found {top} without logprobs, expected \"logprobs\": true beside it"
            )));
        }
    };
    messages::check_numbers(body)?;
    messages::prompt(body)
}

/// `prompt` is a string, an array of token ids, or an array of several of those: the first, and the others.
fn completion(body: &Fields, options: &mut Options) -> Result<(Prompt, Vec<Prompt>), RowError> {
    options.logprobs = fields::integer(body, "logprobs", 0..=MAX_LOGPROBS)?;
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

/// Fields of the format that may have the one value at which they ask for nothing, as in our own rows.
const AT_ONE_VALUE: [&str; 6] = [
    "best_of",
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
    is_known(name, Endpoint::Chat) || is_known(name, Endpoint::Completions)
}

/// Fields of a body that nobody knows, as messages name them.
pub fn unknown(body: &Fields) -> impl Iterator<Item = String> {
    let unknown = body
        .iter()
        .filter(|(name, value)| !value.is_null() && is_unknown(name));
    unknown.map(|(name, _)| format!("body.{name}"))
}

/// Whether nobody knows a field, of whichever body it is.
fn is_unknown(name: &str) -> bool {
    let known = is_known_somewhere(name) || elsewhere::is_known(name);
    !known && !OWN_NAMES.iter().any(|(own, _)| *own == name)
}

/// Whether a field is of the format of this url.
fn is_known(name: &str, endpoint: Endpoint) -> bool {
    const BOTH: [&str; 8] = [
        "model",
        "max_completion_tokens",
        "stop_token_ids",
        "n",
        "stream",
        "user",
        "stream_options",
        "metadata",
    ];
    const CHAT: [&str; 9] = [
        "top_logprobs",
        "response_format",
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
        || fields::SHARED.contains(&name)
        || match endpoint {
            Endpoint::Chat => CHAT.contains(&name) || messages::is_known(name),
            Endpoint::Completions => COMPLETIONS.contains(&name),
        }
}
