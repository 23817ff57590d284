//! `bench` on a GPU: what it counts is what the CPU counts, and the bare graph is the fastest way to launch.

use crate::binary::tailgraph;
use serde_json::Value;

fn results(kind: &str, arguments: &[&str]) -> Vec<Value> {
    let head = [
        "bench",
        kind,
        "--model",
        "random:tiny",
        "--quiet",
        "-o",
        "json",
    ];
    serde_json::from_str(&tailgraph(&[&head[..], arguments].concat())).unwrap()
}

/// In f32 the two choose alike but for ties.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn experts_are_those_that_the_cpu_counts() {
    let kinds: [(&str, &[&str]); 3] = [
        ("decode", &["-b", "1,3", "-p", "9", "-n", "20"]),
        ("prefill", &["-b", "2", "-p", "70"]),
        ("score", &["-b", "9", "-p", "33"]),
    ];
    for (kind, sizes) in kinds {
        let on = |device| {
            let run = [
                "--dtype",
                "f32",
                "-r",
                "1",
                "--warm-up",
                "0",
                "--device",
                device,
            ];
            results(kind, &[sizes, &run].concat())
        };
        for (gpu, cpu) in on("cuda").iter().zip(on("cpu")) {
            for field in ["experts_hit_mean", "expert_share_min", "expert_share_max"] {
                let (found, expected) =
                    (gpu[field].as_f64().unwrap(), cpu[field].as_f64().unwrap());
                let slack = if field == "experts_hit_mean" {
                    0.05 * expected
                } else {
                    0.01
                };
                assert!(
                    (found - expected).abs() <= slack,
                    "{kind}: {field} {found}, expected {expected}"
                );
            }
        }
    }
}

/// Other tests may use the GPU meanwhile, so that a way is only too fast if it is in each of three measurements.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn no_way_is_faster_than_the_bare_graph() {
    let mut found = vec![];
    for _ in 0..3 {
        found = faster_than_bare();
        if found.is_empty() {
            return;
        }
    }
    panic!("{found:?}");
}

/// Launch ways whose steps take less than the bare graph's; each with its batch, its time and that of the graph, in ms.
fn faster_than_bare() -> Vec<(String, u64, f64, f64)> {
    let ways = "bare,host-kernels,host-graph,host-graph-ahead,device-graph";
    let sizes = [
        "-b", "1,4", "-p", "9", "-n", "100", "-r", "2", "--device", "cuda",
    ];
    let rows = results("decode", &[&["--launch", ways], &sizes[..]].concat());
    assert_eq!(rows.len(), 2 * 5);
    let step_ms = |row: &Value| row["median_step_ms"].as_f64().unwrap();
    let mut found = vec![];
    for bare in rows.iter().filter(|row| row["launch"] == "bare") {
        for row in rows.iter().filter(|row| row["batch"] == bare["batch"]) {
            let way = row["launch"].as_str().unwrap();
            // What runs ahead, on the host or on the GPU, may come as close as the two medians' noise.
            let least = match way {
                "bare" => continue,
                "host-kernels" => step_ms(bare),
                _ => 0.95 * step_ms(bare),
            };
            if step_ms(row) <= least {
                let batch = row["batch"].as_u64().unwrap();
                found.push((way.to_owned(), batch, step_ms(row), step_ms(bare)));
            }
        }
    }
    found
}

/// Each engine's trace has the steps that `bench` timed, as long; the bare graph has no schedule to trace.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn steps_are_as_long_by_a_trace_in_every_way() {
    let folder = tempfile::tempdir().unwrap();
    let ways = "bare,host-kernels,host-graph,host-graph-ahead,device-graph";
    let found = results(
        "decode",
        &[
            "-b",
            "1,4",
            "-p",
            "9",
            "-n",
            "200",
            "-r",
            "2",
            "--device",
            "cuda",
            "--launch",
            ways,
            "--trace",
            folder.path().to_str().unwrap(),
        ],
    );
    assert_eq!(found.len(), 2 * 5);
    for row in &found {
        let traced = row["median_traced_step_ms"].as_f64();
        if row["launch"] == "bare" {
            assert_eq!(traced, None);
            continue;
        }
        let (step, traced) = (row["median_step_ms"].as_f64().unwrap(), traced.unwrap());
        println!(
            "{} {}: {step} ms, by the trace {traced}",
            row["launch"], row["batch"]
        );
        assert!(
            (traced / step - 1.0).abs() < 0.01,
            "{step}, {traced}: {row}"
        );
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 4 * 2);
}
