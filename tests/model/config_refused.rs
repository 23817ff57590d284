//! Configurations that are refused: what is wrong is named with what was found and expected.

use crate::common::checkpoint::{assert_says, config_with, small_config};
use serde_json::{Value, json};
use std::path::Path;
use tailgraph::model::{ModelConfig, ModelSource};

pub fn error(text: &str) -> String {
    let message = ModelConfig::from_json(text.as_bytes(), Path::new("dir/config.json"))
        .expect_err("expected an error")
        .to_string();
    assert!(message.starts_with("dir/config.json: "), "{message}");
    assert!(!message.contains('\n'), "{message}");
    message
}

#[test]
fn wrong_fields_are_named_with_what_was_found_and_expected() {
    let absurd = u64::MAX;
    let cases: [(Value, &[&str]); 42] = [
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
    let advised = format!("`model` {}", snapshot.display());
    assert_says(&said(&at("models--a--b")), &[&advised]);
    assert!(ModelSource::parse(snapshot.to_str().unwrap()).is_ok());
    std::fs::remove_file(snapshot.join("config.json")).unwrap();
    std::os::unix::fs::symlink("../../blobs/0", snapshot.join("config.json")).unwrap();
    assert_says(
        &said(&snapshot),
        &["its config.json", "a link to ../../blobs/0"],
    );
}
