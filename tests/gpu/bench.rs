//! `bench` on a GPU: what it counts is what the CPU counts, and its steps are those of traces and of other engines.

use crate::common::program::{bench, run};
use crate::common::schema::{check, schema};
use crate::engine::{OPTIONS, Setup, device, drive, engine, greedy, plan};
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;
use tailgraph::backend::LaunchWay;
use tailgraph::backend::cuda::driver::gpu::OpenGpu;
use tailgraph::backend::device::EngineSpec;
use tailgraph::bench::{Kind, Point, bare};
use tailgraph::model::{DType, Model, ModelSource};
use tailgraph::runtime::Request;

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
            bench(kind, &[sizes, &run].concat())
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

/// What a sceptic asks of a result is in it.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_row_says_what_the_gpu_was_and_did() {
    let run = ["-b", "1", "-n", "2000", "-r", "2", "--device", "cuda"];
    let [row] = &bench("decode", &run)[..] else {
        panic!("one result")
    };
    println!("{row:#}");
    for (field, begins) in [
        ("gpu_uuid", "GPU-"),
        ("driver_version", ""),
        ("cuda_driver_version", "1"),
        ("cuda_toolkit_version", "13."),
        ("kernel_release", ""),
        ("throttle_reasons", ""),
    ] {
        let text = row[field]
            .as_str()
            .unwrap_or_else(|| panic!("{field}: {row}"));
        assert!(text.starts_with(begins), "{field}: {text}");
    }
    let number = |field: &str| {
        row[field]
            .as_f64()
            .unwrap_or_else(|| panic!("{field}: {row}"))
    };
    for clock in ["sm", "memory"] {
        let mhz = ["min", "median", "max"].map(|at| number(&format!("{clock}_clock_mhz_{at}")));
        assert!(mhz[0] > 100.0 && mhz.is_sorted(), "{clock}: {mhz:?}");
    }
    assert!(row["clocks_unsteady"].is_boolean() && row["persistence_mode"].is_boolean());
    assert!(number("power_w_median") > 10.0 && number("temperature_c_max") > 10.0);
    assert!(number("power_w_max") >= number("power_w_median"));
    assert!(number("energy_j_per_token") > 0.0, "{row}");
}

/// Steps that are launched again and again to be timed leave nothing behind.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn bare_steps_give_the_tokens_of_other_ways() {
    let gpu = OpenGpu::new(0).unwrap();
    let model = Model::load(&ModelSource::parse("random:tiny").unwrap()).unwrap();
    let model = Arc::new(model);
    let plan = plan(&model, 1);
    let requests: Vec<Request> = (0..3)
        .map(|i| {
            let prompt: Vec<u32> = (0..9).map(|j| 8 + (i * 37 + j * 11) % 250).collect();
            let mut request = greedy(&prompt, 40);
            request.sampling.temperature = i as f32 * 0.4;
            request.sampling.repetition_penalty = 1.1;
            // What is counted once must not count twice.
            request.sampling.frequency_penalty = 0.5;
            request.sampling.key = u64::from(i);
            request
        })
        .collect();
    for dtype in [DType::F32, DType::BF16] {
        let setup = Setup {
            dtype,
            launch: LaunchWay::HostGraph,
            stages: 1,
        };
        let expected = drive(engine(&gpu, &model, setup, &None), &requests);
        let spec = EngineSpec {
            model: &model,
            plan: &plan,
            options: &OPTIONS,
            sink: &None,
        };
        let on = device(&gpu, dtype, LaunchWay::HostGraph);
        let (timed, timing, _) = bare::engine(&on, &spec, false).unwrap();
        timing.begin(requests.len() as u32);
        let found = drive(timed, &requests);
        // 39 decode steps of all rows, of which every second one from the fourth on is timed.
        let figures = timing.figures(&Point::of(Kind::Decode, 3, 9, 40)).unwrap();
        assert_eq!(figures.step_ms.len(), 18, "{dtype:?}");
        assert!(found == expected, "{dtype:?}: {found:?}, {expected:?}");
    }
}

/// A product's kernels are those that `inspect --calls` lists for the same steps, and cuBLASLt stands beside every dense one or
/// beside none.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn products_are_timed_by_the_kernels_that_serve_them() {
    let json = |args: &[&str]| -> Value {
        let ended = run(args);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        serde_json::from_str(&ended.stdout).unwrap()
    };
    let model = ["--model", "random:tiny", "--device", "cuda"];
    let table = [
        "bench",
        "kernel",
        "-q",
        "-r",
        "1",
        "--tokens",
        "1,8,64,512",
        "--format",
        "json",
    ];
    let found = json(&[&table[..], &model].concat());
    check(&schema("kernel"), &found).unwrap();
    let found = found.as_array().unwrap();
    for rows in [1, 8, 64, 512] {
        let at: Vec<&Value> = found.iter().filter(|row| row["rows"] == rows).collect();
        let products: BTreeSet<&str> = at
            .iter()
            .flat_map(|row| row["operations"].as_str().unwrap().split(" + "))
            .collect();
        for name in ["conv_in_proj", "expert_gate_up", "expert_down", "lm_head"] {
            assert!(products.contains(name), "{rows}: {name} in {products:?}");
        }
        let rows = rows.to_string();
        let kind = at[0]["kind"].as_str().unwrap();
        let step = ["inspect", "--json", "--tokens", &rows, "--kind", kind];
        let graphs = json(&[&step[..], &model].concat());
        let graphs = graphs["graphs"].to_string();
        for row in at {
            for kernel in row["kernels"].as_str().unwrap().split(", ") {
                assert!(
                    kernel.starts_with("tg_") && graphs.contains(kernel),
                    "{row}"
                );
            }
            let steps = row["steps"].as_u64().unwrap();
            assert!(row["us"].as_f64().unwrap() > 0.0 && steps >= 3, "{row}");
        }
    }
    let dense = found.iter().filter(|row| row["operations"] == "lm_head");
    let beside: BTreeSet<bool> = dense.map(|row| row["cublaslt_us"].is_null()).collect();
    assert!(beside.len() <= 1, "cuBLASLt is there or not: {beside:?}");
}

/// With their weights in the L2 cache kernels take no longer than without. Experts and sampling run once a step.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn kernels_in_a_row_find_their_weights_in_the_cache() {
    for name in [
        "operator_norm",
        "short_conv",
        "qkv_proj",
        "attention",
        "attn_out_proj",
        "expert_gate_up",
        "lm_head",
        "sample",
    ] {
        let table = [
            "bench", "kernel", name, "-q", "-r", "2", "--tokens", "1,8,64",
        ];
        let model = [
            "--model",
            "random:tiny",
            "--device",
            "cuda",
            "--format",
            "json",
        ];
        let ended = run(&[&table[..], &model].concat());
        assert_eq!(ended.code, 0, "{name}: {}", ended.stderr);
        let found: Value = serde_json::from_str(&ended.stdout).unwrap();
        check(&schema("kernel"), &found).unwrap();
        let mut rows = BTreeSet::new();
        for row in found.as_array().unwrap() {
            let us = |field: &str| row[field].as_f64().unwrap();
            rows.insert(row["rows"].as_u64().unwrap());
            assert!(row["operations"].as_str().unwrap().contains(name), "{row}");
            if ["expert_gate_up", "sample"].contains(&name) {
                assert!(row["warm_us"].is_null(), "{row}");
            } else {
                // The weights of the tiny model are in the cache anyway.
                let warm_us = us("warm_us");
                assert!(warm_us > 0.0 && warm_us < 2.0 * us("us"), "{row}");
            }
            assert!(us("floor_ms") > 0.0 || us("floor_bytes") == 0.0, "{row}");
        }
        assert_eq!(rows, BTreeSet::from([1, 8, 64]), "{name}");
    }
}
