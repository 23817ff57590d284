//! What a tokenizer's files may not do: other ids than transformers without a word, ages, gigabytes, an abort.

use crate::checkpoint::Checkpoint;
use crate::common::text::read;
use base64::Engine as _;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tailgraph::text::Threads;

const NONE: Value = Value::Null;

fn fixture() -> Value {
    serde_json::from_str(&read("split_regex")).unwrap()
}

fn with(changes: &Value) -> Value {
    let mut json = fixture();
    for (name, value) in changes.as_object().unwrap() {
        json[name] = value.clone();
    }
    json
}

fn load(tokenizer: &Value, config: &Value) -> Result<tailgraph::text::Tokenizer, String> {
    let files = [
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", config),
    ];
    Checkpoint::new("", &files).load()
}

#[test]
fn a_pointer_to_a_file_is_told_from_the_file() {
    const POINTER: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n";
    for (name, expected) in [
        ("tokenizer.json", "expected a tokenizer.json"),
        ("tokenizer_config.json", "expected an object"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("tokenizer.json", &fixture().to_string());
        write(name, POINTER);
        let error = tailgraph::text::Tokenizer::load(dir.path());
        let error = error.unwrap_err().to_string();
        assert!(error.contains("found a git-lfs pointer"), "{error}");
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let mut model = fixture()["model"].clone();
    model["dropout"] = json!(0.1);
    let dropout = json!({"model": model});
    let special = json!({"SpecialToken": {"id": "<|im_end|>", "type_id": 0}});
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let template = |single: Vec<Value>| {
        json!({"post_processor": {"type": "TemplateProcessing", "single": single, "pair": [text, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|im_end|>": {"id": "<|im_end|>", "ids": vec![7; 100], "tokens": vec!["<|im_end|>"; 100]}}}})
    };
    let grows = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "a".repeat(10)});
    let strip = json!({"type": "Strip", "content": "a", "start": 1, "stop": 1});
    let none = json!({});
    for (changes, config, said) in [
        (dropout, &none, "field `model.dropout`: found 0.1"),
        (
            template(vec![text.clone(); 300]),
            &none,
            "field `post_processor`: found what makes a text up to 300 times as long",
        ),
        (
            template(vec![special; 20]),
            &none,
            "field `post_processor`: found what makes a text up to 2000 times as long",
        ),
        (json!({"model": null}), &none, "field `model`: is missing"),
        (
            json!({"version": "2.0"}),
            &none,
            "field `version`: found \"2.0\"",
        ),
        (
            json!({"added_tokens": [{"id": 1, "content": "x".repeat(10_000), "special": true, "lstrip": false, "rstrip": false, "normalized": false, "single_word": false}]}),
            &none,
            "found 10000 bytes",
        ),
        (
            json!({"decoder": {"type": "Replace", "pattern": {"Regex": "a*"}, "content": "b"}}),
            &none,
            "decoder Replace: missing field `String`",
        ),
        (
            json!({"decoder": {"type": "Sequence", "decoders": vec![grows; 6]}}),
            &none,
            "up to 1000000 times as long",
        ),
        (
            json!({"decoder": {"type": "Sequence", "decoders": vec![strip; 17]}}),
            &none,
            "found 17 decoders",
        ),
        (
            json!({"normalizer": {"type": "Replace", "pattern": {"Regex": "(a"}, "content": "b"}}),
            &none,
            "field `normalizer`",
        ),
        (
            json!({"pre_tokenizer": {"type": "Nonsense"}}),
            &none,
            "field `pre_tokenizer`",
        ),
        (
            none.clone(),
            &json!({"tokenizer_class": "GPT2TokenizerFast"}),
            "tokenizer_class",
        ),
        (
            json!({"pre_tokenizer": null, "decoder": null}),
            &json!({"tokenizer_class": "LlamaTokenizer"}),
            "tokenizer_class",
        ),
        (
            none.clone(),
            &json!({"auto_map": {"AutoTokenizer": ["x.py", null]}, "tokenizer_class": "XTokenizer"}),
            "`auto_map`",
        ),
        (
            none.clone(),
            &json!({"fast_tokenizer_files": ["tokenizer.4.0.json"]}),
            "fast_tokenizer_files",
        ),
        (
            none.clone(),
            &json!({"added_tokens_decoder": {"x": {"content": "y"}}}),
            "added_tokens_decoder.x",
        ),
        (
            none.clone(),
            &json!({"added_tokens_decoder": {"5": {"content": "y", "special": 7}}}),
            "`special`: found 7",
        ),
        (
            none.clone(),
            &json!({"added_tokens_decoder": []}),
            "added_tokens_decoder`: found []",
        ),
        (
            none.clone(),
            &json!({"eos_token": 7}),
            "field `eos_token`: found 7",
        ),
        (
            none.clone(),
            &json!({"extra_special_tokens": "x"}),
            "extra_special_tokens",
        ),
        (none.clone(), &json!([]), "found [], expected an object"),
    ] {
        let error = load(&with(&changes), config).expect_err(said);
        assert!(error.contains(said) && !error.contains('\n'), "{error}");
    }
}

#[test]
fn tidying_up_spaces_is_refused_where_transformers_would() {
    let words = with(
        &json!({"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}, "added_tokens": [], "post_processor": null}),
    );
    let tidy = json!({"clean_up_tokenization_spaces": true});
    assert!(
        load(&words, &tidy)
            .unwrap_err()
            .contains("clean_up_tokenization_spaces")
    );
    // A BPE's texts stay as they are, as transformers leaves them.
    load(&fixture(), &tidy).unwrap();
}

/// The library keeps tokens in an order that changes from run to run.
#[test]
fn added_tokens_that_normalization_makes_alike_are_refused() {
    let lower = with(&json!({"normalizer": {"type": "Lowercase"}}));
    let tokens = |normalized: bool| {
        let token = |content: &str| json!({"content": content, "normalized": normalized});
        json!({"added_tokens_decoder": {"900": token("Word"), "901": token("word")}})
    };
    let error = load(&lower, &tokens(true)).unwrap_err();
    assert!(
        error.contains("\"Word\" and \"word\" are the same text"),
        "{error}"
    );
    load(&lower, &tokens(false)).unwrap();
    load(&fixture(), &tokens(true)).unwrap();
}

/// A regex that takes ages is an error of the text it takes them for, and of no other.
#[test]
fn a_regex_that_takes_ages_is_an_error_of_its_text() {
    let regex = |pattern: &str| json!({"Regex": pattern});
    for changes in [
        json!({"pre_tokenizer": {"type": "Split", "pattern": regex("(a+)+[bc]"), "behavior": "Isolated", "invert": false}}),
        json!({"normalizer": {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, {"type": "Replace", "pattern": regex("(?:(?>a*)[bc]|a)*[bc]"), "content": "x"}]}, "pre_tokenizer": null}),
    ] {
        let tokenizer = load(&with(&changes), &NONE).unwrap();
        let other = tokenizer.clone();
        let text = format!("{}dbc", "a".repeat(400_000));
        let encoded = Threads::new(Duration::from_secs(1)).run(move || other.encode(&text, true));
        let error = match encoded {
            Ok(encoded) => encoded.unwrap_err().to_string(),
            Err(late) => late.to_string(),
        };
        let bounded = error.contains("retry-limit") || error.contains("tokenizer.json is not done");
        assert!(bounded && !error.contains('\n'), "{error}");
        tokenizer.encode("the brown fox", true).unwrap();
    }
}

#[test]
fn a_text_does_not_grow_without_bounds() {
    let doubled = json!({"type": "Replace", "pattern": {"String": " "}, "content": "  "});
    let long = "x".repeat(1 << 20);
    // The table has a trie of no bytes and a text of 999.
    let table = [&[0; 4][..], "x".repeat(999).as_bytes(), &[0]].concat();
    let table = base64::engine::general_purpose::STANDARD.encode(table);
    for (normalizer, times) in [
        (
            json!({"type": "Sequence", "normalizers": vec![doubled; 60]}),
            "1152921504606846976",
        ),
        (
            json!({"type": "Replace", "pattern": {"String": " "}, "content": long}),
            "1048576",
        ),
        (
            json!({"type": "Replace", "pattern": {"Regex": ""}, "content": long}),
            "1048577",
        ),
        (json!({"type": "Prepend", "prepend": long}), "1048577"),
        (
            json!({"type": "Sequence", "normalizers": vec![json!({"type": "ByteLevel"}); 10]}),
            "1024",
        ),
        (
            json!({"type": "Precompiled", "precompiled_charsmap": table}),
            "999",
        ),
    ] {
        let error = load(&with(&json!({"normalizer": normalizer})), &NONE).unwrap_err();
        let said = format!("field `normalizer`: found what makes a text up to {times} times");
        assert!(error.contains(&said), "{error}");
    }
}

#[test]
fn parts_in_parts_in_parts_are_no_trouble() {
    for (field, list, inner) in [
        ("normalizer", "normalizers", json!({"type": "NFC"})),
        ("normalizer", "normalizers", json!({"type": "Nonsense"})),
        (
            "pre_tokenizer",
            "pretokenizers",
            json!({"type": "Whitespace"}),
        ),
        (
            "pre_tokenizer",
            "pretokenizers",
            json!({"type": "Nonsense"}),
        ),
        (
            "post_processor",
            "processors",
            json!({"type": "ByteLevel", "trim_offsets": true, "add_prefix_space": true}),
        ),
        ("post_processor", "processors", json!({"type": "Nonsense"})),
        ("decoder", "decoders", json!({"type": "Fuse"})),
        ("decoder", "decoders", json!({"type": "Nonsense"})),
    ] {
        for depth in [1, 20, 50, 500, 100_000] {
            let began = Instant::now();
            let open = format!("{{\"type\": \"Sequence\", \"{list}\": [").repeat(depth);
            let text = format!("{open}{inner}{}", "]}".repeat(depth));
            let file = fixture();
            let mut source = file.to_string();
            source.pop();
            // Later fields win, as in Python.
            source = format!("{source}, \"{field}\": {text}}}");
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("tokenizer.json"), source).unwrap();
            match tailgraph::text::Tokenizer::load(folder.path()) {
                Ok(tokenizer) => {
                    tokenizer.encode("the brown fox", true).unwrap();
                    assert!(depth <= 50, "{depth}");
                }
                Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
            }
            assert!(began.elapsed() < Duration::from_secs(10), "{field} {depth}");
        }
    }
}

/// The work on a text grows as the text does.
#[test]
fn a_long_prompt_takes_as_long_as_its_length() {
    // Flags that look at what is around a token.
    let flags = json!({"added_tokens_decoder": {
        "900": {"content": "<new>", "lstrip": true, "rstrip": true},
        "901": {"content": "word", "single_word": true}}});
    let tokenizer = load(&fixture(), &flags).unwrap();
    for piece in [
        "<new>",
        " <new>  ",
        "word",
        "word word ",
        "the quick brown fox, 12345!\n",
        " ",
        "a",
        "漢",
        "<|im_end|>",
        "\n \n",
    ] {
        let time = |bytes: usize| {
            let text = piece.repeat(bytes / piece.len());
            let began = Instant::now();
            assert!(!tokenizer.encode(&text, true).unwrap().is_empty());
            began.elapsed()
        };
        let short = time(1 << 17).max(Duration::from_millis(20));
        let long = time(1 << 20);
        assert!(long < short * 40, "{piece:?}: {short:?}, {long:?}");
    }
}

/// Each list of tokens that a file may have is a set: its work does not grow with its square.
#[test]
fn lists_of_400_000_special_tokens_are_no_trouble() {
    const COUNT: u32 = 400_000;
    let text = |id: u32| format!("<{id:x}>");
    let list: Value = (0..COUNT).map(text).collect();
    let by_name = |end: &str| -> Value {
        let named = (0..COUNT).map(|id| (format!("{id:x}{end}"), text(id).into()));
        Value::Object(named.collect())
    };
    let by_id: serde_json::Map<_, _> = (0..COUNT).map(|id| (text(id), id.into())).collect();
    let by_id = Value::from(by_id);
    let none = json!({});
    for (config, map, added) in [
        (&json!({"additional_special_tokens": list}), &NONE, &NONE),
        (
            &json!({"extra_special_tokens": list, "added_tokens_decoder": {"9": {"content": "y"}}}),
            &NONE,
            &NONE,
        ),
        (
            &json!({"extra_special_tokens": list}),
            &json!({"extra_special_tokens": list}),
            &by_id,
        ),
        (&json!({"extra_special_tokens": by_name("")}), &NONE, &NONE),
        (&by_name("_token"), &NONE, &NONE),
        (&none, &by_name("_token"), &NONE),
    ] {
        let files = [
            ("tokenizer.json", &fixture()),
            ("tokenizer_config.json", config),
            ("special_tokens_map.json", map),
            ("added_tokens.json", added),
        ];
        let checkpoint = Checkpoint::new("", &files);
        let began = Instant::now();
        let tokenizer = checkpoint.load().unwrap();
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "{:?}",
            began.elapsed()
        );
        let last = tokenizer.token_id(&text(COUNT - 1)).unwrap();
        assert!(tokenizer.is_special(last));
    }
}

/// Read no further than what a template or a file of settings may have, however large the file.
#[test]
fn large_files_are_not_read_whole() {
    let dir = tempfile::tempdir().unwrap();
    let sparse = |name: &str, bytes: u64| {
        let file = std::fs::File::create(dir.path().join(name)).unwrap();
        file.set_len(bytes).unwrap();
    };
    let message = || {
        let template =
            tailgraph::text::ChatTemplate::load(dir.path(), &tailgraph::text::Tokenizer::bytes());
        template.unwrap_err().to_string()
    };
    sparse("tokenizer_config.json", (16 << 20) + 1);
    assert!(
        message().ends_with(
            "tokenizer_config.json: found more than 16777216 bytes, expected at most that"
        )
    );
    // A file that has the template leaves the other one unread.
    sparse("chat_template.jinja", 1 << 40);
    assert!(
        message()
            .ends_with("chat_template.jinja: found more than 1048576 bytes, expected at most that")
    );
}
