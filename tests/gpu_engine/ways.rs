//! The three ways to launch, over the same step.

use crate::common::random::Random;
use crate::rig::*;
use tailgraph::backend::LaunchWay;
use tailgraph::plan::{EngineOptions, RingCapacities};
use tailgraph::runtime::Engine as _;
use tailgraph::runtime::{EndReason, Logits};

/// With the whole job in the ring before the first turn, all ways give the same events in the same order, out of the
/// same steps, whichever way kernels depend on each other.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn all_ways_give_the_same_stream_of_events() {
    let rig = Rig::new();
    for pdl in [false, true] {
        let mut setup = SETUP;
        setup.probe.pdl = pdl;
        let requests = mixture(&mut Random(1), 300);
        let mut streams: Vec<(LaunchWay, Vec<Seen>, Vec<_>)> = vec![];
        for way in WAYS.into_iter().chain([LaunchWay::DeviceGraph]) {
            let (mut engine, _) = rig.engine(way, &setup);
            for request in &requests {
                assert!(engine.try_submit(request).unwrap().is_some());
            }
            assert!(engine.cancel(42) && engine.cancel(299));
            engine.launch().unwrap();
            let events = read(&mut engine, 300);
            let steps: Vec<_> = drain_trace(&mut engine)
                .iter()
                .filter(|r| r.outcome.step != u64::MAX)
                .map(|r| {
                    let o = r.outcome;
                    (
                        o.step,
                        o.kind,
                        o.bucket,
                        o.rows,
                        o.sequences,
                        o.sample_rows,
                        o.free_pages,
                    )
                })
                .collect();
            assert!(steps.len() > 100);
            let status = engine.status();
            assert_eq!(
                (status.running, status.free_pages),
                (0, setup.options.pages)
            );
            streams.push((way, events, steps));
        }
        for (request, (tokens, reason)) in by_request(&streams[0].1, 300).into_iter().enumerate() {
            match request {
                42 | 299 => assert_eq!(reason, EndReason::Cancelled),
                _ => {
                    let (expected_tokens, expected_reason) = expected(&setup, &requests[request]);
                    assert_eq!(tokens, expected_tokens, "request {request}");
                    assert_eq!(reason, expected_reason, "request {request}");
                }
            }
        }
        for (way, events, steps) in &streams[1..] {
            let differs = events.iter().zip(&streams[0].1).position(|(a, b)| a != b);
            assert_eq!(
                differs, None,
                "{way:?} pdl {pdl}: the first event that differs"
            );
            assert_eq!(events.len(), streams[0].1.len());
            assert_eq!(steps, &streams[0].2, "{way:?} pdl {pdl}: steps");
        }
    }
}

fn all_right(rig: &Rig, way: LaunchWay, setup: &Setup, count: usize) {
    let requests = mixture(&mut Random(2), count);
    let (mut engine, _) = rig.engine(way, setup);
    engine.launch().unwrap();
    let events = serve(&mut engine, &requests);
    for (number, found) in by_request(&events, count).into_iter().enumerate() {
        let (tokens, reason) = expected(setup, &requests[number]);
        assert_eq!(found, (tokens, reason), "{way:?} request {number}");
    }
}

/// Half of the rows have no limit, in a pool that holds two of them: their pages come and go, and the tokens are those of
/// a run with room for all.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_pool_too_small_gives_the_same_tokens() {
    let rig = Rig::new();
    let options = EngineOptions {
        pages: 2 * SETUP.options.max_context / SETUP.options.page_tokens,
        ..SETUP.options
    };
    let setup = Setup { options, ..SETUP };
    let mut requests = mixture(&mut Random(3), 200);
    for request in requests.iter_mut().step_by(2) {
        request.logits = Logits::None;
        request.max_new_tokens = options.max_context - request.prompt.len() as u32;
        request.unlimited = true;
    }
    for way in WAYS {
        let (mut engine, _) = rig.engine(way, &setup);
        engine.launch().unwrap();
        let events = serve(&mut engine, &requests);
        for (number, found) in by_request(&events, 200).into_iter().enumerate() {
            let expected = expected(&setup, &requests[number]);
            assert_eq!(found, expected, "{way:?} request {number}");
        }
        let records = drain_trace(&mut engine);
        let again: u32 = records.iter().map(|r| r.outcome.recomputed).sum();
        assert!(again > 20, "{way:?}: {again} were recomputed");
    }
}

/// Three stages on one GPU: their graphs follow each other, and the host is told which one runs.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn stages_follow_each_other() {
    let rig = Rig::new();
    let setup = Setup { stages: 3, ..SETUP };
    all_right(&rig, LaunchWay::DeviceGraph, &setup, 200);
}

/// Rings of a few entries: everyone waits for everyone, nothing is lost.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn rings_of_a_few_entries_lose_nothing() {
    let rig = Rig::new();
    let setup = Setup {
        capacities: RingCapacities {
            requests: 2,
            tokens: 64,
            controls: 2,
            events: 4,
            sampled: 2,
            trace: 2,
            biases: 3,
        },
        ..SETUP
    };
    for way in WAYS {
        all_right(&rig, way, &setup, 300);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn ten_thousand_requests() {
    let rig = Rig::new();
    let start = std::time::Instant::now();
    all_right(&rig, LaunchWay::DeviceGraph, &SETUP, 10_000);
    println!("10,000 requests: {:.2} s", start.elapsed().as_secs_f64());
}
