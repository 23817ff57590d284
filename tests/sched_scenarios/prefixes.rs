//! Prompts that begin alike: who computes what they share, who waits for it, and what becomes of it.

use crate::sched::script::{Script, config};
use crate::support::*;
use tailgraph::sys::abi;

fn shares(borders: &'static [(u32, u32)]) -> impl FnOnce(&mut abi::tg_request) {
    move |request| {
        for (to, &(prefix, tokens)) in request.borders.iter_mut().zip(borders) {
            *to = abi::tg_border { prefix, tokens };
        }
    }
}

fn with_prefixes(prefixes: u32) -> abi::tg_config {
    abi::tg_config {
        prefixes,
        ..config()
    }
}

fn rows(slot: u32, positions: std::ops::Range<u32>) -> Vec<(u32, u32, i32)> {
    positions.map(|p| (slot, p, p as i32)).collect()
}

/// Three requests share 6 tokens, a page and a half. The first computes them and stops there; in the next step all three go on
/// behind them, each with the half page copied to a page of its own.
#[test]
fn a_prefix_is_computed_once_and_its_last_page_copied() {
    let mut script = Script::new(&with_prefixes(2));
    for prompt_tokens in [9, 8, 7] {
        script.push(prompt_tokens, 1, shares(&[(5, 6)]));
    }
    let first = script.step();
    assert_eq!(positions(&first), rows(0, 0..6));
    let border = &first.sequences[0];
    assert_eq!((border.computes, border.from), (1, abi::TG_NONE));
    assert_eq!(
        border.flags,
        abi::TG_SEQUENCE_FIRST | abi::TG_SEQUENCE_BORDER
    );
    let state = script.machine.state();
    assert_eq!((state.outcome.skipped, state.outcome.prefixes), (0, 1));
    // Two pages of the prefix, and of each request those behind its first.
    assert_eq!(state.free_pages, 64 - 2 - 2 - 2 - 1);

    script.finish(0, 7);
    let second = script.step();
    let all = [rows(0, 6..9), rows(1, 6..8), rows(2, 6..7)].concat();
    assert_eq!(positions(&second), all);
    for sequence in &second.sequences {
        assert_eq!((sequence.from, sequence.from_page), (1, border.border_page));
        assert_eq!(
            (sequence.flags, sequence.computes),
            (abi::TG_SEQUENCE_LAST, abi::TG_NONE)
        );
    }
    assert_eq!(script.machine.state().outcome.skipped, 12);
    script.finish(1, 7);
    script.turn();
    let skipped: Vec<u32> = (0..3)
        .map(|slot| script.machine.slot(slot).skipped)
        .collect();
    assert_eq!(skipped, [0, 6, 6]);
    assert_eq!(script.machine.state().free_pages, 62);
}

/// The first request is cancelled when it has computed 8 of 10 shared tokens: the second begins anew.
#[test]
fn who_waits_takes_over_what_another_has_begun() {
    let mut script = Script::new(&abi::tg_config {
        step_tokens: 8,
        chunk_tokens: 8,
        ..with_prefixes(2)
    });
    let first = script.push(12, 1, shares(&[(1, 10)]));
    script.push(11, 1, shares(&[(1, 10)]));
    assert_eq!(positions(&script.step()), rows(0, 0..8));
    script.cancel(first);
    script.finish(0, 7);
    let second = script.step();
    assert_eq!(positions(&second), rows(1, 0..8));
    assert_eq!(second.sequences[0].computes, 1);
    script.finish(1, 7);
    assert_eq!(positions(&script.step()), rows(1, 8..10));
    script.finish(2, 7);
    assert_eq!(positions(&script.step()), rows(1, 10..11));
}

/// A prefix goes on from a shorter one, which was there before it; a third request has both.
#[test]
fn a_prefix_goes_on_from_another() {
    let mut script = Script::new(&with_prefixes(4));
    let long = &[(1, 4), (2, 7)];
    script.push(5, 1, shares(&[(1, 4)]));
    script.step();
    script.finish(0, 7);
    script.push(9, 1, shares(long));
    script.push(8, 1, shares(long));
    let second = script.step();
    assert_eq!(positions(&second), [rows(0, 4..5), rows(1, 4..7)].concat());
    let (from, computes) = (second.sequences[1].from, second.sequences[1].computes);
    assert_eq!(
        (from, computes, second.sequences[1].from_page),
        (1, 2, abi::TG_NONE)
    );
    script.finish(1, 7);
    let third = script.step();
    assert_eq!(positions(&third), [rows(1, 7..9), rows(2, 7..8)].concat());
}

/// What nobody uses stays, until a request finds no pages without it: the one used longest ago goes first.
#[test]
fn an_idle_prefix_goes_when_its_pages_are_wanted() {
    let mut script = Script::new(&abi::tg_config {
        pages: 8,
        max_context: 32,
        ..with_prefixes(4)
    });
    for (number, shared) in [(0, &[(1, 8)]), (1, &[(2, 8)])] {
        script.push(9, 1, shares(shared));
        script.step();
        script.finish(2 * number, 7);
        script.step();
        script.finish(2 * number + 1, 7);
        script.turn();
    }
    assert_eq!(script.machine.state().free_pages, 4);
    script.push(20, 1, |_| {});
    assert_eq!(script.turn().action, abi::TG_ACTION_IDLE);
    let step = script.step();
    assert_eq!(step.rows.len(), 16);
    let outcome = script.machine.state().outcome;
    assert_eq!((outcome.prefixes, outcome.free_pages), (1, 0));
    // The second is still there.
    script.push(9, 1, shares(&[(2, 8)]));
    script.finish(4, 7);
    script.step();
    script.finish(5, 7);
    assert_eq!(positions(&script.step()), rows(0, 8..9));
}
