//! An engine whose scheduler runs on a device: the same events as with threads of the host, and what ends it.

use crate::device::{Device, Trouble, on_device, on_threads};
use crate::rig::*;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tailgraph::runtime::{EndReason, Engine, EngineStatus, Request, SingleEngine};

fn request(prompt_tokens: u32, max_new_tokens: u32) -> Request {
    Request {
        stop_ids: vec![1030],
        ..crate::rig::request(0..prompt_tokens, max_new_tokens)
    }
}

/// The status once all pages are free: a turn hands out its events before it says, word by word, what it has come to.
fn settled(engine: &SingleEngine) -> EngineStatus {
    let start = Instant::now();
    while engine.status().free_pages < OPTIONS.pages && start.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
    engine.status()
}

#[test]
fn a_device_and_threads_give_the_same_events() {
    let mut streams = vec![];
    for mut engine in [on_threads(), on_device(Device::new(Trouble::None))] {
        for i in 0..40 {
            let request = request(1 + i * 7 % 30, 1 + i * 5 % 23);
            assert_eq!(submit(&mut engine, &request), u64::from(i));
        }
        assert!(engine.cancel(17));
        assert_eq!(
            engine.next_event(Duration::ZERO).unwrap(),
            None,
            "not launched"
        );
        engine.launch().unwrap();
        let events = read(&mut engine, 40);
        engine.drain();
        let status = settled(&engine);
        assert_eq!((status.running, status.free_pages), (0, 12));
        assert!(status.steps > 40);
        streams.push(events);
    }
    assert!(streams[0].contains(&Seen::End(17, EndReason::Cancelled, 0)));
    assert!(
        streams[0]
            .iter()
            .any(|e| matches!(e, Seen::End(_, EndReason::Stop, _)))
    );
    assert_eq!(streams[0], streams[1]);
}

#[test]
fn what_ends_the_device_is_reported_after_every_event_before_it() {
    for (trouble, words) in [
        (Trouble::Fault, "the driver answered FAULT"),
        (Trouble::Silence, "without saying why"),
    ] {
        let mut engine = on_device(Device::new(trouble));
        engine.launch().unwrap();
        submit(&mut engine, &request(2, 40));
        let (tokens, error) = fail(&mut engine);
        assert_eq!(tokens, [1001, 1002, 1003], "of steps 0 to 2");
        let step = "step 3 (stage 0, decode bucket of 1 token, 1 used)";
        assert!(error.contains(words) && error.contains(step), "{error}");
        assert!(!error.contains('\n'));
        assert!(engine.try_submit(&request(1, 1)).is_err());
    }
}

#[test]
fn a_stuck_step_is_named_and_its_memory_left_alone() {
    let device = Device::new(Trouble::Stuck);
    let (release, dropped) = (device.release.clone(), device.dropped.clone());
    let mut engine = on_device(device);
    engine.watch(Duration::from_millis(100));
    engine.launch().unwrap();
    submit(&mut engine, &request(2, 40));
    let (tokens, error) = fail(&mut engine);
    assert_eq!(tokens.len(), 3);
    for words in [
        "step 3 (stage 0, decode bucket of 1 token",
        "has been running for 0.1 s",
    ] {
        assert!(error.contains(words), "{error}");
    }
    let start = Instant::now();
    drop(engine);
    assert!(start.elapsed() < Duration::from_secs(30));
    assert!(
        !dropped.load(Ordering::Acquire),
        "its step still uses the memory"
    );
    release.store(true, Ordering::Release);
}

#[test]
fn an_idle_device_is_not_stuck() {
    let mut engine = on_device(Device::new(Trouble::None));
    engine.watch(Duration::from_millis(20));
    engine.launch().unwrap();
    assert_eq!(engine.next_event(Duration::from_millis(200)).unwrap(), None);
    engine.drain();
    assert_eq!(engine.next_event(Duration::from_millis(50)).unwrap(), None);
}

#[test]
fn a_device_that_was_never_launched_goes_quietly() {
    let device = Device::new(Trouble::None);
    let dropped = device.dropped.clone();
    drop(on_device(device));
    assert!(dropped.load(Ordering::Acquire));
}
