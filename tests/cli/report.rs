//! `report`: the page needs nothing else, and holds what its files say.

use crate::common::program::run;
use crate::common::rows::text;
use crate::common::schema::schema;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

mod benched;
mod browser;
mod lineup;
mod ways;

/// Every launch way beside an idle and a busy host, at full size on a GPU.
fn measured() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("profiles/results/ways-h200-2026-11-28.json")
}

fn json_of(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The page of these files.
fn html(folder: &Path, inputs: &[&Path]) -> String {
    let output = folder.join("report.html");
    let mut args = vec!["report", "-o", text(&output)];
    args.extend(inputs.iter().map(|path| text(path)));
    let ended = run(&args);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    std::fs::read_to_string(&output).unwrap()
}

/// The parts of that page, as its script reads them.
fn parts(folder: &Path, inputs: &[&Path]) -> Vec<Value> {
    let html = html(folder, inputs);
    let (before, data) = html
        .split_once("<script type=\"application/json\" id=\"data\">")
        .unwrap();
    let (data, after) = data.split_once("</script>").unwrap();
    assert!(!data.contains('<'), "what a file says ends no element");
    for part in [before, after] {
        // The library names its home in a comment.
        let part = part.replace("/*! https://github.com/leeoniya/uPlot", "");
        for word in ["http:", "https:", "src=", "url(", "@import", "<link", "/*{"] {
            assert!(!part.contains(word), "{word}");
        }
    }
    assert!(before.contains("default-src 'none'") && before.contains("name=\"viewport\""));
    let data: Value = serde_json::from_str(data).unwrap();
    assert_eq!(data["files"], inputs.len());
    data["parts"].as_array().unwrap().clone()
}

/// Asserts that a row of a page is `result`, but for what a page has no use for.
#[track_caller]
fn is_whole(row: &Value, result: &Value) {
    let schema = schema("bench");
    let fields = &schema["$defs"]["Row"]["properties"];
    for (key, value) in result.as_object().unwrap() {
        // Old results have fields that today's lack.
        let gone = fields.get(key).is_none();
        if !value.is_array() && !value.is_object() && !gone {
            assert_eq!(&row[key], value, "{key}");
        }
    }
}

/// A cell of a table as a number.
fn number(cell: &str) -> f64 {
    let plain: String = cell
        .chars()
        .filter(|c| !['\u{2009}', '%'].contains(c))
        .collect();
    let plain = plain.replace('\u{2212}', "-");
    plain.parse().unwrap_or_else(|_| panic!("{cell}"))
}

/// Asserts that a cell has the value to the figures that are written.
#[track_caller]
fn same(cell: &str, value: &Value) {
    let (found, value) = (number(cell), value.as_f64().unwrap());
    assert!(
        (found - value).abs() <= value.abs() * 5.1e-4,
        "{cell} is not {value}"
    );
}

#[test]
fn a_page_holds_all_of_its_results() {
    let folder = tempfile::tempdir().unwrap();
    let parts = parts(folder.path(), &[&measured()]);
    assert_eq!(parts.len(), 1, "one model on one machine");
    let input = json_of(&measured());
    let rows = parts[0]["rows"].as_array().unwrap();
    assert_eq!((rows.len(), input.as_array().unwrap().len()), (45, 45));
    for (row, result) in rows.iter().zip(input.as_array().unwrap()) {
        is_whole(row, result);
        assert_eq!(row["file"], "ways-h200-2026-11-28.json");
        assert_eq!(row["way"], result["launch"]);
    }
}

/// A trace of five requests on the CPU.
fn traced(folder: &Path, more: &[&str]) -> PathBuf {
    let path = folder.join("trace.json");
    let args = [
        "trace",
        "--model",
        "random:tiny",
        "--device",
        "cpu",
        "--quiet",
        "--max-seqs",
        "2",
        "--max-new-tokens",
        "9",
        "-o",
        text(&path),
        "one",
        "two",
        "three",
        "four",
        "five",
    ];
    assert_eq!(run(&[&args[..], more].concat()).code, 0);
    path
}

#[test]
fn a_page_holds_what_is_in_a_trace() {
    let folder = tempfile::tempdir().unwrap();
    let path = traced(folder.path(), &[]);
    let parts = parts(folder.path(), &[&path, &measured()]);
    assert_eq!(parts.len(), 2);
    let page = &parts[0]["trace"];
    let trace = json_of(&path);
    assert_eq!(page["about"], trace["otherData"]);
    let events = trace["traceEvents"].as_array().unwrap();
    let near = |found: &Value, value: f64| {
        let found = found.as_f64().unwrap();
        assert!(
            (found - value).abs() <= value.abs() * 1e-6,
            "{found} is not {value}"
        );
    };
    let buckets = page["buckets"].as_array().unwrap();
    let names: Vec<&str> = buckets.iter().filter_map(|b| b["name"].as_str()).collect();
    assert!(names.contains(&"decode 1") && names.iter().any(|name| name.starts_with("mixed ")));
    for bucket in buckets {
        let named = events
            .iter()
            .filter(|e| e["ph"] == "X" && e["name"] == bucket["name"]);
        let mut ms: Vec<f64> = named.map(|e| e["dur"].as_f64().unwrap() / 1e3).collect();
        ms.sort_by(f64::total_cmp);
        assert_eq!(bucket["count"], ms.len());
        near(&bucket["least_ms"], ms[0]);
        near(&bucket["longest_ms"], ms[ms.len() - 1]);
        // A percentile is a value that was seen, and not the longest.
        match ms.len() {
            1 => assert_eq!(bucket["p50_ms"], Value::Null),
            n => near(&bucket["p50_ms"], ms[n.div_ceil(2) - 1]),
        }
        assert_eq!(bucket["p99_ms"], Value::Null, "there are less than 100");
    }
    let mut spans = std::collections::HashMap::new();
    let requests = events.iter().filter(|e| e["cat"] == "request");
    for event in requests.filter(|e| e["name"].as_str().unwrap().starts_with("request")) {
        let ts = event["ts"].as_f64().unwrap();
        let id = event["id2"]["local"].to_string();
        *spans.entry(id).or_insert(0.0) += if event["ph"] == "b" { -ts } else { ts };
    }
    let end = &page["requests"][2];
    assert_eq!(
        (&end["name"], &end["count"]),
        (&json!("to the end"), &json!(5))
    );
    near(
        &end["longest_ms"],
        spans.into_values().fold(0.0, f64::max) / 1e3,
    );
    assert_eq!(page["first_requests"][0]["name"], "request 0");
    assert!(page["counters"]["running"].as_array().unwrap().len() > 1);
}

#[test]
fn files_of_one_name_go_by_their_folders() {
    let folder = tempfile::tempdir().unwrap();
    let copies = ["before", "after"].map(|when| folder.path().join(when).join("steps.json"));
    for copy in &copies {
        std::fs::create_dir(copy.parent().unwrap()).unwrap();
        std::fs::copy(measured(), copy).unwrap();
    }
    let of = |parts: &[Value]| -> Vec<Value> {
        let rows = parts.iter().map(|part| part["rows"][0]["file"].clone());
        rows.collect()
    };
    let both = parts(folder.path(), &[&copies[0], &copies[1]]);
    assert_eq!(of(&both), ["before/steps.json", "after/steps.json"]);
    assert_eq!(of(&parts(folder.path(), &[&copies[0]])), ["steps.json"]);
}

#[test]
fn names_tell_files_apart() {
    use tailgraph::report::input::names;

    assert_eq!(names(&["a.json", "/x/b.json"]), ["a.json", "b.json"]);
    let alike = ["old/h200/a.json", "./new/h200/a.json", "new/b.json"];
    assert_eq!(
        names(&alike),
        ["old/h200/a.json", "new/h200/a.json", "b.json"]
    );
    assert_eq!(names(&["a.json", "new/a.json"]), ["a.json", "new/a.json"]);
    assert_eq!(names(&["a.json", "a.json"]), ["a.json"; 2], "one file");
    assert_eq!(
        names(&["../x/a.json", "x/a.json"]),
        ["../x/a.json", "x/a.json"]
    );
    assert!(names::<&str>(&[]).is_empty());
}

#[test]
fn names_from_files_are_text() {
    let folder = tempfile::tempdir().unwrap();
    let odd = "</script><!--<script>\u{0}\u{202e}\u{2028}/*{library}*/";
    let file = benched::change_to(&measured(), &folder.path().join("odd.json"), &|row| {
        row["model_filename"] = odd.into();
    });
    let parts = parts(folder.path(), &[&file]);
    assert_eq!(parts[0]["rows"][0]["model_filename"], odd);
}

#[test]
fn other_files_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("report.html");
    let path = folder.path().join("input.json");
    for (content, expected) in [
        (None, "found no such file"),
        (Some(String::new()), "found no JSON object"),
        (Some("[1]".to_owned()), "expected struct Row"),
        (Some("[]".to_owned()), "found no results"),
        (Some("7".to_owned()), "found no JSON object or list"),
        (
            Some("{\"schema\": 1, \"kind\": \"decode\"}".to_owned()),
            "missing field",
        ),
        (
            Some("{\"a\": 1}".to_owned()),
            "found an object that begins with 'a'",
        ),
        (Some("{\"traceEvents\":[".to_owned()), "EOF"),
        (
            Some("{\"traceEvents\":[]}".to_owned()),
            "found no otherData",
        ),
    ] {
        if let Some(content) = content {
            std::fs::write(&path, content).unwrap();
        }
        let ended = run(&["report", text(&path), "-o", text(&output)]);
        assert_eq!(ended.code, 1, "{expected}: {}", ended.stderr);
        assert!(
            ended.stderr.contains("input.json") && ended.stderr.contains(expected),
            "{expected}: {}",
            ended.stderr
        );
        assert!(!output.exists());
    }
    run(&["report", text(folder.path()), "-o", text(&output)]).fails(
        1,
        &["found a directory, expected JSON of `tailgraph bench`"],
    );
    let ended = run(&["report", text(&path), "-o", text(&path)]);
    assert_eq!(ended.code, 2, "{}", ended.stderr);
}
