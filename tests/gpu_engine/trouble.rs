//! What the host makes of a step that does not end, and of one that faults.

use crate::common::probe::Disturbance;
use crate::common::program::{end, this_program};
use crate::common::random::Random;
use crate::rig::*;
use std::time::{Duration, Instant};
use tailgraph::backend::LaunchWay;
use tailgraph::runtime::Engine as _;

/// Set for the process that runs into a fault, which is this test again: a fault ends all of a process's GPU work.
const FAULTS: &str = "TAILGRAPH_TEST_FAULTS";

fn disturbed(step: u64, wait_ns: u64, fault: bool) -> Setup {
    Setup {
        disturbance: Some(Disturbance {
            step,
            wait_ns,
            fault,
        }),
        ..SETUP
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_stuck_step_is_named_in_every_way_that_can_tell() {
    let rig = Rig::new();
    for (way, stages, named) in [
        (LaunchWay::DeviceGraph, 1, "step 20 (stage 0"),
        (LaunchWay::DeviceGraph, 2, "step 20 (stage 1"),
        (LaunchWay::DeviceGraphTail, 1, "step 20 (stage 0"),
        (LaunchWay::HostGraph, 1, "step 20 (stage 0"),
        (LaunchWay::HostGraphEvent, 1, "step 20 (stage 0"),
        (LaunchWay::HostGraphBlock, 1, "step 20 (stage 0"),
    ] {
        let setup = Setup {
            stages,
            ..disturbed(20, 1_500_000_000, false)
        };
        let (mut engine, _) = rig.engine(way, &setup);
        engine.watch(Duration::from_millis(300));
        engine.launch().unwrap();
        submit(&mut engine, &random_request(&mut Random(3), 4, 100));
        let start = Instant::now();
        let (tokens, error) = fail(&mut engine);
        println!("{way:?}: {error}");
        assert_eq!(tokens.len(), 20, "of steps 0 to 19");
        let named = format!("{named}, decode bucket of 1 token");
        assert!(error.contains(&named), "{error}");
        assert!(
            start.elapsed() < Duration::from_millis(1400),
            "named while it stood still"
        );
        drop(engine);
        // The step ends after all, and with it what was stopped.
        std::thread::sleep(Duration::from_millis(1500));
    }
    let (mut engine, _) = rig.engine(LaunchWay::DeviceGraph, &SETUP);
    engine.launch().unwrap();
    assert_eq!(
        serve(&mut engine, &[random_request(&mut Random(4), 4, 10)]).len(),
        11
    );
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_fault_says_what_the_driver_said() {
    if let Ok(way) = std::env::var(FAULTS) {
        return fault(&way);
    }
    for way in ["device", "host"] {
        let mut again = this_program("trouble::a_fault_says_what_the_driver_said");
        let printed = end(again.env(FAULTS, way), "").good();
        assert!(printed.contains("faulted as expected"), "{way}: {printed}");
    }
}

fn fault(way: &str) {
    let rig = Rig::new();
    let way = if way == "device" {
        LaunchWay::DeviceGraph
    } else {
        LaunchWay::HostKernels
    };
    let (mut engine, _) = rig.engine(way, &disturbed(7, 0, true));
    engine.launch().unwrap();
    submit(&mut engine, &random_request(&mut Random(3), 4, 100));
    let (tokens, error) = fail(&mut engine);
    println!("{error}");
    assert_eq!(tokens.len(), 7, "of steps 0 to 6");
    assert!(error.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{error}");
    if way == LaunchWay::DeviceGraph {
        assert!(error.contains("step 7 (stage 0, decode"), "{error}");
    }
    assert!(
        engine
            .try_submit(&random_request(&mut Random(3), 4, 1))
            .is_err()
    );
    let start = Instant::now();
    drop(engine);
    assert!(start.elapsed() < Duration::from_secs(5));
    println!("faulted as expected");
}
