//! `synth`: what is written loads to the same bits, is readable by other programs, and never half there.

use crate::common::checkpoint::*;
use crate::common::fixtures::fixture;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use tailgraph::model::{Model, ModelSource, synth};
use tokenizers::Tokenizer;

fn file_names(dir: &Path) -> BTreeSet<String> {
    std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

fn json_file(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn what_is_written_loads_to_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let source = ModelSource::parse("random:tiny@9").unwrap();
    let out = dir.path().join("new/model");
    let mut seen = Vec::new();
    let written = synth::write(&source, &out, 1 << 20, &mut |p| seen.push(p)).unwrap();
    let random = Model::load(&source).unwrap();
    let loaded = Model::load(&ModelSource::parse(out.to_str().unwrap()).unwrap()).unwrap();
    assert_eq!(loaded.config, random.config);
    assert_eq!(loaded.warnings, [""; 0]);
    assert_same_weights(&loaded.weights, &random.weights);

    let total: usize = by_name(&random.weights)
        .values()
        .map(|t| t.bytes().len())
        .sum();
    assert_eq!(written.bytes, total as u64);
    assert_eq!(written.tensors, by_name(&random.weights).len());
    let last = seen.last().unwrap();
    assert_eq!(
        (last.bytes_done, last.bytes_total),
        (written.bytes, written.bytes)
    );
    assert!(seen.is_sorted_by_key(|progress| progress.bytes_done));

    let index = json_file(&out.join("model.safetensors.index.json"));
    assert_eq!(index["metadata"]["total_size"], json!(written.bytes));
    assert_eq!(
        index["weight_map"].as_object().unwrap().len(),
        written.tensors
    );
    assert!(written.shards > 3);
    for shard in 1..=written.shards {
        let name = format!("model-{shard:05}-of-{:05}.safetensors", written.shards);
        let bytes = std::fs::metadata(out.join(name)).unwrap().len();
        assert!(bytes < (1 << 20) + 16384, "{bytes}");
    }
    assert!(
        file_names(&out)
            .iter()
            .all(|name| !name.ends_with(".partial"))
    );
}

#[test]
fn every_tensor_is_aligned_for_its_type() {
    let dir = tempfile::tempdir().unwrap();
    let config = config_with(json!({"vocab_size": 41, "hidden_size": 15, "num_experts": 5}));
    let source = random_source(dir.path(), &config, 0);
    let out = dir.path().join("model");
    synth::write(&source, &out, synth::SHARD_BYTES, &mut |_| {}).unwrap();
    let file = std::fs::read(out.join("model-00001-of-00001.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
    for (name, view) in tensors.tensors() {
        let offset = view.data().as_ptr() as usize - file.as_ptr() as usize;
        assert_eq!(offset % (view.dtype().bitsize() / 8), 0, "{name}");
    }
}

#[test]
fn a_call_that_fails_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("new/model");
    let source = random_source(dir.path(), &small_config(), 5);
    for stop_at in [1, 20, 60] {
        let mut calls = 0;
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            synth::write(&source, &out, 4096, &mut |_| {
                calls += 1;
                assert!(calls < stop_at, "failed");
            })
        }));
        assert!(failed.is_err());
        assert!(file_names(&dir.path().join("new")).is_empty());
    }
}

#[test]
fn a_folder_is_made_where_links_lead() {
    let dir = tempfile::tempdir().unwrap();
    let source = random_source(dir.path(), &small_config(), 5);
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir(at("empty")).unwrap();
    for target in ["absent", "empty"] {
        let link = at(&format!("to-{target}"));
        std::os::unix::fs::symlink(target, &link).unwrap();
        synth::write(&source, &link, 4096, &mut |_| {}).unwrap();
        assert!(link.is_symlink());
        Model::load(&ModelSource::Dir(at(target))).unwrap();
    }
}

#[test]
fn two_calls_do_not_write_one_directory() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("model");
    let source = random_source(dir.path(), &small_config(), 5);
    let mut refused = Vec::new();
    synth::write(&source, &out, 4096, &mut |_| {
        let second = synth::write(&source, &out, 4096, &mut |_| {}).unwrap_err();
        refused.push(second.to_string());
    })
    .unwrap();
    assert!(!refused.is_empty());
    for message in refused {
        assert_says(&message, &["model.partial", "another run is writing"]);
    }
    Model::load(&ModelSource::Dir(out)).unwrap();
}

/// What a kill leaves under another name: some files, the last of them torn.
#[test]
fn an_interrupted_directory_is_no_model_and_is_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let (out, partial) = (dir.path().join("model"), dir.path().join("model.partial"));
    let source = random_source(dir.path(), &small_config(), 5);
    std::fs::create_dir(&partial).unwrap();
    for name in [
        "model-00001-of-00009.safetensors",
        "config.json",
        "tokenizer.json",
    ] {
        std::fs::write(partial.join(name), "torn").unwrap();
    }
    let error = ModelSource::parse(out.to_str().unwrap()).unwrap_err();
    assert_says(&error.to_string(), &["is missing"]);
    synth::write(&source, &out, 8192, &mut |_| {}).unwrap();
    assert!(!partial.exists());
    let loaded = Model::load(&ModelSource::Dir(out)).unwrap();
    assert_same_weights(&loaded.weights, &Model::load(&source).unwrap().weights);
}

#[test]
fn directories_that_hold_anything_else_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let source = random_source(dir.path(), &small_config(), 5);
    let refused = |out: &Path| {
        let before = file_names(out);
        let error = synth::write(&source, out, 4096, &mut |_| {}).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert_eq!(file_names(out), before);
        error.to_string()
    };
    assert_says(
        &refused(dir.path()),
        &["found \"preset.json\"", "empty directory"],
    );
    let out = dir.path().join("model");
    let partial = dir.path().join("model.partial");
    std::fs::create_dir(&partial).unwrap();
    std::fs::write(partial.join("mine.txt"), "").unwrap();
    let error = synth::write(&source, &out, 4096, &mut |_| {}).unwrap_err();
    assert_says(&error.to_string(), &["model.partial: found \"mine.txt\""]);
    assert!(partial.join("mine.txt").exists());
    std::fs::remove_dir_all(partial).unwrap();
    synth::write(&source, &out, 4096, &mut |_| {}).unwrap();
    assert_says(&refused(&out), &["expected a new or empty directory"]);
    let error = synth::write(&ModelSource::Dir(out.clone()), &out, 4096, &mut |_| {}).unwrap_err();
    assert_says(
        &error.to_string(),
        &["found a directory, expected random:PRESET"],
    );
    let file = dir.path().join("preset.json");
    let error = synth::write(&source, &file, 4096, &mut |_| {}).unwrap_err();
    assert_says(&error.to_string(), &["preset.json: "]);
}

#[test]
fn the_written_tokenizer_is_the_byte_tokenizer() {
    let dir = tempfile::tempdir().unwrap();
    let out = checkpoint(dir.path(), &config_with(json!({"vocab_size": 300})), 0);
    let tokenizer = Tokenizer::from_file(out.join("tokenizer.json")).unwrap();
    assert_eq!(tokenizer.get_vocab_size(true), 300);
    let encode = |text: &str, special| tokenizer.encode(text, special).unwrap().get_ids().to_vec();
    let text = "Hi <264>\n한국어 <|im_end|>\u{0}\u{ad}\t";
    let mut expected = Vec::new();
    for (i, part) in text.split("<|im_end|>").enumerate() {
        expected.extend((i > 0).then_some(7));
        expected.extend(part.bytes().map(|byte| 8 + u32::from(byte)));
    }
    assert_eq!(encode(text, false), expected);
    assert_eq!(encode(text, true), [&[1], &expected[..]].concat());
    assert_eq!(tokenizer.decode(&expected, false).unwrap(), text);
    assert_eq!(
        tokenizer
            .decode(&[8 + 65, 264, 299, 8 + 66], false)
            .unwrap(),
        "A<264><299>B"
    );
    for byte in 0..=127u8 {
        let decoded = tokenizer.decode(&[8 + u32::from(byte)], false).unwrap();
        assert_eq!(decoded, char::from(byte).to_string());
    }
    assert_eq!(tokenizer.decode(&[1, 8 + 65, 7], true).unwrap(), "A");
    let config = json_file(&out.join("tokenizer_config.json"));
    let golden = json_file(&fixture("goldens/lfm2moe-tiny-a/tokenizer_config.json"));
    for name in [
        "bos_token",
        "eos_token",
        "pad_token",
        "chat_template",
        "tokenizer_class",
    ] {
        assert_eq!(config[name], golden[name]);
    }
}
