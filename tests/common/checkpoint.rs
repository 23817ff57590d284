//! A small model, its tensors by name, and safetensors files taken apart and put together again.

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tailgraph::model::{Model, ModelSource, Tensor, Weights, synth};

/// All kinds of layers at sizes that differ from each other.
pub fn small_config() -> Value {
    json!({
        "model_type": "lfm2_moe",
        "vocab_size": 40,
        "hidden_size": 16,
        "num_hidden_layers": 4,
        "intermediate_size": 24,
        "moe_intermediate_size": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 6,
        "num_dense_layers": 1,
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "layer_types": ["conv", "full_attention", "conv", "full_attention"],
        "bos_token_id": 1,
        "eos_token_id": 7,
        "pad_token_id": 0,
    })
}

/// [`small_config`] with some fields replaced.
pub fn config_with(changes: Value) -> Value {
    let mut config = small_config();
    for (name, value) in changes.as_object().unwrap() {
        config[name] = value.clone();
    }
    config
}

/// The random preset of this configuration, its config.json put into `dir`.
pub fn random_source(dir: &Path, config: &Value, seed: u64) -> ModelSource {
    let path = dir.join("preset.json");
    std::fs::write(&path, config.to_string()).unwrap();
    ModelSource::parse(&format!("random:{}@{seed}", path.display())).unwrap()
}

/// Writes the random preset of this configuration to `dir/model` in shards of about 4 KB.
pub fn checkpoint(dir: &Path, config: &Value, seed: u64) -> PathBuf {
    let out = dir.join("model");
    synth::write(&random_source(dir, config, seed), &out, 4096, &mut |_| {}).unwrap();
    out
}

/// The same as a single model.safetensors without an index.
pub fn single_file_checkpoint(dir: &Path, config: &Value, seed: u64) -> PathBuf {
    let out = checkpoint(dir, config, seed);
    let tensors = read_tensors(&out);
    for entry in std::fs::read_dir(&out).unwrap() {
        let path = entry.unwrap().path();
        if path.to_string_lossy().contains(".safetensors") {
            std::fs::remove_file(path).unwrap();
        }
    }
    write_tensors(&out.join("model.safetensors"), &tensors);
    out
}

/// A tensor of a safetensors file: dtype, shape, bytes.
pub type Raw = (Dtype, Vec<usize>, Vec<u8>);

/// All tensors of all safetensors files in `dir`.
pub fn read_tensors(dir: &Path) -> BTreeMap<String, Raw> {
    let mut tensors = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "safetensors") {
            let bytes = std::fs::read(&path).unwrap();
            for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
                let raw = (view.dtype(), view.shape().to_vec(), view.data().to_vec());
                assert!(tensors.insert(name, raw).is_none());
            }
        }
    }
    tensors
}

pub fn write_tensors(path: &Path, tensors: &BTreeMap<String, Raw>) {
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// A safetensors file with this header, whatever it says.
pub fn write_raw(path: &Path, header: &str, data: &[u8]) {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(data);
    std::fs::write(path, bytes).unwrap();
}

/// The message of the error that loading `dir` must end with, always one line.
pub fn load_error(dir: &Path) -> String {
    let message = match ModelSource::parse(dir.to_str().unwrap()).and_then(|s| Model::load(&s)) {
        Ok(_) => panic!("{} loads, expected an error", dir.display()),
        Err(error) => error.to_string(),
    };
    assert!(!message.contains('\n'), "{message}");
    message
}

/// Checks that `message` has each of `parts`.
#[track_caller]
pub fn assert_says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{message:?} lacks {part:?}");
    }
}

/// All tensors of a model by the name they carry; an untied head is one of them, a tied one is not.
pub fn by_name(weights: &Weights) -> BTreeMap<String, &Tensor> {
    let mut named: BTreeMap<String, &Tensor> = BTreeMap::new();
    let mut twice = vec![];
    for tensor in weights.all() {
        if named.insert(tensor.name.to_string(), tensor).is_some() {
            twice.push(&*tensor.name);
        }
    }
    // A tied head is the embedding once more.
    assert!(
        twice.is_empty() || twice == ["model.embed_tokens.weight"],
        "{twice:?}"
    );
    named
}

/// Checks that two models have the same tensors to the bit.
#[track_caller]
pub fn assert_same_weights(a: &Weights, b: &Weights) {
    let (a, b) = (by_name(a), by_name(b));
    assert!(a.keys().eq(b.keys()));
    for (name, tensor) in &a {
        let other = b[name];
        assert_eq!(tensor.format, other.format, "{name}");
        assert_eq!(tensor.shape, other.shape, "{name}");
        assert!(tensor.bytes() == other.bytes(), "{name} differs");
    }
}
