//! Fields that other formats have and our own rows do not.

use super::fields::{Fields, found, present};
use super::row::{Code, RowError};
use crate::json;
use serde_json::Value;

/// Fields of the OpenAI format, of vLLM, llama.cpp, SGLang and transformers that change prompt or answer, that own rows do
/// not have, and what to write instead.
const REFUSED: [(&str, &str); 65] = [
    (
        "max_completion_tokens",
        "max_tokens or max_new_tokens in rows of this format",
    ),
    (
        "max_length",
        "max_new_tokens, which does not count the prompt",
    ),
    ("min_new_tokens", "min_tokens"),
    ("stop_token_ids", "stop_ids in rows of this format"),
    ("stop_strings", "stop in rows of this format"),
    (
        "eos_token_id",
        "stop_ids, with ignore_eos where the model's own are not to count",
    ),
    ("top_logprobs", "logprobs, a number, in rows of this format"),
    (
        "prompt_logprobs",
        "no such field: `score` has logprobs of prompts",
    ),
    ("bad_words", "logit_bias, -100 for each token"),
    ("allowed_token_ids", "logit_bias, 100 for each token"),
    (
        "response_format",
        "{\"type\":\"text\"}: output is not constrained",
    ),
    (
        "structured_outputs",
        "no such field: output is not constrained",
    ),
    ("guided_json", "no such field: output is not constrained"),
    ("guided_regex", "no such field: output is not constrained"),
    ("guided_choice", "no such field: output is not constrained"),
    ("guided_grammar", "no such field: output is not constrained"),
    ("n", "1: one answer a row"),
    ("best_of", "1: one answer a row"),
    ("num_beams", "1: there is no beam search"),
    ("use_beam_search", "false: there is no beam search"),
    ("echo", "false: the prompt is not repeated"),
    ("suffix", "an empty string: nothing is inserted"),
    (
        "chat_template",
        "no such field: the model's own template is used",
    ),
    ("documents", "chat_template_kwargs.documents"),
    ("functions", "tools"),
    ("function_call", "no such field: calls cannot be forced"),
    (
        "reasoning_effort",
        "chat_template_kwargs.reasoning_effort, if the template reads it",
    ),
    (
        "tool_choice",
        "\"auto\" or \"none\": calls cannot be forced",
    ),
    ("verbosity", "\"medium\": answers are as long as they are"),
    ("web_search_options", "no such field: nothing is searched"),
    ("modalities", "[\"text\"]"),
    ("audio", "no such field: answers are text"),
    ("moderation", "no such field: nothing is judged"),
    ("prediction", "no such field: nothing is foretold"),
    ("stream", "false: answers are written whole"),
    ("num_return_sequences", "1: one answer a row"),
    ("do_sample", "temperature: 0 is greedy"),
    (
        "no_repeat_ngram_size",
        "0; repetition_penalty, presence_penalty and frequency_penalty are the penalties there are",
    ),
    (
        "add_special_tokens",
        "input_ids, to say which special tokens a prompt has",
    ),
    (
        "truncate_prompt_tokens",
        "a prompt of the right length: none is cut",
    ),
    (
        "include_stop_str_in_output",
        "false: stop strings are cut from the text",
    ),
    ("prompt_embeds", "a prompt of text or token ids"),
    ("return_token_ids", "false: own rows have output_ids"),
    (
        "return_tokens_as_token_ids",
        "false: tokens are spelled as text",
    ),
    (
        "logits_processors",
        "no such field: no others than the penalties and filters there are",
    ),
    (
        "thinking_token_budget",
        "no such field: thinking is not told from the answer",
    ),
    ("grammar", "no such field: output is not constrained"),
    ("json_schema", "no such field: output is not constrained"),
    ("regex", "no such field: output is not constrained"),
    ("ebnf", "no such field: output is not constrained"),
    (
        "force_words_ids",
        "no such field: output is not constrained",
    ),
    ("n_predict", "max_tokens"),
    ("repeat_penalty", "repetition_penalty"),
    ("min_length", "min_tokens, which does not count the prompt"),
    ("bad_words_ids", "logit_bias, -100 for each token"),
    ("suppress_tokens", "logit_bias, -100 for each token"),
    ("begin_suppress_tokens", "logit_bias, -100 for each token"),
    ("sequence_bias", "logit_bias, of single tokens"),
    ("forced_bos_token_id", "no such field: no token is forced"),
    ("forced_eos_token_id", "no such field: no token is forced"),
    (
        "typical_p",
        "1: top_k, top_p and min_p are the filters there are",
    ),
    (
        "epsilon_cutoff",
        "0: top_k, top_p and min_p are the filters there are",
    ),
    (
        "eta_cutoff",
        "0: top_k, top_p and min_p are the filters there are",
    ),
    ("guidance_scale", "1: there is one prompt alone"),
    ("penalty_alpha", "0: there is no contrastive search"),
];

/// Refuses an own row's field that would change prompt or answer where it is known elsewhere: a row must not mean
/// something else here in silence.
pub(super) fn refuse(row: &Fields) -> Result<(), RowError> {
    for (name, _) in REFUSED {
        let Some(value) = present(row, name) else {
            continue;
        };
        if let Some(expected) = refusal(name, value) {
            return Err(RowError::new(
                Code::Unsupported,
                format!("{name}: found {}, expected {expected}", found(value)),
            ));
        }
    }
    Ok(())
}

/// What is expected instead of a field that asks for what is not done here; `None` where it asks for nothing.
pub(super) fn refusal(name: &str, value: &Value) -> Option<&'static str> {
    let (_, expected) = REFUSED.iter().find(|&&(known, _)| known == name)?;
    let changes_nothing = match name {
        "n" | "best_of" | "num_beams" | "num_return_sequences" => json::float(value) == Some(1.0),
        "typical_p" | "guidance_scale" | "repeat_penalty" => json::float(value) == Some(1.0),
        "no_repeat_ngram_size"
        | "epsilon_cutoff"
        | "eta_cutoff"
        | "penalty_alpha"
        | "min_length" => json::float(value) == Some(0.0),
        "functions" => value.as_array().is_some_and(Vec::is_empty),
        "function_call" => value == "auto" || value == "none",
        "verbosity" => value == "medium",
        "modalities" => *value == serde_json::json!(["text"]),
        "response_format" => value["type"] == "text",
        "echo"
        | "use_beam_search"
        | "stream"
        | "include_stop_str_in_output"
        | "return_token_ids"
        | "return_tokens_as_token_ids" => *value == Value::Bool(false),
        "suffix" => value == "",
        "tool_choice" => value == "auto" || value == "none",
        _ => false,
    };
    (!changes_nothing).then_some(expected)
}

/// Whether [`refuse`] looks at a field, so that nobody need be told that it is ignored.
pub(super) fn is_known(name: &str) -> bool {
    REFUSED.iter().any(|&(known, _)| known == name)
}
