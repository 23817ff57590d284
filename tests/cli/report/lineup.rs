//! `report --svg`: every time that was measured is there, and nothing else.

use super::benched::{benched, change};
use super::{json_of, text};
use crate::common::program::{Ended, run};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn made(folder: &Path, inputs: &[&Path]) -> String {
    let svg = folder.join("ways.svg");
    let mut args = vec!["report", "--svg", text(&svg)];
    args.extend(inputs.iter().map(|path| text(path)));
    let ended = run(&args);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let svg = std::fs::read_to_string(svg).unwrap();
    stands_alone(&svg);
    svg
}

/// A file of its own: well formed, named as what it is, light and dark, and in need of nothing else.
fn stands_alone(svg: &str) {
    let start = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 800 ";
    assert!(svg.starts_with(start), "{}", &svg[..100]);
    assert!(svg.contains("prefers-color-scheme: dark"));
    for word in ["href", "url(", "@import", "<script", "<image", "NaN", "inf"] {
        assert!(!svg.contains(word), "{word}");
    }
    let mut open: Vec<&str> = vec![];
    for tag in svg.split('<').skip(1) {
        let (tag, text) = tag.split_once('>').expect("a tag ends");
        assert!(
            !text.contains('>') && tag.matches('"').count() % 2 == 0,
            "{tag}"
        );
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name)),
            None if tag.ends_with('/') => {}
            None => open.push(tag.split([' ', '\n']).next().unwrap()),
        }
    }
    assert!(open.is_empty(), "{open:?} are not closed");
}

/// What a row says when it is pointed at; none where nothing was measured of it.
fn said<'a>(svg: &'a str, way: &str, name: &str) -> Option<&'a str> {
    let (_, rest) = svg.split_once(&format!("<title>{way}, {name}: "))?;
    Some(rest.split_once(" ms</title>").unwrap().0)
}

fn names(batch: u64) -> String {
    match batch {
        1 => "1 sequence".to_owned(),
        n => format!("{n} sequences"),
    }
}

/// Results on the CPU, as if they were of several ways: `bare` and three that differ in length, beside an idle and a
/// busy host.
fn ways(folder: &Path) -> PathBuf {
    let sizes = [
        "-b",
        "1,3",
        "-p",
        "4",
        "-n",
        "10",
        "-r",
        "1",
        "--warm-up",
        "0",
    ];
    let more = ["--cpu-load", "0,2", "--bandwidth", "10"];
    let cpu = benched(folder, "cpu.json", &[&sizes[..], &more].concat());
    let rows = json_of(&cpu);
    let mut all: Vec<Value> = vec![];
    let lengths = [
        ("bare", 1.0, 1.0),
        ("host-graph", 1.1, 6.0),
        ("device-graph", 1.05, 1.0),
    ];
    for (way, longer, busy) in lengths {
        for row in rows.as_array().unwrap() {
            let mut row = row.clone();
            row["launch"] = way.into();
            let step = longer * row["batch"].as_f64().unwrap();
            let slow = step
                * if row["cpu_load"] == 0 {
                    1.01
                } else {
                    1.01 * busy
                };
            row["median_step_ms"] = step.into();
            row["p99_step_ms"] = slow.into();
            row["gpu_info"] = "cuda:0 Some GPU (with many cores)".into();
            row["test_time"] = "2026-11-22T03:04:05Z".into();
            row["build_profile"] = "debug".into();
            all.push(row);
        }
    }
    let path = folder.join("ways.json");
    std::fs::write(&path, Value::from(all).to_string()).unwrap();
    path
}

#[test]
fn every_measured_time_is_in_the_picture() {
    let folder = tempfile::tempdir().unwrap();
    let file = ways(folder.path());
    let svg = made(folder.path(), &[&file]);
    let input = json_of(&file);
    let of = |row: &Value, key: &str| tailgraph::bench::output::number(row[key].as_f64().unwrap());
    for row in input.as_array().unwrap() {
        let name = names(row["batch"].as_u64().unwrap());
        let way = row["launch"].as_str().unwrap();
        let p99 = of(row, "p99_step_ms");
        if way == "bare" {
            for key in ["floor_ms", "median_step_ms"] {
                assert!(svg.contains(&format!(">{}<", of(row, key))), "{key}: {row}");
            }
        } else if row["cpu_load"] == 0 {
            let idle = format!("p50 {}, p99 {p99} and ", of(row, "median_step_ms"));
            assert!(said(&svg, way, &name).unwrap().starts_with(&idle), "{row}");
        } else {
            let busy = format!("p99 with a busy host {p99}");
            assert!(said(&svg, way, &name).unwrap().ends_with(&busy), "{row}");
        }
    }
    for words in [
        "How long a step takes in each way to launch. Decode steps of random:tiny@0 in f32",
        "on Some GPU, 2026-11-22, a debug build",
        "p99 beside 2 busy threads",
        ">ms a step (log)<",
        ">\u{d7} 6.00<",
        ">\u{d7} 1.00<",
    ] {
        assert!(svg.contains(words), "{words}");
    }
}

#[test]
fn what_was_not_measured_is_left_empty() {
    let folder = tempfile::tempdir().unwrap();
    let file = ways(folder.path());
    let keep = |name: &str, keep: &dyn Fn(&Value) -> bool| {
        let rows = json_of(&file);
        let kept: Vec<Value> = rows
            .as_array()
            .unwrap()
            .iter()
            .filter(|row| keep(row))
            .cloned()
            .collect();
        let path = folder.path().join(name);
        std::fs::write(&path, Value::from(kept).to_string()).unwrap();
        made(folder.path(), &[&path])
    };
    // One way without its larger batch, and without a busy host in the other.
    let svg = keep("holes.json", &|row| {
        row["launch"] != "host-graph" || (row["batch"] == 1 && row["cpu_load"] == 0)
    });
    assert_eq!(said(&svg, "host-graph", "3 sequences"), None);
    let idle = said(&svg, "host-graph", "1 sequence").unwrap();
    assert!(idle.starts_with("p50 ") && !idle.contains("busy"), "{idle}");
    let both = said(&svg, "device-graph", "3 sequences").unwrap();
    assert!(both.contains("busy") && !svg.contains(" 0 ms"), "{both}");
    assert!(svg.contains("How long a step takes in each way to launch"));
    // A busy host alone.
    let svg = keep("busy.json", &|row| {
        row["launch"] == "bare" || row["cpu_load"] != 0
    });
    let found = said(&svg, "host-graph", "1 sequence").unwrap();
    assert!(found.starts_with("p99 with a busy host "), "{found}");
    assert!(!svg.contains("\u{d7} "), "there is nothing to compare with");
    // Neither bare graphs nor floors nor load: no column, and no word of them.
    let plain = change(&file, "plain.json", &|row| row["floor_ms"] = Value::Null);
    let mut input = json_of(&plain);
    let all = input.as_array_mut().unwrap();
    all.retain(|row| row["launch"] != "bare" && row["cpu_load"] == 0);
    std::fs::write(&plain, input.to_string()).unwrap();
    let svg = made(folder.path(), &[&plain]);
    for word in [">bare graph", ">floor", "busy", ">\u{d7} "] {
        assert!(!svg.contains(word), "{word}");
    }
}

#[test]
fn names_from_files_stay_text() {
    let folder = tempfile::tempdir().unwrap();
    let odd = "a|b<i>\"x\"</i>&\n[c](d)";
    let file = change(&ways(folder.path()), "odd.json", &|row| {
        if row["launch"] != "bare" {
            row["launch"] = format!("{odd}{}", row["launch"].as_str().unwrap()).into();
        }
        row["model_filename"] = odd.into();
    });
    let svg = folder.path().join("odd.svg");
    let ended = run(&["report", text(&file), "--svg", text(&svg)]);
    assert_eq!(
        (ended.code, ended.stdout.as_str()),
        (0, ""),
        "{}",
        ended.stderr
    );
    let svg = std::fs::read_to_string(svg).unwrap();
    stands_alone(&svg);
    assert!(svg.contains("a|b&lt;i&gt;&quot;x&quot;&lt;/i&gt;&amp;") && !svg.contains("<i>"));
}

#[test]
fn wrong_inputs_and_names_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = ways(folder.path());
    let svg = folder.path().join("ways.svg");
    let refused = |args: &[&str], expected: &str| {
        let Ended { code, stderr, .. } = run(&[&["report"], args].concat());
        assert_eq!(code, 2, "{expected}: {stderr}");
        assert!(stderr.contains(expected), "{expected}: {stderr}");
        assert!(!svg.exists());
    };
    refused(&[text(&file)], "--svg <FILE.svg|->");
    refused(
        &[text(&file), "--svg", text(&svg), "--title", "t"],
        "--output",
    );
    refused(&[text(&file), "--svg", text(&file)], "found the input file");
    let same = [text(&file), "--svg", text(&svg), "-o", text(&svg)];
    refused(&same, "found the same name as --output");
    let one_stream = [text(&file), "--svg", "-", "-o", "-"];
    refused(&one_stream, "found the same name as --output");
    let bare = change(&file, "bare.json", &|_| {});
    let mut input = json_of(&bare);
    let all = input.as_array_mut().unwrap();
    all.retain(|row| row["launch"] == "bare");
    std::fs::write(&bare, input.to_string()).unwrap();
    refused(
        &[text(&bare), "--svg", text(&svg)],
        "found the bare graph alone",
    );
    let other = change(&file, "other.json", &|row| row["dtype"] = "bf16".into());
    let both = [text(&file), text(&other), "--svg", text(&svg)];
    refused(
        &both,
        "in ways.json and decode steps of random:tiny@0 in bf16 (4 + 10 tokens a sequence) on cuda:0 Some GPU",
    );
    for (field, value, words) in [
        (
            "build_profile",
            "release",
            "a release build, 2026-11-22 in other.json",
        ),
        ("gpu_info", "cuda:0 Other GPU", "on cuda:0 Other GPU"),
        ("kernel_file", "k.toml", "expected steps of one model, type"),
        (
            "test_time",
            "2026-11-23T03:04:05Z",
            "2026-11-23 in other.json",
        ),
    ] {
        change(&file, "other.json", &|row| row[field] = value.into());
        refused(&[text(&file), text(&other), "--svg", "-"], words);
    }
    let args = ["prefill", "-b", "1", "-p", "4", "-r", "1", "--warm-up", "0"];
    let prefill = benched(folder.path(), "prefill.json", &args);
    refused(
        &[text(&prefill), "--svg", text(&svg)],
        "found no steps in these files",
    );
}
