//! The scheduler core's trickiest rules, one scenario each, with what must come out written down.

mod sched;

use sched::api::Api;
use sched::check;
use sched::machine::{Lanes, Machine};
use sched::model::Step;
use sched::script::{Script, config, end, shape, token};
use tailgraph::sys::abi;

fn positions(step: &Step) -> Vec<(u32, u32, i32)> {
    let rows = step.rows.iter();
    rows.map(|row| (row.slot, row.position, row.token))
        .collect()
}

fn stop_at(id: i32) -> impl FnOnce(&mut abi::tg_request) {
    move |request| {
        request.stop_count = 1;
        request.stop_ids[0] = id;
    }
}

#[test]
fn a_request_runs_from_prompt_to_end() {
    let mut script = Script::new(&config());
    script.push(3, 2, |_| {});
    let prompt = script.step();
    assert_eq!(positions(&prompt), [(0, 0, 0), (0, 1, 1), (0, 2, 2)]);
    assert_eq!((prompt.kind, prompt.bucket_rows), (abi::TG_KIND_MIXED, 8));
    assert_eq!(prompt.sample_rows, [2]);
    assert_eq!(script.machine.rings().token_tail.value, 3);
    assert_eq!(script.turn().action, abi::TG_ACTION_IDLE);
    script.finish(0, 7);
    let decode = script.step();
    assert_eq!(positions(&decode), [(0, 3, -1)]);
    assert_eq!((decode.kind, decode.bucket_rows), (abi::TG_KIND_DECODE, 1));
    assert_eq!(script.machine.slot(0).last_token, 7);
    assert_eq!(script.events(), [token(0, 7, 0)]);
    script.finish(1, 9);
    script.flag(abi::TG_INPUT_DRAIN);
    assert_eq!(script.turn().action, abi::TG_ACTION_DONE);
    assert_eq!(
        script.events(),
        [token(0, 9, 1), end(0, abi::TG_END_LENGTH, 2)]
    );
}

#[test]
fn a_stop_id_as_the_last_allowed_token_ends_with_stop() {
    let mut script = Script::new(&config());
    script.push(1, 1, stop_at(7));
    let step = script.step();
    script.finish(step.number, 7);
    script.turn();
    assert_eq!(
        script.events(),
        [token(0, 7, 0), end(0, abi::TG_END_STOP, 1)]
    );
}

#[test]
fn a_cancel_drops_the_token_that_comes_with_it() {
    let mut script = Script::new(&config());
    script.push(1, 1, |_| {});
    let step = script.step();
    script.finish(step.number, 7);
    script.cancel(0);
    script.turn();
    assert_eq!(script.events(), [end(0, abi::TG_END_CANCELLED, 0)]);
}

#[test]
fn a_deadline_lets_the_token_that_comes_with_it_out() {
    let mut script = Script::new(&config());
    script.push(1, 5, |request| request.timeout_ns = 50);
    let step = script.step();
    script.finish(step.number, 7);
    script.now_ns += 49;
    script.turn();
    assert_eq!(
        script.events(),
        [token(0, 7, 0), end(0, abi::TG_END_TIMEOUT, 1)]
    );
}

#[test]
fn a_slot_ends_only_when_its_last_step_is_back() {
    let mut script = Script::new(&config());
    script.push(40, 1, |_| {});
    let step = script.step();
    script.cancel(0);
    let outcome = script.turn();
    assert_eq!((outcome.running, outcome.changed), (1, 1));
    assert_eq!(script.event(), None);
    assert_eq!(
        script.machine.rings().token_tail.value,
        40,
        "no more is needed"
    );
    script.finish(step.number, 7);
    let outcome = script.turn();
    assert_eq!((outcome.running, outcome.free_pages), (0, 64));
    assert_eq!(script.events(), [end(0, abi::TG_END_CANCELLED, 0)]);
}

#[test]
fn a_waiting_request_can_be_cancelled_and_time_out() {
    let mut config = config();
    config.slots = 1;
    let mut script = Script::new(&config);
    script.push(1, 9, |_| {});
    script.push(1, 9, |_| {});
    script.push(1, 9, |request| request.timeout_ns = 5);
    let step = script.step();
    script.cancel(1);
    script.now_ns += 5;
    let outcome = script.turn();
    assert_eq!((outcome.running, outcome.queue_depth), (1, 0));
    assert_eq!(
        script.events(),
        [
            end(1, abi::TG_END_CANCELLED, 0),
            end(2, abi::TG_END_TIMEOUT, 0)
        ]
    );
    // Their cancel bits went with them: the entry's next user is not cancelled.
    for _ in 0..8 {
        script.push(1, 1, |_| {});
    }
    script.finish(step.number, 3);
    script.turn();
    assert_eq!(script.events(), [token(0, 3, 0)]);
    assert_eq!(script.turn().queue_depth, 8);
}

#[test]
fn a_cancel_of_what_never_came_is_passed_over() {
    let mut script = Script::new(&config());
    script.cancel(1);
    assert_eq!(script.turn().changed, 1);
    script.push(1, 1, |_| {});
    script.push(1, 1, |_| {});
    assert_eq!(script.step().rows.len(), 2);
    assert_eq!(script.event(), None);
}

#[test]
fn nobody_overtakes_a_front_that_waits_for_pages() {
    let mut config = config();
    config.pages = 10;
    let mut script = Script::new(&config);
    script.push(8, 8, |_| {});
    script.push(20, 8, |_| {});
    script.push(1, 1, |_| {});
    let outcome = script.turn();
    assert_eq!((outcome.running, outcome.free_pages), (1, 6));
    assert_eq!(outcome.queue_depth, 2);
    script.cancel(0);
    script.finish(0, 7);
    let outcome = script.turn();
    assert_eq!((outcome.running, outcome.queue_depth), (2, 0));
}

#[test]
fn what_no_pool_could_hold_is_refused_at_once() {
    let mut config = config();
    config.pages = 10;
    let mut script = Script::new(&config);
    script.push(32, 9, |_| {}); // 11 pages
    script.push(60, 5, |_| {}); // past the context
    script.push(1, 0, |_| {}); // nothing to do
    script.push(1, 1, |request| request.flags = abi::TG_REQUEST_LOGITS_ALL);
    script.push(1, u32::MAX, |_| {});
    script.push(1, 1, |request| request.stop_count = 17);
    script.push(0, 1, |_| {});
    assert_eq!(script.turn().running, 0);
    let refused: Vec<_> = (0..7).map(|n| end(n, abi::TG_END_REFUSED, 0)).collect();
    assert_eq!(script.events(), refused);
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
    let parts: Vec<_> = second.sequences.iter().map(|s| (s.slot, s.rows)).collect();
    assert_eq!(parts, [(0, 14)], "2 rows are left: too few for slot 1");
    script.finish(1, 0);
    script.push(30, 1, |_| {});
    script.push(2, 1, |_| {});
    let third = script.step();
    let parts: Vec<_> = third.sequences.iter().map(|s| (s.slot, s.rows)).collect();
    assert_eq!(
        parts,
        [(1, 3), (0, 12)],
        "13 rows are left: 12 end on a multiple of 4, and the last one is not for slot 2"
    );
    script.finish(2, 0);
    let fourth = script.step();
    let parts: Vec<_> = fourth.sequences.iter().map(|s| (s.slot, s.rows)).collect();
    assert_eq!(parts, [(0, 16)]);
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
fn a_row_without_a_token_ends_its_request_and_no_other() {
    let mut script = Script::new(&config());
    script.push(3, 4, stop_at(9));
    script.push(2, 2, |_| {});
    script.push(5, 0, |request| request.flags = abi::TG_REQUEST_LOGITS_LAST);
    let prompts = script.step();
    assert_eq!(prompts.sample_rows.len(), 3);
    script.finish_with(0, &[-1, 7, -1]);
    let decode = script.step();
    assert_eq!(positions(&decode), [(1, 2, -1)]);
    // The scored prompt has sampled nothing that matters: its logits are the host's.
    assert_eq!(
        script.events(),
        [
            token(0, -1, 0),
            end(0, abi::TG_END_NOT_FINITE, 0),
            token(1, 7, 0),
            end(2, abi::TG_END_LENGTH, 0)
        ]
    );
    script.finish(1, -1);
    script.turn();
    assert_eq!(
        script.events(),
        [token(1, -1, 1), end(1, abi::TG_END_NOT_FINITE, 1)]
    );
}

#[test]
fn a_turn_admits_as_many_requests_as_fill_a_large_step() {
    let takes = abi::TG_MAX_TAKES;
    let mut config = abi::tg_config {
        slots: 512,
        pages: 512,
        step_tokens: 1024,
        request_capacity: 512,
        token_capacity: 1024,
        event_capacity: 1024,
        bucket_count: [1, 1, 1],
        ..config()
    };
    config.bucket_rows = [[0; 16]; 3];
    for (kind, rows) in [512, 1024, 1024].into_iter().enumerate() {
        config.bucket_rows[kind][0] = rows;
    }
    let mut script = Script::new(&config);
    for _ in 0..takes + 4 {
        script.push(2, 2, |_| {});
    }
    let outcome = script.turn();
    assert_eq!((outcome.running, outcome.queue_depth), (takes, 4));
    let step = check::read_step(&script.machine, outcome.step);
    let wanted: Vec<_> = (0..takes)
        .flat_map(|slot| [(slot, 0, 0), (slot, 1, 1)])
        .collect();
    assert_eq!(positions(&step), wanted);
    // The rest, which the first turn saw, come with the next one.
    assert_eq!(script.turn().running, takes + 4);
}

#[test]
fn a_full_event_ring_blocks_and_loses_nothing() {
    let mut config = config();
    config.event_capacity = 1;
    let mut script = Script::new(&config);
    script.push(1, 2, stop_at(7));
    script.step();
    script.finish(0, 7);
    let outcome = script.turn();
    assert_eq!(
        (outcome.action, outcome.changed),
        (abi::TG_ACTION_BLOCKED, 1)
    );
    script.push(1, 1, |_| {});
    let outcome = script.turn();
    assert_eq!(outcome.action, abi::TG_ACTION_BLOCKED);
    assert_eq!(outcome.queue_depth, 1, "nobody is admitted meanwhile");
    assert_eq!(script.events(), [token(0, 7, 0)]);
    assert_eq!(script.turn().action, abi::TG_ACTION_IDLE);
    assert_eq!(script.events(), [end(0, abi::TG_END_STOP, 1)]);
    assert_eq!(script.turn().action, abi::TG_ACTION_STEP);
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

#[test]
fn stop_ends_at_once_and_drain_only_with_the_last_request() {
    let mut script = Script::new(&config());
    script.push(30, 1, |_| {});
    script.flag(abi::TG_INPUT_DRAIN);
    script.step();
    assert_eq!(script.turn().action, abi::TG_ACTION_IDLE);
    script.finish(0, 7);
    assert_eq!(script.step().rows.len(), 14);
    script.flag(abi::TG_INPUT_STOP);
    script.finish(1, 7);
    assert_eq!(script.turn().action, abi::TG_ACTION_DONE);
    assert_eq!(script.event(), None);
}

#[test]
fn a_full_recording_trace_ring_changes_nothing() {
    let config = config();
    let mut shape = shape(&config);
    (shape.trace_capacity, shape.record) = (1, 1);
    let mut script = Script::with_rings(&config, &shape);
    script.push(1, 1, |_| {});
    script.step();
    script.finish(0, 7);
    let outcome = script.turn();
    assert_eq!(
        (outcome.action, outcome.changed),
        (abi::TG_ACTION_BLOCKED, 0)
    );
    assert_eq!(outcome.returned_step, abi::TG_NO_STEP);
    script.machine.rings_mut().trace_tail.value = 1;
    assert_eq!(script.turn().returned_step, 0);
    assert_eq!(script.machine.rings().trace_lost.value, 0);
}

#[test]
fn a_step_out_of_order_is_an_error_for_good() {
    let mut config = config();
    (config.steps_in_flight, config.mailbox_depth) = (2, 2);
    let mut script = Script::new(&config);
    script.push(30, 1, |_| {});
    script.step();
    script.step();
    script.finish(1, 7);
    for _ in 0..2 {
        let outcome = script.turn();
        assert_eq!(
            (outcome.action, outcome.error),
            (abi::TG_ACTION_ERROR, abi::TG_ERROR_MAILBOX)
        );
    }
    assert_eq!(
        script.machine.rings().action.value,
        u64::from(abi::TG_ERROR_MAILBOX) << 32 | u64::from(abi::TG_ACTION_ERROR)
    );
}

#[test]
fn a_record_that_cannot_be_is_an_error() {
    let mut script = Script::new(&config());
    let inputs = abi::tg_inputs {
        returned: 1,
        ..Default::default()
    };
    let outcome = script.machine.replay(&inputs);
    assert_eq!(
        (outcome.action, outcome.error),
        (abi::TG_ACTION_ERROR, abi::TG_ERROR_BROKEN)
    );
}

#[test]
fn configurations_that_break_a_rule_are_refused() {
    let breaks: [fn(&mut abi::tg_config); 19] = [
        |c| c.slots = 0,
        |c| c.slots = abi::TG_MAX_SLOTS + 1,
        |c| c.pages = 0,
        |c| c.page_tokens = 0,
        |c| c.max_context = 0,
        |c| c.chunk_align = 0,
        |c| c.step_tokens = c.slots + c.chunk_align - 1,
        |c| c.stages = 0,
        |c| c.stages = 2,
        |c| c.steps_in_flight = abi::TG_MAX_STEPS + 1,
        |c| c.mailbox_depth = 0,
        |c| c.mailbox_depth = 2,
        |c| c.request_capacity = 3,
        |c| c.token_capacity = 0,
        |c| c.event_capacity = 6,
        |c| c.bucket_count[0] = 0,
        |c| c.bucket_count[1] = abi::TG_MAX_BUCKETS + 1,
        |c| c.bucket_rows[0][2] = 3,
        |c| c.bucket_rows[2] = c.bucket_rows[0],
    ];
    let shape = shape(&config());
    for (n, change) in breaks.into_iter().enumerate() {
        let mut config = config();
        change(&mut config);
        let machine = Machine::new(Api::linked(), &config, &shape, Lanes::ONE);
        assert_eq!(machine.err(), Some(abi::TG_ERROR_CONFIG), "rule {n}");
    }
    let mut shape = shape;
    shape.control_capacity = 3;
    let machine = Machine::new(Api::linked(), &config(), &shape, Lanes::ONE);
    assert_eq!(machine.err(), Some(abi::TG_ERROR_CONFIG));
}
