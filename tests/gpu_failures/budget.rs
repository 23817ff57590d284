//! The arithmetic before loading is that of the allocations: what `doctor` shows is what is then allocated, byte for
//! byte, on the GPU and pinned on the host.

use crate::common::fixtures::golden;
use crate::rig::{Run, WAYS, launch};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs;
use std::path::Path;

const SIZES: [&str; 6] = [
    "--max-seqs",
    "5",
    "--max-context",
    "100",
    "--step-tokens",
    "700",
];

/// On the GPU, and pinned, what is so while weights are loaded included; the latter with and without the logits ring.
#[derive(Debug, PartialEq)]
struct Bytes {
    device: u64,
    pinned: u64,
}

fn doctor(arguments: &[&str]) -> (Value, Bytes, u64) {
    let run = Run::new(&["doctor", "--device", "cuda", "--format", "json"]);
    let ended = run.and(&SIZES).and(arguments).end();
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(ended.code, 0, "{document}");
    let items = document["memory"]["items"].as_array().unwrap();
    let sum = |wanted: &dyn Fn(&Value) -> bool| -> u64 {
        let items = items.iter().filter(|item| wanted(item));
        items.map(|item| item["bytes"].as_u64().unwrap()).sum()
    };
    let bytes = Bytes {
        device: sum(&|item| item["place"] == "budget"),
        pinned: sum(&|item| item["place"] == "pinned" || item["place"] == "loading"),
    };
    assert_eq!(document["memory"]["total_bytes"], bytes.device);
    let logits_ring = sum(&|item| item["name"] == "logits ring");
    (document, bytes, logits_ring)
}

fn allocated(run: Run) -> Bytes {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let ended = run.and(&SIZES).with("LOG", log.display()).end();
    let log = fs::read_to_string(log).unwrap_or_else(|_| panic!("{}", ended.stderr));
    let sum = |kind: &str| {
        let lines = log.lines().filter_map(|line| line.strip_prefix(kind));
        lines
            .map(|bytes| bytes.trim().parse::<u64>().unwrap())
            .sum()
    };
    Bytes {
        device: sum("device "),
        pinned: sum("pinned "),
    }
}

fn generate(arguments: &[&str]) -> Bytes {
    let run = Run::new(&[
        "generate",
        "--device",
        "cuda",
        "--quiet",
        "--max-new-tokens",
        "2",
    ]);
    allocated(run.and(arguments).and(&["one"]))
}

/// What becomes of the logits is no matter: kernels that do nothing deliver none.
fn score(arguments: &[&str]) -> Bytes {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (input, output) = (path("in.jsonl"), path("out.safetensors"));
    fs::write(&input, "{\"input_ids\":[9,10,11]}\n").unwrap();
    let run = Run::new(&[
        "score", "--device", "cuda", "--quiet", "--input", &input, "--output", &output,
    ]);
    allocated(run.and(arguments))
}

fn holds(arguments: &[&str]) {
    let (_, expected, logits_ring) = doctor(arguments);
    let as_shown = |with: &[&str]| {
        let arguments = [arguments, with].concat();
        assert_eq!(score(&arguments), expected, "score {arguments:?}");
        let scores_too = [&arguments[..], &["--prompt-logprobs"]].concat();
        assert_eq!(generate(&scores_too), expected, "{scores_too:?}");
        let expected = Bytes {
            pinned: expected.pinned - logits_ring,
            ..expected
        };
        assert_eq!(generate(&arguments), expected, "generate {arguments:?}");
    };
    assert!(expected.device > 0 && expected.pinned > logits_ring && logits_ring > 0);
    as_shown(&[]);
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record").to_str().unwrap().to_owned();
    as_shown(&["--record", &record]);
}

/// A row that asks for more than its run is ready for is told what to do.
#[test]
fn logprobs_of_prompts_are_had_where_the_run_is_ready_for_them() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in.jsonl").to_str().unwrap().to_owned();
    let row = |id: usize, more: &str| {
        format!(
            "{{\"custom_id\":{id},\"url\":\"/v1/completions\",\"body\":{{\"prompt\":\"ab\",\"echo\":true{more}}}}}\n"
        )
    };
    let wanted = ["", ",\"logprobs\":1", ",\"max_tokens\":0"];
    let rows = wanted.iter().enumerate().map(|(id, more)| row(id, more));
    fs::write(&input, rows.collect::<String>()).unwrap();
    let run = Run::generate("device-graph").and(&["--input", &input]);
    let answers = run.end().rows();
    assert!(answers[0]["error"].is_null(), "{}", answers[0]);
    for answer in &answers[1..] {
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains("--prompt-logprobs"), "{message}");
    }
}

#[test]
fn every_way_allocates_what_was_shown() {
    for way in WAYS {
        let model = [vec!["--model", "random:tiny"], launch(way)].concat();
        holds(&model);
        holds(&[&model[..], &["--stages", "3"]].concat());
    }
}

#[test]
fn every_checkpoint_and_type_allocates_what_was_shown() {
    for checkpoint in ["a", "b"] {
        for dtype in ["bf16", "f16", "f32"] {
            holds(&["--model", &golden(checkpoint), "--dtype", dtype]);
        }
    }
}

/// Everything that a model may have besides: biases, a head of its own, no expert bias, no dense layer.
#[test]
fn every_option_of_a_model_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    let text = fs::read_to_string(format!("{}/config.json", golden("a"))).unwrap();
    for (field, value) in [
        ("conv_bias", json!(true)),
        ("tie_word_embeddings", json!(false)),
        ("tie_embedding", json!(false)),
        ("use_expert_bias", json!(false)),
        ("num_dense_layers", json!(0)),
        ("vocab_size", json!(523)),
    ] {
        let mut config: Value = serde_json::from_str(&text).unwrap();
        config[field] = value;
        fs::write(&path, config.to_string()).unwrap();
        holds(&["--model", &format!("random:{}", path.display())]);
    }
}

/// The checkpoint `from` with every tensor in f32.
fn widen(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() && path.extension().is_some_and(|e| e == "json") {
            fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
        }
    }
    let bytes = fs::read(from.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let grouped: HashMap<String, (Vec<usize>, Vec<u8>)> = file
        .iter()
        .map(|(name, tensor)| {
            let data = match tensor.dtype() {
                Dtype::F32 => tensor.data().to_vec(),
                // bf16 is the upper half of f32.
                _ => tensor
                    .data()
                    .chunks(2)
                    .flat_map(|b| [0, 0, b[0], b[1]])
                    .collect(),
            };
            (name.to_owned(), (tensor.shape().to_vec(), data))
        })
        .collect();
    let views = grouped.iter().map(|(name, (shape, data))| {
        (
            name.as_str(),
            TensorView::new(Dtype::F32, shape.clone(), data).unwrap(),
        )
    });
    safetensors::serialize_to_file(views, None, &to.join("model.safetensors")).unwrap();
}

#[test]
fn weights_that_stay_f32_take_four_bytes() {
    let folder = tempfile::tempdir().unwrap();
    widen(Path::new(&golden("a")), folder.path());
    let grouped = folder.path().to_str().unwrap();
    for dtype in ["f32", "bf16"] {
        holds(&["--model", grouped, "--dtype", dtype]);
    }
    let weights = |model: &str| {
        let (document, ..) = doctor(&["--model", model, "--dtype", "f32"]);
        let items = document["memory"]["items"].as_array().unwrap();
        let weights = items.iter().find(|item| item["name"] == "weights").unwrap();
        weights["bytes"].as_u64().unwrap() as f64
    };
    let times = weights(grouped) / weights(&golden("a"));
    assert!(
        (1.9..=2.0).contains(&times),
        "{times} times the bytes of bf16"
    );
}

/// The pool takes what the rest leaves, to the last page, and never more.
#[test]
fn a_pool_is_as_large_as_fits() {
    let model = ["--model", "random:tiny"];
    let (_, ample, _) = doctor(&model);
    let page_bytes = 64 * 512;
    let mut smaller = 0;
    for less in (0..8).map(|pages| pages * page_bytes + 100) {
        let limit = (ample.device - less).to_string();
        let run = Run::new(&[
            "doctor",
            "--device",
            "cuda",
            "--format",
            "json",
            "--max-seqs",
            "5",
        ]);
        let ended = run
            .and(&model)
            .and(&["--memory-limit", &limit])
            .and(&["--max-context", "100", "--step-tokens", "700"])
            .end();
        let document: Value = serde_json::from_str(&ended.stdout).unwrap();
        let memory = &document["memory"];
        let total = memory["total_bytes"]
            .as_u64()
            .unwrap_or_else(|| panic!("{document}"));
        assert!(total <= ample.device - less && total + 2 * page_bytes > ample.device - less);
        smaller += u64::from(memory["options"]["pages"] != 10);
    }
    assert!(smaller > 5, "{smaller}");
}
