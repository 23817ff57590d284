//! The special tokens that a chat template finds as its variables are those that transformers gives it, over many
//! ways in which a checkpoint's files may name them.

use crate::checkpoint::Checkpoint;
use crate::common::python::{ask, interpreter};
use crate::common::text::assert_none_differ;
use serde_json::{Value, json};
use tailgraph::text::{Chat, ChatTemplate, Tokenizer};

const NAMES: [&str; 12] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
    "image_token",
    "boi_token",
    "other_token",
    "plain",
    "additional_special_tokens",
];

fn template() -> String {
    let shown = NAMES.map(|name| format!("{name}:{{{{ {name} if {name} is defined else '-' }}}};"));
    shown.concat()
}

fn tokenizer(padding: &Value) -> Value {
    json!({
        "version": "1.0",
        "added_tokens": [{
            "id": 1, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true,
        }],
        "padding": padding,
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "unk_token": "<unk>", "vocab": {"<unk>": 0, "<s>": 1, "hi": 2, "</s>": 3}},
    })
}

/// Fields for tokenizer_config.json.
fn configs() -> Vec<Value> {
    let token = |content: &str| json!({"__type": "AddedToken", "content": content, "lstrip": true, "rstrip": false, "normalized": false, "special": true, "single_word": false});
    let plain = |content: &str| json!({"content": content, "lstrip": false, "rstrip": false, "normalized": false, "special": true, "single_word": false});
    vec![
        json!({}),
        json!({"bos_token": "<s>", "eos_token": "</s>", "pad_token": null}),
        json!({"bos_token": token("<s>"), "eos_token": token("<end>"), "sep_token": "<sep>"}),
        json!({"bos_token": "<s>", "image_token": "<image>", "boi_token": token("<boi>"), "other_token": null}),
        json!({"bos_token": "<s>", "image_token": "<old>", "extra_special_tokens": {"image_token": "<image>", "plain": "<plain>"}}),
        json!({"extra_special_tokens": {"plain": token("<plain>"), "bos_token": "<new>"}, "bos_token": "<s>"}),
        json!({"extra_special_tokens": ["<a>", "<b>"], "mask_token": "<mask>"}),
        json!({"additional_special_tokens": ["<a>"], "cls_token": "<cls>"}),
        json!({"model_specific_special_tokens": {"image_token": "<image>"}}),
        json!({"model_specific_special_tokens": {"plain": "<plain>"}, "image_token": "<image>"}),
        json!({"model_specific_special_tokens": {"bos_token": "<mine>"}, "bos_token": "<s>", "extra_special_tokens": {}}),
        json!({"image_token": 5, "other_token": true, "bos_token": ""}),
        json!({"bos_token": "<s>", "added_tokens_decoder": {"1": plain("<s>"), "3": plain("</s>")}}),
        json!({"bos_token": token("<s>"), "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>", "added_tokens_decoder": {"1": plain("<s>"), "7": plain("<extra>")}}),
        json!({"image_token": "<image>", "added_tokens_decoder": {}}),
        json!({"add_bos_token": true, "add_eos_token": true, "bos_token": "<s>"}),
        json!({"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "</s>"}),
    ]
}

#[test]
fn templates_find_the_special_tokens_of_transformers() {
    const TEST: &str = "templates_find_the_special_tokens_of_transformers";
    let Some(python) = interpreter(TEST) else {
        return;
    };
    let maps = [
        Value::Null,
        json!({"bos_token": "<map>", "pad_token": {"content": "<mappad>", "lstrip": false, "normalized": false, "rstrip": false, "single_word": false}}),
        json!({"image_token": "<mapimage>", "extra_special_tokens": {"boi_token": "<mapboi>"}}),
        json!({"additional_special_tokens": ["<c>"], "eos_token": "<mapend>"}),
    ];
    let paddings = [
        Value::Null,
        json!({"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "<unk>"}),
    ];
    let mut checkpoints = Vec::new();
    for config in configs() {
        for map in &maps {
            for padding in &paddings {
                let mut config = config.clone();
                config["chat_template"] = template().into();
                let name = format!("{config} {map} {padding}");
                let files = [
                    ("tokenizer.json", &tokenizer(padding)),
                    ("tokenizer_config.json", &config),
                    ("special_tokens_map.json", map),
                ];
                checkpoints.push(Checkpoint::new(&name, &files));
            }
        }
    }
    let folders: Vec<_> = checkpoints
        .iter()
        .map(|checkpoint| &checkpoint.folder)
        .collect();
    let expected = ask(&python, "template_variables.py", &json!(folders));
    let (mut same, mut wrong) = (0, Vec::new());
    for (checkpoint, expected) in checkpoints.iter().zip(expected.as_array().unwrap()) {
        let found = Tokenizer::load(&checkpoint.folder)
            .and_then(|tokenizer| ChatTemplate::load(&checkpoint.folder, &tokenizer))
            .map_err(|error| error.to_string())
            .and_then(|template| {
                let messages = json!([{"role": "user", "content": "hi"}]);
                let mut chat = Chat::new(messages, None);
                chat.add_generation_prompt = false;
                let rendered = template.unwrap().render(&chat);
                rendered.map_err(|error| error.to_string())
            });
        match (&found, expected["text"].as_str()) {
            (Ok(found), Some(expected)) if found == expected => same += 1,
            // What is refused here says so; what transformers refuses has no right prompt.
            (Err(error), _) if error.contains("field `") => {}
            (_, None) => {}
            _ => wrong.push(format!(
                "{}\n  found {found:?}\n  expected {expected}",
                checkpoint.name
            )),
        }
    }
    assert_none_differ(&wrong);
    assert!(same > 80, "{same} of {} the same", checkpoints.len());
}
