//! What a profiler hears of our NVTX ranges, without one: a listener of 50 lines stands in for Nsight.
#![cfg(feature = "cuda")]

use std::path::Path;
use std::process::Command;
use tailgraph::telemetry::nvtx::{Name, range};

/// Set for the process that opens ranges, which is this test again: NVTX looks for its listener once.
const SPEAKER: &str = "TAILGRAPH_TEST_NVTX_SPEAKER";

#[test]
fn ranges_nest_in_our_domain_under_registered_names() {
    if std::env::var_os(SPEAKER).is_some() {
        return speak();
    }
    let folder = tempfile::tempdir().unwrap();
    let listener = folder.path().join("listener.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/nvtx_listener.c");
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"])
        .arg(&listener)
        .arg(source)
        .status();
    assert!(compiled.unwrap().success());

    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "ranges_nest_in_our_domain_under_registered_names",
            "--nocapture",
        ])
        .env(SPEAKER, "1")
        .env("NVTX_INJECTION64_PATH", &listener)
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let heard: Vec<_> = printed
        .lines()
        .filter_map(|line| line.split("nvtx ").nth(1))
        .collect();
    assert_eq!(
        heard,
        [
            "domain tailgraph",
            "register tailgraph load",
            "register tailgraph capture",
            "push tailgraph load",
            "push tailgraph capture",
            "pop tailgraph",
            "push tailgraph capture",
            "pop tailgraph",
            "pop tailgraph",
        ],
        "{printed}"
    );
}

fn speak() {
    let (load, capture) = (Name::new(c"load"), Name::new(c"capture"));
    let _load = range(load);
    for _ in 0..2 {
        let _capture = range(capture);
    }
}
