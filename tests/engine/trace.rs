//! A trace of a run that is going on.

use crate::rig::*;
use std::time::{Duration, Instant};
use tailgraph::io::identity::Identity;
use tailgraph::io::record::{Done, Header, Line, Turn, VERSION};
use tailgraph::plan::EngineOptions;
use tailgraph::runtime::{Engine, Event, SingleEngine};
use tailgraph::sys::abi;
use tailgraph::trace::about::HostClock;
use tailgraph::trace::{Begin, Item, Live};

/// A trace of a run whose scheduler has a clock of its own, as a device does: here it is the host's after all, so the
/// truth is known.
#[test]
fn a_trace_finds_a_clock_of_its_own_within_what_it_says() {
    let folder = tempfile::tempdir().unwrap();
    let began = Instant::now();
    let mut live = Live::create(&folder.path().join("trace.json"), began).unwrap();
    let options = EngineOptions {
        record: true,
        ..OPTIONS
    };
    let takes = Duration::from_micros(200);
    let mut engine = SingleEngine::start(stages(1, takes), &bucket_sizes(), &options).unwrap();
    let header = Header {
        version: VERSION,
        model: "formula".to_owned(),
        device: "cuda".to_owned(),
        dtype: "f32".to_owned(),
        weights: None,
        activations: None,
        launch: Some("device-graph".to_owned()),
        identity: Identity::default(),
        kernel_variants: None,
        engine: engine.shape().clone(),
    };
    let zero = engine.clock_zero().expect("launched");
    let truth = -(zero.duration_since(began).as_nanos() as i64);
    live.begin(Begin {
        header,
        clock_zero: None,
        parts: None,
        stages: vec![],
    })
    .unwrap();
    let mut ended = 0;
    let mut done = false;
    let mut submitted = 0;
    while !done {
        if submitted < 24 {
            let request = request(0..1 + submitted % 9, 5);
            let before = Instant::now();
            if let Some(number) = engine.try_submit(&request).unwrap() {
                let line = Line::Request(Box::new(request));
                live.handed("submit", number, line, (before, Instant::now()))
                    .unwrap();
                submitted += 1;
            }
        }
        let before = Instant::now();
        let event = engine.next_event(Duration::from_millis(1)).unwrap();
        ended += u32::from(matches!(event, Some(Event::End { .. })));
        let line = event.as_ref().map(Line::from);
        live.looked(line, (before, Instant::now())).unwrap();
        if ended == 24 {
            engine.drain();
        }
        loop {
            let before = Instant::now();
            let Some(record) = engine.next_turn() else {
                break;
            };
            done |= record.outcome.action == abi::TG_ACTION_DONE;
            let turn = Line::Turn(Box::new(Turn::from(&record)));
            live.put(Item::Line(turn, (before, Instant::now())))
                .unwrap();
        }
    }
    let done = Done {
        turns: 0,
        tokens: 0,
    };
    let about = live.finish(Line::Done(done), true).unwrap();
    let HostClock::Measured {
        offset_ns,
        uncertainty_ns,
        ..
    } = about.host_clock
    else {
        panic!("{:?}", about.host_clock)
    };
    assert!(uncertainty_ns < 100_000_000, "{uncertainty_ns}");
    let wrong = (offset_ns - truth).unsigned_abs();
    assert!(
        wrong <= uncertainty_ns,
        "{wrong} ns off, said {uncertainty_ns}"
    );
    assert_eq!(
        (about.requests, about.ended, about.tokens),
        (24, 24, 24 * 5)
    );
}
