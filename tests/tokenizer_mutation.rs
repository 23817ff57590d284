//! A tokenizer's files with random changes: a tokenizer that works, an error on one line, or a text's own error; never a
//! panic that gets out, ages or gigabytes.

mod common;

use common::random::Random;
use common::text::{TOKENIZERS, read};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tailgraph::text::{TextStream, Tokenizer};

fn time() -> Duration {
    common::fuzz::time(2.0)
}

/// Values that a field may be given in the place of its own.
fn value(random: &mut Random) -> Value {
    let words = [
        "<new>",
        "<|im_end|>",
        "",
        "Sequence",
        "Replace",
        "ByteLevel",
        "LlamaTokenizer",
        "GPT2Tokenizer",
        "\u{fffd}",
        "true",
        "▁",
    ];
    let patterns = [
        r"(a+)+$",
        r"\s*",
        r"(?i)[[:alpha:]]{2,}|\X",
        "(",
        r"(?<=x)\w",
        r"(?>\s*)(?=z)",
        r"\p{L}+|.",
        "^",
        "",
        r"(?:a?){30}a{30}",
    ];
    match random.below(12) {
        0 => Value::Null,
        1 => json!(random.below(2) == 0),
        2 => json!([-1.0, 0.0, 1.0, 7.0, 1e30, 0.5][random.below(6) as usize]),
        3 => json!([0u64, 1, 7, 500, u64::from(u32::MAX), u64::MAX][random.below(6) as usize]),
        4 | 5 => json!(words[random.below(11) as usize]),
        6 => {
            json!([words[random.below(11) as usize], {"content": words[random.below(11) as usize], "special": random.below(2) == 0}])
        }
        7 => {
            json!({"content": words[random.below(11) as usize], "lstrip": true, "__type": "AddedToken"})
        }
        8 => json!({"Regex": patterns[random.below(10) as usize]}),
        9 => {
            json!({"type": "Replace", "pattern": {"Regex": patterns[random.below(10) as usize]}, "content": "  "})
        }
        10 => {
            json!({"type": "Split", "pattern": {"Regex": patterns[random.below(10) as usize]}, "behavior": "Isolated", "invert": random.below(2) == 0})
        }
        _ => {
            json!({"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "Prepend", "prepend": "x x"}],
            "pretokenizers": [{"type": "Whitespace"}, {"type": "Digits", "individual_digits": true}]})
        }
    }
}

/// Changes something below `json`: a few steps down, then another value, a copy or nothing in its place.
fn change(json: &mut Value, random: &mut Random) {
    let steps = random.below(6);
    let mut at = json;
    for _ in 0..steps {
        // Long maps are vocabularies: hardly ever of interest.
        let length = match at {
            Value::Object(fields) => fields.len().min(40),
            Value::Array(items) => items.len().min(40),
            _ => 0,
        };
        if length == 0 {
            break;
        }
        let nth = random.below(length as u32) as usize;
        at = match at {
            Value::Object(fields) => fields.values_mut().nth(nth).unwrap(),
            Value::Array(items) => &mut items[nth],
            _ => return,
        };
    }
    match (random.below(6), &mut *at) {
        (0, Value::Object(fields)) => {
            let name = fields
                .keys()
                .nth(random.below(fields.len() as u32) as usize)
                .cloned();
            name.map(|name| fields.shift_remove(&name));
        }
        (1, Value::Array(items)) if !items.is_empty() => {
            let copy = items[random.below(items.len() as u32) as usize].clone();
            items.push(copy);
        }
        (2, _) => {
            let inner = at.take();
            *at = json!({"type": "Sequence", "normalizers": [inner.clone(), inner.clone()], "pretokenizers": [inner.clone()],
                "processors": [inner.clone(), inner.clone()], "decoders": [inner]});
        }
        (_, at) => *at = value(random),
    }
}

fn config(random: &mut Random) -> Value {
    let fields = [
        "bos_token",
        "eos_token",
        "pad_token",
        "unk_token",
        "image_token",
        "extra_special_tokens",
        "additional_special_tokens",
        "added_tokens_decoder",
        "split_special_tokens",
        "clean_up_tokenization_spaces",
        "tokenizer_class",
        "fast_tokenizer_files",
        "add_bos_token",
        "model_max_length",
    ];
    let mut config = json!({"eos_token": "<|im_end|>", "added_tokens_decoder": {
        "7": {"content": "<|im_end|>", "lstrip": true, "special": true}, "900": {"content": "<new>", "normalized": true}}});
    if random.below(2) == 0 {
        config
            .as_object_mut()
            .unwrap()
            .shift_remove("added_tokens_decoder");
    }
    for _ in 0..random.below(4) {
        config[fields[random.below(14) as usize]] = value(random);
    }
    if random.below(3) == 0 {
        change(&mut config, random);
    }
    config
}

#[test]
fn mutated_files_load_and_work_or_say_why_not() {
    let sources: Vec<Value> = TOKENIZERS
        .map(|name| serde_json::from_str(&read(name)).unwrap())
        .to_vec();
    let mut random = Random::new(0x51ee);
    let (mut loaded, mut refused, mut failed) = (0, 0, 0);
    let end = Instant::now() + time();
    let mut slowest = Duration::ZERO;
    while Instant::now() < end {
        let mut tokenizer = sources[random.below(4) as usize].clone();
        for _ in 0..random.below(4) {
            change(&mut tokenizer, &mut random);
        }
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, content: String| {
            std::fs::write(folder.path().join(name), content).unwrap()
        };
        write("tokenizer.json", tokenizer.to_string());
        if random.below(4) > 0 {
            write("tokenizer_config.json", config(&mut random).to_string());
        }
        if random.below(3) == 0 {
            write("special_tokens_map.json", config(&mut random).to_string());
        }
        if random.below(4) == 0 {
            let mut added = json!({"<new>": 900, "<other>": 7, "the": 901});
            if random.below(3) == 0 {
                change(&mut added, &mut random);
            }
            write("added_tokens.json", added.to_string());
        }
        let began = Instant::now();
        let result = Tokenizer::load(folder.path());
        slowest = slowest.max(began.elapsed());
        match result {
            Err(error) => {
                refused += 1;
                assert!(!error.to_string().contains('\n'), "{error}");
            }
            Ok(tokenizer) => {
                loaded += 1;
                let long = format!("{}b <new>  x", "a ".repeat(60) + &"a".repeat(60));
                for text in [
                    "",
                    "the 한 é\n 12!",
                    "<|im_start|><s>\u{0} <new> word",
                    &long,
                ] {
                    let began = Instant::now();
                    if let Err(error) = tokenizer.encode(text, true) {
                        failed += 1;
                        assert!(!error.to_string().contains('\n'), "{error}");
                    }
                    slowest = slowest.max(began.elapsed());
                }
                let mut stream =
                    TextStream::new(&tokenizer, &["ab".to_owned(), "<|im_end|>".to_owned()]);
                for _ in 0..20 {
                    let id = random.below(1000);
                    stream.push(id);
                    tokenizer.token_bytes(id);
                }
                let end = stream.finish();
                assert!(end.offsets.len() == end.tokens && end.offsets.is_sorted());
            }
        }
    }
    assert!(slowest < Duration::from_secs(10), "{slowest:?}");
    assert!(
        loaded > 10 && refused > 10,
        "{loaded} loaded, {refused} refused, {failed} texts refused"
    );
    common::memory::assert_peak_below_a_gib();
}
