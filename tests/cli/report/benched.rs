//! `report` of what `bench` writes: each kind on the CPU, and on the page all that is in the file.

use super::{is_whole, json_of, parts, text};
use crate::common::program::run;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Results of `bench` on the CPU, written to a file of this name.
pub fn benched(folder: &Path, name: &str, args: &[&str]) -> PathBuf {
    let on = ["--device", "cpu", "--quiet", "--model", "random:tiny"];
    let format = if name.ends_with('l') { "jsonl" } else { "json" };
    let ended = run(&[&["bench"], args, &on, &["--format", format]].concat());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let path = folder.join(name);
    std::fs::write(&path, ended.stdout).unwrap();
    path
}

/// A file beside `from` whose results are changed so.
pub fn change(from: &Path, to: &str, change: &dyn Fn(&mut Value)) -> PathBuf {
    change_to(from, &from.with_file_name(to), change)
}

/// One quick run, beside a floor of known rates.
pub const RATES: [&str; 8] = [
    "-r",
    "1",
    "--warm-up",
    "0",
    "--bandwidth",
    "10",
    "--tflops",
    "0.05",
];

pub fn change_to(from: &Path, to: &Path, change: &dyn Fn(&mut Value)) -> PathBuf {
    let mut rows = json_of(from);
    rows.as_array_mut().unwrap().iter_mut().for_each(change);
    std::fs::write(to, rows.to_string()).unwrap();
    to.to_owned()
}

#[test]
fn every_kind_of_result_is_on_the_page() {
    let folder = tempfile::tempdir().unwrap();
    let decode = [
        "decode",
        "-b",
        "1,2",
        "-p",
        "4",
        "-n",
        "8",
        "--cpu-load",
        "0,1",
    ];
    let prefill = ["prefill", "-b", "1,2", "-p", "16"];
    let score = ["score", "-b", "20", "-p", "8"];
    let serve = [
        "serve",
        "-b",
        "2",
        "-p",
        "6",
        "-n",
        "4",
        "--num-prompts",
        "6",
        "--request-rate",
        "50,inf",
    ];
    let kinds = [&decode[..], &prefill, &score, &serve];
    let files = kinds.map(|args| {
        let name = format!(
            "{}.json{}",
            args[0],
            if args[0] == "score" { "l" } else { "" }
        );
        benched(folder.path(), &name, &[args, &RATES].concat())
    });
    let parts = parts(folder.path(), &files.each_ref().map(PathBuf::as_path));
    assert_eq!(parts.len(), 4);
    for (part, file) in parts.iter().zip(&files) {
        let text = std::fs::read_to_string(file).unwrap();
        let results: Vec<Value> = if text.starts_with('[') {
            serde_json::from_str(&text).unwrap()
        } else {
            vec![serde_json::from_str(&text).unwrap()]
        };
        assert_eq!(part["rows"].as_array().unwrap().len(), results.len());
        for (n, result) in results.iter().enumerate() {
            is_whole(&part["rows"][n], result);
        }
    }
}

#[test]
fn files_that_measured_different_ways_are_shown_side_by_side() {
    let folder = tempfile::tempdir().unwrap();
    let args = [
        "-b",
        "1,2",
        "-p",
        "4",
        "-n",
        "8",
        "-r",
        "1",
        "--warm-up",
        "0",
    ];
    let cpu = benched(folder.path(), "cpu.json", &args);
    let of_way =
        |name: &str, way: &'static str| change(&cpu, name, &move |row| row["launch"] = way.into());
    let (bare, graph) = (
        of_way("bare.json", "bare"),
        of_way("graph.json", "device-graph"),
    );
    let ways = |part: &Value| -> Vec<(String, String)> {
        let rows = part["rows"].as_array().unwrap().iter();
        let of = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
        rows.map(|row| (of(row, "file"), of(row, "way"))).collect()
    };
    let one = parts(folder.path(), &[&graph, &bare]);
    assert_eq!(one.len(), 1, "one part");
    let expected = [("graph.json", "device-graph"), ("bare.json", "bare")];
    let expected = expected.map(|(file, way)| (file.to_owned(), way.to_owned()));
    assert_eq!(ways(&one[0])[1..3], expected);
    // What several files measured stays apart.
    let again = of_way("again.json", "device-graph");
    assert_eq!(parts(folder.path(), &[&graph, &again, &bare]).len(), 3);
    // What one file measured again is another run.
    let twice = folder.path().join("twice.jsonl");
    let rows = json_of(&graph);
    std::fs::write(
        &twice,
        [0, 1, 0, 0].map(|n| format!("{}\n", rows[n])).concat(),
    )
    .unwrap();
    let found: Vec<String> = ways(&parts(folder.path(), &[&twice])[0])
        .into_iter()
        .map(|(_, way)| way)
        .collect();
    let way = |more: &str| format!("device-graph{more}");
    assert_eq!(found, [way(""), way(""), way(", run 2"), way(", run 3")]);
    // More GPUs are another way too.
    let gpus = change(&graph, "gpus.json", &|row| row["replicas"] = 4.into());
    assert_eq!(
        ways(&parts(folder.path(), &[&graph, &gpus])[0])[2].1,
        way(", 4 replicas")
    );
}

#[test]
fn wrong_results_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("report.html");
    let args = ["-b", "1", "-p", "4", "-n", "8", "-r", "1", "--warm-up", "0"];
    let file = benched(folder.path(), "right.json", &args);
    type Change = fn(&mut Value);
    let cases: [(Change, &str); 3] = [
        (|row| row["schema"] = 2.into(), "found schema 2, expected 1"),
        (
            |row| row["n_prompt_min"] = "<i>".into(),
            "invalid type: string",
        ),
        (
            |row| row["kind"] = "other".into(),
            "unknown variant `other`",
        ),
    ];
    for (wrong, expected) in cases {
        let path = change(&file, "wrong.json", &wrong);
        let ended = run(&["report", text(&path), "-o", text(&output)]);
        assert_eq!(ended.code, 1, "{expected}");
        assert!(
            ended.stderr.contains("wrong.json") && ended.stderr.contains(expected),
            "{}",
            ended.stderr
        );
    }
}
