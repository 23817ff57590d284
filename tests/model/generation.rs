//! generation_config.json: spellings, and what wins.

use crate::common::checkpoint::{assert_says, config_with};
use serde_json::{Value, json};
use std::path::Path;
use tailgraph::model::{GenerationConfig, ModelSource};

#[test]
fn generation_config_has_the_spellings_in_use() {
    let read = |text: &str| GenerationConfig::from_json(text.as_bytes(), Path::new("g"));
    let found = read(r#"{"top_k": -1, "top_p": 0, "pad_token_id": -1, "unread": Infinity, "max_new_tokens": 2e1}"#).unwrap();
    assert_eq!((found.top_k, found.top_p), (Some(0), Some(0.0)));
    assert_eq!((found.pad_token_id, found.max_new_tokens), (None, Some(20)));
    for (text, parts) in [
        // transformers refuses it too.
        (
            "{\"max_new_tokens\": 0}",
            ["\"max_new_tokens\"", "found 0, expected an integer from 1"],
        ),
        ("{\"top_k\": -2}", ["\"top_k\"", "found -2"]),
        ("{\"top_p\": 1.5}", ["\"top_p\"", "found 1.5"]),
        (
            "{\"temperature\": Infinity}",
            ["\"temperature\"", "found Infinity"],
        ),
    ] {
        assert_says(&read(text).unwrap_err().to_string(), &parts);
    }
}

#[test]
fn advice_that_is_not_followed_is_named() {
    let warning = |value: Value| {
        GenerationConfig::from_json(value.to_string().as_bytes(), Path::new("g"))
            .unwrap()
            .warning()
    };
    let said = |value| warning(value).unwrap_or_default();
    assert_eq!(
        said(json!({"typical_p": 0.9})),
        "typical_p 0.9 is not supported: answers are made without it"
    );
    let many = json!({
        "num_beams": 4, "suppress_tokens": [3], "begin_suppress_tokens": [1, 2], "bad_words_ids": [[5]], "penalty_alpha": 0.6,
        "length_penalty": 2.0, "top_k": 4, "do_sample": true, "assistant_confidence_threshold": 0.1, "no_such_field": 1,
    });
    let many = said(many);
    for name in [
        "num_beams 4",
        "suppress_tokens ",
        "begin_suppress_tokens ",
        "bad_words_ids ",
        "penalty_alpha 0.6",
    ] {
        assert!(many.contains(name), "{many} lacks {name}");
    }
    assert!(many.ends_with(" are not supported: answers are made without them"));
    for other in [
        "length_penalty",
        "top_k",
        "do_sample",
        "assistant",
        "no_such",
    ] {
        assert!(!many.contains(other), "{many}");
    }
    // What transformers has where the file says nothing, in the spellings in use.
    let silent = json!({
        "max_length": 20, "min_length": 0, "num_beams": 1, "typical_p": 1, "epsilon_cutoff": 0.0, "eta_cutoff": 0,
        "encoder_repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "suppress_tokens": null, "bad_words_ids": null,
        "begin_suppress_tokens": [], "token_healing": false, "num_return_sequences": 1, "guidance_scale": null,
        "transformers_version": "5.24.0", "use_cache": true, "early_stopping": true, "num_beam_groups": 1,
    });
    assert_eq!(warning(silent), None);
}

#[test]
fn generation_config_wins_and_is_optional() {
    let dir = tempfile::tempdir().unwrap();
    let source = ModelSource::Dir(dir.path().to_owned());
    let config = config_with(json!({"eos_token_id": 2, "pad_token_id": 3}));
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let (alone, generation) = source.config().unwrap();
    assert_eq!(generation, GenerationConfig::default());
    assert_eq!(alone.eos_token_ids, [2]);
    let path = dir.path().join("generation_config.json");
    let text = json!({"eos_token_id": [7, 8], "bos_token_id": null, "do_sample": true, "top_k": 50, "min_p": 0.15});
    std::fs::write(&path, text.to_string()).unwrap();
    let (config, generation) = source.config().unwrap();
    assert_eq!(config.eos_token_ids, [7, 8]);
    assert_eq!(
        (config.bos_token_id, config.pad_token_id),
        (Some(1), Some(3))
    );
    assert_eq!((generation.top_k, generation.min_p), (Some(50), Some(0.15)));
    std::fs::write(&path, "{\"temperature\": -1}").unwrap();
    assert_says(
        &source.config().unwrap_err().to_string(),
        &["generation_config.json", "\"temperature\"", "found -1"],
    );
}

#[test]
fn do_sample_decides_the_default_temperature() {
    let temperature = |text: &str| {
        GenerationConfig::from_json(text.as_bytes(), Path::new("g"))
            .unwrap()
            .default_temperature()
    };
    assert_eq!(temperature("{}"), 0.0);
    assert_eq!(temperature("{\"temperature\": 0.3}"), 0.3);
    assert_eq!(
        temperature("{\"do_sample\": false, \"temperature\": 0.3}"),
        0.0
    );
    assert_eq!(
        temperature("{\"do_sample\": true, \"temperature\": 0.3}"),
        0.3
    );
    assert_eq!(temperature("{\"do_sample\": true}"), 1.0);
}
