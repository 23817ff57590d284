//! `report` of what `bench` writes: each kind on the CPU, and on the page the figures that are in the file.

use super::{json_of, number, page, same, table_rows, text};
use crate::common::program::run;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Results of `bench` on the CPU, written to a file of this name.
pub fn benched(folder: &Path, name: &str, args: &[&str]) -> PathBuf {
    let head = [
        "bench",
        "--device",
        "cpu",
        "--quiet",
        "--model",
        "random:tiny",
    ];
    let format = if name.ends_with('l') { "jsonl" } else { "json" };
    let ended = run(&[&head[..], args, &["--format", format]].concat());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let path = folder.join(name);
    std::fs::write(&path, ended.stdout).unwrap();
    path
}

pub fn change(from: &Path, to: &str, change: &dyn Fn(&mut Value)) -> PathBuf {
    let mut rows = json_of(from);
    rows.as_array_mut().unwrap().iter_mut().for_each(change);
    let path = from.with_file_name(to);
    std::fs::write(&path, rows.to_string()).unwrap();
    path
}

/// The first row of a table that begins so.
#[track_caller]
fn row_of<'a>(rows: &'a [Vec<String>], start: &[&str]) -> &'a [String] {
    let found = rows
        .iter()
        .find(|row| row.len() >= start.len() && row.iter().zip(start).all(|(a, b)| a == b));
    found.unwrap_or_else(|| panic!("no row {start:?}"))
}

#[track_caller]
fn all_same(cells: &[String], row: &Value, keys: &[&str]) {
    for (cell, key) in cells.iter().zip(keys) {
        same(cell, &row[*key]);
    }
}

#[test]
fn results_of_decode_are_on_the_page_in_figures() {
    let folder = tempfile::tempdir().unwrap();
    let args = [
        "-b",
        "1,2",
        "-p",
        "4",
        "-n",
        "12",
        "-r",
        "2",
        "--cpu-load",
        "0,1",
        "--bandwidth",
        "10",
    ];
    let file = benched(folder.path(), "decode.json", &args);
    let html = page(folder.path(), &[&file]);
    let rows = table_rows(&html);
    for row in json_of(&file).as_array().unwrap() {
        let host = if row["cpu_load"] == 0 {
            "idle"
        } else {
            "1 busy"
        };
        let start = ["cpu", host, &row["batch"].to_string()];
        let tables: Vec<&Vec<String>> = rows
            .iter()
            .filter(|cells| cells.len() > 3 && cells[..3] == start.map(str::to_owned))
            .collect();
        let [steps, tokens, beside] = tables[..] else {
            panic!("{} tables with {start:?}", tables.len())
        };
        let keys = [
            "step_count",
            "median_step_ms",
            "p90_step_ms",
            "p99_step_ms",
            "p99.9_step_ms",
            "avg_ts",
            "stddev_ts",
            "floor_ms",
        ];
        all_same(&steps[3..], row, &keys);
        let share = row["floor_ms"].as_f64().unwrap() / row["median_step_ms"].as_f64().unwrap();
        assert!(
            (number(&steps[11]) - share * 100.0).abs() < 0.06,
            "{steps:?}"
        );
        let keys = [
            "median_itl_ms",
            "p90_itl_ms",
            "p99_itl_ms",
            "p99.9_itl_ms",
            "median_tpot_ms",
            "p99_tpot_ms",
            "median_ttft_ms",
            "p99_ttft_ms",
        ];
        all_same(&tokens[3..], row, &keys);
        let keys = [
            "median_turn_us",
            "host_cpu_s_per_1k_tokens",
            "experts_hit_mean",
            "experts_expected",
        ];
        all_same(&beside[3..], row, &keys);
        // Load, the rest of the engine, first token.
        let startup = rows.iter().find(|row| row[0] == "cpu" && row.len() == 4);
        let startup = startup.unwrap();
        same(&startup[1], &row["startup_load_ms"]);
        same(&startup[3], &row["startup_first_token_ms"]);
    }
    for words in [
        "Decode: random:tiny@0 in f32 on",
        "steps of 2 runs",
        "against the roofline",
        "From one token of a sequence to its next",
        "From a request to its first token",
        "The slow steps, with an idle and a busy host",
        "Before the first token",
    ] {
        assert!(html.contains(words), "{words}");
    }
    assert!(!html.contains("adds to a bare graph"), "there is none");
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
    let of_way = |name: &str, way: &'static str, step_ms: f64| {
        change(&cpu, name, &move |row| {
            row["launch"] = way.into();
            row["median_step_ms"] = (step_ms * row["batch"].as_f64().unwrap()).into();
        })
    };
    let bare = of_way("bare.json", "bare", 1.5);
    let graph = of_way("graph.json", "device-graph", 1.5125);
    let kernels = of_way("kernels.json", "host-kernels", 1.6);
    let html = page(folder.path(), &[&graph, &bare, &kernels]);
    assert_eq!(html.matches("<h2 ").count(), 1, "one part");
    assert!(html.contains("What each way of launching adds to a bare graph"));
    assert!(html.contains("1 sequence, bare 1.5 ms") && html.contains("2 sequences, bare 3 ms"));
    for added in [
        "device-graph: 12.5",
        "host-kernels: 100",
        "device-graph: 25",
        "host-kernels: 200",
    ] {
        assert!(html.contains(&format!(">{added}<")), "{added}");
    }
    assert!(!html.contains(">bare: "), "it is not one of the ways");
    assert!(html.contains("sequences: by 5.8%"));
    for file in ["bare.json", "graph.json", "kernels.json"] {
        assert!(html.contains(&format!("{file}, made by")), "{file}");
    }
    // The same measured twice stays apart.
    let again = of_way("again.json", "device-graph", 1.6);
    let html = page(folder.path(), &[&graph, &again]);
    assert_eq!(html.matches("<h2 ").count(), 2);
}

#[test]
fn prompts_are_held_against_the_floor() {
    let folder = tempfile::tempdir().unwrap();
    let rates = ["-r", "2", "--bandwidth", "10", "--tflops", "0.05"];
    let prefill = [&["prefill", "-b", "1,2", "-p", "16"], &rates[..]].concat();
    let score = [&["score", "-b", "20", "-p", "8"], &rates[..]].concat();
    let files = [
        benched(folder.path(), "prefill.json", &prefill),
        benched(folder.path(), "score.jsonl", &score),
    ];
    let html = page(folder.path(), &[&files[0], &files[1]]);
    let rows = table_rows(&html);
    let score = std::fs::read_to_string(&files[1]).unwrap();
    let mut found = json_of(&files[0]).as_array().unwrap().clone();
    found.push(serde_json::from_str(&score).unwrap());
    for row in &found {
        let (batch, tokens) = (row["batch"].to_string(), row["n_prompt"].to_string());
        let cells = row_of(&rows, &["cpu", "idle", "f32", &batch, &tokens]);
        all_same(&cells[5..7], row, &["avg_ts", "stddev_ts"]);
        let each = row["avg_ts"].as_f64().unwrap() / row["n_prompt"].as_f64().unwrap();
        same(&cells[7], &json!(each));
        all_same(&cells[8..10], row, &["duration", "floor_ms"]);
        assert_eq!(row["floor_bound"], cells[10].as_str());
        let share = row["floor_fraction"].as_f64().unwrap() * 100.0;
        assert!((number(&cells[11]) - share).abs() < 0.06, "{cells:?}");
        let tokens = row["batch"].as_f64().unwrap() * row["n_prompt"].as_f64().unwrap();
        let rate = tokens / row["floor_ms"].as_f64().unwrap() * 1e3;
        let bar = |rate: f64| tailgraph::report::svg::figure(rate);
        assert!(
            html.contains(&format!(">roofline: {}<", bar(rate))),
            "{row}"
        );
        let rate = row["avg_ts"].as_f64().unwrap();
        assert!(html.contains(&format!(">cpu: {}<", bar(rate))), "{row}");
    }
    assert!(html.contains("Score: random:tiny@0") && html.contains("Prefill: random:tiny@0"));
}

#[test]
fn serving_is_drawn_over_the_rate_of_arrival() {
    let folder = tempfile::tempdir().unwrap();
    let args = [
        "serve",
        "-b",
        "2",
        "-p",
        "6",
        "-n",
        "4",
        "--num-prompts",
        "6",
        "-r",
        "1",
        "--request-rate",
        "50,200,inf",
    ];
    let file = benched(folder.path(), "serve.json", &args);
    let html = page(folder.path(), &[&file]);
    let rows = table_rows(&html);
    for row in json_of(&file).as_array().unwrap() {
        let asked = match row["request_rate"].as_f64() {
            Some(rate) => format!("{rate}"),
            None => "all at once".to_owned(),
        };
        let cells = row_of(&rows, &["cpu", "idle", &asked]);
        let keys = [
            "request_throughput",
            "max_seqs",
            "output_throughput",
            "median_ttft_ms",
            "p99_ttft_ms",
            "median_itl_ms",
            "p99_itl_ms",
            "median_e2el_ms",
            "p99_e2el_ms",
        ];
        all_same(&cells[3..], row, &keys);
    }
    assert_eq!(html.matches("by rate of arrival<").count(), 3);
    assert!(html.contains("Not drawn, the median where all arrive at once: cpu "));
    // Of one rate there is no curve.
    let one = change(&file, "one.json", &|row| {
        let rate = row["request_rate"].clone();
        row["launch"] = format!("way-{rate}").replace('"', "").into();
        row["request_rate"] = 50.0.into();
    });
    let html = page(folder.path(), &[&one]);
    assert!(!html.contains("by rate of arrival") && html.contains("requests a second: 50"));
}

#[test]
fn launches_are_in_microseconds() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["-b", "1", "-p", "4", "-n", "8", "-r", "1", "--warm-up", "0"];
    let cpu = benched(folder.path(), "cpu.json", &args);
    let of_way = |name: &str, way: &'static str, step_ms: f64| {
        change(&cpu, name, &move |row| {
            row["kind"] = "launch".into();
            row["n_kernels"] = 4.into();
            row["launch"] = way.into();
            row["median_step_ms"] = step_ms.into();
        })
    };
    let (bare, graph) = (
        of_way("bare.json", "bare", 0.0033),
        of_way("graph.json", "device-graph", 0.0129),
    );
    let html = page(folder.path(), &[&bare, &graph]);
    assert!(html.contains("Launching 4 small kernels") && html.contains("1 sequence, bare 3.3 us"));
    assert!(html.contains(">device-graph: 9.6<"));
    let rows = table_rows(&html);
    let cells = row_of(&rows, &["device-graph", "idle", "1"]);
    same(&cells[4], &json!(12.9));
    assert!(
        !html.contains("to its first token"),
        "there is no token to wait for"
    );
}

#[test]
fn wrong_results_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("report.html");
    let args = ["-b", "1", "-p", "4", "-n", "8", "-r", "1", "--warm-up", "0"];
    let file = benched(folder.path(), "right.json", &args);
    type Change = fn(&mut Value);
    let cases: [(Change, &str); 4] = [
        (|row| row["schema"] = 2.into(), "found schema 2, expected 1"),
        (|row| row["median_step_ms"] = 0.0.into(), "took no time"),
        (|row| row["kind"] = "launch".into(), "without n_kernels"),
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
    let twice = vec![json_of(&file)[0].clone(); 2];
    std::fs::write(&file, Value::from(twice).to_string()).unwrap();
    let ended = run(&["report", text(&file), "-o", text(&output)]);
    assert!(
        ended
            .stderr
            .contains("results 2 and an earlier one are of the same combination"),
        "{}",
        ended.stderr
    );
}
