//! Pipelines, steps that run ahead, and replays.

use crate::rig::*;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tailgraph::backend::{RunsAhead, StageBackend, StepView};
use tailgraph::error::Result;
use tailgraph::plan::{EngineOptions, RingCapacities};
use tailgraph::runtime::{Action, Core, EndReason, Engine, Request, SingleEngine};
use tailgraph::sys::abi;

/// Does its work only when a step is finished, as a device may; and continues from the tokens it has sampled.
#[derive(Default)]
struct Late {
    started: VecDeque<u64>,
    most_started: Arc<AtomicUsize>,
}

/// What it samples after a token: after 67 it has nothing to say.
fn late_token(token: i32) -> i32 {
    match token {
        67 => -1,
        _ => (token * 3 + 1) % 10_007,
    }
}

impl StageBackend for Late {
    fn run(&mut self, step: &StepView<'_>) -> Result<()> {
        for (index, &row) in step.sample_rows().iter().enumerate() {
            let token = step.token(&step.rows()[row as usize]);
            let sampled = abi::tg_sampled {
                token: late_token(token),
                ..Default::default()
            };
            step.set_sampled(index, sampled);
        }
        Ok(())
    }

    fn ahead(&mut self) -> Option<&mut dyn RunsAhead> {
        Some(self)
    }
}

impl RunsAhead for Late {
    fn start(&mut self, step: &StepView<'_>) -> Result<()> {
        self.started.push_back(step.header().number);
        self.most_started
            .fetch_max(self.started.len(), Ordering::Relaxed);
        Ok(())
    }

    fn finish(&mut self, step: &StepView<'_>) -> Result<()> {
        assert_eq!(self.started.pop_front(), Some(step.header().number));
        self.run(step)
    }
}

#[test]
fn a_backend_may_start_a_step_before_the_last_is_finished() {
    let mut requests: Vec<Request> = (0..12)
        .map(|i| request(0..1 + i * 5 % 30, 1 + i * 3 % 17))
        .collect();
    requests[3] = request(0..3, 12); // 2, 7, 22, 67
    for stop in [false, true] {
        let backend = Late::default();
        let most_started = backend.most_started.clone();
        let mut engine =
            SingleEngine::start(vec![Box::new(backend)], &bucket_sizes(), &OPTIONS).unwrap();
        assert!(engine.shape().ahead);
        for request in &requests {
            let stop_ids = if stop { vec![20_000] } else { vec![] };
            submit(
                &mut engine,
                &Request {
                    stop_ids,
                    ..request.clone()
                },
            );
        }
        let found = collect(&mut engine, requests.len());
        let mut silent = 0;
        for (request, (tokens, reason)) in requests.iter().zip(found) {
            let mut token = *request.prompt.last().unwrap();
            let mut expected = vec![];
            let mut ends = EndReason::Length;
            while expected.len() < request.max_new_tokens as usize {
                if token == 67 {
                    ends = EndReason::NotFinite;
                    silent += 1;
                    break;
                }
                token = (token * 3 + 1) % 10_007;
                expected.push(token);
            }
            assert_eq!((tokens, reason), (expected, ends));
        }
        assert!(silent > 0);
        let most = most_started.load(Ordering::Relaxed);
        assert_eq!(most, if stop { 1 } else { 2 });
    }
}

#[test]
fn every_pipeline_depth_gives_the_same_tokens() {
    for count in 1..=4 {
        let mut engine = engine(count, Duration::ZERO);
        let lengths: Vec<(u32, u32)> = (0..200).map(|i| (1 + i * 7 % 40, 1 + i * 5 % 20)).collect();
        let mut events = vec![];
        for batch in lengths.chunks(8) {
            for &(prompt, new) in batch {
                submit(&mut engine, &request(0..prompt, new));
            }
            events.extend(read(&mut engine, batch.len()));
        }
        let found = by_request(&events, lengths.len());
        for (&(prompt, new), found) in lengths.iter().zip(found) {
            let expected = (prompt - 1..prompt - 1 + new).map(token_after).collect();
            assert_eq!(
                found,
                (expected, EndReason::Length),
                "{count} stages, prompt {prompt}, {new} new tokens"
            );
        }
        engine.drain();
    }
}

/// Half of the requests have no limit, and the pool holds one that fills the context and a little more: they give their
/// pages back and are recomputed, in pipelines and in steps that run ahead, and give the same tokens.
#[test]
fn a_pool_too_small_gives_the_same_tokens() {
    let options = |steps_in_flight| EngineOptions {
        pages: 5,
        steps_in_flight,
        ..OPTIONS
    };
    let requests: Vec<Request> = (0..60)
        .map(|i| {
            let prompt = 1 + i * 7 % 30;
            match i % 2 {
                0 => request(0..prompt, 1 + i % 20),
                _ => Request {
                    unlimited: true,
                    ..request(0..prompt, OPTIONS.max_context - prompt)
                },
            }
        })
        .collect();
    let pipelines = (1..=3).map(|count| (stages(count, Duration::ZERO), options(count)));
    let late: Vec<Box<dyn StageBackend>> = vec![Box::new(Late::default())];
    for (place, (backends, options)) in pipelines.chain([(late, options(1))]).enumerate() {
        let mut engine = SingleEngine::start(backends, &bucket_sizes(), &options).unwrap();
        let found = by_request(&serve(&mut engine, &requests), requests.len());
        for (request, found) in requests.iter().zip(found) {
            let mut token = *request.prompt.last().unwrap() as i32;
            let mut expected = vec![];
            for position in
                (request.prompt.len() as u32 - 1..).take(request.max_new_tokens as usize)
            {
                token = match place {
                    3 => late_token(token),
                    _ => token_after(position) as i32,
                };
                if token == -1 {
                    break;
                }
                expected.push(token as u32);
            }
            assert_eq!(found.0, expected, "{options:?}: {request:?}");
        }
        let records = drain_trace(&mut engine);
        let again: u32 = records.iter().map(|r| r.outcome.recomputed).sum();
        // How many depends on when the requests come.
        assert!(again > 5, "{options:?}: {again} were recomputed");
    }
}

#[test]
fn a_recorded_run_is_replayed_step_by_step() {
    let options = EngineOptions {
        record: true,
        ..OPTIONS
    };
    let mut engine =
        SingleEngine::start(stages(1, Duration::ZERO), &bucket_sizes(), &options).unwrap();
    let requests: Vec<Request> = (0..12)
        .map(|i| request(0..1 + i * 5 % 30, 1 + i * 3 % 17))
        .collect();
    let mut records = vec![];
    for request in &requests {
        submit(&mut engine, request);
    }
    engine.cancel(5);
    read_beside(&mut engine, requests.len(), |engine| {
        records.extend(std::iter::from_fn(|| engine.next_turn()));
    });
    records.extend(drain_trace(&mut engine));

    let (mut core, mut rings, _) = Core::new(
        &options,
        &bucket_sizes(),
        1,
        RingCapacities::new(&options),
        false,
    )
    .unwrap();
    for request in &requests {
        rings
            .try_push_request(request)
            .unwrap()
            .expect("the rings have room");
    }
    rings.push_cancel(5);
    let mut steps = 0;
    for record in &records {
        let outcome = core.replay(&record.inputs);
        if let Action::Step(number) = outcome.action {
            assert_eq!(number, record.outcome.step);
            let step = core.step(number);
            let header = step.header();
            assert_eq!(
                (header.kind, header.bucket, header.rows, header.sequences),
                (
                    record.outcome.kind,
                    record.outcome.bucket,
                    record.outcome.rows,
                    record.outcome.sequences
                )
            );
            assert_eq!(header.start_ns, record.inputs.now_ns);
            steps += 1;
        }
        assert_eq!(outcome.free_pages, record.outcome.free_pages);
    }
    assert!(steps > 17, "{steps} steps were replayed");
}

/// What is submitted together is in the first step together, whenever the scheduler looks; a request that no ring could
/// hold keeps the others out.
#[test]
fn requests_submitted_together_are_seen_together() {
    let mut engine = engine(1, Duration::ZERO);
    let four: Vec<_> = (0..4).map(|i| request(0..1 + i, 3)).collect();
    for round in 0..50 {
        while engine.next_turn().is_some() {}
        let numbers = engine.try_submit_all(&mut four.iter()).unwrap();
        assert_eq!(numbers, 4 * round..4 * (round + 1));
        read(&mut engine, 4);
        let first = std::iter::from_fn(|| engine.next_turn())
            .find(|record| record.outcome.action == abi::TG_ACTION_STEP)
            .expect("a step");
        assert_eq!(first.outcome.sequences, 4, "round {round}");
    }
    let long = request(0..1 << 22, 1);
    assert!(
        engine
            .try_submit_all(&mut [&four[0], &long].into_iter())
            .is_err()
    );
    assert_eq!(
        engine.try_submit_all(&mut four[..1].iter()).unwrap(),
        200..201
    );
}
