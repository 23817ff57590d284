//! Checkpoints on disk: every accepted form gives the same weights, and every defect is named.

use crate::common::checkpoint::*;
use crate::common::fixtures::fixture;
use safetensors::tensor::Dtype;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tailgraph::model::{DType, Model, ModelSource, Weights};

fn load(dir: &Path) -> Model {
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
fn changed(dir: &Path, config: &Value, change: impl FnOnce(&mut BTreeMap<String, Raw>)) -> PathBuf {
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
fn fuse(tensors: &mut BTreeMap<String, Raw>) {
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

#[test]
fn wrong_tensors_are_named() {
    let gate = "model.layers.1.feed_forward.gate.weight";
    let w2 = "model.layers.3.feed_forward.experts.4.w2.weight";
    type Change = fn(&mut BTreeMap<String, Raw>, &str);
    let remove: Change = |tensors, name| {
        tensors.remove(name);
    };
    let cases: [(&str, Change, &[&str]); 5] = [
        (gate, remove, &["is missing", "BF16 of shape [5, 16]"]),
        (
            w2,
            remove,
            &[
                "is missing",
                "[16, 8]",
                "experts.down_proj\" for all experts",
            ],
        ),
        (
            "model.layers.1.feed_forward.expert_bias",
            remove,
            &["is missing", "F32 of shape [5]"],
        ),
        (
            gate,
            |tensors, name| tensors.get_mut(name).unwrap().1 = vec![16, 5],
            &["found shape [16, 5]", "expected [5, 16]"],
        ),
        (
            gate,
            |tensors, name| tensors.get_mut(name).unwrap().0 = Dtype::I16,
            &["found dtype I16", "expected BF16"],
        ),
    ];
    for (name, change, parts) in cases {
        let dir = tempfile::tempdir().unwrap();
        let model = changed(dir.path(), &small_config(), |tensors| change(tensors, name));
        let message = load_error(&model);
        assert_says(&message, &["model.safetensors: tensor", name]);
        assert_says(&message, parts);
    }
    let dir = tempfile::tempdir().unwrap();
    let model = changed(dir.path(), &small_config(), fuse);
    let config = config_with(json!({"num_experts": 6}));
    std::fs::write(model.join("config.json"), config.to_string()).unwrap();
    assert_says(
        &load_error(&model),
        &["found shape [5, 16]", "expected [6, 16]"],
    );
}

/// Writes the index of a sharded checkpoint anew with `change` applied to its weight_map.
fn change_index(model: &Path, change: impl FnOnce(&mut serde_json::Map<String, Value>)) {
    let path = model.join("model.safetensors.index.json");
    let mut index: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(index["weight_map"].as_object_mut().unwrap());
    std::fs::write(path, index.to_string()).unwrap();
}

#[test]
fn wrong_indices_are_named() {
    let norm = "model.embedding_norm.weight";
    type Change = fn(&mut serde_json::Map<String, Value>);
    let cases: [(Change, &[&str]); 6] = [
        (
            |map| {
                map.insert(
                    "model.embedding_norm.weight".into(),
                    json!("gone.safetensors"),
                );
            },
            &[norm, "its shard \"gone.safetensors\" is missing"],
        ),
        (
            |map| {
                map.insert(
                    "model.embedding_norm.weight".into(),
                    json!("../x.safetensors"),
                );
            },
            &[
                norm,
                "found the file \"../x.safetensors\"",
                "beside the index",
            ],
        ),
        (
            |map| {
                map.insert(
                    "model.embedding_norm.weight".into(),
                    json!("/etc/x.safetensors"),
                );
            },
            &[norm, "found the file \"/etc/x.safetensors\""],
        ),
        (
            |map| {
                map.insert(
                    "model.embedding_norm.weight".into(),
                    json!("below/../../x.safetensors"),
                );
            },
            &[norm, "found the file \"below/../../x.safetensors\""],
        ),
        (
            |map| {
                map.insert("model.embedding_norm.weight".into(), json!(7));
            },
            &[norm, "found 7", "name of a file"],
        ),
        (
            |map| map.clear(),
            &["\"model.embed_tokens.weight\"", "is missing"],
        ),
    ];
    for (change, parts) in cases {
        let dir = tempfile::tempdir().unwrap();
        let model = checkpoint(dir.path(), &small_config(), 5);
        change_index(&model, change);
        let message = load_error(&model);
        assert_says(&message, &["model.safetensors.index.json: "]);
        assert_says(&message, parts);
    }
    let dir = tempfile::tempdir().unwrap();
    let model = checkpoint(dir.path(), &small_config(), 5);
    let index = model.join("model.safetensors.index.json");
    for (text, expected) in [
        ("{}", "weight_map"),
        ("{\"weight_map\": 3}", "an object"),
        (
            "{\"weight_map\": {\"a\": \"x\", \"a\": \"x\"}}",
            "second entry \"a\"",
        ),
    ] {
        std::fs::write(&index, text).unwrap();
        assert_says(&load_error(&model), &["index.json: ", expected]);
    }
    std::fs::remove_file(&index).unwrap();
    assert_says(
        &load_error(&model),
        &["which no index names, expected model.safetensors"],
    );
}

/// What an index says beyond the files' names changes nothing for transformers, and nothing here.
#[test]
fn an_index_that_disagrees_with_its_shards_harmlessly_is_taken() {
    type Change = fn(&mut serde_json::Map<String, Value>);
    let changes: [Change; 4] = [
        |map| {
            map.insert("extra".into(), map["model.embedding_norm.weight"].clone());
        },
        |map| {
            map.remove("model.embedding_norm.weight");
        },
        // Every tensor in the other of two shards.
        |map| {
            let mut files: Vec<Value> = map.values().cloned().collect();
            files.sort_by_key(|file| std::cmp::Reverse(file.to_string()));
            for (place, file) in map.values_mut().zip(files) {
                *place = file;
            }
        },
        |map| {
            for file in map.values_mut() {
                *file = json!(format!("./{}", file.as_str().unwrap()));
            }
        },
    ];
    for change in changes {
        let dir = tempfile::tempdir().unwrap();
        let config = small_config();
        let model = checkpoint(dir.path(), &config, 5);
        let before = load(&model).weights;
        change_index(&model, change);
        assert_same_weights(&load(&model).weights, &before);
    }
}

#[test]
fn shards_may_lie_in_a_folder_below() {
    let dir = tempfile::tempdir().unwrap();
    let model = checkpoint(dir.path(), &small_config(), 5);
    let before = load(&model).weights;
    std::fs::create_dir(model.join("shards")).unwrap();
    for entry in std::fs::read_dir(&model).unwrap() {
        let path = entry.unwrap().path();
        if path.to_string_lossy().ends_with(".safetensors") {
            std::fs::rename(&path, model.join("shards").join(path.file_name().unwrap())).unwrap();
        }
    }
    change_index(&model, |map| {
        for file in map.values_mut() {
            *file = json!(format!("shards/{}", file.as_str().unwrap()));
        }
    });
    assert_same_weights(&load(&model).weights, &before);
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

#[test]
fn what_lies_there_in_the_place_of_weights_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let model = single_file_checkpoint(dir.path(), &small_config(), 5);
    let weights = model.join("model.safetensors");
    std::fs::remove_file(&weights).unwrap();
    for (name, parts) in [
        ("model-q4.gguf", &["GGUF"][..]),
        (
            "pytorch_model-00001-of-00002.bin",
            &["pickled", "convert"][..],
        ),
        (
            "other.safetensors",
            &["\"other.safetensors\"", "no index"][..],
        ),
    ] {
        std::fs::write(model.join(name), "x").unwrap();
        assert_says(&load_error(&model), parts);
        assert_says(&load_error(&model), &["expected model.safetensors"]);
        std::fs::remove_file(model.join(name)).unwrap();
    }
    std::os::unix::fs::symlink("/nowhere/at/all", &weights).unwrap();
    assert_says(
        &load_error(&model),
        &["model.safetensors: found a link to /nowhere/at/all"],
    );
    std::fs::remove_file(&weights).unwrap();
    std::fs::create_dir(&weights).unwrap();
    assert_says(
        &load_error(&model),
        &["model.safetensors: found a directory"],
    );
    std::fs::remove_dir(&weights).unwrap();
    let name = std::ffi::CString::new(weights.to_str().unwrap()).unwrap();
    // SAFETY: the name ends with a zero and lives through the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    // Not waited for: nobody will ever write to it.
    assert_says(
        &load_error(&model),
        &["model.safetensors: found a pipe or a device"],
    );
}

#[test]
fn broken_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let model = checkpoint(dir.path(), &small_config(), 5);
    let first = std::fs::read_dir(&model)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.to_string_lossy().contains("model-00001-of-"))
        .unwrap();
    let whole = std::fs::read(&first).unwrap();
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    for (bytes, parts) in [
        (
            &whole[..whole.len() - 1],
            &["the file holds only", "truncated?"][..],
        ),
        (
            &whole[..header - 5],
            &["for the header alone: truncated"][..],
        ),
        (
            &whole[..5],
            &["found 5 bytes, expected a safetensors file"][..],
        ),
        (
            &[][..],
            &["found an empty file", "expected a safetensors file"][..],
        ),
        (
            &b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"[..],
            &["a git-lfs pointer", "git lfs pull"][..],
        ),
        (
            &[0xFF; 64][..],
            &["header length of 18446744073709551615 bytes"][..],
        ),
    ] {
        std::fs::write(&first, bytes).unwrap();
        let message = load_error(&model);
        assert_says(&message, &["model-00001-of-"]);
        assert_says(&message, parts);
    }
    let longer = [&whole[..], &[0; 3]].concat();
    std::fs::write(&first, longer).unwrap();
    assert_says(&load_error(&model), &["the header accounts for no more"]);
}

#[test]
fn lying_headers_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let model = single_file_checkpoint(dir.path(), &small_config(), 5);
    let file = model.join("model.safetensors");
    let half = usize::MAX / 2;
    for (header, parts) in [
        ("{".to_owned(), &["expected a safetensors header"][..]),
        ("[]".into(), &["expected a safetensors header", "an object"]),
        (
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#.into(),
            &["second entry \"a\""],
        ),
        (
            r#"{"a":{"dtype":"Q\n4","shape":[1],"data_offsets":[0,4]}}"#.into(),
            &["tensor \"a\"", "unknown variant"],
        ),
        (r#"{"a":{"dtype":"F32","shape":[1]}}"#.into(), &["tensor \"a\"", "data_offsets"]),
        (
            r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#.into(),
            &["tensor \"a\"", "found 4 bytes of data, expected F32 of shape [2]"],
        ),
        (
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#.into(),
            &["tensor \"a\"", "[4, 0]"],
        ),
        (
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}}"#.into(),
            &["tensor \"b\"", "overlap or hole"],
        ),
        (
            format!(r#"{{"a":{{"dtype":"F32","shape":[{half},{half}],"data_offsets":[0,4]}}}}"#),
            &["tensor \"a\"", "expected F32 of shape"],
        ),
        (
            format!(r#"{{"a":{{"dtype":"U8","shape":[{half}],"data_offsets":[0,{half}]}}}}"#),
            &["tensor \"a\"", "the file holds only 8 bytes"],
        ),
        (
            r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#.into(),
            &["tensor \"a\"", "invalid value"],
        ),
    ] {
        write_raw(&file, &header, &[0; 8]);
        let message = load_error(&model);
        assert_says(&message, &["model.safetensors: "]);
        assert_says(&message, parts);
    }
}
