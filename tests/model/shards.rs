//! Weights in several files, and the index of them.

use crate::checkpoint::load;
use crate::common::checkpoint::*;
use serde_json::{Value, json};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Instant;
use tailgraph::model::ModelSource;
use tailgraph::model::fingerprint::fingerprint;

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

/// An index may write a file's name in many ways, and links give it more: it is read once, whose header may be long.
#[test]
fn one_file_by_many_names_is_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let model = single_file_checkpoint(dir.path(), &small_config(), 5);
    let mut tensors = read_tensors(&model);
    let file = model.join("w.safetensors");
    std::fs::remove_file(model.join("model.safetensors")).unwrap();
    for number in 0..30_000 {
        let empty = (safetensors::Dtype::F32, vec![0], vec![]);
        tensors.insert(format!("z{number}"), empty);
    }
    write_tensors(&file, &tensors);
    // What one of the links hides, as the last by its name.
    let norm = tensors.get_mut("model.embedding_norm.weight").unwrap();
    norm.2.fill(0);
    write_tensors(&model.join("v.safetensors"), &tensors);
    let index = |names: Vec<String>| {
        let map = names.into_iter().enumerate();
        let map: serde_json::Map<_, _> = map
            .map(|(i, name)| (format!("z{i}"), json!(name)))
            .collect();
        let index = json!({"weight_map": map}).to_string();
        std::fs::write(model.join("model.safetensors.index.json"), index).unwrap();
    };
    let timed = || {
        let began = Instant::now();
        let source = ModelSource::parse(model.to_str().unwrap()).unwrap();
        let parts = fingerprint(&source).unwrap();
        let weights = parts
            .iter()
            .filter(|(name, _)| name.starts_with("weights "));
        (load(&model).weights, weights.count(), began.elapsed())
    };
    index(vec!["w.safetensors".to_owned()]);
    let (expected, files, once) = timed();
    assert_eq!(files, 1);

    let mut names = vec!["v.safetensors".to_owned()];
    for number in 0..150 {
        std::fs::hard_link(&file, model.join(format!("a{number}.safetensors"))).unwrap();
        symlink(
            "w.safetensors",
            model.join(format!("x{number}.safetensors")),
        )
        .unwrap();
        names.push(format!("a{number}.safetensors"));
        names.push(format!("x{number}.safetensors"));
        names.push(format!("{}w.safetensors", "./".repeat(number + 1)));
        names.push(format!(".//{}w.safetensors", ".//".repeat(number)));
    }
    index(names);
    let (weights, files, many) = timed();
    assert_same_weights(&weights, &expected);
    assert_eq!(files, 2);
    // There are 602 names.
    assert!(many < once * 30, "{once:?} by one name, {many:?} by many");
}
