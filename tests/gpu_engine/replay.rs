//! A recorded run of the device, composed again by the core on the host and launched kernel by kernel.

use crate::common::probe::fingerprint;
use crate::common::random::Random;
use crate::rig::*;
use std::time::{Duration, Instant};
use tailgraph::backend::LaunchWay;
use tailgraph::plan::EngineOptions;
use tailgraph::runtime::Engine as _;
use tailgraph::runtime::{Action, Between, Core, EndReason, EngineShape, Event, Request};
use tailgraph::sys::abi;

struct Recorded {
    requests: Vec<Request>,
    cancels: Vec<u64>,
    events: Vec<Seen>,
    trace: Vec<abi::tg_trace>,
    /// By step number
    fingerprints: Vec<(u64, u64)>,
    shape: EngineShape,
}

/// Requests that come in over time, some cancelled, some with little time.
fn record(rig: &Rig, setup: &Setup) -> Recorded {
    let mut random = Random(5);
    let mut requests = mixture(&mut random, 400);
    for number in (0..400).step_by(9) {
        requests[number] = random_request(&mut random, 40, 200);
        match number % 2 {
            0 => requests[number].timeout = Some(Duration::from_micros(300 + random.below(900))),
            _ => requests[number].timeout = Some(Duration::from_secs(100)),
        }
    }
    let (mut engine, log) = rig.engine(LaunchWay::DeviceGraph, setup);
    engine.launch().unwrap();
    let (mut events, mut trace, mut cancels) = (vec![], vec![], vec![]);
    let (mut sent, mut ended) = (0, 0);
    while ended < requests.len() {
        // A burst, then a while without, so that the device also runs dry.
        for _ in 0..random.below(40) {
            if sent < requests.len() && engine.try_submit(&requests[sent]).unwrap().is_some() {
                sent += 1;
            }
        }
        while let Some(event) = engine.next_event(Duration::from_micros(200)).unwrap() {
            if let Event::Token { request, index, .. } = event
                && request % 9 == 0
                && request % 2 == 1
                && index == 3 + (request % 5) as u32
            {
                assert!(engine.cancel(request));
                cancels.push(request);
            }
            ended += usize::from(matches!(event, Event::End { .. }));
            events.push(seen(event));
        }
        trace.extend(std::iter::from_fn(|| engine.next_turn()));
    }
    trace.extend(drain_trace(&mut engine));
    assert_eq!(engine.traces_lost(), 0);
    let shape = engine.shape().clone();
    drop(engine);
    Recorded {
        requests,
        cancels,
        events,
        trace,
        fingerprints: log.unwrap().read(&rig.stream).unwrap(),
        shape,
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_recorded_run_is_composed_and_computed_again() {
    let rig = Rig::new();
    let setup = Setup {
        options: EngineOptions {
            record: true,
            ..SETUP.options
        },
        ..SETUP
    };
    let recorded = record(&rig, &setup);
    let mut reasons = std::collections::HashMap::<EndReason, u32>::new();
    for (number, (tokens, reason)) in by_request(&recorded.events, 400).into_iter().enumerate() {
        *reasons.entry(reason).or_default() += 1;
        let (all, natural) = expected(&setup, &recorded.requests[number]);
        match reason {
            EndReason::Cancelled | EndReason::Timeout => {
                assert!(all.starts_with(&tokens), "request {number}");
            }
            _ => assert_eq!((tokens, reason), (all, natural), "request {number}"),
        }
    }
    println!("ends: {reasons:?}");
    for reason in [EndReason::Cancelled, EndReason::Timeout, EndReason::Stop] {
        assert!(reasons.get(&reason).is_some_and(|&n| n > 3), "{reasons:?}");
    }

    let (mut core, mut rings, _) = Core::of(&recorded.shape, false, Between::NOTHING).unwrap();
    let mut backend = rig.backends(LaunchWay::HostKernels, &setup).remove(0);
    let (mut pushed, mut cancelled, mut steps) = (0, 0, 0);
    let mut events = vec![];
    let start = Instant::now();
    for record in &recorded.trace {
        while pushed < record.inputs.request_head {
            let request = &recorded.requests[pushed as usize];
            assert_eq!(rings.try_push_request(request).unwrap(), Some(pushed));
            pushed += 1;
        }
        while cancelled < record.inputs.control_head {
            assert!(rings.push_cancel(recorded.cancels[cancelled as usize]));
            cancelled += 1;
        }
        let outcome = core.replay(&record.inputs);
        assert_eq!(outcome.free_pages, record.outcome.free_pages);
        if let Action::Step(number) = outcome.action {
            assert_eq!(number, record.outcome.step);
            let step = core.step(number);
            let seen_by_kernels = recorded.fingerprints[number as usize];
            let composed = fingerprint(&step, setup.options.page_tokens);
            assert_eq!(
                seen_by_kernels,
                (number, composed),
                "the descriptor of step {number}"
            );
            backend.run(&step).unwrap();
            steps += 1;
        }
        events.extend(std::iter::from_fn(|| rings.pop_event()).map(seen));
        assert!(start.elapsed() < PATIENCE);
    }
    println!("{steps} steps replayed");
    assert!(steps > 200);
    let differs = events
        .iter()
        .zip(&recorded.events)
        .position(|(a, b)| a != b);
    assert_eq!(differs, None, "the first event that differs");
    assert_eq!(events.len(), recorded.events.len());
}
