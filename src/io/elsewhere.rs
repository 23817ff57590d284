//! Fields that other formats have and our own rows do not.

use super::fields::{Fields, found};
use super::row::{Code, RowError};
use crate::json;
use crate::quote;
use serde_json::Value;

/// Fields that mean one thing.
struct Group {
    names: &'static [&'static str],
    /// The values at which they ask for nothing, as a list of JSON.
    idle: &'static str,
    /// What to write instead.
    expected: &'static str,
}

const fn group(
    names: &'static [&'static str],
    idle: &'static str,
    expected: &'static str,
) -> Group {
    Group {
        names,
        idle,
        expected,
    }
}

/// Fields of the OpenAI format, of vLLM, SGLang, llama.cpp, Ollama, TGI, transformers and text-generation-webui that change
/// prompt or answer and that own rows do not have.
#[rustfmt::skip]
const REFUSED: &[Group] = &[
    group(&["extra_body", "sampling_params", "extra_args", "vllm_xargs", "custom_params", "generation_config", "generation_kwargs", "gen_kwargs"],
        "[{}]", "what is in it as fields of the row: it is not looked into"),
    // Words that a row may have for its own ends, but with an object in them.
    group(&["options", "parameters"],
        "[{}]", "what is in it as fields of the row: it is not looked into"),
    group(&["max_completion_tokens"], "[]", "max_tokens or max_new_tokens in rows of this format"),
    group(&["n_predict", "num_predict", "max_output_tokens"], "[]", "max_tokens"),
    group(&["max_length"], "[]", "max_new_tokens, which does not count the prompt"),
    group(&["min_new_tokens"], "[]", "min_tokens"),
    group(&["min_length"], "[0]", "min_tokens, which does not count the prompt"),
    group(&["max_time", "t_max_predict_ms"], "[]", "timeout_ms"),
    group(&["sampling_seed", "random_seed"], "[]", "seed"),
    group(&["stop_token_ids"], "[]", "stop_ids in rows of this format"),
    group(&["stop_strings", "stop_sequences", "stop_words"], "[[]]", "stop in rows of this format"),
    group(&["stop_regex"], "[[]]", "stop, of strings as they are"),
    group(&["no_stop_trim", "include_stop_str_in_output"], "[false]", "false: stop strings are cut from the text"),
    group(&["eos_token_id"], "[]", "stop_ids, with ignore_eos where the model's own are not to count"),
    group(&["ban_eos_token"], "[false]", "ignore_eos, with logit_bias -100 for the id"),
    group(&["top_logprobs"], "[]", "logprobs, a number, in rows of this format"),
    group(&["n_probs", "top_logprobs_num", "top_n_tokens"], "[0]", "logprobs"),
    group(&["return_logprob"], "[false]", "logprobs"),
    group(&["prompt_logprobs", "decoder_input_details", "input_token_logprobs"], "[false]", "no such field: `score` has logprobs of prompts, and so have completions with echo"),
    group(&["bad_words", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "custom_token_bans", "banned_tokens", "banned_strings"],
        "[[]]", "logit_bias, -100 for each token"),
    group(&["allowed_token_ids"], "[]", "logit_bias, 100 for each token"),
    group(&["sequence_bias"], "[]", "logit_bias, of single tokens"),
    group(&["response_format"], r#"[{"type":"text"}]"#, "{\"type\":\"text\"}: output is not constrained"),
    group(&["structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_whitespace_pattern", "structural_tag",
        "grammar", "grammar_string", "grammar_triggers", "json_schema", "regex", "ebnf", "force_words_ids", "constraints", "format"],
        "[]", "no such field: output is not constrained"),
    group(&["n", "best_of", "num_return_sequences"], "[1]", "1: one answer a row"),
    group(&["num_beams", "num_beam_groups", "beam_width", "length_penalty"], "[1]", "1: there is no beam search"),
    group(&["use_beam_search", "early_stopping"], "[false]", "false: there is no beam search"),
    group(&["diversity_penalty"], "[0]", "0: there is no beam search"),
    group(&["echo", "return_full_text"], "[false]", "false: the prompt is not repeated"),
    group(&["suffix"], r#"[""]"#, "an empty string: nothing is inserted"),
    group(&["chat_template"], "[]", "no such field: the model's own template is used"),
    group(&["documents"], "[]", "chat_template_kwargs.documents"),
    group(&["enable_thinking", "think", "reasoning_effort"], "[]", "chat_template_kwargs with this name, if the template reads it"),
    group(&["thinking_token_budget", "thinking_budget", "reasoning_budget"], "[-1]", "no such field: thinking is not told from the answer"),
    group(&["functions"], "[[]]", "tools"),
    group(&["function_call"], r#"["auto","none"]"#, "no such field: calls cannot be forced"),
    group(&["tool_choice"], r#"["auto","none"]"#, "\"auto\" or \"none\": calls cannot be forced"),
    group(&["verbosity"], r#"["medium"]"#, "\"medium\": answers are as long as they are"),
    group(&["web_search_options"], "[]", "no such field: nothing is searched"),
    group(&["modalities"], r#"[["text"]]"#, "[\"text\"]"),
    group(&["audio"], "[]", "no such field: answers are text"),
    group(&["image_data", "mm_processor_kwargs"], "[{}]", "no such field: prompts are text"),
    group(&["moderation"], "[]", "no such field: nothing is judged"),
    group(&["prediction"], "[]", "no such field: nothing is foretold"),
    group(&["stream"], "[false]", "false: answers are written whole"),
    group(&["do_sample"], "[]", "temperature: 0 is greedy"),
    group(&["repeat_penalty", "rep_pen"], "[1]", "repetition_penalty"),
    group(&["repeat_last_n", "repetition_penalty_range", "rep_pen_range"], "[-1]", "no such field: repetition_penalty is of prompt and answer"),
    group(&["penalize_nl", "penalize_newline"], "[true]", "true: the penalties are of every token"),
    group(&["no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "dry_multiplier"], "[0]",
        "0; repetition_penalty, presence_penalty and frequency_penalty are the penalties there are"),
    group(&["encoder_repetition_penalty"], "[1]", "1; repetition_penalty, presence_penalty and frequency_penalty are the penalties there are"),
    group(&["dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_range", "dry_sequence_breakers", "exponential_decay_length_penalty", "repetition_detection"],
        "[]", "no such field: repetition_penalty, presence_penalty and frequency_penalty are the penalties there are"),
    group(&["typical_p", "tfs_z", "tfs"], "[1]", "1: top_k, top_p and min_p are the filters there are"),
    group(&["epsilon_cutoff", "eta_cutoff", "xtc_probability", "top_a"], "[0]", "0: top_k, top_p and min_p are the filters there are"),
    group(&["top_n_sigma", "nsigma"], "[-1,0]", "0: top_k, top_p and min_p are the filters there are"),
    group(&["xtc_threshold", "top_h", "min_keep", "samplers", "sampler_priority", "sampler_order", "temperature_last"],
        "[]", "no such field: temperature, top_k, top_p and min_p are what there is, in this order"),
    group(&["mirostat", "mirostat_mode", "dynatemp_range", "smoothing_factor"], "[0]", "0: temperature is one number for all tokens"),
    group(&["dynamic_temperature"], "[false]", "false: temperature is one number for all tokens"),
    group(&["mirostat_tau", "mirostat_eta", "dynatemp_exponent", "dynatemp_low", "dynatemp_high", "smoothing_curve", "adaptive_target", "adaptive_decay"],
        "[]", "no such field: temperature is one number for all tokens"),
    group(&["guidance_scale"], "[1]", "1: there is one prompt alone"),
    group(&["negative_prompt", "negative_prompt_ids"], "[]", "no such field: there is one prompt alone"),
    group(&["penalty_alpha"], "[0]", "0: there is no contrastive search"),
    group(&["dola_layers"], "[]", "no such field: the last layer's logits are taken"),
    group(&["add_special_tokens", "add_bos_token"], "[]", "input_ids, to say which special tokens a prompt has"),
    group(&["token_healing"], "[false]", "false: a prompt's tokens stay"),
    group(&["truncate_prompt_tokens", "truncate", "num_ctx", "n_keep", "num_keep"], "[]", "a prompt of the right length: none is cut"),
    group(&["prompt_embeds", "input_embeds"], "[]", "a prompt of text or token ids"),
    group(&["return_token_ids", "return_tokens"], "[false]", "false: own rows have output_ids"),
    group(&["return_tokens_as_token_ids"], "[false]", "false: tokens are spelled as text"),
    group(&["spaces_between_special_tokens"], "[true]", "no such field: special tokens are left out, or stand as they are"),
    group(&["logits_processors", "custom_logit_processor"], "[]", "no such field: no others than the penalties and filters there are"),
    group(&["watermark", "watermarking_config"], "[false]", "no such field: answers have no mark"),
    group(&["lora", "lora_path", "lora_request", "adapter_id"], "[[]]", "no such field: the model's own weights are used"),
    group(&["forced_bos_token_id", "forced_eos_token_id"], "[]", "no such field: no token is forced"),
];

/// Refuses a field that would change prompt or answer and is not read: a row must not mean something else here in
/// silence. `expected`: what to write in its place, if it is one; `within`: what messages call the fields' place.
pub(super) fn refuse(
    fields: &Fields,
    within: &str,
    expected: impl Fn(&str, &Value) -> Option<&'static str>,
) -> Result<(), RowError> {
    for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        if let Some(expected) = expected(name, value) {
            let (name, found) = (quote::text(name), found(value));
            return Err(Code::Unsupported.error(format!(
                "{within}{name}: found {found}, expected {expected}"
            )));
        }
    }
    Ok(())
}

/// What is expected instead of a field that asks for what is not done here; `None` where it asks for nothing.
pub(super) fn refusal(name: &str, value: &Value) -> Option<&'static str> {
    let group = group_of(name)?;
    let of_the_row = match name {
        "options" | "parameters" => !value.is_object(),
        "format" => !value.is_object() && value != "json",
        _ => false,
    };
    let idle: Vec<Value> = serde_json::from_str(group.idle).unwrap_or_default();
    let is =
        |idle: &Value| idle == value || idle.is_number() && idle.as_f64() == json::float(value);
    (!of_the_row && !idle.iter().any(is)).then_some(group.expected)
}

/// Whether [`refuse`] looks at a field, so that nobody need be told that it is ignored.
pub(super) fn is_known(name: &str) -> bool {
    group_of(name).is_some()
}

fn group_of(name: &str) -> Option<&'static Group> {
    REFUSED.iter().find(|group| group.names.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_stands_once_and_its_idle_values_are_json() {
        let mut seen = std::collections::HashSet::new();
        for group in REFUSED {
            serde_json::from_str::<Vec<Value>>(group.idle).unwrap();
            group
                .names
                .iter()
                .for_each(|name| assert!(seen.insert(name), "{name}"));
        }
    }
}
