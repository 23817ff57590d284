//! Requests that name no limit: pages as they go, and what becomes of the newest where there are none.

use crate::sched::check::read_step;
use crate::sched::script::{Script, config, end};
use crate::support::*;
use tailgraph::sys::abi;

/// Two requests of 4 tokens, each of which could have 20, begin with pages for 8 in a pool for 24. Both grow to 12. Then
/// the older finds no page: the newer gives its pages back, and is recomputed when the older has ended: all it had, from
/// what was kept. A third waits until then, although there is the page that it needs.
#[test]
fn the_newest_gives_its_pages_back_and_is_recomputed_before_anyone_newer() {
    let mut script = Script::new(&abi::tg_config {
        pages: 6,
        max_context: 20,
        grow_tokens: 4,
        ..config()
    });
    let unlimited = |request: &mut abi::tg_request| request.flags = abi::TG_REQUEST_UNLIMITED;
    script.push(4, 16, unlimited);
    script.push(4, 16, unlimited);
    assert_eq!(script.step().rows.len(), 8);
    let (mut number, mut rows, mut alone) = (0, vec![], vec![]);
    let step = loop {
        script.finish(number, 7);
        let mut outcome = script.turn();
        if outcome.action == abi::TG_ACTION_IDLE {
            // The older gets pages in the turn that the newer's come back in, and a row in the next.
            assert_eq!((outcome.preempted, rows.len()), (1, 8));
            script.push(1, 1, |_| {});
            outcome = script.turn();
        }
        if outcome.recomputed == 1 {
            break read_step(&script.machine, outcome.step);
        }
        number = outcome.step;
        rows.push(outcome.rows);
        if outcome.rows == 1 {
            alone.push((outcome.free_pages, outcome.preempted, outcome.queue_depth));
        }
    };
    assert_eq!(rows, [[2; 8].as_slice(), &[1; 7]].concat());
    assert_eq!(alone, [(1, 1, 1); 7]);
    let kept = (0..13).map(|position| (1, position, abi::TG_TOKEN_KEPT));
    assert!(positions(&step).into_iter().eq(kept.chain([(0, 0, 0)])));
    let first_and_last = abi::TG_SEQUENCE_FIRST | abi::TG_SEQUENCE_LAST;
    assert_eq!(step.sequences[0].flags, first_and_last);
    let ends = |script: &mut Script| {
        let events = script.events().into_iter();
        let ends = events.filter(|event| event.1 == abi::TG_EVENT_END);
        ends.collect::<Vec<_>>()
    };
    assert_eq!(ends(&mut script), [end(0, abi::TG_END_LENGTH, 16)]);
    script.finish(step.number, 9);
    let step = script.step();
    assert_eq!(positions(&step), [(1, 13, -1)], "it goes on where it was");
    assert_eq!(ends(&mut script), [end(2, abi::TG_END_LENGTH, 1)]);
}
