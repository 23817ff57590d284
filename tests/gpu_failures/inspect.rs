//! `inspect --device cuda`: captured graphs, looked at through the test's driver.

mod kernels;

use crate::common::program::Ended;
use crate::common::schema::{check, schema};
use crate::rig::Run;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

fn inspect(arguments: &[&str]) -> Run {
    Run::new(&["inspect", "--model", "random:tiny", "--device", "cuda"])
        .and(&["--max-seqs", "2", "--step-tokens", "512"])
        .and(arguments)
}

fn json(run: Run) -> Value {
    let ended = run.and(&["--json"]).end();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let shown = serde_json::from_str(&ended.stdout).unwrap();
    check(&schema("inspect"), &shown).unwrap();
    shown
}

fn graphs(shown: &Value) -> &Vec<Value> {
    shown["graphs"].as_array().unwrap()
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

fn text(ended: &Ended) -> &str {
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    &ended.stdout
}

/// Two sequences and steps of 512 rows: decode 1 and 2, mixed 16 to 512, score 512.
const GRAPHS: usize = 9;

#[test]
fn every_graph_is_listed_with_its_nodes() {
    for (launch, stages, per_step) in [("device-graph", "2", 2), ("host-graph", "2", 1)] {
        let shown = json(inspect(&["--launch", launch, "--stages", stages]));
        assert_eq!(shown["device"]["launch"], launch);
        let graphs = graphs(&shown);
        assert_eq!(graphs.len(), GRAPHS * per_step, "{launch}");
        for graph in graphs {
            let captured = &graph["captured"];
            let nodes = count(&captured["nodes"]);
            assert_eq!(count(&captured["edges"]), nodes - 1);
            let kernels = captured["kernels"].as_array().unwrap();
            let lists = kernels
                .iter()
                .any(|kernel| kernel["name"] == "tg_needed_rows");
            // All kernels of a 9.0 but the first, which follows nothing, and the one behind the list of rows that are needed.
            let early = nodes - 1 - u64::from(lists);
            assert_eq!(count(&captured["early_edges"]), early, "{graph}");
            for (field, all) in [("count", nodes), ("early", early)] {
                let in_all: u64 = kernels.iter().map(|kernel| count(&kernel[field])).sum();
                assert_eq!(in_all, all, "{field} in {graph}");
            }
            for kernel in kernels {
                assert_eq!(kernel["registers"], 40, "{kernel}");
                assert_eq!(kernel["static_shared_bytes"], 1024, "{kernel}");
                assert_eq!(kernel["local_bytes"], 16, "{kernel}");
            }
            for time in ["capture_ms", "instantiate_ms", "upload_ms"] {
                assert!(captured[time].as_f64().unwrap() >= 0.0, "{time}");
            }
        }
    }
}

/// The dispatcher is the last node of every step, and a step's graph is there twice.
#[test]
fn a_step_has_the_dispatcher_behind_it() {
    let shown = json(inspect(&["--launch", "device-graph"]));
    assert_eq!(graphs(&shown).len(), GRAPHS);
    for graph in graphs(&shown) {
        let captured = &graph["captured"];
        assert_eq!(captured["dispatcher"], true, "{graph}");
        assert_eq!(captured["copies"], 2, "{graph}");
        assert_eq!(count(&captured["edges"]), count(&captured["nodes"]) - 1);
    }
}

/// Every operation is done by some node, in the plan's order, and what the scheduler adds is of none.
#[test]
fn nodes_are_of_their_operations() {
    let shown = json(inspect(&["--launch", "device-graph", "--stages", "2"]));
    for graph in graphs(&shown) {
        let captured = &graph["captured"];
        let mut of_operations = BTreeSet::new();
        let mut last_before = 0;
        for operation in captured["operations"].as_array().unwrap() {
            let nodes = operation["nodes"].as_array().unwrap();
            let last = nodes.last().map(count);
            let last = last.unwrap_or_else(|| panic!("nobody does {operation} of {graph}"));
            assert!(last >= last_before, "{operation} of {graph}");
            last_before = last;
            of_operations.extend(nodes.iter().map(count));
        }
        let nodes = count(&captured["nodes"]);
        let first_stage = graph["stages"][0] == 0;
        // What begins a stage before it, the dispatcher after the last.
        let expected: BTreeSet<u64> = if first_stage {
            (1..nodes).collect()
        } else {
            (1..nodes - 1).collect()
        };
        assert_eq!(of_operations, expected, "{graph}");
        let scheduler: Vec<&str> = captured["kernels"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|kernel| {
                kernel["operations"]
                    .as_array()
                    .unwrap()
                    .contains(&"scheduler".into())
            })
            .map(|kernel| kernel["name"].as_str().unwrap())
            .collect();
        if first_stage {
            assert_eq!(scheduler, ["tg_begin_step"])
        } else {
            assert_eq!(scheduler, ["tg_begin_stage", "tg_dispatch_tail"])
        }
    }
}

/// In wide steps gate, up and down of a layer's experts are one kernel, and another adds them up.
#[test]
fn experts_of_grouped_steps_are_one_kernel() {
    let run = Run::new(&["inspect", "--model", "random:tiny", "--device", "cuda"]);
    let shown = json(run.and(&["--max-seqs", "16", "--tokens", "16"]));
    let grouped = |graph: &&Value| graph["kind"] == "decode" && graph["bucket"] == 16;
    let captured = &graphs(&shown).iter().find(grouped).unwrap()["captured"];
    let layers = |name: &str| {
        let operations = captured["operations"].as_array().unwrap().iter();
        let of_it = operations.filter(|operation| operation["operation"] == name);
        let nodes = |operation: &Value| operation["nodes"].as_array().unwrap().len();
        of_it.map(nodes).collect::<Vec<_>>()
    };
    assert!(layers("expert_gate_up").iter().all(|&nodes| nodes == 1));
    let downs = layers("expert_down");
    assert!(!downs.is_empty() && downs.iter().all(|&nodes| nodes == 2));
    let kernels = captured["kernels"].as_array().unwrap();
    let is_grouped = |kernel: &&Value| {
        let name = kernel["name"].as_str().unwrap();
        name.starts_with("tg_grouped_experts_")
    };
    let kernel = kernels.iter().find(is_grouped).unwrap();
    let done = serde_json::json!(["expert_gate_up", "expert_down"]);
    assert_eq!(kernel["operations"], done);
    assert_eq!(count(&kernel["count"]), downs.len() as u64);
}

/// What is listed without a GPU is what a GPU is given: the same kernels in the same order for the same operations, in launches
/// of the same shape.
#[test]
fn listed_calls_are_those_that_are_captured() {
    for (capability, gpu) in [("8.0", "a100"), ("9.0", "h100"), ("10.0", "b200")] {
        for (dtype, kind) in [("bf16", "decode"), ("f32", "mixed"), ("f16", "score")] {
            let sizes = ["--max-seqs", "64", "--dtype", dtype, "--kind", kind];
            let captured = json(
                Run::new(&["inspect", "--model", "random:tiny", "--device", "cuda"])
                    .and(&["--launch", "host-graph"])
                    .and(&sizes)
                    .with("CAPABILITY", capability),
            );
            let listed = Run::new(&["inspect", "--model", "random:tiny", "--calls", "--json"])
                .and(&["--gpu", gpu, "--tokens", "1,2,4,8,16,32,64"])
                .and(&sizes)
                .over(Path::new("/nowhere"))
                .end();
            let listed: Value = serde_json::from_str(text(&listed)).unwrap();
            check(&schema("calls"), &listed).unwrap();
            for step in listed["steps"].as_array().unwrap() {
                let of_it =
                    |graph: &&Value| graph["kind"] == kind && graph["bucket"] == step["rows"];
                let graph = graphs(&captured).iter().find(of_it).unwrap();
                compare(step, &graph["captured"]);
            }
        }
    }
}

/// A listed step and the graph of its bucket.
fn compare(step: &Value, captured: &Value) {
    let calls = step["calls"].as_array().unwrap();
    assert_eq!(calls.len() as u64, count(&captured["nodes"]));
    assert_eq!(step["variant"], captured["variant"]);
    for operation in captured["operations"].as_array().unwrap() {
        let done = |call: &Value| {
            let ops = call["operations"].as_array().unwrap();
            ops.iter().any(|op| {
                op["operation"] == operation["operation"] && op["layer"] == operation["layer"]
            })
        };
        let places = calls.iter().enumerate().filter(|(_, call)| done(call));
        let places: Vec<u64> = places.map(|(place, _)| place as u64).collect();
        assert_eq!(operation["nodes"], serde_json::json!(places), "{operation}");
    }
    let mut launches = BTreeMap::new();
    for call in calls {
        // Launches ask for whole 32 bytes.
        let shared = count(&call["dynamic_shared_bytes"]).next_multiple_of(32);
        let key = (call["kernel"].to_string(), call["grid"].to_string(), shared);
        *launches.entry(key).or_insert(0) += 1;
    }
    for kernel in captured["kernels"].as_array().unwrap() {
        let shared = count(&kernel["dynamic_shared_bytes"]);
        let key = (
            kernel["name"].to_string(),
            kernel["grid"].to_string(),
            shared,
        );
        assert_eq!(
            launches.remove(&key),
            Some(count(&kernel["count"])),
            "{kernel}"
        );
    }
    assert!(launches.is_empty(), "{launches:?}");
}

#[test]
fn the_tables_name_kernels() {
    let ended = inspect(&["--kind", "mixed"]).end();
    let text = text(&ended);
    for part in [
        "graphs as captured for device-graph on cuda:0 Test GPU 0",
        "capture ms",
        "stage 0 mixed 512: nodes by kernel",
        "products persistent, experts grouped (tiles of 128, 6 stages, guess, 16 MiB prefetched)",
        "variants sm_90-",
        "tg_dispatch",
        "scheduler",
        "1024+",
    ] {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
    for line in text.lines() {
        assert!(line.chars().count() <= 160, "{line}");
    }
}

#[test]
fn what_cannot_be_shown_says_why() {
    inspect(&["--launch", "host-kernels"])
        .end()
        .fails_in_a_line(2, &["captures no graphs", "host-graph or device-graph"]);
    let driver_fails = inspect(&[]).with("FAIL", "cuFuncGetAttribute:1:999").end();
    driver_fails.fails_in_a_line(1, &["looking into the graph of stage 0 decode 1"]);
    inspect(&[])
        .with("DEVICES", "0")
        .end()
        .fails_in_a_line(1, &["GPU"]);
}
