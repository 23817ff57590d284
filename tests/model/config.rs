//! config.json and generation_config.json: both spellings, defaults, and what is refused.

use crate::common::checkpoint::{assert_says, config_with, small_config};
use crate::common::fixtures::fixture;
use serde_json::{Value, json};
use std::path::Path;
use tailgraph::model::{GenerationConfig, LayerType, ModelConfig, ModelSource};

fn parse(config: &Value) -> ModelConfig {
    ModelConfig::from_json(config.to_string().as_bytes(), Path::new("config.json")).unwrap()
}

fn error(text: &str) -> String {
    let message = ModelConfig::from_json(text.as_bytes(), Path::new("dir/config.json"))
        .expect_err("expected an error")
        .to_string();
    assert!(message.starts_with("dir/config.json: "), "{message}");
    assert!(!message.contains('\n'), "{message}");
    message
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
    ] {
        let source = ModelSource::parse(&format!("random:{name}@5")).unwrap();
        let config = source.config().unwrap().0;
        let specs = tailgraph::model::layout::published(&config);
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

#[test]
fn wrong_fields_are_named_with_what_was_found_and_expected() {
    let absurd = u64::MAX;
    let cases: [(Value, &[&str]); 43] = [
        (
            json!({"model_type": "lfm2"}),
            &["\"model_type\"", "\"lfm2\"", "\"lfm2_moe\""],
        ),
        (json!({"model_type": 3}), &["\"model_type\"", "found 3"]),
        (json!({"model_type": null}), &["\"model_type\"", "missing"]),
        (
            json!({"hidden_size": null}),
            &["\"hidden_size\"", "null", "integer"],
        ),
        (
            json!({"hidden_size": 0}),
            &["\"hidden_size\"", "found 0", "from 1"],
        ),
        (json!({"hidden_size": "16"}), &["\"hidden_size\"", "\"16\""]),
        (json!({"hidden_size": -16}), &["\"hidden_size\"", "-16"]),
        (json!({"hidden_size": 16.5}), &["\"hidden_size\"", "16.5"]),
        (
            json!({"hidden_size": absurd}),
            &["\"hidden_size\"", "18446744073709551615"],
        ),
        (json!({"vocab_size": absurd}), &["\"vocab_size\""]),
        (
            json!({"num_hidden_layers": absurd, "layer_types": null, "full_attn_idxs": []}),
            &["\"num_hidden_layers\""],
        ),
        (
            json!({"num_experts": 4096, "moe_intermediate_size": 1048576, "hidden_size": 1048576}),
            &["\"hidden_size\"", "parameters"],
        ),
        (
            json!({"num_experts_per_tok": 6}),
            &["\"num_experts_per_tok\"", "found 6", "num_experts (5)"],
        ),
        (
            json!({"num_key_value_heads": 3}),
            &[
                "\"num_key_value_heads\"",
                "found 3",
                "num_attention_heads (4)",
            ],
        ),
        (json!({"head_dim": 5}), &["\"head_dim\"", "found 5", "even"]),
        (
            json!({"head_dim": null, "hidden_size": 12}),
            &["\"head_dim\"", "found 3", "12 / num_attention_heads 4"],
        ),
        (
            json!({"head_dim": null, "hidden_size": 18}),
            &["\"num_attention_heads\"", "hidden_size (18)"],
        ),
        (
            json!({"num_dense_layers": 5}),
            &["\"num_dense_layers\"", "found 5", "0 to 4"],
        ),
        (
            json!({"layer_types": ["conv"]}),
            &[
                "\"layer_types\"",
                "found 1 entries",
                "num_hidden_layers (4)",
            ],
        ),
        (
            json!({"layer_types": ["conv", "conv", "mamba", "conv"]}),
            &[
                "\"layer_types\"",
                "\"mamba\" at index 2",
                "\"full_attention\"",
            ],
        ),
        (
            json!({"layer_types": null}),
            &["\"layer_types\"", "missing"],
        ),
        (
            json!({"layer_types": "conv"}),
            &["\"layer_types\"", "a list"],
        ),
        (
            json!({"full_attn_idxs": [1, 2]}),
            &[
                "\"full_attn_idxs\"",
                "layer 2 full_attention",
                "conv as layer_types says",
            ],
        ),
        (
            json!({"full_attn_idxs": [4]}),
            &["\"full_attn_idxs\"", "found 4", "num_hidden_layers (4)"],
        ),
        (
            json!({"rope_parameters": {"rope_type": "yarn", "factor": 4}}),
            &["\"rope_parameters.rope_type\"", "\"yarn\"", "\"default\""],
        ),
        (
            json!({"rope_parameters": {"partial_rotary_factor": 0.5}}),
            &["\"rope_parameters.partial_rotary_factor\"", "0.5"],
        ),
        (
            json!({"rope_parameters": [1]}),
            &["\"rope_parameters\"", "an object"],
        ),
        (
            json!({"rope_scaling": {"type": "linear"}}),
            &["\"rope_scaling.type\"", "\"linear\"", "\"default\""],
        ),
        (json!({"rope_theta": 0}), &["\"rope_theta\"", "found 0"]),
        (
            json!({"norm_eps": -1e-5}),
            &["\"norm_eps\"", "found -0.00001"],
        ),
        (json!({"norm_eps": 1e300}), &["\"norm_eps\"", "1e+300"]),
        (
            json!({"use_expert_bias": 1}),
            &["\"use_expert_bias\"", "true or false"],
        ),
        (
            json!({"eos_token_id": [7, 1.5]}),
            &["\"eos_token_id\"", "[7,1.5]"],
        ),
        (
            json!({"pad_token_id": "0"}),
            &["\"pad_token_id\"", "found \"0\""],
        ),
        (
            json!({"rope_scaling": {"rope_type": "yarn", "factor": 4}}),
            &["\"rope_scaling.rope_type\"", "\"yarn\"", "\"default\""],
        ),
        (
            json!({"rope_scaling": {"rope_type": "default"}, "rope_parameters": {"rope_type": "llama3"}}),
            &["\"rope_parameters.rope_type\"", "\"llama3\""],
        ),
        (
            json!({"rope_parameters": {"full_attention": {"rope_theta": 5e6}}}),
            &["\"rope_parameters.full_attention\"", "by type of layer"],
        ),
        (
            json!({"rope_scaling": {"partial_rotary_factor": 0.25}}),
            &["\"rope_scaling.partial_rotary_factor\"", "0.25"],
        ),
        (
            json!({"num_experts": 5, "num_local_experts": 6}),
            &["\"num_local_experts\"", "found 6", "5 like num_experts"],
        ),
        (
            json!({"quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized"}}),
            &[
                "\"quantization_config\"",
                "\"compressed-tensors\"",
                "\"float-quantized\"",
                "bf16",
            ],
        ),
        (
            json!({"quantization_config": {"quant_algo": "NVFP4"}}),
            &["\"quantization_config\"", "quant_algo \"NVFP4\""],
        ),
        (
            json!({"quantization_config": {"weight_block_size": [128, 128]}}),
            &["\"quantization_config\"", "names no quant_method"],
        ),
        (
            json!({"compression_config": {"format": "pack-quantized"}}),
            &["\"compression_config\"", "pack-quantized"],
        ),
    ];
    for (changes, parts) in cases {
        assert_says(&error(&config_with(changes).to_string()), parts);
    }
    for name in ["vocab_size", "num_dense_layers", "moe_intermediate_size"] {
        let mut config = small_config();
        config.as_object_mut().unwrap().remove(name);
        assert_says(
            &error(&config.to_string()),
            &[name, "is missing, expected an integer"],
        );
    }
    assert_says(&error("[1]"), &["found [1]", "object"]);
    assert_says(&error("{\"model_type\": "), &["JSON", "line 1"]);
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

#[test]
fn something_else_than_json_is_named() {
    let utf_16: Vec<u8> = "\u{feff}{}"
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .collect();
    for (bytes, what) in [
        (&b""[..], "an empty file"),
        (b"<!DOCTYPE html>", "an HTML page"),
        (
            b"version https://git-lfs.github.com/spec/v1\n",
            "a git-lfs pointer",
        ),
        (&utf_16, "UTF-16"),
    ] {
        let found = ModelConfig::from_json(bytes, Path::new("config.json"));
        assert_says(
            &found.unwrap_err().to_string(),
            &["config.json: found ", what, "expected a JSON object"],
        );
    }
    let deep = format!("{{\"a\":{}", "[".repeat(200));
    assert_says(&error(&deep), &["recursion limit"]);
    // 30 MB that would be gigabytes.
    let many = format!("{{\"a\":[{}1]}}", "[],".repeat(10_000_000));
    assert_says(&error(&many), &["more than 4194304 values"]);
}

#[test]
fn what_is_no_directory_of_a_model_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let said = |path: &Path| {
        ModelSource::parse(path.to_str().unwrap())
            .unwrap_err()
            .to_string()
    };
    std::fs::write(at("model.gguf"), b"GGUF\x03\0\0\0").unwrap();
    assert_says(&said(&at("model.gguf")), &["a GGUF file"]);
    std::fs::write(at("model.safetensors"), b"\x02\0\0\0\0\0\0\0{}").unwrap();
    let folder = dir.path().display().to_string();
    assert_says(&said(&at("model.safetensors")), &["its folder", &folder]);
    assert_says(
        &said(&at("gone")),
        &["is missing, expected a model's directory"],
    );
    std::os::unix::fs::symlink("/nowhere", at("link")).unwrap();
    assert_says(&said(&at("link")), &["a link to /nowhere"]);

    assert_says(&said(dir.path()), &["found model.gguf, a GGUF file"]);
    std::fs::remove_file(at("model.gguf")).unwrap();
    assert_says(&said(dir.path()), &["found no config.json"]);
    let snapshot = at("models--a--b/snapshots/1f");
    std::fs::create_dir_all(&snapshot).unwrap();
    assert_says(
        &said(dir.path()),
        &["hub's cache", "models--a--b/snapshots/REVISION"],
    );
    assert_says(
        &said(&at("models--a--b")),
        &["none of its snapshots has a config.json"],
    );
    std::fs::write(snapshot.join("config.json"), "{}").unwrap();
    let advised = format!("--model {}", snapshot.display());
    assert_says(&said(&at("models--a--b")), &[&advised]);
    assert!(ModelSource::parse(snapshot.to_str().unwrap()).is_ok());
    std::fs::remove_file(snapshot.join("config.json")).unwrap();
    std::os::unix::fs::symlink("../../blobs/0", snapshot.join("config.json")).unwrap();
    assert_says(
        &said(&snapshot),
        &["its config.json", "a link to ../../blobs/0"],
    );
}

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
