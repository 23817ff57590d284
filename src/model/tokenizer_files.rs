//! tokenizer.json and tokenizer_config.json that describe the byte tokenizer of random presets in the terms of
//! the tokenizers library: a byte-level BPE without merges.

use serde_json::{Map, Value, json};

/// LFM2's special tokens, ids 0 to 7.
const SPECIALS: [&str; 8] = [
    "<|pad|>",
    "<|startoftext|>",
    "<|endoftext|>",
    "<|fim_pre|>",
    "<|fim_mid|>",
    "<|fim_suf|>",
    "<|im_start|>",
    "<|im_end|>",
];
const PAD: usize = 0;
const BOS: usize = 1;
const EOS: usize = 7;

const CHAT_TEMPLATE: &str = "{{- bos_token -}}{%- for message in messages -%}{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' -}}{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}";

/// tokenizer.json: special tokens, then byte b as 8 + b, then ids up to the vocabulary's end that print as `<id>`.
pub(super) fn tokenizer_json(vocab_size: usize) -> Value {
    let specials = SPECIALS.iter().map(|token| (*token).to_owned());
    let bytes = (0..=u8::MAX).map(|byte| byte_character(byte).to_string());
    let named = specials.chain(bytes).enumerate();
    let first_other = SPECIALS.len() + 256;
    let others = (first_other..vocab_size).map(|id| (id, format!("<{id}>")));
    let vocab: Map<String, Value> = named
        .chain(others)
        .map(|(id, token)| (token, json!(id)))
        .collect();
    let added: Vec<Value> = SPECIALS
        .iter()
        .enumerate()
        .map(|(id, token)| {
            json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true})
        })
        .collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let bos = json!({"SpecialToken": {"id": SPECIALS[BOS], "type_id": 0}});
    let sequence = |id: &str, type_id: u32| json!({"Sequence": {"id": id, "type_id": type_id}});
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": byte_level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [bos, sequence("A", 0)],
            "pair": [bos, sequence("A", 0), sequence("B", 1)],
            "special_tokens": {
                SPECIALS[BOS]: {"id": SPECIALS[BOS], "ids": [BOS], "tokens": [SPECIALS[BOS]]},
            },
        },
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": false,
            "vocab": vocab,
            "merges": [],
        },
    })
}

/// tokenizer_config.json for a model of that many positions.
pub(super) fn tokenizer_config_json(positions: usize) -> Value {
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIALS[BOS],
        "eos_token": SPECIALS[EOS],
        "pad_token": SPECIALS[PAD],
        "model_max_length": positions,
        "chat_template": CHAT_TEMPLATE,
    })
}

/// The character that stands for a byte in byte-level vocabularies: itself where it is printable, else the next
/// unused one from U+0100 (GPT-2's `bytes_to_unicode`).
fn byte_character(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&other| !printable(other)).count();
    char::from_u32(0x100 + before as u32).unwrap_or(char::REPLACEMENT_CHARACTER)
}
