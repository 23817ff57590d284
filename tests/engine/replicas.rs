//! Several engines on one queue: the answers are those of one engine, each replica's run replays alone, cancels and
//! timeouts reach the right one, and none holds up the others or outlives their failure.

use crate::common::random::Random;
use crate::device::{Device, Trouble, on_device};
use crate::rig::*;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};
use tailgraph::backend::StageBackend;
use tailgraph::backend::device::{Runs, Stages};
use tailgraph::plan::EngineOptions;
use tailgraph::runtime::replay::Replayer;
use tailgraph::runtime::{EndReason, Engine, Part, Replica, Replicas, Request};
use tailgraph::sys::abi;

fn start(models: Vec<Stages>, record: bool) -> Replicas {
    let options = EngineOptions {
        record,
        steps_in_flight: 2,
        ..OPTIONS
    };
    started(models.into_iter().map(Runs::Stages), &options)
}

fn started(models: impl Iterator<Item = Runs>, options: &EngineOptions) -> Replicas {
    let mut replicas = not_launched(models, options);
    replicas.launch().unwrap();
    replicas
}

fn not_launched(models: impl Iterator<Item = Runs>, options: &EngineOptions) -> Replicas {
    let replica = |(index, runs)| {
        Replica::of(format!("device {index}"), runs, &bucket_sizes(), options).unwrap()
    };
    Replicas::new(models.enumerate().map(replica).collect()).unwrap()
}

fn requests(count: u64) -> Vec<Request> {
    let mut random = Random::new(7);
    (0..count)
        .map(|_| {
            let (prompt, new) = (random.range(1, 20), random.range(1, 12));
            request(0..prompt, new)
        })
        .collect()
}

/// Serves all requests, of which the first `submitted` have been, reading what is recorded meanwhile: events, and each replica's
/// parts up to its end.
fn serve_recorded(
    replicas: &mut Replicas,
    count: usize,
    all: &[Request],
    submitted: usize,
) -> (Vec<Seen>, Vec<Vec<Part>>) {
    let (mut parts, mut events) = (vec![vec![]; count], vec![]);
    let mut read = |replicas: &mut Replicas| {
        for (index, parts) in parts.iter_mut().enumerate() {
            parts.extend(std::iter::from_fn(|| replicas.next_part(index)));
        }
        let done = |part: &Part| matches!(part, Part::Turn(turn) if turn.outcome.action == abi::TG_ACTION_DONE);
        parts.iter().all(|parts| parts.last().is_some_and(done))
    };
    let (mut left, mut ended) = (all[submitted..].iter().peekable(), 0);
    while ended < all.len() {
        while left
            .next_if(|request| replicas.try_submit(request).unwrap().is_some())
            .is_some()
        {}
        read(replicas);
        if let Some(event) = replicas.next_event(Duration::from_millis(1)).unwrap() {
            events.push(seen(event));
            ended += usize::from(matches!(events.last(), Some(Seen::End(..))));
        }
    }
    replicas.drain();
    let start = Instant::now();
    while !read(replicas) {
        assert!(start.elapsed() < PATIENCE, "drained replicas did not end");
    }
    (events, parts)
}

#[test]
fn answers_are_those_of_one_engine_and_each_replica_replays_alone() {
    let all = requests(150);
    let mut one = engine(1, Duration::ZERO);
    let expected = by_request(&serve(&mut one, &all), all.len());
    let mut replicas = start(
        (0..3)
            .map(|stage| stages(1 + stage % 2, Duration::ZERO))
            .collect(),
        true,
    );
    let (events, parts) = serve_recorded(&mut replicas, 3, &all, 0);
    assert_eq!(by_request(&events, all.len()), expected);
    let mut served = 0;
    for (index, parts) in parts.into_iter().enumerate() {
        let ends = replays(&replicas, index, parts);
        served += ends.len();
        for (request, end) in ends {
            let last = request.prompt.len() as u32 - 1;
            let formula: Vec<_> = (last..last + request.max_new_tokens)
                .map(token_after)
                .collect();
            assert_eq!(end, (formula, EndReason::Length));
        }
    }
    assert_eq!(served, all.len());
}

/// Takes a replica's run again, by itself: to the same events. Its requests, and what each came to.
fn replays(
    replicas: &Replicas,
    index: usize,
    parts: Vec<Part>,
) -> Vec<(Request, (Vec<u32>, EndReason))> {
    let shape = replicas.shapes().nth(index).unwrap();
    let mut replayer = Replayer::new(shape, stages(1, Duration::ZERO)).unwrap();
    let (mut own, mut events, mut heard) = (vec![], vec![], vec![]);
    for part in parts {
        match part {
            Part::Request(request) => {
                own.push(request.clone());
                replayer.request(request);
            }
            Part::Cancel(request) => replayer.cancel(request),
            Part::Event(event) => heard.push(seen(event)),
            Part::Turn(turn) => replayer
                .turn(&turn, &mut |event| events.push(seen(event)))
                .unwrap(),
        }
    }
    assert_eq!(events, heard, "replica {index}");
    let ends = by_request(&events, own.len());
    own.into_iter().zip(ends).collect()
}

/// It claims no more than it has slots for, so all others go on to the fast one.
#[test]
fn a_slow_replica_holds_up_no_other() {
    let all = vec![request([1, 2, 3], 4); 60];
    let mut replicas = start(
        vec![
            stages(1, Duration::from_millis(100)),
            stages(1, Duration::ZERO),
        ],
        true,
    );
    let (_, parts) = serve_recorded(&mut replicas, 2, &all, 0);
    let is_request = |part: &&Part| matches!(part, Part::Request(_));
    let count = |parts: &Vec<Part>| parts.iter().filter(is_request).count();
    let claimed: Vec<usize> = parts.iter().map(count).collect();
    assert!(claimed[0] <= 2 * OPTIONS.max_seqs as usize, "{claimed:?}");
    assert_eq!(claimed.iter().sum::<usize>(), all.len());
}

/// And each has its share: only of the last ones, which are fewer than all have slots for, both get some.
#[test]
fn requests_that_begin_alike_go_to_one_replica() {
    const ALIKE: u32 = 3;
    let all: Vec<Request> = (0..60)
        .map(|i| Request {
            followers: ALIKE - 1 - i % ALIKE,
            ..request([1 + i / ALIKE], 4)
        })
        .collect();
    let slow = || stages(1, Duration::from_millis(1));
    let options = EngineOptions {
        record: true,
        ..OPTIONS
    };
    let mut replicas = not_launched([slow(), slow()].into_iter().map(Runs::Stages), &options);
    for request in &all {
        replicas
            .try_submit(request)
            .unwrap()
            .expect("room in the queue");
    }
    replicas.launch().unwrap();
    let (_, parts) = serve_recorded(&mut replicas, 2, &all, all.len());
    let prompts = |parts: &Vec<Part>| -> Vec<u32> {
        let requests = parts.iter().filter_map(|part| match part {
            Part::Request(request) => Some(request.prompt[0]),
            _ => None,
        });
        requests.collect()
    };
    let [a, b] = [prompts(&parts[0]), prompts(&parts[1])];
    assert_eq!(a.len() + b.len(), all.len());
    assert!(a.len().abs_diff(b.len()) < all.len() / 2, "{a:?} {b:?}");
    let last = all.len() as u32 / ALIKE - OPTIONS.max_seqs;
    let both: Vec<_> = a
        .iter()
        .filter(|&&prompt| prompt <= last && b.contains(&prompt))
        .collect();
    assert!(both.is_empty(), "{both:?} went to both of {a:?} {b:?}");
}

/// Those that run, on either, and those that nobody has claimed yet.
#[test]
fn cancels_and_timeouts_end_the_right_requests() {
    let slow = || stages(1, Duration::from_millis(5));
    let mut replicas = start(vec![slow(), slow()], false);
    let in_time = request([1, 2], 6);
    let too_late = Request {
        timeout: Some(Duration::from_millis(1)),
        ..request([1, 2], 30)
    };
    let mut expected = HashMap::new();
    for index in 0..60 {
        let (request, reason) = match index % 3 {
            0 => (request([1, 2], 30), EndReason::Cancelled),
            1 => (too_late.clone(), EndReason::Timeout),
            _ => (in_time.clone(), EndReason::Length),
        };
        let number = replicas
            .try_submit(&request)
            .unwrap()
            .expect("room in the queue");
        expected.insert(number, reason);
    }
    let mut to_cancel: Vec<u64> = (0..60).step_by(3).collect();
    let mut ends = HashMap::new();
    while ends.len() < 60 {
        to_cancel.retain(|&number| !replicas.cancel(number));
        if let Seen::End(number, reason, tokens) = next(&mut replicas) {
            assert!(tokens == 6 || reason != EndReason::Length);
            assert_eq!(ends.insert(number, reason), None);
        }
    }
    assert_eq!(ends, expected);
    assert!(replicas.cancel(0), "one that has ended is left alone");
}

#[test]
fn a_replica_that_fails_is_named_and_stops_the_others() {
    let fails = Box::new(Formula {
        fails_at: Some(3),
        ..formula()
    }) as Box<dyn StageBackend>;
    let mut replicas = start(
        vec![stages(2, Duration::from_millis(1)), vec![fails]],
        false,
    );
    for _ in 0..40 {
        replicas
            .try_submit(&request([1, 2, 3], 10))
            .unwrap()
            .expect("room in the queue");
    }
    let start = Instant::now();
    let error = loop {
        match replicas.next_event(PATIENCE) {
            Ok(event) => assert!(event.is_some(), "nothing for {PATIENCE:?}"),
            Err(error) => break error.to_string(),
        }
    };
    assert_eq!(error, "device 1: scheduler: the formula found no answer");
    let refused = replicas.try_submit(&request([1], 1)).unwrap_err();
    assert_eq!(refused.to_string(), error);
    drop(replicas);
    assert!(start.elapsed() < PATIENCE);
}

#[test]
fn what_no_ring_could_hold_is_refused_at_once() {
    let mut replicas = start(vec![stages(1, Duration::ZERO)], false);
    let refused = replicas.try_submit(&request([], 1)).unwrap_err();
    assert!(
        refused.to_string().contains("a prompt has 1 to"),
        "{refused}"
    );
    assert!(replicas.try_submit(&request([1], 1)).unwrap().is_some());
    assert_eq!(next(&mut replicas), Seen::Token(0, token_after(0), 0, None));
}

/// Random lengths, cancels and deadlines: every request ends once, its tokens are whole, and no page is kept.
///
/// Half of the requests wait for others to end, so that a cancel finds its request alive on any host: the rings hold the
/// events of thousands of requests, and who only pushes may read their first event after their last has ended. The other
/// half is pushed as fast as the queue takes it.
fn loses_nothing(mut replicas: Replicas, seed: u64) {
    const REQUESTS: usize = 10_000;
    let out_at_once = 2 * replicas.replicas() * OPTIONS.max_seqs as usize;
    let mut random = Random::new(seed);
    let (mut prompts, mut tokens) = (vec![], vec![]);
    let mut ends: Vec<Option<EndReason>> = vec![];
    let (mut ended, mut held, mut to_cancel) = (0, None, VecDeque::new());
    while ended < REQUESTS {
        let most = if prompts.len() < REQUESTS / 2 {
            ended + out_at_once
        } else {
            REQUESTS
        };
        while prompts.len() < most {
            let (prompt, new) = (random.range(1, 30), random.range(1, 24));
            let timeout = (random.range(0, 7) == 0)
                .then(|| Duration::from_micros(random.range(1, 4000).into()));
            let next = held.take().unwrap_or_else(|| Request {
                timeout,
                ..request(0..prompt, new)
            });
            let Some(number) = replicas.try_submit(&next).unwrap() else {
                held = Some(next);
                break;
            };
            assert_eq!(number, prompts.len() as u64);
            prompts.push(next);
            tokens.push(0);
            ends.push(None);
            if random.range(0, 5) == 0 && !replicas.cancel(number) {
                to_cancel.push_back(number);
            }
        }
        if let Some(&number) = to_cancel.front()
            && replicas.cancel(number)
        {
            to_cancel.pop_front();
        }
        let Some(event) = replicas.next_event(PATIENCE).unwrap() else {
            panic!("seed {seed}: nothing for {PATIENCE:?} after {ended} ends");
        };
        match seen(event) {
            Seen::Token(number, token, index, _) => {
                let number = number as usize;
                assert_eq!(ends[number], None, "seed {seed}: a token after the end");
                assert_eq!(index, tokens[number], "seed {seed}");
                let last = prompts[number].prompt.len() as u32 - 1;
                assert_eq!(token, token_after(last + index), "seed {seed}");
                tokens[number] += 1;
            }
            Seen::End(number, reason, published) => {
                let number = number as usize;
                assert_eq!(published, tokens[number], "seed {seed}");
                assert_eq!(
                    ends[number].replace(reason),
                    None,
                    "seed {seed}: ended twice"
                );
                let whole = published == prompts[number].max_new_tokens;
                assert!(whole || reason != EndReason::Length, "seed {seed}");
                ended += 1;
            }
        }
    }
    for reason in [EndReason::Length, EndReason::Cancelled, EndReason::Timeout] {
        assert!(ends.contains(&Some(reason)), "seed {seed}: none {reason:?}");
    }
    replicas.drain();
    let pages = OPTIONS.pages * replicas.replicas() as u32;
    let start = Instant::now();
    while replicas.status().free_pages < pages {
        assert!(start.elapsed() < PATIENCE, "seed {seed}: pages are kept");
        std::thread::yield_now();
    }
    assert_eq!(replicas.status().waiting, 0);
}

#[test]
fn ten_thousand_requests_lose_nothing() {
    loses_nothing(
        start(
            (0..3)
                .map(|stage| stages(1 + stage % 2, Duration::ZERO))
                .collect(),
            false,
        ),
        11,
    );
}

fn of_devices(device: fn() -> Device, options: &EngineOptions) -> Replicas {
    started((0..3).map(|_| Runs::Scheduler(Box::new(device()))), options)
}

/// The host claims for them.
#[test]
fn ten_thousand_requests_of_devices_lose_nothing() {
    loses_nothing(of_devices(|| Device::new(Trouble::None), &OPTIONS), 12);
}

#[test]
fn ten_thousand_requests_of_devices_that_claim_lose_nothing() {
    loses_nothing(of_devices(Device::with_peers, &OPTIONS), 13);
}

/// What they claimed is in their recordings, with what was left of its time.
#[test]
fn devices_that_claim_have_recordings_that_replay_alone() {
    let mut all = requests(150);
    for request in all.iter_mut().step_by(3) {
        request.timeout = Some(PATIENCE);
    }
    let options = EngineOptions {
        record: true,
        ..OPTIONS
    };
    let mut replicas = of_devices(Device::with_peers, &options);
    let (events, parts) = serve_recorded(&mut replicas, 3, &all, 0);
    assert_eq!(
        events
            .iter()
            .filter(|seen| matches!(seen, Seen::End(..)))
            .count(),
        150
    );
    let served: usize = parts
        .into_iter()
        .enumerate()
        .map(|(index, parts)| replays(&replicas, index, parts).len())
        .sum();
    assert_eq!(served, all.len());
}

/// The host does nothing from the push to the end: the devices find their work alone.
#[test]
fn devices_that_claim_need_no_host() {
    let all = vec![request([1, 2, 3], 4); 60];
    let mut replicas = of_devices(Device::with_peers, &OPTIONS);
    for request in &all {
        replicas.try_submit(request).unwrap().expect("room");
    }
    let start = Instant::now();
    while replicas.status().waiting + replicas.status().running > 0 {
        assert!(start.elapsed() < PATIENCE, "{:?}", replicas.status());
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut ends = 0;
    while ends < all.len() {
        ends += usize::from(matches!(
            next(&mut replicas),
            Seen::End(_, EndReason::Length, 4)
        ));
    }
}

/// A wake before a wait ends that wait too.
#[test]
fn a_waker_ends_a_wait_that_has_no_end() {
    let mut device = on_device(Device::new(Trouble::None));
    device.launch().unwrap();
    let engines: [Box<dyn Engine>; 3] = [
        Box::new(engine(1, Duration::ZERO)),
        Box::new(device),
        Box::new(start(
            (0..2).map(|_| stages(1, Duration::ZERO)).collect(),
            false,
        )),
    ];
    for mut engine in engines {
        let waker = engine.waker();
        waker.wake();
        assert_eq!(engine.next_event(Duration::MAX).unwrap(), None);
        let other = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            waker.wake();
        });
        assert_eq!(engine.next_event(Duration::MAX).unwrap(), None);
        other.join().unwrap();
    }
}
