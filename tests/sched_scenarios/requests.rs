//! One request from prompt to end, and all the ways to end early.

use crate::sched::script::{Script, config, end, token};
use crate::support::*;
use tailgraph::sys::abi;

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
