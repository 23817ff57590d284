//! How requests end.

use crate::rig::*;
use std::time::Duration;
use tailgraph::runtime::{EndReason, Engine, SingleEngine};

#[test]
fn a_stop_id_ends_a_request_and_is_its_last_token() {
    let mut engine = engine(1, Duration::ZERO);
    let mut stopping = request(0..3, 50);
    stopping.stop_ids = vec![5, token_after(6)];
    submit(&mut engine, &stopping);
    let expected: Vec<u32> = (2..=6).map(token_after).collect();
    assert_eq!(collect(&mut engine, 1), [(expected, EndReason::Stop)]);
}

#[test]
fn a_cancel_reaches_running_and_waiting_requests() {
    let mut engine = engine(2, Duration::from_millis(2));
    for _ in 0..8 {
        submit(&mut engine, &request(0..8, 56));
    }
    assert!(engine.cancel(1));
    assert!(engine.cancel(7));
    let results = collect(&mut engine, 8);
    for (number, (tokens, reason)) in results.iter().enumerate() {
        if [1, 7].contains(&number) {
            assert_eq!(*reason, EndReason::Cancelled, "request {number}");
            assert!(tokens.len() < 56);
        } else {
            assert_eq!(*reason, EndReason::Length, "request {number}");
            assert_eq!(tokens.len(), 56);
        }
    }
}

#[test]
fn a_timeout_ends_a_request_while_others_go_on() {
    let mut engine = engine(1, Duration::from_millis(5));
    let mut hurried = request(0..4, 60);
    hurried.timeout = Some(Duration::from_millis(40));
    submit(&mut engine, &hurried);
    submit(&mut engine, &request(0..4, 30));
    let results = collect(&mut engine, 2);
    assert_eq!(results[0].1, EndReason::Timeout);
    assert!(results[0].0.len() < 60);
    assert_eq!(results[1].1, EndReason::Length);
}

#[test]
fn a_timeout_is_noticed_by_an_engine_with_nothing_to_run() {
    let mut engine = engine(1, Duration::from_millis(1));
    // Twelve pages: the first takes four, and so do two more; the fourth waits until its time is up.
    for _ in 0..3 {
        submit(&mut engine, &request(0..4, 60));
    }
    let mut waiting = request(0..4, 60);
    waiting.timeout = Some(Duration::from_millis(10));
    submit(&mut engine, &waiting);
    let results = collect(&mut engine, 4);
    assert_eq!(results[3], (vec![], EndReason::Timeout));
}

#[test]
fn a_request_larger_than_the_pool_is_refused_and_the_next_one_served() {
    let mut engine = engine(1, Duration::ZERO);
    submit(&mut engine, &request(0..30, 60));
    submit(&mut engine, &request(0..2, 2));
    let results = collect(&mut engine, 2);
    assert_eq!(results[0], (vec![], EndReason::Refused));
    assert_eq!(results[1].1, EndReason::Length);
}

#[test]
fn a_request_without_a_token_ends_and_the_others_go_on() {
    // The formula has no answer after position 9: neither at a prompt's end nor later.
    let mut engine = SingleEngine::start(
        vec![Box::new(Formula {
            silent_at: Some(9),
            ..formula()
        })],
        &bucket_sizes(),
        &OPTIONS,
    )
    .unwrap();
    let mut asking = request(0..10, 5);
    asking.sampling.logprobs = Some(1);
    submit(&mut engine, &asking);
    submit(&mut engine, &request(0..6, 8));
    submit(&mut engine, &request(0..6, 4));
    submit(&mut engine, &request(0..12, 3));
    let results = collect(&mut engine, 4);
    let tokens = |from: u32, to: u32| (from..to).map(token_after).collect::<Vec<_>>();
    assert_eq!(
        results,
        [
            (vec![], EndReason::NotFinite),
            (tokens(5, 9), EndReason::NotFinite),
            (tokens(5, 9), EndReason::Length),
            (tokens(11, 14), EndReason::Length),
        ]
    );
}
