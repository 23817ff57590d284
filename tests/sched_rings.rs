//! The core behind its safe handles: host, scheduler and stages on threads of their own, rings that are
//! always nearly full, and a replay of what was recorded.

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};
use tailgraph::plan::{BucketSizes, EngineOptions, RingCapacities};
use tailgraph::runtime::{
    Action, Core, EndReason, Event, HostRings, Logits, Request, Sampling, StageLink,
};
use tailgraph::sys::abi;

const STAGES: u32 = 3;
const REQUESTS: u64 = 400;

fn options() -> EngineOptions {
    EngineOptions {
        max_seqs: 4,
        max_context: 64,
        page_tokens: 4,
        pages: 40,
        step_tokens: 16,
        chunk_tokens: 16,
        chunk_share: 0,
        chunk_align: 4,
        steps_in_flight: STAGES + 1,
        prefixes: 0,
        record: true,
    }
}

fn capacities() -> RingCapacities {
    RingCapacities {
        requests: 4,
        tokens: 64,
        controls: 2,
        events: 2,
        sampled: 1,
        trace: 4,
        biases: 3,
    }
}

fn start(
    stages: u32,
    capacities: RingCapacities,
    record: bool,
) -> (Core, HostRings, Vec<StageLink>) {
    let bucket_sizes = BucketSizes {
        decode: vec![1, 2, 4],
        mixed: vec![8, 16],
        score: vec![16],
    };
    Core::new(&options(), &bucket_sizes, stages, capacities, record).expect("good options")
}

fn request(number: u64) -> Request {
    let prompt_tokens = 1 + number * 7 % 40;
    Request {
        prompt: (0..prompt_tokens).map(|at| (number + at) as u32).collect(),
        max_new_tokens: 1 + (number % 11) as u32,
        unlimited: false,
        stop_ids: Vec::new(),
        min_new_tokens: 0,
        biases: Vec::new(),
        borders: Vec::new(),
        followers: 0,
        sampling: Sampling {
            logprobs: number.is_multiple_of(3).then_some(2),
            ..Sampling::default()
        },
        timeout: None,
        logits: Logits::None,
    }
}

fn is_cancelled(number: u64) -> bool {
    number % 5 == 4
}

/// The token that the test's sampler gives after `position`.
fn token_after(position: u32) -> u32 {
    position * 31 % 1000
}

/// Rows of one step: (slot, position, token).
type Rows = Vec<(u32, u32, i32)>;

/// Stage 0 knows the newest token of a slot by its number there, and hands it on as it is.
fn rows(view: &tailgraph::backend::StepView<'_>) -> Rows {
    let rows = view.rows().iter();
    let token = |row: &abi::tg_row| match row.token {
        -1 => token_after(row.position - 1) as i32,
        token => token,
    };
    rows.map(|row| (row.slot, row.position, token(row)))
        .collect()
}

fn hand_over(link: &mut StageLink, number: u64) {
    while !link.post(number) && !link.done() {
        thread::yield_now();
    }
}

/// Turns the core and stands for stage 0.
fn schedule(mut core: Core, mut link: StageLink, started: Instant) -> Core {
    let now_ns = || started.elapsed().as_nanos() as u64;
    loop {
        link.collect();
        match core.turn(now_ns(), now_ns).action {
            Action::Step(number) => hand_over(&mut link, number),
            Action::Idle | Action::Blocked => thread::yield_now(),
            Action::Done => {
                link.drained();
                return core;
            }
            Action::Error(code) => panic!("the core stopped with error {code}"),
        }
    }
}

/// A later stage; the last one samples and notes every step's rows.
fn stage(mut link: StageLink, last: bool) -> Vec<Rows> {
    let mut steps = Vec::new();
    while !link.done() {
        let Some(number) = link.take() else {
            thread::yield_now();
            continue;
        };
        if last {
            let view = link.step(number);
            steps.push(rows(&view));
            for (index, &row) in view.sample_rows().iter().enumerate() {
                let position = view.rows()[row as usize].position;
                let sampled = abi::tg_sampled {
                    token: token_after(position) as i32,
                    logprob: (-1.5f32).to_bits(),
                    ..Default::default()
                };
                view.set_sampled(index, sampled);
            }
        }
        hand_over(&mut link, number);
    }
    steps
}

/// Pushes every request and cancel, reads every event and record; checks the events.
fn host(mut rings: HostRings) -> (Vec<abi::tg_trace>, Vec<u64>) {
    let (mut pushed, mut ended) = (0, 0);
    let (mut to_cancel, mut cancelled) = (VecDeque::new(), Vec::new());
    let mut tokens = vec![Some(0); REQUESTS as usize];
    let mut records = Vec::new();
    while ended < REQUESTS {
        if pushed < REQUESTS
            && let Some(number) = rings.try_push_request(&request(pushed)).expect("it fits")
        {
            assert_eq!(number, pushed);
            to_cancel.extend(is_cancelled(number).then_some(number));
            pushed += 1;
        }
        if let Some(&number) = to_cancel.front()
            && rings.push_cancel(number)
        {
            cancelled.extend(to_cancel.pop_front());
        }
        match rings.pop_event() {
            Some(event) => ended += u64::from(check_event(&event, &mut tokens)),
            None => thread::yield_now(),
        }
        records.extend(rings.pop_trace());
    }
    rings.set_drain();
    let deadline = Instant::now() + Duration::from_secs(60);
    let is_done = |record: &abi::tg_trace| record.outcome.action == abi::TG_ACTION_DONE;
    while records.last().is_none_or(|record| !is_done(record)) {
        assert!(Instant::now() < deadline, "drain does not end");
        records.extend(rings.pop_trace());
    }
    assert_eq!(rings.pop_event(), None);
    assert_eq!(rings.traces_lost(), 0);
    (records, cancelled)
}

/// True for an end. `tokens` counts those of each request, `None` once it has ended.
fn check_event(event: &Event, tokens: &mut [Option<u32>]) -> bool {
    match *event {
        Event::Token {
            request: number,
            token,
            index,
            ref logprobs,
        } => {
            let wanted = request(number);
            assert_eq!(tokens[number as usize], Some(index), "token of {number}");
            tokens[number as usize] = Some(index + 1);
            assert_eq!(token, token_after(wanted.prompt.len() as u32 - 1 + index));
            let found = logprobs.as_ref().map(|l| (l.logprob, l.top.len() as u32));
            assert_eq!(found, wanted.sampling.logprobs.map(|top| (-1.5, top)));
            false
        }
        Event::End {
            request: number,
            reason,
            tokens: published,
            timing,
        } => {
            let wanted = request(number).max_new_tokens;
            assert_eq!(tokens[number as usize].take(), Some(published), "{number}");
            if reason == EndReason::Length {
                assert_eq!(published, wanted);
            } else {
                assert!(is_cancelled(number) && reason == EndReason::Cancelled);
            }
            assert!(timing.queue <= timing.total && timing.first_token <= timing.total);
            true
        }
    }
}

/// The same requests and cancels through a fresh core, turn by turn as recorded.
fn replay(records: &[abi::tg_trace], cancels: &[u64], steps: &[Rows]) {
    let (mut core, mut rings, _links) = start(STAGES, capacities(), false);
    let (mut pushed, mut cancelled, mut composed) = (0, 0, 0);
    for record in records {
        while pushed < record.inputs.request_head {
            let number = rings.try_push_request(&request(pushed)).expect("it fits");
            assert_eq!(number, Some(pushed), "there was room when it was recorded");
            pushed += 1;
        }
        while cancelled < record.inputs.control_head {
            assert!(rings.push_cancel(cancels[cancelled as usize]));
            cancelled += 1;
        }
        let outcome = core.replay(&record.inputs);
        if let Action::Step(number) = outcome.action {
            assert_eq!(number, record.outcome.step);
            assert_eq!(rows(&core.step(number)), steps[number as usize]);
            composed += 1;
        }
    }
    assert_eq!(composed, steps.len());
}

#[test]
fn host_scheduler_and_stages_on_their_own_threads() {
    let (core, rings, links) = start(STAGES, capacities(), true);
    let started = Instant::now();
    let mut links = links.into_iter();
    let first = links.next().expect("stage 0");
    let (steps, (records, cancels)) = thread::scope(|scope| {
        scope.spawn(move || schedule(core, first, started));
        let middle = links.next().expect("stage 1");
        scope.spawn(move || stage(middle, false));
        let last = links.next().expect("stage 2");
        let last = scope.spawn(move || stage(last, true));
        let told = host(rings);
        (last.join().expect("the last stage"), told)
    });
    assert!(steps.len() > 400, "{} steps", steps.len());
    replay(&records, &cancels, &steps);
}

#[test]
fn a_full_trace_ring_can_be_read_whether_it_records_or_not() {
    for record in [true, false] {
        let (mut core, mut rings, _links) = start(1, capacities(), record);
        for turn in 0..6 {
            // News for every turn: a cancel, of what was never pushed.
            rings.push_cancel(1000);
            let action = core.turn(turn, || turn).action;
            let full = record && turn >= u64::from(capacities().trace);
            assert_eq!(action == Action::Blocked, full, "turn {turn}");
        }
        let read: Vec<u64> = std::iter::from_fn(|| rings.pop_trace().map(|r| r.turn)).collect();
        let wanted = if record {
            vec![0, 1, 2, 3]
        } else {
            vec![3, 4, 5]
        };
        assert_eq!(read, wanted);
        assert_eq!(rings.traces_lost(), wanted[0]);
    }
}
