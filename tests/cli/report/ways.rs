//! The page of every way of launching a step, as the laboratory (profiles/lab) measures them.

use crate::common::program::{run, tailgraph};
use crate::common::schema::{check, schema};
use serde_json::{Value, json};

/// A row as `lab launch --format jsonl` writes it.
fn measured(technique: &str, cpu_load: u32, gpu_load: u32, p50: f64, p999: Option<f64>) -> Value {
    json!({
        "launch_schema": 1, "build_version": "0.1.0", "build_profile": "release",
        "command": "lab launch", "test_time": "2026-11-26T14:00:00Z",
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
            "lab launch",
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
