//! The engine around a backend that samples by a formula: pipelines, cancels, timeouts, back-pressure, and
//! what the caller sees when a stage fails.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tailgraph::backend::{RunsAhead, StageBackend, StepView};
use tailgraph::error::{Error, Result};
use tailgraph::plan::{EngineOptions, Ladders, RingCapacities};
use tailgraph::runtime::{Action, Core, EndReason, Engine, Event, Logits, Request, Sampling};
use tailgraph::sys::abi;

const PATIENCE: Duration = Duration::from_secs(60);

/// What the formula samples after the token at `position`.
fn token_after(position: u32) -> u32 {
    1000 + position
}

/// The last stage of a pipeline samples; the others only pass steps on.
struct Formula {
    samples: bool,
    takes: Duration,
    /// Fails in this step.
    fails_at: Option<u64>,
    panics: bool,
    /// Samples nothing after this position.
    silent_at: Option<u32>,
}

/// A stage that samples at once.
fn formula() -> Formula {
    Formula {
        samples: true,
        takes: Duration::ZERO,
        fails_at: None,
        panics: false,
        silent_at: None,
    }
}

impl StageBackend for Formula {
    fn run(&mut self, step: &StepView<'_>) -> Result<()> {
        std::thread::sleep(self.takes);
        if self.fails_at == Some(step.header().number) {
            assert!(!self.panics, "the formula gave up");
            return Err(Error::Runtime("the formula found no answer".into()));
        }
        if self.samples {
            for (index, &row) in step.sample_rows().iter().enumerate() {
                let position = step.rows()[row as usize].position;
                step.set_sampled(
                    index,
                    abi::tg_sampled {
                        token: match self.silent_at {
                            Some(silent) if silent == position => -1,
                            _ => token_after(position) as i32,
                        },
                        ..Default::default()
                    },
                );
            }
        }
        Ok(())
    }
}

/// Does its work only when a step is finished, as a device may; and continues from the tokens it has sampled.
#[derive(Default)]
struct Late {
    started: VecDeque<u64>,
    most_started: Arc<AtomicUsize>,
}

impl StageBackend for Late {
    fn run(&mut self, step: &StepView<'_>) -> Result<()> {
        for (index, &row) in step.sample_rows().iter().enumerate() {
            let token = step.token(&step.rows()[row as usize]);
            let sampled = abi::tg_sampled {
                // After this one it has nothing to say.
                token: if token == 67 {
                    -1
                } else {
                    (token * 3 + 1) % 10_007
                },
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
        .map(|i| request(1 + i * 5 % 30, 1 + i * 3 % 17))
        .collect();
    requests[3] = request(3, 12); // 2, 7, 22, 67
    for stop in [false, true] {
        let backend = Late::default();
        let most_started = backend.most_started.clone();
        let mut engine = Engine::start(vec![Box::new(backend)], &ladders(), &OPTIONS).unwrap();
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

const OPTIONS: EngineOptions = EngineOptions {
    max_seqs: 4,
    max_context: 64,
    page_tokens: 16,
    pages: 12,
    step_tokens: 16,
    chunk_align: 4,
    steps_in_flight: 1,
    record: false,
};

fn ladders() -> Ladders {
    Ladders {
        decode: vec![1, 2, 4],
        mixed: vec![8, 16],
        score: vec![16],
    }
}

fn stages(count: u32, takes: Duration) -> Vec<Box<dyn StageBackend>> {
    (1..=count)
        .map(|stage| {
            Box::new(Formula {
                samples: stage == count,
                takes,
                ..formula()
            }) as Box<dyn StageBackend>
        })
        .collect()
}

fn engine(count: u32, takes: Duration) -> Engine {
    let options = EngineOptions {
        steps_in_flight: count,
        ..OPTIONS
    };
    Engine::start(stages(count, takes), &ladders(), &options).unwrap()
}

fn request(prompt_tokens: u32, max_new_tokens: u32) -> Request {
    Request {
        prompt: (0..prompt_tokens).collect(),
        max_new_tokens,
        stop_ids: vec![],
        sampling: Sampling::default(),
        timeout: None,
        logits: Logits::None,
    }
}

fn submit(engine: &mut Engine, request: &Request) -> u64 {
    engine
        .try_submit(request)
        .unwrap()
        .expect("the rings have room")
}

/// Reads events until `requests` have ended: each one's tokens and reason.
fn collect(engine: &mut Engine, requests: usize) -> Vec<(Vec<u32>, EndReason)> {
    let mut tokens = vec![vec![]; requests];
    let mut reasons = vec![None; requests];
    let mut left = requests;
    while left > 0 {
        match engine
            .next_event(PATIENCE)
            .unwrap()
            .expect("an event within a minute")
        {
            Event::Token {
                request,
                token,
                index,
                ..
            } => {
                let list: &mut Vec<u32> = &mut tokens[request as usize];
                assert_eq!(index as usize, list.len());
                list.push(token);
            }
            Event::End {
                request,
                reason,
                timing,
                ..
            } => {
                assert!(timing.queue <= timing.total);
                assert!(reasons[request as usize].replace(reason).is_none());
                left -= 1;
            }
        }
    }
    tokens
        .into_iter()
        .zip(reasons.into_iter().map(Option::unwrap))
        .collect()
}

#[test]
fn every_pipeline_depth_gives_the_same_tokens() {
    for count in 1..=4 {
        let mut engine = engine(count, Duration::ZERO);
        let lengths: Vec<(u32, u32)> = (0..200).map(|i| (1 + i * 7 % 40, 1 + i * 5 % 20)).collect();
        let mut results = vec![];
        for batch in lengths.chunks(8) {
            for &(prompt, new) in batch {
                submit(&mut engine, &request(prompt, new));
            }
            // Request numbers go on; collect() wants them from 0, so read this batch here.
            let first = results.len() as u64;
            let mut ended = 0;
            results.extend(batch.iter().map(|_| vec![]));
            while ended < batch.len() {
                match engine
                    .next_event(PATIENCE)
                    .unwrap()
                    .expect("an event within a minute")
                {
                    Event::Token { request, token, .. } => {
                        assert!(request >= first);
                        results[request as usize].push(token);
                    }
                    Event::End { reason, .. } => {
                        assert_eq!(reason, EndReason::Length);
                        ended += 1;
                    }
                }
            }
        }
        for (&(prompt, new), tokens) in lengths.iter().zip(&results) {
            let expected: Vec<u32> = (prompt - 1..prompt - 1 + new).map(token_after).collect();
            assert_eq!(
                *tokens, expected,
                "{count} stages, prompt {prompt}, {new} new tokens"
            );
        }
        engine.drain();
    }
}

#[test]
fn a_stop_id_ends_a_request_and_is_its_last_token() {
    let mut engine = engine(1, Duration::ZERO);
    let mut stopping = request(3, 50);
    stopping.stop_ids = vec![5, token_after(6)];
    submit(&mut engine, &stopping);
    let expected: Vec<u32> = (2..=6).map(token_after).collect();
    assert_eq!(collect(&mut engine, 1), [(expected, EndReason::Stop)]);
}

#[test]
fn a_cancel_reaches_running_and_waiting_requests() {
    let mut engine = engine(2, Duration::from_millis(2));
    for _ in 0..8 {
        submit(&mut engine, &request(8, 56));
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
    let mut hurried = request(4, 60);
    hurried.timeout = Some(Duration::from_millis(40));
    submit(&mut engine, &hurried);
    submit(&mut engine, &request(4, 30));
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
        submit(&mut engine, &request(4, 60));
    }
    let mut waiting = request(4, 60);
    waiting.timeout = Some(Duration::from_millis(10));
    submit(&mut engine, &waiting);
    let results = collect(&mut engine, 4);
    assert_eq!(results[3], (vec![], EndReason::Timeout));
}

#[test]
fn a_request_larger_than_the_pool_is_refused_and_the_next_one_served() {
    let mut engine = engine(1, Duration::ZERO);
    submit(&mut engine, &request(30, 60));
    submit(&mut engine, &request(2, 2));
    let results = collect(&mut engine, 2);
    assert_eq!(results[0], (vec![], EndReason::Refused));
    assert_eq!(results[1].1, EndReason::Length);
}

#[test]
fn a_request_without_a_token_ends_and_the_others_go_on() {
    // The formula has no answer after position 9: neither at a prompt's end nor later.
    let mut engine = Engine::start(
        vec![Box::new(Formula {
            silent_at: Some(9),
            ..formula()
        })],
        &ladders(),
        &OPTIONS,
    )
    .unwrap();
    let mut asking = request(10, 5);
    asking.sampling.logprobs = Some(1);
    submit(&mut engine, &asking);
    submit(&mut engine, &request(6, 8));
    submit(&mut engine, &request(6, 4));
    submit(&mut engine, &request(12, 3));
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

#[test]
fn full_rings_push_back_and_lose_nothing() {
    let mut engine = engine(1, Duration::ZERO);
    let total = 5000;
    let mut sent = 0;
    while engine.try_submit(&request(1, 6)).unwrap().is_some() {
        sent += 1;
        assert!(sent < total, "the request ring never filled");
    }
    // Nobody reads events: the scheduler stands still, with everything kept.
    std::thread::sleep(Duration::from_millis(50));
    let mut tokens = 0;
    let mut ended = 0;
    while ended < total {
        if sent < total && engine.try_submit(&request(1, 6)).unwrap().is_some() {
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
        let mut engine = Engine::start(backends, &ladders(), &options).unwrap();
        submit(&mut engine, &request(2, 40));
        let start = Instant::now();
        let mut tokens = vec![];
        let error = loop {
            match engine.next_event(PATIENCE) {
                Ok(Some(Event::Token { token, .. })) => tokens.push(token),
                Ok(other) => panic!("expected tokens, then an error; found {other:?}"),
                Err(error) => break error.to_string(),
            }
        };
        assert!(start.elapsed() < PATIENCE);
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
            engine.try_submit(&request(1, 1)).is_err(),
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
    let Err(error) = Engine::start(stages(1, Duration::ZERO), &ladders(), &options) else {
        panic!("step_tokens below max_seqs + chunk_align were accepted");
    };
    assert!(error.to_string().contains("step-tokens 7"), "{error}");
}

#[test]
fn dropping_a_busy_engine_ends_its_threads() {
    let mut engine = engine(3, Duration::from_millis(1));
    for _ in 0..8 {
        submit(&mut engine, &request(8, 56));
    }
    let start = Instant::now();
    drop(engine);
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_recorded_run_is_replayed_step_by_step() {
    let options = EngineOptions {
        record: true,
        ..OPTIONS
    };
    let mut engine = Engine::start(stages(1, Duration::ZERO), &ladders(), &options).unwrap();
    let requests: Vec<Request> = (0..12)
        .map(|i| request(1 + i * 5 % 30, 1 + i * 3 % 17))
        .collect();
    let mut records = vec![];
    for request in &requests {
        submit(&mut engine, request);
    }
    engine.cancel(5);
    let mut ended = 0;
    while ended < requests.len() {
        if let Some(Event::End { .. }) = engine.next_event(PATIENCE).unwrap() {
            ended += 1;
        }
        records.extend(std::iter::from_fn(|| engine.next_trace()));
    }
    engine.drain();
    let start = Instant::now();
    while records
        .last()
        .is_none_or(|r: &abi::tg_trace| r.outcome.action != abi::TG_ACTION_DONE)
    {
        assert!(
            start.elapsed() < PATIENCE,
            "the drained engine never wrote its last record"
        );
        records.extend(std::iter::from_fn(|| engine.next_trace()));
    }

    let (mut core, mut rings, _) = Core::new(
        &options,
        &ladders(),
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
