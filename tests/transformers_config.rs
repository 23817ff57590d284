//! Configurations held to what transformers makes of them: rotary embeddings in all spellings, ties, what is refused.

mod common;

use common::checkpoint::config_with;
use common::python::{ask, interpreter};
use serde_json::{Value, json};
use std::path::Path;
use tailgraph::model::{GenerationConfig, ModelConfig};

#[test]
fn configurations_mean_what_they_mean_to_transformers() {
    let Some(python) = interpreter("configurations_mean_what_they_mean_to_transformers") else {
        return;
    };
    let nothing = [
        json!({}),
        json!(null),
        json!({"rope_type": "default"}),
        json!({"type": "default"}),
        json!({"rope_type": "default", "rope_theta": 4e6}),
        json!({"rope_type": "default", "type": "linear"}),
        json!({"rope_theta": 3e6}),
    ];
    let mut configs = vec![
        config_with(json!({"pad_token_id": -1, "eos_token_id": [7, 2]})),
        config_with(json!({"tie_embedding": false, "tie_word_embeddings": true})),
        config_with(json!({"tie_word_embeddings": false})),
    ];
    for scaling in &nothing {
        for parameters in &nothing {
            configs.push(config_with(
                json!({"rope_scaling": scaling, "rope_parameters": parameters}),
            ));
            let top =
                json!({"rope_theta": 2e6, "rope_scaling": scaling, "rope_parameters": parameters});
            configs.push(config_with(top));
        }
    }
    let said = ask(
        &python,
        "config_values.py",
        &json!({"configs": configs, "generation": []}),
    );
    for (config, said) in configs.iter().zip(said["configs"].as_array().unwrap()) {
        let read = ModelConfig::from_json(config.to_string().as_bytes(), Path::new("c")).unwrap();
        assert_eq!(said["rope_type"], "default", "{config}");
        assert_eq!(said["rope_theta"], json!(read.rope_theta), "{config}");
        assert_eq!(said["tied"], read.tie_word_embeddings, "{config}");
        let eos = match read.eos_token_ids.as_slice() {
            [one] => json!(one),
            several => json!(several),
        };
        assert_eq!(said["eos_token_id"], eos, "{config}");
    }
}

#[test]
fn a_limit_of_no_tokens_is_refused_as_transformers_does() {
    let Some(python) = interpreter("a_limit_of_no_tokens_is_refused_as_transformers_does") else {
        return;
    };
    let generation: Vec<Value> = [
        json!({"max_new_tokens": 0}),
        json!({"max_new_tokens": -1}),
        json!({"max_new_tokens": 1}),
        json!({"top_k": -1}),
        json!({"top_k": 0, "do_sample": true, "top_p": 0.0}),
    ]
    .into();
    let said = ask(
        &python,
        "config_values.py",
        &json!({"configs": [], "generation": generation}),
    );
    for (config, said) in generation
        .iter()
        .zip(said["generation"].as_array().unwrap())
    {
        let read = GenerationConfig::from_json(config.to_string().as_bytes(), Path::new("g"));
        assert_eq!(*said, read.is_ok(), "{config}");
    }
}
