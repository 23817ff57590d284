//! Every way that CUDA has of launching a step: the same bits in all, which are those that the host works out; limits that are met
//! where they are documented; failures that say what failed.

use crate::common::program::run;
use crate::common::schema::{check, schema};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tailgraph::backend::cuda::driver::gpu::OpenGpu;
use tailgraph::backend::cuda::listed::techniques::Technique;
use tailgraph::backend::cuda::tools::limits::edges;
use tailgraph::backend::cuda::tools::queue::{Claim, Queue, Work, expected};
use tailgraph::backend::cuda::tools::techniques::{Foreseen, open};

/// Steps in each of two goes: a chain of siblings is renewed in between.
const GOES: [u64; 3] = [1, 150, 300];

/// Each way over steps of so many kernels: whatever it computes, a run compares with the reference. All that fail are named.
fn compare(ways: &[Technique], kernels: &[u32]) {
    let gpu = OpenGpu::new(0).unwrap();
    let mut failed = vec![];
    for &kernels in kernels {
        let steps = Foreseen::new(kernels - 1);
        for &way in ways {
            if let Err(error) = goes(&gpu, way, &steps) {
                failed.push(format!("{}, {kernels} kernels: {error}", way.name()));
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

fn goes(gpu: &OpenGpu, way: Technique, steps: &Foreseen) -> tailgraph::Result<()> {
    let name = way.name();
    let mut run = open(gpu, way, steps, 100)?;
    for count in GOES {
        let chunk = run.run(count)?;
        assert_eq!(chunk.ends_ns.len() as u64, count, "{name}");
        assert!(
            chunk.ends_ns.is_sorted(),
            "{name}: steps end in their order"
        );
        assert!(chunk.launches > 0, "{name}: somebody began it");
    }
    assert_eq!(run.done(), GOES.iter().sum::<u64>());
    assert_eq!(run.digest(), steps.digest(run.done()), "{name}");
    Ok(())
}

/// Those whose calls of the driver the stand-in of tests/gpu_failures has too.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn graphs_and_kernels_of_a_host_give_the_reference_bits() {
    use Technique as T;
    let ways = [
        T::GraphQueued,
        T::KernelsSpin,
        T::GraphSpin,
        T::GraphBlock,
        T::GraphEvent,
        T::GraphRecapture,
    ];
    compare(&ways, &[2, 3]);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn all_ways_give_equal_bits() {
    compare(&Technique::ALL, &[2, 3, 32, 123]);
}

/// A reference of another step is what no way gives: the comparison can fail.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn other_bits_are_an_error_that_names_the_way() {
    let gpu = OpenGpu::new(0).unwrap();
    let steps = Foreseen::new(4);
    steps.spoil(100);
    let mut run = open(&gpu, Technique::KernelsSpin, &steps, 100).unwrap();
    run.run(50).unwrap();
    let message = run.run(100).err().unwrap().to_string();
    for part in ["kernels-spin", "after 150 steps of 5 kernels", "expected"] {
        assert!(message.contains(part), "{message}");
    }
}

/// Longer chains than the GPU takes end sooner, and go on: that is no failure.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_chain_beyond_the_limit_is_renewed() {
    let gpu = OpenGpu::new(0).unwrap();
    let steps = Foreseen::new(7);
    let mut run = open(&gpu, Technique::DeviceSibling, &steps, 1000).unwrap();
    run.run(1000).unwrap();
    assert!(
        run.not_taken() > 0,
        "120 are documented, and 1,000 were asked for"
    );
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn limits_are_where_they_are_documented() {
    let found = edges(&OpenGpu::new(0).unwrap()).unwrap();
    assert_eq!(found.len(), 7);
    for edge in &found {
        assert!(edge.holds, "{edge:#?}");
        assert_eq!(edge.accepted, edge.ran, "{edge:#?}");
        let answer = edge.answer.as_deref().unwrap_or_default();
        assert!(!answer.is_empty(), "{edge:#?}");
    }
    let answer = |limit: &str| {
        let edge = found
            .iter()
            .find(|edge| edge.limit.contains(limit))
            .unwrap();
        edge.answer.clone().unwrap()
    };
    for (limit, parts) in [
        (
            "fire-and-forget launches in a run",
            ["launch 121", "cudaError"],
        ),
        (
            "pending tail launches of a graph",
            ["launch 256", "cudaError"],
        ),
        (
            "conditional nodes",
            ["limits, a conditional node", "node 0"],
        ),
        ("host nodes", ["limits, a host node", "node 0"]),
    ] {
        for part in parts {
            assert!(answer(limit).contains(part), "{limit}: {}", answer(limit));
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn each_item_of_a_queue_is_done_once() {
    let queue = Queue::new(&OpenGpu::new(0).unwrap()).unwrap();
    for items in [1, 31, 33, 67_584, 100_001] {
        for skewed in [false, true] {
            let work = Work {
                items,
                rounds: 16,
                skewed,
            };
            for claim in Claim::ALL {
                let (sum, ends) = queue.run(work, claim).unwrap();
                assert_eq!(sum, expected(work), "{work:?} {}", claim.name());
                assert!(ends.first_us <= ends.median_us && ends.median_us <= ends.last_us);
            }
        }
    }
}

/// Lines of JSON that a schema holds, each with percentiles of its steps' times in their order.
pub fn table_of(text: &str, name: &str) -> Vec<Value> {
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let rows: Vec<Value> = lines.collect();
    check(&schema(name), &json!(rows)).unwrap();
    for row in &rows {
        let us = |name: &str| row[name].as_f64().unwrap();
        let times = ["p50_step_us", "p99_step_us", "longest_step_us"].map(us);
        assert!(times[0] > 0.0 && times.is_sorted(), "{row}");
    }
    rows
}

/// Through the binary, beside another process on the GPU.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_table_has_a_line_for_each_way_and_load() {
    let sizes = [
        "--kernels",
        "4",
        "--steps",
        "300",
        "-r",
        "1",
        "--most-seconds",
        "1",
    ];
    let options = [
        "bench",
        "launch",
        "--launch",
        "all",
        "--gpu-load",
        "0,1",
        "--format",
        "jsonl",
    ];
    let ended = run(&[&options[..], &sizes].concat());
    let rows = table_of(&ended.good(), "launching");
    let lines: BTreeSet<_> = rows
        .iter()
        .map(|row| (row["technique"].as_str().unwrap(), row["gpu_load"].as_u64()))
        .collect();
    assert_eq!(rows.len(), 2 * Technique::ALL.len());
    assert_eq!(lines.len(), rows.len());
    // One launch for 250 steps, or one a step, or one a kernel.
    let launches = |way: &str| {
        let row = rows.iter().find(|row| row["technique"] == way).unwrap();
        row["host_launches_per_step"].as_f64().unwrap()
    };
    assert_eq!(
        (launches("kernels-spin"), launches("graph-spin")),
        (4.0, 1.0)
    );
    for way in [
        "device-tail",
        "device-sibling",
        "conditional",
        "persistent",
        "cdp",
    ] {
        assert!(launches(way) < 0.02, "{way}: {}", launches(way));
    }
}
