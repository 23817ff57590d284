//! Checkpoints with a defect: files and tensors that are not what they should be are named.

use crate::checkpoint::{changed, fuse};
use crate::common::checkpoint::*;
use safetensors::tensor::Dtype;
use serde_json::json;
use std::collections::BTreeMap;

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
