//! How steps are composed.

use crate::sched::check;
use crate::sched::model::Step;
use crate::sched::script::{Script, config, end, token};
use tailgraph::sys::abi;

/// All of a run's steps, composed as early as the core allows, each coming back with a token that its position says.
fn steps_of(config: &abi::tg_config, stop: bool) -> (Vec<Step>, u32) {
    let mut script = Script::new(config);
    for (prompt_tokens, max_new_tokens) in [(3, 9), (1, 4), (20, 6), (2, 5), (7, 7), (1, 1)] {
        script.push(prompt_tokens, max_new_tokens, |request| {
            request.stop_count = u32::from(stop);
            request.stop_ids[0] = 1005;
        });
    }
    script.flag(abi::TG_INPUT_DRAIN);
    let (mut steps, mut most) = (Vec::<Step>::new(), 0);
    let mut finished = 0;
    loop {
        let outcome = script.turn();
        script.events();
        most = most.max(outcome.steps_in_flight);
        match outcome.action {
            abi::TG_ACTION_STEP => steps.push(check::read_step(&script.machine, outcome.step)),
            abi::TG_ACTION_DONE => return (steps, most),
            _ => {
                let step: &Step = &steps[finished];
                let sampled = step.sample_rows.iter();
                let tokens: Vec<i32> = sampled
                    .map(|&row| 1000 + step.rows[row as usize].position as i32)
                    .collect();
                script.finish_with(finished as u64, &tokens);
                finished += 1;
            }
        }
    }
}

/// A step's sequences: slot and rows.
fn parts(step: &Step) -> Vec<(u32, u32)> {
    step.sequences.iter().map(|s| (s.slot, s.rows)).collect()
}

#[test]
fn chunks_end_on_multiples_and_stop_where_the_budget_reaches_none() {
    let mut script = Script::new(&config());
    script.push(30, 1, |_| {});
    script.push(3, 1, |_| {});
    let first = script.step();
    assert_eq!(first.rows.len(), 16, "the budget is exactly met");
    assert!(first.sample_rows.is_empty());
    script.finish(0, 0);
    let second = script.step();
    assert_eq!(
        parts(&second),
        [(0, 14)],
        "2 rows are left: too few for slot 1"
    );
    script.finish(1, 0);
    script.push(30, 1, |_| {});
    script.push(2, 1, |_| {});
    let third = script.step();
    assert_eq!(
        parts(&third),
        [(1, 3), (0, 12)],
        "13 rows are left: 12 end on a multiple of 4, and the last one is not for slot 2"
    );
    script.finish(2, 0);
    let fourth = script.step();
    assert_eq!(parts(&fourth), [(0, 16)]);
}

/// The steps of a prompt of 42 tokens and one of 3 behind it, with `running` sequences beside them.
fn steps_beside(running: u32, chunk_tokens: u32) -> Vec<Vec<(u32, u32)>> {
    let mut script = Script::new(&abi::tg_config {
        chunk_tokens,
        ..config()
    });
    for _ in 0..running {
        script.push(1, 20, |_| {});
    }
    if running > 0 {
        let first = script.step();
        script.finish(first.number, 0);
    }
    script.push(42, 1, |_| {});
    script.push(3, 1, |_| {});
    let mut steps: Vec<Vec<(u32, u32)>> = Vec::new();
    while !steps.iter().any(|step| step.contains(&(running + 1, 3))) {
        let step = script.step();
        script.finish(step.number, 0);
        steps.push(parts(&step));
    }
    steps
}

#[test]
fn a_prompt_alone_has_whole_steps_and_chunks_beside_running_sequences() {
    // Alone: as large as a step, whatever a chunk is. The last 10 rows leave 6 for the next prompt.
    for chunk_tokens in [4, 6, 16] {
        let wanted = [vec![(0, 16)], vec![(0, 16)], vec![(0, 10), (1, 3)]];
        assert_eq!(steps_beside(0, chunk_tokens), wanted, "{chunk_tokens}");
    }
    // Beside a running sequence: (chunk_tokens, rows of the long prompt's chunks, those of both in the last steps).
    type Steps<'a> = &'a [&'a [(u32, u32)]];
    let cases: [(u32, &[u32], Steps<'_>); 5] = [
        (4, &[4; 10], &[&[(1, 2)], &[(2, 3)]]), // a row is missing for both
        (5, &[4; 10], &[&[(1, 2), (2, 3)]]),    // both fill the chunk
        (6, &[4; 9], &[&[(1, 6)], &[(2, 3)]]),  // the prompt's end fills it
        (13, &[12; 3], &[&[(1, 6), (2, 3)]]),   // 12 is the last multiple of 4
        (16, &[], &[&[(1, 12), (2, 3)]]),       // the step's own bound: 15 rows are left
    ];
    for (chunk_tokens, chunks, last) in cases {
        let chunks = chunks.iter().map(|&rows| vec![(1, rows)]);
        let wanted = chunks.chain(last.iter().map(|step| step.to_vec()));
        let wanted: Vec<_> = wanted.map(|step| [vec![(0, 1)], step].concat()).collect();
        assert_eq!(steps_beside(1, chunk_tokens), wanted, "{chunk_tokens}");
    }
}

/// Two prompts of 40 tokens beside a running sequence, a quarter of what they have yet to be read at a time.
#[test]
fn many_prompts_are_read_in_longer_steps() {
    let mut sizes = abi::tg_config {
        chunk_tokens: 4,
        chunk_share: 4,
        step_tokens: 32,
        ..config()
    };
    for kind in [abi::TG_KIND_MIXED, abi::TG_KIND_SCORE] {
        sizes.bucket_rows[kind as usize][1] = 32;
    }
    let mut script = Script::new(&sizes);
    script.push(1, 20, |_| {});
    let first = script.step();
    script.finish(first.number, 0);
    script.push(40, 1, |_| {});
    script.push(40, 1, |_| {});
    let mut rows = Vec::new();
    while rows.iter().sum::<u32>() < 80 {
        let step = script.step();
        script.finish(step.number, 0);
        rows.push(parts(&step)[1..].iter().map(|part| part.1).sum());
    }
    // 80, 60, 48, 36, 28, 24, 20, 16, 12, 8, 4 are left; chunks end on multiples of 4.
    assert_eq!(rows, [20, 12, 12, 8, 4, 4, 4, 4, 4, 4, 4]);
}

#[test]
fn scored_prompts_deliver_and_publish_no_token() {
    let mut script = Script::new(&config());
    script.push(5, 0, |request| request.flags = abi::TG_REQUEST_LOGITS_LAST);
    let last = script.step();
    assert_eq!(
        (last.kind, &last.sample_rows[..]),
        (abi::TG_KIND_MIXED, &[4][..])
    );
    script.finish(0, 7);
    script.push(5, 0, |request| request.flags = abi::TG_REQUEST_LOGITS_ALL);
    let all = script.step();
    assert_eq!(script.events(), [end(0, abi::TG_END_LENGTH, 0)]);
    assert_eq!((all.kind, all.bucket_rows), (abi::TG_KIND_SCORE, 16));
    assert!(all.sample_rows.is_empty());
    script.finish(1, 7);
    script.turn();
    assert_eq!(script.events(), [end(1, abi::TG_END_LENGTH, 0)]);
}

#[test]
fn micro_batches_share_the_sequences_even_if_steps_return_at_once() {
    let mut config = config();
    config.steps_in_flight = 2;
    config.mailbox_depth = 2;
    let mut script = Script::new(&config);
    for _ in 0..3 {
        script.push(1, 9, |_| {});
    }
    let prompts = script.step();
    script.finish(prompts.number, 0);
    let mut slots = Vec::new();
    for _ in 0..4 {
        let step = script.step();
        slots.push(step.rows.iter().map(|row| row.slot).collect::<Vec<_>>());
        script.finish(step.number, 0);
    }
    assert_eq!(slots, [vec![0, 1], vec![0, 2], vec![1, 2], vec![0, 1]]);
}

/// The most that a sequence can be passed over: newcomers that end with their first row stand in every other slot, and
/// the queue goes round all of them.
#[test]
fn newcomers_go_before_one_that_waits_but_none_twice() {
    let mut config = config();
    (config.steps_in_flight, config.mailbox_depth) = (3, 3);
    (config.slots, config.bucket_rows[0][2]) = (6, 6);
    let mut script = Script::new(&config);
    script.push(1, 9, |_| {});
    for _ in 1..6 {
        script.push(15, 2, |_| {}); // just what a step takes beside one row
    }
    let prompts = script.step();
    script.finish(prompts.number, 0);
    for slot in [0, 1, 2, 3, 4, 5, 0] {
        let step = script.step();
        let rows = &step.rows[..step.decode_rows as usize];
        assert_eq!(rows.iter().map(|row| row.slot).collect::<Vec<_>>(), [slot]);
        script.finish(step.number, 0);
    }
}

#[test]
fn steps_that_run_ahead_are_the_steps_that_there_are_anyway() {
    let mut ahead = config();
    (ahead.ahead, ahead.steps_in_flight, ahead.mailbox_depth) = (1, 2, 2);
    for stop in [false, true] {
        let (expected, most) = steps_of(&config(), stop);
        assert_eq!(most, 1);
        let (mut found, most) = steps_of(&ahead, stop);
        assert_eq!(most, if stop { 1 } else { 2 });
        let mut early = 0;
        for number in 0..found.len() {
            let (before, rest) = found.split_at_mut(number);
            let step = &mut rest[0];
            step.start_ns = expected[number].start_ns;
            for row in step.rows.iter_mut().filter(|row| row.token < -1) {
                // What it refers to is the newest token of its own sequence.
                let before = &before[number - 1];
                let sampled = before.sample_rows[(-2 - row.token) as usize];
                let from = before.rows[sampled as usize];
                assert_eq!((from.slot, from.position + 1), (row.slot, row.position));
                row.token = -1;
                early += 1;
            }
        }
        assert_eq!(found, expected);
        assert_eq!(early > 8, !stop, "{early} rows ahead");
    }
}

#[test]
fn a_sequence_that_ends_while_its_next_step_runs_gives_nothing_more() {
    let mut config = config();
    (config.ahead, config.steps_in_flight, config.mailbox_depth) = (1, 2, 2);
    let mut script = Script::new(&config);
    script.push(1, 9, |_| {});
    script.push(1, 9, |request| request.timeout_ns = 4);
    script.push(1, 9, |_| {});
    let prompts = script.step();
    let ahead = script.step();
    assert_eq!((prompts.rows.len(), ahead.rows.len()), (3, 3));
    assert_eq!(script.turn().action, abi::TG_ACTION_IDLE);
    script.cancel(0);
    script.finish_with(prompts.number, &[5, 6, -1]);
    script.now_ns += 4;
    let outcome = script.turn();
    assert_eq!(
        (outcome.action, outcome.running),
        (abi::TG_ACTION_IDLE, 3),
        "none has a row left, and none can go before its step is back"
    );
    assert_eq!(script.events(), [token(1, 6, 0), token(2, -1, 0)]);
    script.finish_with(ahead.number, &[7, 8, 9]);
    assert_eq!(script.turn().running, 0);
    assert_eq!(
        script.events(),
        [
            end(0, abi::TG_END_CANCELLED, 0),
            end(1, abi::TG_END_TIMEOUT, 1),
            end(2, abi::TG_END_NOT_FINITE, 0)
        ]
    );
}

#[test]
fn a_prompts_chunks_follow_each_other_through_the_stages() {
    let mut config = config();
    (config.stages, config.steps_in_flight, config.mailbox_depth) = (3, 3, 1);
    let mut script = Script::new(&config);
    script.push(40, 1, |_| {});
    for first in [0, 16, 32] {
        assert_eq!(script.step().sequences[0].first_position, first);
    }
    let outcome = script.turn();
    assert_eq!(
        (outcome.action, outcome.steps_in_flight),
        (abi::TG_ACTION_IDLE, 3)
    );
    for number in 0..3 {
        script.finish(number, 7);
        script.turn();
    }
    assert_eq!(
        script.events(),
        [token(0, 7, 0), end(0, abi::TG_END_LENGTH, 1)]
    );
}
