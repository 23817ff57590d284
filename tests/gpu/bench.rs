//! `bench` on a GPU: what it counts is what the CPU counts, and its steps are those of traces and of other engines.

use crate::common::program::bench;
use crate::engine::{OPTIONS, Setup, device, drive, engine, greedy, plan};
use std::sync::Arc;
use tailgraph::backend::LaunchWay;
use tailgraph::backend::cuda::driver::gpu::OpenGpu;
use tailgraph::backend::device::EngineSpec;
use tailgraph::bench::bare;
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

/// Each engine's trace has the steps that `bench` timed, as long; the bare graph has no schedule to trace.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn steps_are_as_long_by_a_trace_in_every_way() {
    let folder = tempfile::tempdir().unwrap();
    let ways = "bare,host-kernels,host-graph,host-graph-ahead,device-graph";
    let found = bench(
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
        let (timed, timing) = bare::engine(&on, &spec).unwrap();
        timing.begin(requests.len() as u32);
        let found = drive(timed, &requests);
        // 39 decode steps of all rows, of which every second one from the fourth on is timed.
        assert_eq!(timing.end().step_ms.len(), 18, "{dtype:?}");
        assert!(found == expected, "{dtype:?}: {found:?}, {expected:?}");
    }
}
