//! `/tokenize` and `/detokenize`, as vLLM has them.

use super::State;
use super::bodies::fields;
use super::refusal::Refusal;
use crate::io::fields::{boolean, present, string, token_id_array, wrong};
use crate::io::messages;
use crate::io::prepare::encode;
use crate::io::row::{Code, FieldNames, Prompt};
use serde_json::{Value, json};

/// The tokens of a `prompt`, or of `messages` as the chat template renders them.
pub fn tokenize(state: &State, body: &[u8]) -> Result<Value, Refusal> {
    let body = fields(body)?;
    let texts = state.session.texts();
    let special = boolean(&body, "add_special_tokens")?;
    let strings = boolean(&body, "return_token_strs")?.unwrap_or(false);
    let prompt = match present(&body, "messages") {
        Some(_) => {
            messages::check_numbers(&body)?;
            messages::prompt(&body)?
        }
        None => {
            let found = body.get("prompt").unwrap_or(&Value::Null);
            let text = string(&body, "prompt")?;
            Prompt::Text(text.ok_or_else(|| wrong("prompt", found, "a string, or messages"))?)
        }
    };
    let (codec, max_context) = (texts.codec.clone(), texts.rules.max_context);
    let tokens = texts.threads.run(move || {
        let (_, ids) = encode(&prompt, special, &FieldNames::OPENAI, max_context, &codec)?;
        let spell = |id: &u32| {
            let bytes = codec.token_bytes(*id).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let spelled = strings.then(|| ids.iter().map(spell).collect::<Vec<_>>());
        Ok::<_, crate::io::RowError>((ids, spelled))
    });
    let (ids, spelled) = tokens.map_err(crate::io::RowError::from)??;
    Ok(json!({
        "count": ids.len(),
        "max_model_len": texts.rules.max_context,
        "tokens": ids,
        "token_strs": spelled,
    }))
}

/// The text of `tokens`.
pub fn detokenize(state: &State, body: &[u8]) -> Result<Value, Refusal> {
    let body = fields(body)?;
    let texts = state.session.texts();
    let found = body.get("tokens").unwrap_or(&Value::Null);
    let ids = token_id_array(found, "tokens")?;
    let codec = texts.codec.clone();
    let text = texts.threads.run(move || codec.decode(&ids));
    let text = text.map_err(crate::io::RowError::from)?;
    let text = text.map_err(|why| Code::InvalidRequest.error(format!("tokens: {why}")))?;
    Ok(json!({"prompt": text}))
}
