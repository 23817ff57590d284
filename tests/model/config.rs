//! config.json: both spellings, defaults, and what may be anything.

use crate::common::checkpoint::{assert_says, config_with, small_config};
use crate::common::fixtures::fixture;
use crate::config_refused::error;
use serde_json::{Value, json};
use std::path::Path;
use tailgraph::model::{LayerType, ModelConfig, ModelSource};

fn parse(config: &Value) -> ModelConfig {
    ModelConfig::from_json(config.to_string().as_bytes(), Path::new("config.json")).unwrap()
}

#[test]
fn both_goldens_parse() {
    let config = |name: &str| {
        let dir = fixture(&format!("goldens/lfm2moe-tiny-{name}"));
        ModelSource::Dir(dir).config().unwrap().0
    };
    let a = config("a");
    assert_eq!((a.vocab_size, a.hidden_size, a.head_dim), (512, 256, 64));
    assert_eq!(a.rope_theta, 1e6);
    assert_eq!(a.num_dense_layers, 2);
    assert_eq!(a.norm_eps, 1e-5);
    assert!(a.tie_word_embeddings && a.use_expert_bias && a.norm_topk_prob);
    assert!(!a.is_moe(1) && a.is_moe(2));
    let attention: Vec<usize> = (0..a.num_hidden_layers)
        .filter(|&i| a.layer_types[i] == LayerType::FullAttention)
        .collect();
    assert_eq!(attention, [2, 4]);
    let b = config("b");
    assert_eq!(b.rope_theta, 5e6);
    assert_eq!((b.num_experts, b.num_experts_per_tok), (32, 4));
    assert!(b.tie_word_embeddings);
    assert_eq!(
        (b.bos_token_id, b.eos_token_ids, b.pad_token_id),
        (Some(1), vec![7], Some(0))
    );
}

#[test]
fn the_tiny_preset_has_the_shape_of_golden_a() {
    let golden = ModelSource::Dir(fixture("goldens/lfm2moe-tiny-a"));
    let tiny = ModelSource::parse("random:tiny").unwrap();
    assert_eq!(tiny.config().unwrap().0, golden.config().unwrap().0);
}

#[test]
fn full_size_presets_have_the_published_sizes() {
    for (name, millions, layers, attention, vocabulary, theta) in [
        ("lfm2-8b-a1b", 8340.0, 24, 6, 65_536, 1e6),
        ("lfm2.5-8b-a1b", 8468.0, 24, 6, 128_000, 5e6),
        ("lfm2-24b-a2b", 23_844.0, 40, 10, 65_536, 1e6),
        ("lfm2.5-24b-a2b", 23_972.0, 40, 10, 128_000, 5e6),
    ] {
        let source = ModelSource::parse(&format!("random:{name}@5")).unwrap();
        let config = source.config().unwrap().0;
        let specs = tailgraph::model::tensors::published(&config);
        let parameters: usize = specs.iter().map(|spec| spec.elements()).sum();
        assert_eq!((parameters as f64 / 1e6).round(), millions, "{name}");
        let of = |kind| config.layer_types.iter().filter(|&&is| is == kind).count();
        assert_eq!(of(LayerType::FullAttention), attention, "{name}");
        assert_eq!(config.layer_types.len(), layers, "{name}");
        assert_eq!(config.vocab_size, vocabulary, "{name}");
        assert_eq!(config.rope_theta, theta, "{name}");
        assert_eq!(config.head_dim, 64, "{name}");
    }
}

#[test]
fn defaults_fill_what_may_be_left_out() {
    let mut config = small_config();
    config.as_object_mut().unwrap().remove("eos_token_id");
    config["head_dim"] = Value::Null;
    let config = parse(&config);
    assert_eq!(config.head_dim, 4);
    assert_eq!(config.conv_l_cache, 3);
    assert!(!config.conv_bias);
    assert!(config.use_expert_bias && config.norm_topk_prob && config.tie_word_embeddings);
    assert_eq!(config.routed_scaling_factor, 1.0);
    assert_eq!(config.norm_eps, 1e-5);
    assert_eq!(config.max_position_embeddings, 128_000);
    assert_eq!(config.rope_theta, 1e6);
    assert!(config.eos_token_ids.is_empty());
}

#[test]
fn both_spellings_are_read() {
    let theta = |changes| parse(&config_with(changes)).rope_theta;
    assert_eq!(theta(json!({"rope_theta": 2e6})), 2e6);
    assert_eq!(theta(json!({"rope_parameters": {"rope_theta": 3e6}})), 3e6);
    assert_eq!(
        theta(json!({"rope_theta": 2e6, "rope_parameters": {"rope_type": "default"}})),
        2e6
    );
    assert_eq!(
        theta(
            json!({"rope_theta": 2e6, "rope_parameters": {"rope_theta": 3e6}, "rope_scaling": null})
        ),
        3e6
    );
    let tied = |changes| parse(&config_with(changes)).tie_word_embeddings;
    assert!(!tied(json!({"tie_word_embeddings": false})));
    assert!(!tied(json!({"tie_embedding": false})));
    assert!(!tied(
        json!({"tie_embedding": false, "tie_word_embeddings": true})
    ));
    assert!(tied(
        json!({"tie_embedding": true, "tie_word_embeddings": false})
    ));
    let layers = |changes| parse(&config_with(changes)).layer_types;
    let named = layers(json!({}));
    assert_eq!(
        layers(json!({"layer_types": null, "full_attn_idxs": [1, 3]})),
        named
    );
    assert_eq!(layers(json!({"full_attn_idxs": [3, 1]})), named);
    let eos = |changes| parse(&config_with(changes)).eos_token_ids;
    assert_eq!(eos(json!({"eos_token_id": [7, 2]})), [7, 2]);
    assert_eq!(eos(json!({"eos_token_id": null})), [0; 0]);
}

#[test]
fn written_configurations_read_back_equal() {
    for changes in [
        json!({}),
        json!({"eos_token_id": [7, 2], "bos_token_id": null, "tie_embedding": false}),
        json!({"use_expert_bias": false, "norm_topk_prob": false, "routed_scaling_factor": 2.5,
            "conv_bias": true, "conv_L_cache": 4, "norm_eps": 1.1e-6, "rope_theta": 12345.678}),
    ] {
        let config = parse(&config_with(changes));
        assert_eq!(parse(&config.to_json()), config);
    }
    assert_eq!(parse(&small_config()).to_json()["norm_eps"], json!(1e-5));
}

/// What transformers makes of these tests/transformers_config.rs asks it.
#[test]
fn rope_scaling_that_says_nothing_is_none() {
    let theta = |changes| parse(&config_with(changes)).rope_theta;
    for (name, none) in [
        ("rope_scaling", json!(null)),
        ("rope_scaling", json!({})),
        ("rope_scaling", json!({"rope_type": "default"})),
        ("rope_scaling", json!({"type": "default"})),
        ("rope_parameters", json!({})),
        ("rope_parameters", json!({"type": "default"})),
        (
            "rope_parameters",
            json!({"rope_type": "default", "type": "linear"}),
        ),
    ] {
        assert_eq!(theta(json!({name: none})), 1e6, "{name} {none}");
        assert_eq!(
            theta(json!({name: none, "rope_theta": 2e6})),
            2e6,
            "{name} {none}"
        );
    }
    // What stands in rope_scaling stands for rope_parameters as a whole, unless it is empty.
    let both = |scaling| json!({"rope_scaling": scaling, "rope_parameters": {"rope_theta": 3e6}});
    assert_eq!(theta(both(json!({"rope_type": "default"}))), 1e6);
    assert_eq!(
        theta(both(json!({"rope_type": "default", "rope_theta": 4e6}))),
        4e6
    );
    assert_eq!(theta(both(json!({}))), 3e6);
}

#[test]
fn what_nobody_reads_may_be_anything_and_integers_may_have_a_point() {
    let text = small_config().to_string();
    let plain = parse(&small_config());
    for (from, to) in [
        ("{", "{\"unread\": [Infinity, -Infinity, NaN, 1e400],"),
        ("{", "\u{feff}{"),
        ("\"hidden_size\":16", "\"hidden_size\":16.0"),
        ("\"num_experts\":5", "\"num_local_experts\":5"),
        (
            "\"num_experts\":5",
            "\"num_experts\":5e0,\"num_local_experts\":5",
        ),
        ("\"eos_token_id\":7", "\"eos_token_id\":[7.0,-1]"),
        (
            "{",
            "{\"quantization_config\":null,\"compression_config\":{},",
        ),
    ] {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text);
        let config = ModelConfig::from_json(changed.as_bytes(), Path::new("c")).unwrap();
        assert_eq!(config, plain, "{to}");
    }
    for (from, none) in [("0", "-1"), ("0", "99999999999"), ("0", "null")] {
        let from = format!("\"pad_token_id\":{from}");
        let changed = text.replacen(&from, &format!("\"pad_token_id\":{none}"), 1);
        let config = ModelConfig::from_json(changed.as_bytes(), Path::new("c")).unwrap();
        assert_eq!(config.pad_token_id, None, "{none}");
    }
    // Where it is read it is named.
    for (found, name) in [
        ("NaN", "norm_eps"),
        ("Infinity", "rope_theta"),
        ("1e400", "vocab_size"),
    ] {
        let changed = text.replace("\"vocab_size\":40", "\"vocab_size\":4e1");
        let changed = changed.replacen('}', &format!(",\"{name}\":{found}}}"), 1);
        assert_says(
            &error(&changed),
            &[name, &format!("found {found}, expected")],
        );
    }
}
