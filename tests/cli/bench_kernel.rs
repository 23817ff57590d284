//! `bench kernel` on the CPU, whose operations are its kernels: what stands in the table. tests/gpu has that of a GPU.

use crate::common::program::{Ended, run};
use crate::common::schema::{check, schema};
use serde_json::Value;
use std::collections::BTreeSet;

fn kernel(rest: &[&str]) -> Ended {
    let args = [
        "bench",
        "kernel",
        "--model",
        "random:tiny",
        "--device",
        "cpu",
        "--quiet",
        "-r",
        "1",
    ];
    run(&[&args[..], rest].concat())
}

/// Each product of the plan once for each row count: in decode steps where these have a bucket of as many, else of one prompt.
#[test]
fn every_product_stands_at_every_row_count() {
    let ended = kernel(&["--tokens", "1,5,1100", "--format", "json"]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let found: Value = serde_json::from_str(&ended.stdout).unwrap();
    check(&schema("kernel"), &found).unwrap();
    let found = found.as_array().unwrap();
    for (kind, rows) in [("decode", 1), ("decode", 5), ("mixed", 1100)] {
        let at = found
            .iter()
            .filter(|row| row["kind"] == kind && row["rows"] == rows);
        let names: BTreeSet<&str> = at
            .clone()
            .map(|row| row["operations"].as_str().unwrap())
            .collect();
        assert_eq!(at.count(), 10, "{kind} {rows}");
        assert_eq!(names.len(), 10, "{names:?}");
        for name in ["conv_in_proj", "expert_gate_up", "lm_head", "dense_down"] {
            assert!(names.contains(name), "{name} in {names:?}");
        }
    }
    assert_eq!(found.len(), 3 * 10);
    for row in found {
        let of = |name: &str| row[name].as_f64().unwrap();
        assert!(
            (of("floor_flops") / of("us") / 1e6 / of("tflops") - 1.0).abs() < 1e-9,
            "{row}"
        );
        assert!(of("us") > 0.0 && row["cublaslt_us"].is_null(), "{row}");
    }
}

#[test]
fn the_table_has_every_format_and_says_what_it_cannot_do() {
    let lines = |format| {
        let ended = kernel(&["--tokens", "2", "--format", format]);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        ended.stdout.lines().count()
    };
    assert_eq!((lines("csv"), lines("jsonl")), (1 + 10, 10));
    let ended = kernel(&["--tokens", "2"]);
    for part in ["random:tiny@0 on ", " conv_in_proj | ", "TFLOP/s"] {
        assert!(ended.stdout.contains(part), "{part} in {}", ended.stdout);
    }
    assert!(!ended.stdout.contains("cuBLASLt us"), "nobody has one");
    let ended = kernel(&["--tokens", "1,100000"]);
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    assert!(
        ended.stderr.contains("--tokens 100000: expected at most "),
        "{}",
        ended.stderr
    );
}

/// A name takes the kernels of that operation, whatever it is; the name of old takes every product.
#[test]
fn one_operation_stands_alone() {
    let ended = kernel(&["attention", "--tokens", "3", "--format", "json"]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let found: Value = serde_json::from_str(&ended.stdout).unwrap();
    check(&schema("kernel"), &found).unwrap();
    let [row] = &found.as_array().unwrap()[..] else {
        panic!("{found}")
    };
    assert_eq!(
        (&row["operations"], &row["rows"]),
        (&"attention".into(), &3.into())
    );
    // The keys and values of 3 sequences.
    assert!(
        row["floor_bytes"].as_f64().unwrap() > 0.0 && row["us"].as_f64().unwrap() > 0.0,
        "{row}"
    );
    assert!(row["warm_us"].is_null(), "on a CPU nothing runs in a row");
    let none = kernel(&["atention"]);
    assert_eq!(none.code, 2);
    assert!(none.stderr.contains("conv_in_proj"), "{}", none.stderr);
    let old = [
        "bench",
        "gemm",
        "--model",
        "random:tiny",
        "--device",
        "cpu",
        "-q",
        "-r",
        "1",
    ];
    let old = run(&[&old[..], &["--rows", "1", "--format", "jsonl"]].concat());
    assert_eq!(old.stdout.lines().count(), 10, "{}", old.stderr);
}
