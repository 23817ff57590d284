//! The device goes on without its host.

use crate::common::probe::ProbeOptions;
use crate::common::random::Random;
use crate::rig::*;
use std::time::Duration;
use tailgraph::backend::LaunchWay;
use tailgraph::plan::{EngineOptions, RingCapacities};
use tailgraph::runtime::{Engine, Request, SingleEngine};
use tailgraph::sys::abi;

/// A host that stands still for two seconds: the device goes on until the event ring is full, by its own clock, then
/// waits; nothing is lost.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_device_goes_on_until_the_event_ring_is_full() {
    const STANDSTILL: Duration = Duration::from_secs(2);
    let rig = Rig::new();
    let events = 1 << 15;
    let setup = Setup {
        options: EngineOptions {
            max_seqs: 1,
            max_context: 4096,
            pages: 256,
            ..SETUP.options
        },
        capacities: RingCapacities {
            requests: 64,
            tokens: 4096,
            events,
            sampled: 64,
            trace: 1 << 17,
            ..SETUP.capacities
        },
        probe: ProbeOptions {
            layers: 1,
            ..SETUP.probe
        },
        ..SETUP
    };
    let mut random = Random(7);
    let requests: Vec<_> = (0..12)
        .map(|_| random_request(&mut random, 10, 4000))
        .collect();
    let (mut engine, _) = rig.engine(LaunchWay::DeviceGraph, &setup);
    engine.watch(Duration::from_secs(1));
    for request in &requests {
        assert!(engine.try_submit(request).unwrap().is_some());
    }
    engine.launch().unwrap();
    std::thread::sleep(STANDSTILL);
    let full = engine.status();
    assert!(
        full.steps > u64::from(events) - 64,
        "{full:?}: the ring is not full"
    );
    let mut trace: Vec<_> = std::iter::from_fn(|| engine.next_turn()).collect();
    let starts = |trace: &[abi::tg_trace]| -> Vec<u64> {
        let steps = trace
            .iter()
            .filter(|r| r.outcome.action == abi::TG_ACTION_STEP);
        steps.map(|r| r.inputs.now_ns).collect()
    };
    let alone = starts(&trace);
    let alone_s = (alone[alone.len() - 1] - alone[0]) as f64 / 1e9;
    println!(
        "{} steps in {alone_s:.3} s without a look of the host",
        alone.len()
    );
    assert!((0.1..2.0).contains(&alone_s));
    assert_eq!(engine.status(), full, "a full ring stops everything");

    // The host comes back and the rest follows.
    let found = read(&mut engine, requests.len());
    trace.extend(drain_trace(&mut engine));
    assert_eq!(starts(&trace).len(), requests.len() * 4000);
    for (number, (tokens, reason)) in by_request(&found, requests.len()).into_iter().enumerate() {
        let (expected_tokens, expected_reason) = expected(&setup, &requests[number]);
        assert!(tokens == expected_tokens, "request {number}");
        assert_eq!(reason, expected_reason);
    }
}

/// An idle device takes what comes, however late, and its launches do not add up.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn an_idle_device_waits_for_work() {
    let rig = Rig::new();
    let (mut engine, _) = rig.engine(LaunchWay::DeviceGraph, &SETUP);
    engine.launch().unwrap();
    let mut random = Random(8);
    for pause_ms in [0, 300, 1, 1000] {
        assert_eq!(
            engine.next_event(Duration::from_millis(pause_ms)).unwrap(),
            None
        );
        let request = random_request(&mut random, 5, 1);
        let start = std::time::Instant::now();
        let events = serve_next(&mut engine, &request);
        println!(
            "after {pause_ms} ms of rest: {:.1} us from submit to the end",
            start.elapsed().as_secs_f64() * 1e6
        );
        assert_eq!(events, 2);
    }
}

/// One request: how many events it gives.
fn serve_next(engine: &mut SingleEngine, request: &Request) -> usize {
    serve(engine, std::slice::from_ref(request)).len()
}
