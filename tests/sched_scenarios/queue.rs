//! Who is admitted when, and what is refused.

use crate::sched::check;
use crate::sched::script::{Script, config, end, token};
use crate::support::*;
use tailgraph::sys::abi;

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
fn a_cancel_of_what_never_came_is_passed_over() {
    let mut script = Script::new(&config());
    script.cancel(1);
    assert_eq!(script.turn().changed, 1);
    script.push(1, 1, |_| {});
    script.push(1, 1, |_| {});
    assert_eq!(script.step().rows.len(), 2);
    assert_eq!(script.event(), None);
}
