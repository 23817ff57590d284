//! Tokenizers against the tokenizers library with its own regex engine
//! (tests/fixtures/text/make_tokenizers.py), and ids to text piece by piece against all at once.

mod common;

use common::random::Random;
use common::text::{TOKENIZERS, load, read};
use serde_json::{Value, json};
use tailgraph::text::{TextStream, Tokenizer};

#[test]
fn encodes_and_decodes_as_the_library() {
    let rows: Vec<Value> =
        serde_json::from_str(include_str!("fixtures/text/encodings.json")).unwrap();
    for name in TOKENIZERS {
        let tokenizer = load(read(name)).unwrap();
        let mut checked = 0;
        for row in rows.iter().filter(|row| row["tokenizer"] == name) {
            let text = row["text"].as_str().unwrap();
            let special = tokenizer.encode(text, true).unwrap();
            assert_eq!(json!(special), row["special"], "{name}: {text:?}");
            let plain = tokenizer.encode(text, false).unwrap();
            assert_eq!(json!(plain), row["plain"], "{name}: {text:?}");
            assert_eq!(json!(tokenizer.decode(&special, true)), row["decoded"]);
            assert_eq!(
                json!(tokenizer.decode(&special, false)),
                row["decoded_with_specials"]
            );
            checked += 1;
        }
        assert!(checked >= 20, "{name} has {checked} rows");
    }
}

#[test]
fn random_ids_piece_by_piece_are_the_whole() {
    let mut random = Random::new(1);
    let mut invalid = 0;
    for (name, decoder) in decoders() {
        let mut source: Value = serde_json::from_str(&read(name)).unwrap();
        if let Some(decoder) = decoder {
            source["decoder"] = decoder;
        }
        let source = source.to_string();
        let whole: tokenizers::Tokenizer = source.parse().unwrap();
        let tokenizer = load(&source).unwrap();
        // Some ids past the vocabulary, as a model with a padded one may sample them.
        let ids_end = tokenizer.vocab_size() as u32 + 20;
        for round in 0..400 {
            let skip_special = random.below(2) == 0;
            let ids: Vec<u32> = (0..random.below(60))
                .map(|_| match round % 2 {
                    0 => random.below(ids_end),
                    // Mostly single bytes: characters cut anywhere.
                    _ => 3 + random.below(265),
                })
                .collect();
            let expected = whole.decode(&ids, skip_special).unwrap();
            invalid += usize::from(expected.contains('\u{fffd}'));
            assert_eq!(
                tokenizer.decode(&ids, skip_special),
                expected,
                "{name}: {ids:?}"
            );
        }
    }
    assert!(invalid > 500, "only {invalid} sequences held invalid UTF-8");
}

/// Every fixture as it is, and the decoders that their kind of vocabulary also comes with.
fn decoders() -> Vec<(&'static str, Option<Value>)> {
    let metaspace = |scheme: &str| {
        json!({"type": "Sequence", "decoders": [
            {"type": "ByteFallback"},
            {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false}]})
    };
    let mut all: Vec<_> = TOKENIZERS.map(|name| (name, None)).to_vec();
    all.push(("byte_fallback", Some(metaspace("always"))));
    all.push(("byte_fallback", Some(metaspace("never"))));
    all.push((
        "byte_fallback",
        Some(json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"})),
    ));
    all.push(("byte_fallback", Some(Value::Null)));
    all
}

#[test]
fn text_is_shown_as_soon_as_it_is_certain() {
    for tokenizer in [Tokenizer::bytes(), load(read("byte_level_a")).unwrap()] {
        let text = "한국어 🎈 é x";
        let ids = tokenizer.encode(text, false).unwrap();
        let mut stream = TextStream::new(&tokenizer, &[]);
        let mut shown = String::new();
        for n in 0..ids.len() {
            stream.push(ids[n]);
            shown.push_str(&stream.certain());
            // All but the bytes of a character that is not whole yet.
            let whole = tokenizer.decode(&ids[..=n], true);
            assert_eq!(shown, whole.trim_end_matches('\u{fffd}'));
        }
        assert_eq!(shown, text);
        assert_eq!(stream.finish().text, text);
    }
}

#[test]
fn invalid_bytes_are_replaced_when_they_are_certain_to_be() {
    let byte = |b: u32| 8 + b;
    let mut stream = TextStream::new(&Tokenizer::bytes(), &[]);
    let mut certain = |id: u32| {
        stream.push(id);
        stream.certain()
    };
    assert_eq!(certain(byte(0xed)), "");
    // 0xed 0xa0 would be a surrogate: both are wrong on their own.
    assert_eq!(certain(byte(0xa0)), "\u{fffd}\u{fffd}");
    assert_eq!(certain(byte(0xf0)), "");
    assert_eq!(certain(byte(0x9f)), "");
    assert_eq!(certain(byte(b'a'.into())), "\u{fffd}a");
    assert_eq!(certain(300), "<300>");
    assert_eq!(certain(7), "");
    assert_eq!(certain(byte(0xc3)), "");
    assert!(stream.finish().text.ends_with("<300>\u{fffd}"));
}

#[test]
fn a_long_text_costs_as_much_a_token_as_a_short_one() {
    // Decoding everything again for each of these would take hours.
    let tokenizer = load(read("byte_level_b")).unwrap();
    let mut random = Random::new(2);
    let mut stream = TextStream::new(&tokenizer, &[]);
    let mut bytes = 0;
    for _ in 0..300_000 {
        stream.push(random.below(640));
        bytes += stream.certain().len();
    }
    assert!(bytes > 300_000);
}

#[test]
fn byte_tokenizer_round_trips_any_text() {
    let tokenizer = Tokenizer::bytes();
    let text = "<|im_start|>user\n한🎈 <|im_en <|im_end|>\0";
    let ids = tokenizer.encode(text, true).unwrap();
    assert_eq!(ids[..2], [1, 6]);
    assert_eq!(tokenizer.decode(&ids[1..], false), text);
    assert_eq!(tokenizer.decode(&ids, true), "user\n한🎈 <|im_en \0");
    assert_eq!(tokenizer.vocab_size(), 264);
    assert_eq!(tokenizer.token_id("<|im_end|>"), Some(7));
}

#[test]
fn truncation_and_padding_of_the_file_are_left_out() {
    let mut source: Value = serde_json::from_str(&read("byte_level_a")).unwrap();
    source["truncation"] =
        json!({"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0});
    source["padding"] = json!({"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "<|pad|>"});
    let ids = load(source.to_string())
        .unwrap()
        .encode("0123456789", true)
        .unwrap();
    assert_eq!(
        ids,
        load(read("byte_level_a"))
            .unwrap()
            .encode("0123456789", true)
            .unwrap()
    );
    assert!(ids.len() > 4 && ids.len() < 64);
}

#[test]
fn very_long_runs_of_spaces_are_split_as_short_ones() {
    // The pattern's `\s+(?!\S)` backtracks; the regex engine has limits.
    let tokenizer = load(read("split_regex")).unwrap();
    let text = format!("{}x 12345", " ".repeat(400_000));
    let ids = tokenizer.encode(&text, false).unwrap();
    assert_eq!(tokenizer.decode(&ids, true), text);
    let tail = tokenizer.encode(" x 12345", false).unwrap();
    assert!(
        ids.ends_with(&tail),
        "{:?} does not end with {tail:?}",
        &ids[ids.len() - 12..]
    );
}

#[test]
fn errors_name_the_file_and_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let missing = Tokenizer::load(dir.path()).unwrap_err().to_string();
    assert!(missing.contains("tokenizer.json"), "{missing}");
    let good = read("byte_level_a");
    let cut = &good[..good.len() / 2];
    let mut unsupported: Value = serde_json::from_str(&good).unwrap();
    unsupported["decoder"] =
        json!({"type": "CTC", "pad_token": "", "word_delimiter_token": "|", "cleanup": true});
    let unsupported = unsupported.to_string();
    assert!(load(&unsupported).unwrap_err().contains("decoder CTC"));
    for source in ["", "{}", "[1]", "null", cut, &unsupported] {
        let error = load(source).unwrap_err();
        assert!(error.contains("tokenizer.json: "), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
}
