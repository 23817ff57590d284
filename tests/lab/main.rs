//! The laboratory (profiles/lab): every way gives the bits that the host works out, limits are met where they are documented, and
//! failures say what failed. Ignored where a GPU is needed; with fewer than two GPUs those of two say so, and look at nothing:
//!
//!     cargo test --features lab --test lab -- --include-ignored

#[path = "../../profiles/lab/main.rs"]
#[allow(dead_code, reason = "what the program alone has use for")]
mod lab;
#[path = "../common/schema.rs"]
mod schema;

use clap::Parser;
use lab::handover::{self, Carrier, WAIT};
use lab::measure::{Steps, names};
use lab::{limits, ways};
use schema::{check, schema};
use serde_json::{Value, json};
use std::rc::Rc;
use std::time::Duration;
use tailgraph::backend::cuda::driver::gpu::OpenGpu;
use tailgraph::backend::cuda::driver::machine;
use tailgraph::error::Result;

/// Steps in each of some goes: a chain of siblings is renewed in between.
const GOES: [u64; 3] = [1, 150, 300];

fn goes(mut steps: impl Steps) -> Result<u64> {
    for count in GOES {
        let chunk = steps.run(count)?;
        assert_eq!(chunk.ends_ns.len() as u64, count);
        assert!(chunk.ends_ns.is_sorted(), "steps end in their order");
        assert!(chunk.launches > 0, "somebody began it");
    }
    Ok(steps.digest())
}

/// Each way over steps of so many kernels: whatever it computes, a run compares with the reference. All that fail are named.
fn compare(named: impl Iterator<Item = &'static str> + Clone, kernels: &[u32]) {
    let gpu = OpenGpu::new(0).unwrap();
    let mut failed = vec![];
    for &kernels in kernels {
        let reference = Rc::new(ways::step::reference(kernels, GOES.iter().sum()));
        for way in named.clone() {
            let digest = ways::Run::new(&gpu, way, kernels, &reference, 100).and_then(goes);
            match digest {
                Ok(digest) => assert_eq!(Some(&digest), reference.last(), "{way}"),
                Err(error) => failed.push(format!("{way}, {kernels} kernels: {error}")),
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// Those whose calls of the driver the stand-in of tests/gpu_failures has too.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn graphs_and_kernels_of_a_host_give_the_reference_bits() {
    let of_host = |way: &&str| !["graph-params", "graph-update"].contains(way);
    compare(names(ways::WAYS).take(8).filter(of_host), &[2, 3]);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn all_ways_give_equal_bits() {
    compare(names(ways::WAYS), &[2, 3, 32, 123]);
}

/// A reference of another step is what no way gives: the comparison can fail.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn other_bits_are_an_error_that_names_the_way() {
    let gpu = OpenGpu::new(0).unwrap();
    let mut reference = ways::step::reference(5, 150);
    reference[150] += 1;
    let mut run = ways::Run::new(&gpu, "kernels-spin", 5, &Rc::new(reference), 100).unwrap();
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
    let reference = Rc::new(ways::step::reference(8, 1000));
    let mut run = ways::Run::new(&gpu, "device-sibling", 8, &reference, 1000).unwrap();
    run.run(1000).unwrap();
    assert!(
        run.not_taken() > Some(0),
        "120 are documented, and 1,000 were asked for"
    );
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn limits_are_where_they_are_documented() {
    let edges = limits::edges(&OpenGpu::new(0).unwrap()).unwrap();
    let answers = [
        [
            "fire-and-forget launches in a run",
            "launch 121",
            "cudaError",
        ],
        [
            "pending tail launches of a graph",
            "launch 256",
            "cudaError",
        ],
        ["graph by itself", "launch 2", "cudaError"],
        ["graph by itself", "launch 1", "cudaError"],
        ["runs at once", "launch 2", "cudaError"],
        ["conditional nodes", "limits, a conditional node", "node 0"],
        ["host nodes", "limits, a host node", "node 0"],
    ];
    assert_eq!(edges.len(), answers.len());
    for (edge, [limit, first, second]) in edges.iter().zip(answers) {
        assert_eq!(
            (&edge["holds"], &edge["accepted"]),
            (&json!(true), &edge["ran"]),
            "{edge}"
        );
        assert!(edge["limit"].as_str().unwrap().contains(limit), "{edge}");
        for part in [first, second] {
            assert!(edge["answer"].as_str().unwrap().contains(part), "{edge}");
        }
    }
}

fn two() -> Option<[OpenGpu; 2]> {
    let found = machine::probe().unwrap().gpus.len();
    if found < 2 {
        eprintln!("skipped: found {found} GPU, expected two");
        return None;
    }
    Some([0, 1].map(|ordinal| OpenGpu::new(ordinal).unwrap()))
}

/// The ways of handing on that these GPUs have all for.
fn handovers(gpus: &[OpenGpu; 2]) -> Vec<handover::Way> {
    let ways = names(handover::WAYS).map(handover::Way::of);
    let there: Vec<_> = ways
        .filter(|&way| handover::check(gpus, way).is_ok())
        .collect();
    assert!(!there.is_empty());
    there
}

/// Rows on both sides of a block's, and of all blocks at once.
#[test]
#[ignore = "needs two NVIDIA GPUs"]
fn all_handovers_give_the_reference_bits_on_both_gpus() {
    let Some(gpus) = two() else { return };
    for rows in [1, 3, 64, 65] {
        for way in handovers(&gpus) {
            let reference = Rc::new(handover::step::reference(rows, way.reduces, 48));
            let mut run = handover::Run::new(&gpus, way, rows, &reference, WAIT).unwrap();
            for count in [1, 7, 40] {
                let chunk = run.run(count).unwrap();
                assert!(chunk.ends_ns.is_sorted() && chunk.launches > 0, "{way:?}");
            }
            assert_eq!(run.digest(), reference[48], "{way:?}, {rows} rows");
        }
    }
}

/// A reference of other steps is what no way gives: the comparison can fail.
#[test]
#[ignore = "needs two NVIDIA GPUs"]
fn other_tokens_are_an_error_that_names_way_and_gpu() {
    let Some(gpus) = two() else { return };
    for way in handovers(&gpus) {
        let mut reference = handover::step::reference(2, way.reduces, 9);
        reference[9] += 1;
        let mut run = handover::Run::new(&gpus, way, 2, &Rc::new(reference), WAIT).unwrap();
        run.run(5).unwrap();
        let message = run.run(4).err().unwrap().to_string();
        for part in [way.name, "after 9 steps of 2 rows cuda:0", "expected"] {
            assert!(message.contains(part), "{message}");
        }
    }
}

/// Only the first GPU's part is queued: what its kernel waits for never comes.
#[test]
#[ignore = "needs two NVIDIA GPUs, whose kernels run beside each other"]
fn a_gpu_that_waits_in_vain_is_named_with_its_limit() {
    let Some(gpus) = two() else { return };
    let stores = |way: &handover::Way| way.carrier == Carrier::Stores;
    for way in handovers(&gpus).into_iter().filter(stores) {
        let reference = Rc::new(handover::step::reference(2, way.reduces, 4));
        let second = Duration::from_secs(1);
        let mut run = handover::Run::new(&gpus, way, 2, &reference, second).unwrap();
        run.run(3).unwrap();
        let message = run.run_alone().err().unwrap().to_string();
        for part in [way.name, "step 3 on cuda:0", "of cuda:1", "within 1 s"] {
            assert!(message.contains(part), "{message}");
        }
    }
}

/// What a command writes as JSON.
fn rows(arguments: &str) -> Vec<Value> {
    let file = tempfile::Builder::new().suffix(".json").tempfile().unwrap();
    let output = ["-r", "1", "-o", file.path().to_str().unwrap()];
    let arguments = ["lab"].into_iter().chain(arguments.split(' '));
    lab::run(lab::Lab::parse_from(arguments.chain(output)).command).unwrap();
    serde_json::from_slice(&std::fs::read(file.path()).unwrap()).unwrap()
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn tables_have_a_row_for_each_way_and_load() {
    let launches = rows("launch --kernels 4 --steps 300 --cpu-load 0,1");
    check(&schema("launching"), &json!(launches)).unwrap();
    assert_eq!(launches.len(), 2 * names(ways::WAYS).count());
    // One launch for 250 steps, or one a step, or one a kernel.
    for (way, least, most) in [
        ("kernels-spin", 4.0, 4.0),
        ("graph-spin", 1.0, 1.0),
        ("device-tail", 0.0, 0.02),
        ("conditional", 0.0, 0.02),
    ] {
        let row = launches.iter().find(|row| row["technique"] == way).unwrap();
        let found = row["host_launches_per_step"].as_f64().unwrap();
        assert!((least..=most).contains(&found), "{row}");
        let us = |name: &str| row[name].as_f64().unwrap();
        let times = ["p50_step_us", "p99_step_us", "longest_step_us"].map(us);
        assert!(times[0] > 0.0 && times.is_sorted(), "{row}");
    }
    // The sums of all items are compared as they are measured.
    assert_eq!(rows("queue --items 100001 --rounds 2,16").len(), 12);
    if two().is_some() {
        let handovers = rows("handover --rows 1,64 --steps 300");
        check(&schema("handover"), &json!(handovers)).unwrap();
    }
}

/// The page has the ways in more words, and schemas and results have their names.
#[test]
fn every_way_is_on_the_page_and_in_the_schemas() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/profiles/launching.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (small, pair): (Vec<_>, Vec<_>) =
        (names(ways::WAYS).collect(), names(handover::WAYS).collect());
    for way in small.iter().chain(&pair) {
        assert!(page.contains(&format!("\n| {way} | ")), "no row of {way}");
    }
    let named =
        |name: &str, field: &str| schema(name)["items"]["properties"][field]["enum"].clone();
    assert_eq!(named("launching", "technique"), json!(small));
    assert_eq!(named("handover", "way"), json!(pair));
}

#[test]
fn a_way_that_there_is_not_is_refused() {
    for (command, known) in [("launch", "graph-queued"), ("handover", "nccl-spin")] {
        let parsed = lab::Lab::parse_from(["lab", command, "--ways", "graph"]);
        let message = lab::run(parsed.command).unwrap_err().to_string();
        assert!(
            message.contains("--ways graph") && message.contains(known),
            "{message}"
        );
    }
}

/// It is said before anything is measured, and before there is any GPU.
#[test]
fn a_file_that_cannot_be_written_is_refused() {
    for command in ["launch", "handover", "limits", "queue"] {
        let parsed = lab::Lab::parse_from(["lab", command, "-o", "no/such/rows.json"]);
        let message = lab::run(parsed.command).unwrap_err().to_string();
        assert!(message.contains("found no such directory"), "{message}");
    }
}
