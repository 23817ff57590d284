//! `bench launch --launch all`, `bench limits` and `bench queue`: names, what goes with what, and what is said without a GPU.

use crate::bench::bench;
use crate::common::program::{run, tailgraph};
use crate::common::schema::{check, schema};
use serde_json::{Value, json};
use tailgraph::backend::cuda::listed::techniques::Technique;
use tailgraph::bench::output::{Column, Format, LIMITS, QUEUE, TECHNIQUES, text};

#[test]
fn every_way_is_in_the_help_and_on_the_page() {
    let help = tailgraph(&["bench", "--help"]);
    let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/profiles/launching.md");
    let page = std::fs::read_to_string(page).unwrap();
    for technique in Technique::ALL {
        let about = technique.about();
        let line = format!("- {}: {}", about.name, about.does);
        let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(&line), "no {line:?} in {words}");
        let row = format!(
            "| {} | {} | {} | {} | {} |",
            about.name, about.does, about.choose, about.cannot, about.since
        );
        assert!(
            page.lines().any(|line| line == row),
            "the page has no {row}"
        );
    }
    let named = &schema("launching")["items"]["properties"]["technique"]["enum"];
    assert_eq!(*named, json!(Technique::ALL.map(Technique::name)));
}

#[test]
fn ways_without_a_scheduler_go_by_themselves() {
    let cases: [(&[&str], &str); 10] = [
        (
            &["decode", "--launch", "all"],
            "--launch all: a way of `bench launch`, found `bench decode`",
        ),
        (
            &["decode", "--launch", "device-tail"],
            "--launch device-tail: a way of `bench launch`",
        ),
        (
            &["launch", "--launch", "device-tail,host-graph"],
            "--launch device-tail,host-graph: found a way with a scheduler beside one without",
        ),
        (
            &["launch", "--launch", "all", "-b", "8"],
            "--batch: `bench launch --launch all` has no sequences",
        ),
        (
            &["launch", "--launch", "cdp", "-n", "8"],
            "--gen-len: `bench launch --launch cdp` has no sequences",
        ),
        (
            &["launch", "--steps", "8"],
            "--steps: expected `bench launch --launch all`",
        ),
        (
            &["launch", "--renew", "8"],
            "--renew: expected `bench launch --launch all`",
        ),
        (
            &["decode", "--steps", "8"],
            "--steps: an option of `bench launch`",
        ),
        (
            &["serve", "--gpu-load", "1", "--max-concurrency", "2"],
            "--gpu-load: an option of `bench decode` and `bench launch`",
        ),
        (&["launch", "--launch", "graph"], "invalid value 'graph'"),
    ];
    for (options, expected) in cases {
        let ended = bench(options);
        assert_eq!(ended.code, 2, "{options:?}: {}", ended.stderr);
        assert!(
            ended.stderr.contains(expected),
            "{options:?}: {}",
            ended.stderr
        );
    }
}

#[test]
fn what_needs_a_gpu_says_so() {
    for what in ["limits", "queue", "keep-busy"] {
        let ended = run(&["bench", what, "--device", "cpu"]);
        assert_eq!(ended.code, 2, "{what}: {}", ended.stderr);
        assert!(ended.stderr.contains("GPU"), "{what}: {}", ended.stderr);
        assert!(ended.stdout.is_empty());
    }
    let options = [
        "bench",
        "decode",
        "--model",
        "random:tiny",
        "--device",
        "cpu",
    ];
    let ended = run(&[&options[..], &["--gpu-load", "1"]].concat());
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    assert!(
        ended.stderr.contains("--gpu-load: the CPU"),
        "{}",
        ended.stderr
    );
    let hidden = tailgraph(&["bench", "--help"]);
    assert!(!hidden.contains("keep-busy"));
}

/// As `bench launch --launch all --format jsonl` writes it.
fn measured(technique: &str, cpu_load: u32, gpu_load: u32, p50: f64, p999: Option<f64>) -> Value {
    json!({
        "launch_schema": 1, "build_version": "0.1.0", "build_profile": "release",
        "command": "tailgraph bench launch --launch all", "test_time": "2026-11-26T14:00:00Z",
        "cpu_info": "a processor", "gpu_info": "GPU 0 (a GPU)", "host_cores": 16, "technique": technique,
        "kernels": 32, "cpu_load": cpu_load, "gpu_load": gpu_load, "repeats": 1, "timed_steps": 1494,
        "mean_step_us": p50, "p50_step_us": p50, "p99_step_us": 2.0 * p50, "p99.9_step_us": p999,
        "longest_step_us": 5.0 * p50, "host_cpu_us_per_step": 61.5, "host_launches_per_step": 1.0,
        "device_mib": 2.0, "startup_ms": 3.25, "not_taken": 0, "digest": "0123456789abcdef",
    })
}

#[test]
fn a_report_shows_every_way_beside_every_load() {
    let folder = tempfile::tempdir().unwrap();
    let rows = [
        measured("graph-spin", 0, 0, 71.25, Some(201.5)),
        measured("device-tail", 64, 2, 66.75, None),
    ];
    check(&schema("launching"), &json!(rows)).unwrap();
    let lines = rows.each_ref().map(|row| format!("{row}\n")).concat();
    let list = serde_json::to_string_pretty(&rows).unwrap();
    for (name, text) in [("a.jsonl", lines), ("a.json", list)] {
        let (file, page) = (folder.path().join(name), folder.path().join("page.html"));
        std::fs::write(&file, text).unwrap();
        let (file, to) = (file.to_str().unwrap(), page.to_str().unwrap());
        tailgraph(&["report", file, "-o", to]);
        let page = std::fs::read_to_string(&page).unwrap();
        for part in [
            "\"techniques\":true",
            "GPU 0 (a GPU)",
            "graph-spin",
            "71.25",
            "201.5",
            "66.75",
            "tailgraph bench launch --launch all",
        ] {
            assert!(page.contains(part), "{name}: no {part}");
        }
    }
    let mut other = measured("graph-spin", 0, 0, 71.25, None);
    other["launch_schema"] = 2.into();
    let file = folder.path().join("other.jsonl");
    std::fs::write(&file, other.to_string()).unwrap();
    let ended = run(&["report", file.to_str().unwrap(), "-o", "-"]);
    ended.fails(1, &["other.jsonl", "found launch_schema 2", "expected 1"]);
}

#[test]
fn tables_have_what_a_reader_compares() {
    let rows = [
        measured("graph-spin", 0, 0, 71.25, Some(201.5)),
        measured("cdp", 0, 0, 166.75, None),
    ];
    let lines = |rows: &[Value], columns: &[Column]| -> Vec<String> {
        let text = text(rows, Format::Md, columns, usize::MAX);
        text.lines().map(str::to_owned).collect()
    };
    let table = lines(&rows, TECHNIQUES);
    assert_eq!(table.len(), 4, "{table:#?}");
    for title in ["way", "us p50", "p99.9", "CPU us/step", "MiB", "start ms"] {
        assert!(table[0].contains(&format!(" {title} |")), "{}", table[0]);
    }
    assert!(
        !table[0].contains("gpu load"),
        "nobody has any: {}",
        table[0]
    );
    assert!(table[2].contains(" graph-spin |") && table[2].contains(" 201.5 |"));
    assert!(
        table[3].contains(" - |"),
        "a p99.9 that is not known: {}",
        table[3]
    );
    let beside = [rows[0].clone(), measured("graph-spin", 0, 2, 9000.0, None)];
    assert!(lines(&beside, TECHNIQUES)[0].contains(" gpu load |"));

    let edge = |holds| {
        json!({
            "limit": "pending tail launches of a graph", "documented": 255, "accepted": 255, "ran": 255,
            "accepted_beyond": 255, "ran_beyond": 255, "answer": "launch 256 of them", "holds": holds,
        })
    };
    let table = lines(&[edge(true), edge(false)], LIMITS);
    assert!(
        table[2].ends_with(" yes |") && table[3].ends_with(" NO |"),
        "{table:#?}"
    );
    let queue = json!({
        "claim": "32 items a claim", "work": "skewed", "rounds": 64, "items_per_us": 812.5, "first_end_us": 10.0,
        "median_end_us": 11.0, "last_end_us": 14.0, "tail_us": 3.0, "idle_share": 0.125, "claims": 32768,
    });
    let table = lines(&[queue], QUEUE);
    assert!(
        table[2].contains(" 812.5 |") && table[2].contains(" 12.5% |"),
        "{table:#?}"
    );
}
