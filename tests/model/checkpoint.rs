//! Checkpoints on disk: every accepted form gives the same weights.

use crate::common::checkpoint::*;
use crate::common::fixtures::fixture;
use safetensors::tensor::Dtype;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tailgraph::model::{DType, Model, ModelSource, Weights};

pub fn load(dir: &Path) -> Model {
    Model::load(&ModelSource::parse(dir.to_str().unwrap()).unwrap()).unwrap()
}

#[test]
fn both_goldens_load() {
    for (name, tensors) in [("a", 117), ("b", 325)] {
        let dir = fixture(&format!("goldens/lfm2moe-tiny-{name}"));
        let model = load(&dir);
        assert_eq!(model.warnings, [""; 0]);
        let named = by_name(&model.weights);
        let raw = read_tensors(&dir);
        assert_eq!(named.len(), tensors);
        for (name, tensor) in named {
            assert!(tensor.bytes() == raw[&name].2, "{name}");
            assert_eq!(tensor.shape, raw[&name].1, "{name}");
        }
        let weights = &model.weights;
        assert_eq!(weights.lm_head.name, weights.embed_tokens.name);
    }
}

/// A single-file checkpoint whose tensors `change` has changed.
pub fn changed(
    dir: &Path,
    config: &Value,
    change: impl FnOnce(&mut BTreeMap<String, Raw>),
) -> PathBuf {
    let model = single_file_checkpoint(dir, config, 5);
    let mut tensors = read_tensors(&model);
    change(&mut tensors);
    write_tensors(&model.join("model.safetensors"), &tensors);
    model
}

/// What a checkpoint of these changes must equal.
fn original(dir: &Path, config: &Value) -> Weights {
    Model::load(&random_source(dir, config, 5)).unwrap().weights
}

/// Newer exports keep all experts of a layer in two tensors.
pub fn fuse(tensors: &mut BTreeMap<String, Raw>) {
    for layer in 1..4 {
        let prefix = format!("model.layers.{layer}.feed_forward.experts.");
        let (mut gate_up, mut down) = (Vec::new(), Vec::new());
        for expert in 0..5 {
            let mut take = |part: &str| {
                let name = format!("{prefix}{expert}.{part}.weight");
                tensors.remove(&name).unwrap().2
            };
            gate_up.extend(take("w1"));
            gate_up.extend(take("w3"));
            down.extend(take("w2"));
        }
        tensors.insert(
            format!("{prefix}gate_up_proj"),
            (Dtype::BF16, vec![5, 16, 16], gate_up),
        );
        tensors.insert(
            format!("{prefix}down_proj"),
            (Dtype::BF16, vec![5, 16, 8], down),
        );
    }
}

#[test]
fn fused_experts_are_the_separate_ones() {
    let dir = tempfile::tempdir().unwrap();
    let config = small_config();
    let model = load(&changed(dir.path(), &config, fuse));
    assert_same_weights(&model.weights, &original(dir.path(), &config));
    assert_eq!(model.warnings, [""; 0]);
}

#[test]
fn experts_both_fused_and_separate_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let model = changed(dir.path(), &small_config(), |tensors| {
        let all = tensors.clone();
        fuse(tensors);
        tensors.extend(all);
    });
    assert_says(
        &load_error(&model),
        &[
            "model.safetensors",
            "experts.0.w1.weight",
            "gate_up_proj",
            "either separate or fused",
        ],
    );
}

#[test]
fn options_decide_which_tensors_there_are() {
    for changes in [
        json!({"conv_bias": true, "tie_embedding": false}),
        json!({"use_expert_bias": false, "num_dense_layers": 0, "conv_L_cache": 5}),
        json!({"num_dense_layers": 4}),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let config = config_with(changes);
        let model = load(&checkpoint(dir.path(), &config, 5));
        assert_same_weights(&model.weights, &original(dir.path(), &config));
    }
}

#[test]
fn a_tied_checkpoint_with_a_head_is_tied_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let model = load(&changed(dir.path(), &small_config(), |tensors| {
        let head = (Dtype::BF16, vec![40, 16], vec![1; 40 * 16 * 2]);
        tensors.insert("lm_head.weight".into(), head);
    }));
    let weights = &model.weights;
    assert_eq!(weights.lm_head.bytes(), weights.embed_tokens.bytes());
    assert_eq!(model.warnings, [""; 0]);
}

#[test]
fn every_float_type_is_taken_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let norm = "model.layers.1.ffn_norm.weight";
    let bias = "model.layers.1.feed_forward.expert_bias";
    let model = load(&changed(dir.path(), &small_config(), |tensors| {
        tensors.insert(
            norm.into(),
            (Dtype::F32, vec![16], 1.5f32.to_le_bytes().repeat(16)),
        );
        let half = half::f16::from_f32(-0.25).to_le_bytes();
        tensors.insert(bias.into(), (Dtype::F16, vec![5], half.repeat(5)));
    }));
    let tensors = by_name(&model.weights);
    assert_eq!(tensors[norm].dtype, DType::F32);
    assert_eq!(tensors[norm].to_f32(), [1.5; 16]);
    assert_eq!(tensors[bias].dtype, DType::F16);
    assert_eq!(tensors[bias].to_f32(), [-0.25; 5]);
}

#[test]
fn tensors_of_another_model_are_ignored_with_one_warning() {
    let dir = tempfile::tempdir().unwrap();
    let model = load(&changed(dir.path(), &small_config(), |tensors| {
        for name in ["vision.a", "vision.b", "vision.c", "vision.\nd"] {
            tensors.insert(name.into(), (Dtype::I64, vec![1], vec![0; 8]));
        }
    }));
    let [warning] = &model.warnings[..] else {
        panic!("{:?}", model.warnings)
    };
    assert_says(warning, &["ignored 4 tensors", "\"vision.a\"", ", ..."]);
    assert!(!warning.contains('\n'));
}

/// Of a tensor in two shards transformers keeps the last it reads, and it reads them by name.
#[test]
fn the_last_of_two_tensors_of_a_name_counts() {
    let dir = tempfile::tempdir().unwrap();
    let model = single_file_checkpoint(dir.path(), &small_config(), 5);
    std::fs::create_dir(dir.path().join("other")).unwrap();
    let other = single_file_checkpoint(&dir.path().join("other"), &small_config(), 6);
    let wanted = load(&other).weights;
    std::fs::rename(model.join("model.safetensors"), model.join("a.safetensors")).unwrap();
    std::fs::rename(other.join("model.safetensors"), model.join("b.safetensors")).unwrap();
    let index = json!({"weight_map": {"x": "b.safetensors", "y": "a.safetensors"}});
    let path = model.join("model.safetensors.index.json");
    std::fs::write(path, index.to_string()).unwrap();
    assert_same_weights(&load(&model).weights, &wanted);
}
