//! Checkpoints on disk: every accepted form gives the same weights.

use crate::common::checkpoint::*;
use crate::common::fixtures::fixture;
use safetensors::tensor::Dtype;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tailgraph::model::op::OpKind;
use tailgraph::model::tensors::model_parameters;
use tailgraph::model::{Model, ModelConfig, ModelSource, Tensor, WeightFormat, Weights};

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
        assert_eq!(head_of(&model).name, embedding_of(&model).name);
    }
}

fn head_of(model: &Model) -> &Tensor {
    &model.weights.of(None, OpKind::LmHead)[0]
}

fn embedding_of(model: &Model) -> &Tensor {
    &model.weights.of(None, OpKind::Embed)[0]
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

/// A tied checkpoint beside whose embedding lies the head that `head` makes of it.
fn with_head(dir: &Path, head: impl FnOnce(Raw) -> Raw) -> PathBuf {
    changed(dir, &small_config(), |tensors| {
        let head = head(tensors["model.embed_tokens.weight"].clone());
        tensors.insert("lm_head.weight".into(), head);
    })
}

fn widened((_, shape, bytes): Raw) -> Raw {
    let widen = |pair: &[u8]| half::bf16::from_le_bytes([pair[0], pair[1]]).to_f32();
    let bytes = bytes.chunks(2).flat_map(|pair| widen(pair).to_le_bytes());
    (Dtype::F32, shape, bytes.collect())
}

#[test]
fn a_head_equal_to_the_embedding_is_tied() {
    for head in [|head| head, widened] {
        let dir = tempfile::tempdir().unwrap();
        let model = load(&with_head(dir.path(), head));
        assert_eq!(head_of(&model).name, embedding_of(&model).name);
        assert!(model.config.tie_word_embeddings);
        assert_eq!(model.warnings, [""; 0]);
    }
}

#[test]
fn a_head_with_other_values_is_the_models_own_and_counts() {
    let changed_last = |(dtype, shape, mut bytes): Raw| {
        *bytes.last_mut().unwrap() ^= 1;
        (dtype, shape, bytes)
    };
    let tied = small_config().to_string();
    let tied = ModelConfig::from_json(tied.as_bytes(), Path::new("config.json")).unwrap();
    for (head, dtype) in [
        (&changed_last as &dyn Fn(Raw) -> Raw, WeightFormat::BF16),
        (&|head| changed_last(widened(head)), WeightFormat::F32),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let model = load(&with_head(dir.path(), head));
        assert_eq!(
            (&*head_of(&model).name, head_of(&model).format),
            ("lm_head.weight", dtype)
        );
        let more = model_parameters(&model.config) - model_parameters(&tied);
        assert_eq!(more, 40.0 * 16.0);
        assert_eq!(model.warnings, [""; 0]);
    }
}

#[test]
fn a_head_of_another_shape_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = with_head(dir.path(), |(dtype, _, bytes)| (dtype, vec![20, 32], bytes));
    assert_says(
        &load_error(&path),
        &[
            "model.safetensors",
            "lm_head.weight",
            "found shape [20, 32], expected [40, 16]",
        ],
    );
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
    assert_eq!(tensors[norm].format, WeightFormat::F32);
    assert_eq!(tensors[norm].to_f32(), [1.5; 16]);
    assert_eq!(tensors[bias].format, WeightFormat::F16);
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

/// Where two shards have a tensor, transformers keeps the last it reads, and it reads them by name.
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
