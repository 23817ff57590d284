//! What the caller sees when rings are full, a stage fails or options make no sense.

use crate::rig::*;
use std::time::{Duration, Instant};
use tailgraph::plan::EngineOptions;
use tailgraph::runtime::{EndReason, Engine, Event, SingleEngine};

#[test]
fn full_rings_push_back_and_lose_nothing() {
    let mut engine = engine(1, Duration::ZERO);
    let total = 5000;
    let mut sent = 0;
    while engine.try_submit(&request(0..1, 6)).unwrap().is_some() {
        sent += 1;
        assert!(sent < total, "the request ring never filled");
    }
    // Nobody reads events: the scheduler stands still, with everything kept.
    std::thread::sleep(Duration::from_millis(50));
    let mut tokens = 0;
    let mut ended = 0;
    while ended < total {
        if sent < total && engine.try_submit(&request(0..1, 6)).unwrap().is_some() {
            sent += 1;
        }
        match engine
            .next_event(Duration::from_millis(if sent < total { 0 } else { 60_000 }))
            .unwrap()
        {
            Some(Event::Token { .. }) => tokens += 1,
            Some(Event::End { reason, .. }) => {
                assert_eq!(reason, EndReason::Length);
                ended += 1;
            }
            None => assert!(sent < total, "events stopped coming"),
        }
    }
    assert_eq!(tokens, total * 6);
}

#[test]
fn a_failing_stage_is_reported_after_every_event_before_it() {
    for (count, failing, panics) in [(1, 0, false), (1, 0, true), (3, 1, false), (3, 2, true)] {
        let mut backends = stages(count, Duration::ZERO);
        backends[failing] = Box::new(Formula {
            samples: failing as u32 + 1 == count,
            takes: Duration::ZERO,
            fails_at: Some(3),
            panics,
            ..formula()
        });
        let options = EngineOptions {
            steps_in_flight: count,
            ..OPTIONS
        };
        let mut engine = SingleEngine::start(backends, &bucket_sizes(), &options).unwrap();
        submit(&mut engine, &request(0..2, 40));
        let (tokens, error) = fail(&mut engine);
        assert_eq!(
            tokens,
            (1..4).map(token_after).collect::<Vec<_>>(),
            "steps 0 to 2 were collected"
        );
        let expected = if panics {
            "panicked: the formula gave up"
        } else {
            "the formula found no answer"
        };
        assert!(error.contains(expected), "{error}");
        assert!(
            engine.try_submit(&request(0..1, 1)).is_err(),
            "a failed engine takes no more work"
        );
    }
}

#[test]
fn impossible_options_name_themselves() {
    let options = EngineOptions {
        step_tokens: 7,
        ..OPTIONS
    };
    let Err(error) = SingleEngine::start(stages(1, Duration::ZERO), &bucket_sizes(), &options)
    else {
        panic!("step_tokens below max_seqs + chunk_align were accepted");
    };
    assert!(error.to_string().contains("step-tokens 7"), "{error}");
}

#[test]
fn dropping_a_busy_engine_ends_its_threads() {
    let mut engine = engine(3, Duration::from_millis(1));
    for _ in 0..8 {
        submit(&mut engine, &request(0..8, 56));
    }
    let start = Instant::now();
    drop(engine);
    assert!(start.elapsed() < Duration::from_secs(20));
}
