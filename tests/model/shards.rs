//! Weights in several files, and the index of them.

use crate::checkpoint::load;
use crate::common::checkpoint::*;
use serde_json::{Value, json};
use std::path::Path;

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
