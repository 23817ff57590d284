//! `inspect --device cuda` on a GPU: what the driver says of the graphs is what the build and the plan say.

use crate::common::program::tailgraph;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use tailgraph::backend::cuda::driver::image::kernels;

/// The architecture of the build that this GPU runs.
fn architecture(device: &str) -> &'static str {
    let (_, capability) = device.split_once("compute capability ").unwrap();
    match capability.split('.').next() {
        Some("8") => "sm_80",
        Some("9") => "sm_90a",
        _ => "sm_100",
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn kernels_take_what_the_build_said() {
    for launch in ["host-graph", "device-graph"] {
        let shown = tailgraph(&[
            "inspect",
            "--model",
            "random:tiny",
            "--device",
            "cuda",
            "--launch",
            launch,
            "--stages",
            "2",
            "--json",
        ]);
        let shown: Value = serde_json::from_str(&shown).unwrap();
        let arch = architecture(shown["device"]["name"].as_str().unwrap());
        let built: BTreeMap<&str, u64> = kernels()
            .iter()
            .filter(|kernel| kernel.architecture == arch)
            .map(|kernel| (kernel.name, kernel.registers.into()))
            .collect();
        for graph in shown["graphs"].as_array().unwrap() {
            let captured = &graph["captured"];
            let count = |value: &Value| value.as_u64().unwrap();
            assert_eq!(count(&captured["edges"]) + 1, count(&captured["nodes"]));
            // From 9.0 on, kernels may start before the one ahead ends.
            let early = count(&captured["early_edges"]);
            assert_eq!(early > 0, arch != "sm_80", "{graph}");
            for kernel in captured["kernels"].as_array().unwrap() {
                let name = kernel["name"].as_str().unwrap();
                assert_eq!(
                    built.get(name),
                    kernel["registers"].as_u64().as_ref(),
                    "{name}"
                );
            }
            // Each node does something, perhaps several operations.
            let mut done = BTreeSet::new();
            for operation in captured["operations"].as_array().unwrap() {
                let nodes = operation["nodes"].as_array().unwrap();
                let nodes: Vec<u64> = nodes.iter().map(count).collect();
                assert!(nodes.windows(2).all(|pair| pair[0] < pair[1]), "{graph}");
                done.extend(nodes);
            }
            // But for those before and behind a step's: copies and the dispatcher.
            let (first, last) = (*done.first().unwrap(), *done.last().unwrap());
            assert_eq!(done, (first..=last).collect(), "{graph}");
        }
    }
}
