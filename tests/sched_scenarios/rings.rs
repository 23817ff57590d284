//! Full rings, stopping, draining, and what is an error.

use crate::sched::api::Api;
use crate::sched::machine::{Lanes, Machine};
use crate::sched::script::{Script, config, end, logprob, shape, token};
use crate::support::*;
use tailgraph::sys::abi;

#[test]
fn a_full_event_ring_blocks_and_loses_nothing() {
    let mut config = config();
    (config.event_capacity, config.sampled_capacity) = (1, 1);
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

/// A request with logprobs is let in while more events wait to be read than its logprobs would have room for.
#[test]
fn logprobs_have_room_of_their_own() {
    let mut config = config();
    (config.event_capacity, config.sampled_capacity) = (8, 2);
    let mut script = Script::new(&config);
    script.push(1, 20, |_| {});
    // Without logprobs as many events may wait as there is room for.
    for number in 0..8 {
        assert_eq!(script.step().number, number);
        script.finish(number, 7);
    }
    assert_eq!(script.step().number, 8);
    script.finish(8, 7);
    assert_eq!(script.turn().action, abi::TG_ACTION_BLOCKED);
    assert_eq!(script.event(), Some(token(0, 7, 0)));
    assert_eq!(script.step().number, 9);

    // It is let in with 8 events that wait, of which no more than one may when the next goes out.
    script.push(1, 3, |request| request.sampling.logprobs = 0);
    script.finish(9, 7);
    for index in 1..8 {
        let outcome = script.turn();
        assert_eq!(outcome.action, abi::TG_ACTION_BLOCKED, "{outcome:?}");
        assert_eq!(script.event(), Some(token(0, 7, index)));
    }
    let step = script.step();
    assert_eq!((step.number, step.decode_rows, step.rows.len()), (10, 1, 2));
    assert_eq!(script.events(), [token(0, 7, 8), token(0, 7, 9)]);

    // From now on two may wait, with the logprobs that belong to them: one step's.
    for number in 10..12 {
        let index = number as u32;
        script.finish_with(number, &[7, 9]);
        assert_eq!(script.step().number, number + 1);
        assert_eq!(script.event(), Some(token(0, 7, index)));
        assert_eq!(script.logprob(), logprob(number, 1));
        assert_eq!(script.event(), Some(token(1, 9, index - 10)));
    }
    // Its last token and its end are one event more than there is room for.
    script.finish_with(12, &[7, 9]);
    let outcome = script.turn();
    assert_eq!(
        (outcome.action, outcome.changed),
        (abi::TG_ACTION_BLOCKED, 1)
    );
    assert_eq!(script.event(), Some(token(0, 7, 12)));
    assert_eq!(script.logprob(), logprob(12, 1));
    assert_eq!(script.step().number, 13);
    let rest = [token(1, 9, 2), end(1, abi::TG_END_LENGTH, 3)];
    assert_eq!(script.events(), rest);

    // That holds for the rest of the run, in routine turns too.
    for number in 13..15 {
        script.finish(number, 7);
        assert_eq!(script.step().number, number + 1);
    }
    script.finish(15, 7);
    assert_eq!(script.turn().action, abi::TG_ACTION_BLOCKED);
    assert_eq!(script.events(), [token(0, 7, 13), token(0, 7, 14)]);
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
    let breaks: [fn(&mut abi::tg_config); 22] = [
        |c| c.slots = 0,
        |c| c.slots = abi::TG_MAX_SLOTS + 1,
        |c| c.pages = 0,
        |c| c.page_tokens = 0,
        |c| c.max_context = 0,
        |c| c.chunk_align = 0,
        |c| c.chunk_tokens = c.chunk_align - 1,
        |c| c.step_tokens = c.slots + c.chunk_align - 1,
        |c| c.stages = 0,
        |c| c.stages = 2,
        |c| c.steps_in_flight = abi::TG_MAX_STEPS + 1,
        |c| c.mailbox_depth = 0,
        |c| c.mailbox_depth = 2,
        |c| c.request_capacity = 3,
        |c| c.token_capacity = 0,
        |c| (c.event_capacity, c.sampled_capacity) = (6, 2),
        |c| c.sampled_capacity = 6,
        |c| c.sampled_capacity = 2 * c.event_capacity,
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
    let breaks: [fn(&mut abi::tg_rings); 3] = [
        |r| r.control_capacity = 3,
        |r| r.sampled_capacity = 6,
        |r| r.sampled_capacity = 2 * r.event_capacity,
    ];
    for (n, change) in breaks.into_iter().enumerate() {
        let mut shape = shape;
        change(&mut shape);
        let machine = Machine::new(Api::linked(), &config(), &shape, Lanes::ONE);
        assert_eq!(machine.err(), Some(abi::TG_ERROR_CONFIG), "ring rule {n}");
    }
}
