//! Full rings, stopping, draining, and what is an error.

use crate::sched::api::Api;
use crate::sched::machine::{Lanes, Machine};
use crate::sched::script::{Script, config, end, shape, token};
use crate::support::*;
use tailgraph::sys::abi;

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
    let breaks: [fn(&mut abi::tg_config); 20] = [
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
