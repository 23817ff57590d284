//! `trace --kernels`: each operation of a step as a slice, and their table.

use crate::common::program::run;
use crate::common::rows::text;
use crate::timeline::{Slice, read, traced_with, tracks};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// By step, in order.
fn parts(tracks: &BTreeMap<(u64, u64), Vec<Slice>>, stage: u64) -> BTreeMap<u64, Vec<&Slice>> {
    let mut all: BTreeMap<u64, Vec<&Slice>> = BTreeMap::new();
    for slice in &tracks[&(1, 130 + stage)] {
        let step = slice.args["step"].as_u64().unwrap();
        all.entry(step).or_default().push(slice);
    }
    all
}

/// The operations of a step follow each other inside the slice of their stage; every seventh step is left untimed.
#[test]
fn kernels_are_slices_under_their_step() {
    for stages in 1..=2_u64 {
        let folder = tempfile::tempdir().unwrap();
        let (trace, _) = traced_with(folder.path(), &stages.to_string(), &["--kernels"]);
        let tracks = tracks(&trace);
        let mut names = vec![];
        for stage in 0..stages {
            let parts = parts(&tracks, stage);
            let steps = &tracks[&(1, 110 + stage)];
            assert!(steps.len() > 40);
            for (number, step) in steps.iter().enumerate() {
                let Some(parts) = parts.get(&(number as u64)) else {
                    assert_eq!(number % 7, 6, "step {number} has no operations");
                    continue;
                };
                assert_ne!(number % 7, 6, "step {number} was timed");
                assert!(parts[0].from >= step.from && parts.last().unwrap().to <= step.to);
                for pair in parts.windows(2) {
                    assert_eq!(pair[0].to, pair[1].from, "nothing lies between: {pair:?}");
                }
                if number == 0 {
                    names.extend(parts.iter().map(|part| part.name.clone()));
                }
            }
            let lengths: Vec<usize> = parts.values().map(Vec::len).collect();
            assert!(lengths.iter().all(|length| *length == lengths[0]));
        }
        // Both ways to cut the model have the same operations.
        assert_eq!(names.len(), 44, "{names:?}");
        assert_eq!((&*names[0], &*names[43]), ("embed", "sample"));
        kernels_add_up(&trace["otherData"]["kernels"]);
    }
}

fn kernels_add_up(kernels: &Value) {
    assert_eq!(
        (&kernels["lost"], &kernels["floor"]),
        (&json!(0), &json!(null))
    );
    let buckets = kernels["buckets"].as_array().unwrap();
    let counts = buckets
        .iter()
        .map(|bucket| bucket["steps"].as_u64().unwrap());
    assert_eq!(counts.sum::<u64>(), kernels["steps"].as_u64().unwrap());
    for bucket in buckets {
        let operations = bucket["operations"].as_array().unwrap();
        assert_eq!(operations.len(), 18, "random:tiny has every operation");
        let total = |key: &str| -> f64 {
            let values = operations
                .iter()
                .map(|operation| operation[key].as_f64().unwrap());
            values.sum()
        };
        assert_eq!(total("per_step"), 44.0);
        let (sum, whole) = (total("us_per_step"), bucket["kernels_us"].as_f64().unwrap());
        assert!((sum - whole).abs() < 0.05, "{sum} and {whole} us");
        assert!(whole < bucket["step_us"].as_f64().unwrap());
        assert!(total("bytes_per_step") > 1e5);
        assert!(total("flops_per_step") > 1e5);
    }
}

#[test]
fn the_table_of_operations_is_printed() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("t.json");
    let args = [
        "trace",
        "--model",
        "random:tiny",
        "--device",
        "cpu",
        "--kernels",
        "--max-new-tokens",
        "60",
        "-o",
        text(&to),
        "one prompt",
    ];
    let ended = run(&args);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    for line in [
        "decode 1: ",
        "mixed ",
        "operation ",
        "expert_gate_up ",
        " untimed steps took ",
    ] {
        assert!(ended.stderr.contains(line), "{line:?} in {}", ended.stderr);
    }
    let bucket = &read(&to)["otherData"]["kernels"]["buckets"][0];
    assert!(bucket["untimed_steps"].as_u64().unwrap() >= 6, "{bucket}");
}

/// A page has the operations of a run.
#[test]
fn a_page_has_the_operations() {
    let folder = tempfile::tempdir().unwrap();
    traced_with(folder.path(), "1", &["--kernels"]);
    let (file, page) = (
        folder.path().join("trace.json"),
        folder.path().join("page.html"),
    );
    let ended = run(&["report", text(&file), "-o", text(&page)]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let html = std::fs::read_to_string(page).unwrap();
    assert!(html.contains("\"operation\":\"lm_head\""));
}
