//! What the answers of a run depend on, by which a run knows whether it may go on from those of another.

use super::opened::Opened;
use crate::error::Result;
use crate::io::identity::Identity;
use crate::io::prepare::Rules;
use crate::io::row::Options;
use crate::model::fingerprint::{fingerprint, of_file};

/// Everything besides a row that its answer depends on, under the names by which a user knows it. Not --timeout-ms: it
/// decides whether there is an answer, and rows without one are tried again.
pub fn identity(opened: &Opened, rules: &Rules) -> Result<Identity> {
    let Options {
        max_new_tokens,
        temperature,
        top_k,
        top_p,
        min_p,
        repetition_penalty,
        presence_penalty,
        frequency_penalty,
        // Rows alone say it.
        logit_bias: _,
        min_tokens,
        seed: _,
        stop,
        stop_ids,
        ignore_eos,
        // Rows alone say it.
        skip_special_tokens: _,
        logprobs,
        timeout_ms: _,
    } = &rules.defaults;
    let mut model = fingerprint(&opened.spec.model)?;
    if let Some(template) = &opened.spec.chat_template {
        model.push(("--chat-template".to_owned(), of_file(template)?));
    }
    Ok(opened
        .spec
        .with_types(Identity::of_model(&model))
        // What memory has room for counts too: it is the limit of rows that name none.
        .with("--max-context", rules.max_context)
        .with("--max-new-tokens", text(max_new_tokens))
        .with("--temperature", text(temperature))
        .with("--top-k", text(top_k))
        .with("--top-p", text(top_p))
        .with("--min-p", text(min_p))
        .with("--repetition-penalty", text(repetition_penalty))
        .with("--presence-penalty", text(presence_penalty))
        .with("--frequency-penalty", text(frequency_penalty))
        .with("--min-tokens", text(min_tokens))
        .with("--seed", rules.run_seed)
        .with("--stop", text(stop))
        .with("--stop-ids", text(stop_ids))
        .with("--ignore-eos", text(ignore_eos))
        .with("--logprobs", text(logprobs)))
}

/// An option as a message shows it.
pub fn text<T: std::fmt::Debug>(option: &Option<T>) -> String {
    match option {
        Some(value) => format!("{value:?}"),
        None => "not given".to_owned(),
    }
}
