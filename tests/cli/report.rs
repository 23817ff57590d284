//! `report`: the page parses, needs nothing else, and holds the numbers of its inputs.

use crate::common::program::run;
use crate::common::rows::text;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

mod benched;
mod lineup;
mod startup;

/// Every launch way beside an idle and a busy host, at full size on a GPU.
fn measured() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("profiles/results/ways-h200-2026-11-28.json")
}

/// Where a result of [`measured`] is in tables: launch way, host, sequences.
fn start_of(row: &Value) -> [String; 3] {
    let host = match row["cpu_load"].as_u64().unwrap() {
        0 => "idle".to_owned(),
        threads => format!("{threads} busy"),
    };
    let way = row["launch"].as_str().unwrap();
    [way.to_owned(), host, row["batch"].to_string()]
}

fn json_of(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn page(folder: &Path, inputs: &[&Path]) -> String {
    let output = folder.join("report.html");
    let mut args = vec!["report", "-o", text(&output)];
    args.extend(inputs.iter().map(|path| text(path)));
    let ended = run(&args);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let html = std::fs::read_to_string(&output).unwrap();
    parses(&html);
    needs_nothing(&html);
    html
}

/// Every element is closed in its order, and every attribute is quoted.
fn parses(html: &str) {
    let mut rest = html
        .strip_prefix("<!DOCTYPE html>")
        .expect("a document type");
    let mut open: Vec<&str> = vec![];
    while let Some(at) = rest.find('<') {
        assert!(!rest[..at].contains('>'), "a loose >: {}", &rest[..at]);
        let end = at + rest[at..].find('>').expect("a tag ends");
        let tag = &rest[at + 1..end];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "at {tag}");
        } else {
            assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
            if !tag.ends_with('/') {
                open.push(tag.split([' ', '\n']).next().unwrap());
            }
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty(), "{open:?} are not closed");
}

fn needs_nothing(html: &str) {
    for word in ["NaN", "inf,", "\"inf"] {
        assert!(!html.contains(word), "{word}");
    }
    for word in [
        "http:", "https:", "src=", "url(", "@import", "<script", "<link", "<iframe", "//cdn",
    ] {
        assert!(!html.contains(word), "{word}");
    }
    for link in html.split("href=\"").skip(1) {
        assert!(link.starts_with("#part"), "{}", &link[..20]);
    }
    assert!(html.contains("prefers-color-scheme: dark") && html.contains("name=\"viewport\""));
}

/// The rows of all tables.
fn table_rows(html: &str) -> Vec<Vec<String>> {
    let cells = |row: &str| -> Vec<String> {
        row.split("<td")
            .skip(1)
            .map(|cell| {
                let cell = &cell[cell.find('>').unwrap() + 1..];
                cell[..cell.find("</td>").unwrap()].to_owned()
            })
            .collect()
    };
    html.split("<tr>")
        .skip(1)
        .map(cells)
        .filter(|row| !row.is_empty())
        .collect()
}

/// Cells as numbers: what is written there, to the figures that are.
fn number(cell: &str) -> f64 {
    let plain: String = cell
        .chars()
        .filter(|c| !['\u{2009}', '%'].contains(c))
        .collect();
    plain
        .replace('\u{2212}', "-")
        .parse()
        .unwrap_or_else(|_| panic!("{cell}"))
}

#[track_caller]
fn same(cell: &str, value: &Value) {
    let (found, value) = (number(cell), value.as_f64().unwrap());
    assert!(
        (found - value).abs() <= value.abs() * 5.1e-4,
        "{cell} is not {value}"
    );
}

#[test]
fn a_page_holds_the_numbers_it_was_made_of() {
    let folder = tempfile::tempdir().unwrap();
    let html = page(folder.path(), &[&measured()]);
    let input = json_of(&measured());
    let rows = table_rows(&html);
    for result in input.as_array().unwrap() {
        let start = start_of(result);
        let row = rows.iter().find(|row| row.starts_with(&start));
        let row = row.unwrap_or_else(|| panic!("no row {start:?}"));
        let keys = [
            "step_count",
            "median_step_ms",
            "p90_step_ms",
            "p99_step_ms",
            "p99.9_step_ms",
            "avg_ts",
            "stddev_ts",
        ];
        for (cell, key) in row[3..].iter().zip(keys) {
            same(cell, &result[key]);
        }
        // Of each engine, what its first result says.
        let way = &start[0];
        let first = input.as_array().unwrap();
        let first = first.iter().find(|row| row["launch"] == **way).unwrap();
        startup::holds(&rows, first, &startup::BESIDE);
        for key in ["command", "gpu_info", "model_filename"] {
            let value = result[key].as_str().unwrap();
            assert!(html.contains(value), "{value}");
        }
        if way == "bare" {
            let ms = result["median_step_ms"].as_f64().unwrap();
            let words = format!("bare {} ms", tailgraph::report::svg::figure(ms));
            assert!(html.contains(&words), "{words}");
        }
    }
    assert_eq!(input.as_array().unwrap().len(), 45);
}

#[test]
fn steps_are_held_against_the_roofline_of_their_file() {
    let folder = tempfile::tempdir().unwrap();
    let html = page(folder.path(), &[&measured()]);
    let rows = table_rows(&html);
    let input = json_of(&measured());
    for result in input.as_array().unwrap() {
        let start = start_of(result);
        let row = rows.iter().find(|row| row.starts_with(&start)).unwrap();
        let (floor, p50) = (number(&row[10]), number(&row[4]));
        same(&row[10], &result["floor_ms"]);
        assert!((number(&row[11]) - floor / p50 * 100.0).abs() < 0.1);
    }
    // A file without floors has none.
    let mut other = input;
    for row in other.as_array_mut().unwrap() {
        row["floor_ms"] = Value::Null;
    }
    let path = folder.path().join("other.json");
    std::fs::write(&path, other.to_string()).unwrap();
    let html = page(folder.path(), &[&path]);
    assert!(html.contains("No roofline") && !html.contains("of roofline"));
}

#[test]
fn a_title_says_what_the_numbers_show_and_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let finding = "A busy host makes steps of host-kernels, host-graph and host-graph-ahead late, and not those of device-graph";
    assert!(page(folder.path(), &[&measured()]).contains(finding));
    let path = folder.path().join("changed.json");
    let idle = json_of(&measured());
    let idle = idle.as_array().unwrap();
    let idle_of = |busy: &Value| {
        let same = |row: &&Value| {
            row["cpu_load"] == 0 && row["launch"] == busy["launch"] && row["batch"] == busy["batch"]
        };
        idle.iter().find(same).unwrap().clone()
    };
    let write = |change: &dyn Fn(&mut Vec<Value>)| {
        let mut input = json_of(&measured());
        change(input.as_array_mut().unwrap());
        std::fs::write(&path, input.to_string()).unwrap();
        page(folder.path(), &[&path])
    };
    let busy = |row: &&mut Value| row["cpu_load"] != 0;
    // Everyone is as calm as with an idle host; or everyone is late; or nobody tried.
    let calm = write(&|rows| {
        for row in rows.iter_mut().filter(busy) {
            for key in ["p99_step_ms", "p99.9_step_ms"] {
                row[key] = idle_of(row)[key].clone();
            }
        }
    });
    let late = write(&|rows| {
        for row in rows.iter_mut().filter(busy) {
            for key in ["p99_step_ms", "p99.9_step_ms"] {
                row[key] = json!(row[key].as_f64().unwrap() * 9.0);
            }
        }
    });
    for html in [calm, late] {
        assert!(html.contains("The slow steps, with an idle and a busy host"));
        assert!(!html.contains("A busy host makes"));
    }
    let alone = write(&|rows| rows.retain(|row| row["cpu_load"] == 0));
    assert!(alone.contains("The slow steps<") && !alone.contains(" busy"));
}

#[test]
fn a_trace_has_its_numbers_on_the_page() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
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
    assert_eq!(run(&args).code, 0);
    let html = page(folder.path(), &[&path, &measured()]);
    let trace = json_of(&path);
    let about = &trace["otherData"];
    for (key, word) in [
        ("requests", "requests"),
        ("steps", "steps"),
        ("turns", "turns"),
        ("tokens", "new tokens"),
    ] {
        assert!(html.contains(&format!("{} {word}", about[key])), "{key}");
    }
    let events = trace["traceEvents"].as_array().unwrap();
    let rows = table_rows(&html);
    let steps = |name: &str| -> Vec<&Value> {
        let named = events
            .iter()
            .filter(|e| e["ph"] == "X" && e["name"] == name);
        named.collect()
    };
    let kinds = events.iter().filter(|e| e["ph"] == "X");
    let kinds = kinds.filter_map(|e| e["name"].as_str());
    let kinds: std::collections::BTreeSet<&str> = kinds
        .filter(|name| name.starts_with("decode ") || name.starts_with("mixed "))
        .collect();
    assert!(kinds.contains("decode 1") && kinds.iter().any(|name| name.starts_with("mixed ")));
    for name in kinds {
        let row = rows.iter().find(|row| row[0] == name);
        let row = row.unwrap_or_else(|| panic!("no {name} in {rows:?}"));
        let ms = |fold: fn(f64, f64) -> f64| {
            let all = steps(name)
                .into_iter()
                .map(|e| e["dur"].as_f64().unwrap() / 1e3);
            json!(all.reduce(fold).unwrap())
        };
        same(&row[1], &json!(steps(name).len()));
        same(&row[2], &ms(f64::min));
        same(&row[5], &ms(f64::max));
    }
    let row = rows.iter().find(|row| row[0] == "to the end").unwrap();
    same(&row[1], &json!(5));
    let longest = events
        .iter()
        .filter(|e| e["cat"] == "request" && e["name"].as_str().unwrap().starts_with("request"));
    let mut spans = std::collections::HashMap::new();
    for event in longest {
        let ts = event["ts"].as_f64().unwrap();
        *spans
            .entry(event["id2"]["local"].to_string())
            .or_insert(0.0) += if event["ph"] == "b" { -ts } else { ts };
    }
    same(
        &row[5],
        &json!(spans.into_values().fold(0.0, f64::max) / 1e3),
    );
    assert!(html.contains(">request 0<") && html.contains("same clock"));
}

#[test]
fn files_of_one_name_go_by_their_folders() {
    let folder = tempfile::tempdir().unwrap();
    let copies = ["before", "after"].map(|when| folder.path().join(when).join("steps.json"));
    for copy in &copies {
        std::fs::create_dir(copy.parent().unwrap()).unwrap();
        std::fs::copy(measured(), copy).unwrap();
    }
    let html = page(folder.path(), &[&copies[0], &copies[1]]);
    assert!(html.contains("before/steps.json") && html.contains("after/steps.json"));
    let html = page(folder.path(), &[&copies[0]]);
    assert!(html.contains("steps.json") && !html.contains("before/steps.json"));
}

/// Such values made an axis without an end.
#[test]
fn values_out_of_all_bounds_are_drawn_at_the_edge() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("odd.json");
    for key in ["avg_ts", "median_ttft_ms", "median_step_ms", "p99_step_ms"] {
        for value in [1.7e308, 1e-308] {
            let mut input = json_of(&measured());
            input[0][key] = json!(value);
            std::fs::write(&path, input.to_string()).unwrap();
            page(folder.path(), &[&path]);
        }
    }
}

#[test]
fn names_from_files_are_text() {
    let folder = tempfile::tempdir().unwrap();
    let mut input = json_of(&measured());
    for row in input.as_array_mut().unwrap() {
        row["model_filename"] = json!("<script>alert(\"x\")</script>&");
    }
    let path = folder.path().join("odd.json");
    std::fs::write(&path, input.to_string()).unwrap();
    let html = page(folder.path(), &[&path]);
    assert!(html.contains("&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;&amp;"));
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
