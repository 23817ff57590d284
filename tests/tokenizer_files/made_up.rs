//! Small tokenizers whose files spell special tokens in every way.

use crate::checkpoint::{Checkpoint, compare};
use crate::common::text::read;
use serde_json::{Value, json};

const NONE: Value = Value::Null;

fn fixture(name: &str) -> Value {
    serde_json::from_str(&read(name)).unwrap()
}

/// `base` with `changes` to its fields.
fn with(base: &str, changes: Value) -> Value {
    let mut json = fixture(base);
    for (name, value) in changes.as_object().unwrap() {
        json[name] = value.clone();
    }
    json
}

fn checkpoint(name: &str, tokenizer: &Value, config: &Value) -> Checkpoint {
    Checkpoint::new(
        name,
        &[
            ("tokenizer.json", tokenizer),
            ("tokenizer_config.json", config),
        ],
    )
}

/// An added token with the flags in `on`.
fn token(content: &str, on: &[&str]) -> Value {
    let mut token = json!({"content": content});
    for flag in ["single_word", "lstrip", "rstrip", "normalized", "special"] {
        token[flag] = on.contains(&flag).into();
    }
    token
}

fn typed(content: &str, on: &[&str]) -> Value {
    let mut token = token(content, on);
    token["__type"] = "AddedToken".into();
    token
}

#[test]
fn flags_and_spellings_of_special_tokens() {
    let split = fixture("split_regex");
    let a = fixture("byte_level_a");
    let map = |name: &str, config: &Value, map: &Value, added: &Value| {
        Checkpoint::new(
            name,
            &[
                ("tokenizer.json", &split),
                ("tokenizer_config.json", config),
                ("special_tokens_map.json", map),
                ("added_tokens.json", added),
            ],
        )
    };
    let checkpoints = [
        checkpoint("no config", &split, &NONE),
        checkpoint(
            "flags in added_tokens_decoder",
            &split,
            &json!({"added_tokens_decoder": {
                "7": token("<|im_end|>", &["lstrip", "rstrip", "special"]),
                "6": token("<|im_start|>", &["single_word"]),
                "2": token("<|endoftext|>", &["rstrip", "normalized"]),
                "900": token("<new>", &["lstrip", "special"]),
                "12": token("word", &["single_word", "normalized"]),
                "3": token("<extra_0>", &[]),
                "1000": {"content": "<extra_1>"}
            }, "eos_token": "<new>", "pad_token": "<extra_1>"}),
        ),
        checkpoint(
            "typed tokens",
            &a,
            &json!({"bos_token": typed("<|startoftext|>", &["lstrip"]), "eos_token": typed("<new>", &["rstrip"]),
                "pad_token": typed("word", &["single_word", "normalized"]), "mask_token": typed("<mask>", &["lstrip", "special"]),
                "extra_special_tokens": [typed("<extra_0>", &["rstrip"]), "<extra_1>", "the"]}),
        ),
        checkpoint(
            "named tokens that are nowhere else",
            &split,
            &json!({"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "[MASK]", "cls_token": "[CLS]",
                "sep_token": "[SEP]", "mask_token": "<mask>", "image_token": "<image>", "additional_special_tokens": ["<extra_1>", "Word", ""],
                "add_bos_token": true, "add_eos_token": true, "add_prefix_space": true, "model_max_length": 1e30}),
        ),
        checkpoint(
            "extra_special_tokens as an object",
            &split,
            &json!({"extra_special_tokens": {"a_token": "<extra_1>", "b": "<extra_0>", "eos_token": "<new>"}, "eos_token": "</s>",
                "additional_special_tokens": ["word"], "boi_token": "<image>"}),
        ),
        checkpoint(
            "extra beside additional",
            &split,
            &json!({"extra_special_tokens": ["<extra_0>"], "additional_special_tokens": ["<extra_1>"], "eos_token": null}),
        ),
        checkpoint(
            "split_special_tokens",
            &split,
            &json!({"split_special_tokens": true, "eos_token": "<new>"}),
        ),
        checkpoint(
            "a class that transformers does not know",
            &split,
            &json!({"tokenizer_class": "Lfm2TokenizerFast", "eos_token": "<|im_end|>", "clean_up_tokenization_spaces": true}),
        ),
        checkpoint(
            "byte-level under Llama's name",
            &split,
            &json!({"tokenizer_class": "LlamaTokenizerFast", "eos_token": "<|im_end|>"}),
        ),
        checkpoint(
            "the old slow name",
            &split,
            &json!({"tokenizer_class": "PreTrainedTokenizer"}),
        ),
        checkpoint(
            "the backend's name",
            &split,
            &json!({"tokenizer_class": "TokenizersBackend"}),
        ),
        map(
            "special_tokens_map over config",
            &json!({"eos_token": "<|endoftext|>", "extra_special_tokens": ["<extra_0>"]}),
            &json!({"eos_token": {"content": "<|im_end|>", "lstrip": true, "rstrip": false, "normalized": false, "single_word": false},
                "pad_token": {"content": "<new>", "lstrip": true, "rstrip": true, "normalized": true, "single_word": true},
                "extra_special_tokens": ["<extra_1>", "<extra_0>"], "image_token": "<image>"}),
            &NONE,
        ),
        map(
            "special_tokens_map alone",
            &NONE,
            &json!({"bos_token": "<s>", "eos_token": "</s>", "additional_special_tokens": ["<extra_1>", "word"]}),
            &NONE,
        ),
        map(
            "special_tokens_map beside added_tokens_decoder",
            &json!({"added_tokens_decoder": {"900": token("<new>", &["special"])}, "eos_token": "<|im_end|>"}),
            &json!({"eos_token": "</s>", "pad_token": "<extra_1>"}),
            &json!({"<extra_0>": 901}),
        ),
        map(
            "added_tokens.json",
            &json!({"eos_token": "<new>", "extra_special_tokens": ["<extra_1>"]}),
            &NONE,
            &json!({"<image>": 905, "<new>": 903, "<extra_1>": 904, "word": 2, "cafe\u{301}": 950}),
        ),
        checkpoint(
            "padding with a token of its own, truncation",
            &with(
                "split_regex",
                json!({
                "padding": {"strategy": {"Fixed": 32}, "direction": "Left", "pad_to_multiple_of": null, "pad_id": 4, "pad_type_id": 0, "pad_token": "<extra_0>"},
                "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}}),
            ),
            &json!({"eos_token": "<|im_end|>"}),
        ),
    ];
    compare(
        "flags_and_spellings_of_special_tokens",
        &checkpoints,
        1000,
        700,
        700,
    );
}

/// `normalizer`s and `pre_tokenizer`s, with added tokens that are normalized too.
#[test]
fn normalizers_and_pre_tokenizers() {
    let added = json!([
        {"id": 6, "content": "<|im_start|>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
        {"id": 7, "content": "<|im_end|>", "single_word": false, "lstrip": true, "rstrip": true, "normalized": true, "special": true},
        {"id": 500, "content": "Word", "single_word": true, "lstrip": false, "rstrip": false, "normalized": true, "special": false},
        {"id": 501, "content": "caf\u{e9}s", "single_word": false, "lstrip": false, "rstrip": false, "normalized": true, "special": false}]);
    let replace = |pattern: Value, content: &str| json!({"type": "Replace", "pattern": pattern, "content": content});
    let regex = |pattern: &str| json!({"Regex": pattern});
    let sequence = |parts: Vec<Value>| json!({"type": "Sequence", "normalizers": parts});
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let split = |pattern: Value, behavior: &str, invert: bool| json!({"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert});
    let words = |parts: Vec<Value>| {
        let all: Vec<Value> = parts.into_iter().chain([bytes.clone()]).collect();
        json!({"type": "Sequence", "pretokenizers": all})
    };
    let normalizers = [
        sequence(vec![
            json!({"type": "NFD"}),
            json!({"type": "StripAccents"}),
            json!({"type": "Lowercase"}),
        ]),
        sequence(vec![
            sequence(vec![json!({"type": "NFKC"})]),
            replace(regex(r"\s+"), " "),
            json!({"type": "Strip", "strip_left": true, "strip_right": true}),
        ]),
        replace(json!({"String": "."}), "<.>"),
        sequence(vec![
            replace(regex(r"[[:alpha:]]"), "é"),
            replace(regex(r"\w"), "w"),
        ]),
        sequence(vec![
            replace(regex(r"(?i)straße|ſ|k"), "K"),
            replace(regex(r"\R"), "↵"),
            replace(regex(r"\h"), "h"),
        ]),
        sequence(vec![
            replace(regex(r"\X"), "x"),
            replace(regex(r"\d{1,3}"), "#"),
        ]),
        replace(regex(r"(?<!a)a(?!a)|\p{Han}+?|[^\p{L}\p{N}\s]"), ""),
        sequence(vec![
            json!({"type": "Prepend", "prepend": "▁"}),
            json!({"type": "Nmt"}),
            json!({"type": "NFC"}),
        ]),
        json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true}),
    ];
    let pre_tokenizers = [
        words(vec![split(regex(r"\p{N}"), "Isolated", false)]),
        words(vec![
            split(regex(r"\s+"), "MergedWithNext", false),
            json!({"type": "Digits", "individual_digits": true}),
        ]),
        words(vec![
            split(regex(r"\w+"), "MergedWithPrevious", true),
            json!({"type": "Punctuation", "behavior": "Contiguous"}),
        ]),
        words(vec![split(
            regex(r"[[:upper:]]\S*|[[:punct:]]"),
            "Contiguous",
            false,
        )]),
        words(vec![
            split(regex(r"\s|\b"), "Removed", false),
            json!({"type": "UnicodeScripts"}),
        ]),
        words(vec![
            split(json!({"String": " "}), "Removed", false),
            words(vec![]),
        ]),
        words(vec![split(json!({"String": "the"}), "Isolated", true)]),
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        words(vec![json!({"type": "Whitespace"})]),
        words(vec![json!({"type": "BertPreTokenizer"})]),
        words(vec![json!({"type": "Delimiter", "delimiter": "e"})]),
    ];
    let mut checkpoints = Vec::new();
    for normalizer in normalizers {
        let name = format!("normalizer {normalizer}");
        let json = with(
            "split_regex",
            json!({"normalizer": normalizer, "added_tokens": added}),
        );
        checkpoints.push(checkpoint(&name, &json, &NONE));
    }
    for pre_tokenizer in pre_tokenizers {
        let name = format!("pre_tokenizer {pre_tokenizer}");
        let json = with(
            "byte_level_a",
            json!({"pre_tokenizer": pre_tokenizer, "added_tokens": added}),
        );
        checkpoints.push(checkpoint(&name, &json, &NONE));
    }
    // CharDelimiterSplit is spelled Delimiter only in an enumeration of the library: both sides refuse it.
    let refused = checkpoints.pop().unwrap();
    assert!(refused.load().is_err());
    compare("normalizers_and_pre_tokenizers", &checkpoints, 250, 700, 0);
}

#[test]
fn models_and_post_processors() {
    let special = |id: &str| json!({"SpecialToken": {"id": id, "type_id": 0}});
    let text = || json!({"Sequence": {"id": "A", "type_id": 0}});
    let pair = || json!({"Sequence": {"id": "B", "type_id": 1}});
    let names = |all: &[(&str, u32)]| -> Value {
        all.iter()
            .map(|&(name, id)| {
                (
                    name.to_owned(),
                    json!({"id": name, "ids": [id], "tokens": [name]}),
                )
            })
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let template = |single: Vec<Value>, tokens: Value| {
        let both: Vec<Value> = single.iter().cloned().chain([pair()]).collect();
        json!({"type": "TemplateProcessing", "single": single, "pair": both, "special_tokens": tokens})
    };
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
    let vocab: serde_json::Map<String, Value> = [
        "[UNK]", "[CLS]", "[SEP]", "the", "quick", "brown", "##s", "##ick", "qu", "a", "b", "##b",
        "1", "##2", "!", ".",
    ]
    .iter()
    .enumerate()
    .map(|(id, &token)| (token.to_owned(), id.into()))
    .collect();
    let pieces: Vec<Value> = [
        "<unk>", "▁", "▁the", "t", "h", "e", "q", "u", "i", "c", "k", "▁qu", "ick", "a", "b", "o",
        "n", "é", ".", "<0xE5>",
    ]
    .iter()
    .enumerate()
    .map(|(i, &piece)| json!([piece, -(i as f64) / 3.0]))
    .collect();
    let mut merged = fixture("byte_level_a")["model"].clone();
    merged["ignore_merges"] = true.into();
    let mut unknown = fixture("byte_level_a")["model"].clone();
    unknown["unk_token"] = "<|pad|>".into();
    unknown["fuse_unk"] = true.into();
    let whitespace = json!({"type": "Whitespace"});
    let metaspace = |scheme: &str| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true});
    let cases: Vec<(&str, &str, Value)> = vec![
        (
            "bos and eos",
            "split_regex",
            json!({"post_processor": template(vec![special("<|startoftext|>"), text(), special("<|im_end|>")], names(&[("<|startoftext|>", 1), ("<|im_end|>", 7)]))}),
        ),
        (
            "Roberta",
            "split_regex",
            json!({"post_processor": {"type": "RobertaProcessing", "sep": ["<|im_end|>", 7], "cls": ["<|startoftext|>", 1], "trim_offsets": true, "add_prefix_space": false}}),
        ),
        (
            "Bert",
            "byte_level_a",
            json!({"post_processor": {"type": "BertProcessing", "sep": ["<|im_end|>", 7], "cls": ["<|startoftext|>", 1]}}),
        ),
        (
            "a sequence",
            "byte_level_b",
            json!({"post_processor": {"type": "Sequence", "processors": [bytes, template(vec![special("<|startoftext|>"), text()], names(&[("<|startoftext|>", 1)]))]}}),
        ),
        (
            "no post-processor",
            "byte_level_b",
            json!({"post_processor": null}),
        ),
        ("ignore_merges", "byte_level_a", json!({"model": merged})),
        (
            "unknown fused",
            "byte_level_a",
            json!({"model": unknown, "pre_tokenizer": null}),
        ),
        ("byte fallback", "byte_fallback", json!({})),
        (
            "WordLevel",
            "byte_level_a",
            json!({"model": {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"}, "pre_tokenizer": whitespace, "added_tokens": [], "post_processor": null, "decoder": null}),
        ),
        (
            "WordPiece",
            "byte_level_a",
            json!({"model": {"type": "WordPiece", "vocab": vocab, "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}, "pre_tokenizer": whitespace, "added_tokens": [], "post_processor": null, "decoder": null}),
        ),
        (
            "Unigram",
            "byte_level_a",
            json!({"model": {"type": "Unigram", "vocab": pieces, "unk_id": 0, "byte_fallback": false}, "pre_tokenizer": metaspace("always"), "added_tokens": [], "post_processor": null, "decoder": metaspace("always")}),
        ),
        (
            "Unigram, first",
            "byte_level_a",
            json!({"model": {"type": "Unigram", "vocab": pieces, "unk_id": 0, "byte_fallback": false}, "pre_tokenizer": metaspace("first"), "added_tokens": [{"id": 99, "content": "<new>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": false}], "post_processor": null, "decoder": metaspace("first")}),
        ),
    ];
    let checkpoints: Vec<Checkpoint> = cases
        .into_iter()
        .map(|(name, base, changes)| checkpoint(name, &with(base, changes), &NONE))
        .collect();
    compare("models_and_post_processors", &checkpoints, 250, 700, 300);
}
