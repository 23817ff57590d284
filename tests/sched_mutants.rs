//! The property tests are worth what they find. Here the core is compiled with bugs put in, one at a time,
//! and each must be found; and with the sanitizers, which must find nothing.
//!
//! Every build runs in a process of its own (this test binary again, with the library to load in its
//! environment): a bug may well end the process that runs it.

mod common;
mod sched;

use common::compile::shared_library;
use common::program::{Ended, end, this_program};
use sched::api::Api;
use sched::claims;
use sched::for_seeds;
use sched::history::{self, Options};
use sched::machine::Lanes;
use std::path::{Path, PathBuf};
use std::process::Command;

const LIBRARY: &str = "TAILGRAPH_SCHED_LIBRARY";
const HISTORIES: &str = "TAILGRAPH_SCHED_HISTORIES";

/// The sites of TG_MUT in kernels/sched, and what the bug is.
const MUTANTS: [(u32, &str); 72] = [
    (1, "mailbox: one step more than there are credits"),
    (2, "gather: takes a returned step while events wait"),
    (3, "collect: a cancelled slot still gives its token"),
    (4, "collect: length wins over a stop id"),
    (5, "collect: a slot ends while a step of it is in flight"),
    (6, "compose: a sequence in two decode micro-batches"),
    (7, "compose: decode rows always from slot 0 on"),
    (8, "admit: waiting requests never time out"),
    (9, "admit: the last free page is never given out"),
    (10, "admit: a cancel bit outlives its request"),
    (11, "pages: rounded down"),
    (12, "pages: one is lost with each request"),
    (13, "publish: one event more than there is room"),
    (14, "publish: composes although events wait"),
    (15, "publish: forgets the events that found no room"),
    (16, "compose: chunks end anywhere"),
    (
        17,
        "compose: a later prompt overtakes one that does not fit",
    ),
    (18, "compose: samples in a step that scores"),
    (19, "compose: a bucket that is exactly full is passed over"),
    (20, "finish: frees prompt tokens that are still needed"),
    (21, "finish: drained although sequences run"),
    (23, "collect: a row without a token goes on as a stop id"),
    (24, "collect: runs ahead of what may be a stop id"),
    (25, "collect: runs ahead of a last token"),
    (26, "compose: runs ahead although some must wait"),
    (27, "compose: a row ahead starts from an old token"),
    (28, "routine: one event more than there is room"),
    (29, "routine: new requests are passed over"),
    (30, "routine: cancels are passed over"),
    (31, "routine: the front of the queue is passed over"),
    (32, "routine: goes on after a stop id"),
    (33, "routine: goes on after the last token"),
    (34, "routine: goes on after a deadline"),
    (
        35,
        "compose: prompts fill the step beside running sequences",
    ),
    (36, "compose: prompts alone are cut as if sequences ran"),
    (37, "compose: decode rows count as prompt rows"),
    (38, "grow: takes a whole context's pages at once"),
    (39, "grow: the newest who wants pages is served first"),
    (40, "grow: one that is not the newest leaves"),
    (41, "grow: is not read again from the start"),
    (42, "grow: forgets what was not read of a prompt"),
    (43, "compose: tokens so far are not read again"),
    (44, "collect: a row without a page for it"),
    (45, "collect: pages come back while a step writes to them"),
    (46, "admit: newer requests pass one that is set back"),
    (47, "compose: a prompt is not kept"),
    (48, "routine: goes on although pages are wanted"),
    (49, "routine: a token is not kept"),
    (50, "admit: newer requests pass one that leaves"),
    (51, "publish: a slot gets the biases of another request"),
    (
        52,
        "compose: tokens so far are no part of what is yet to be read",
    ),
    (53, "compose: what was read is yet to be read"),
    (54, "compose: prompts have no share beyond a chunk"),
    (55, "routine: a prompt's last row is taken for a decode row"),
    (
        56,
        "routine: a deadline of another step's row is passed over",
    ),
    (
        57,
        "routine: pages that another step's row wants are passed over",
    ),
    (58, "routine: every slot has a row in the next step"),
    (
        59,
        "admit: logprobs have room for as many events as the ring",
    ),
    (60, "publish: more unread than may be is room without end"),
    (61, "prefix: the page that it ends in is not copied"),
    (62, "prefix: one that nobody computes any more is idle"),
    (63, "prefix: the one that a request needs goes"),
    (64, "prefix: nobody takes over what another has begun"),
    (65, "prefix: is used in the step that computes it"),
    (66, "prefix: its pages come back with a slot's"),
    (67, "routine: the front waits although a prefix could go"),
    (68, "routine: a prefix that goes is passed over"),
    (69, "admit: shares more than the pool has room for"),
    (70, "publish: the tokens of a prefix are not kept"),
    (71, "admit: prefixes go for the front of the queue alone"),
    (
        72,
        "admit: the prefix that the front has goes for one behind it",
    ),
    (73, "compose: what is computed for others is not unread"),
];

/// Those of a core that claims from a queue.
const CLAIM_MUTANTS: [(u32, &str); 7] = [
    (157, "claim: those that begin alike before they are there"),
    (158, "claim: all that begin alike"),
    (
        159,
        "claim: the share of others, where requests begin alike",
    ),
    (160, "claim: more than the host can be told of"),
    (161, "collect: time in the queue is given again"),
    (162, "finish: gives back a prompt that is still read"),
    (163, "finish: drained although the queue has more"),
];

/// Writes past a table: only the sanitizer sees it.
const OUT_OF_BOUNDS: u32 = 22;

fn child(library: &Path, histories: u64, environment: &[(&str, String)]) -> Ended {
    run_child(
        "histories_with_another_core",
        library,
        histories,
        environment,
    )
}

fn run_child(test: &str, library: &Path, histories: u64, environment: &[(&str, String)]) -> Ended {
    let mut command = this_program(test);
    command
        .env(LIBRARY, library)
        .env(HISTORIES, histories.to_string())
        .envs(environment.iter().map(|(name, value)| (name, value)));
    end(&mut command, "")
}

/// The core as a shared library in `folder`.
fn core(folder: &Path, name: &str, flags: &[&str]) -> PathBuf {
    let library = folder.join(format!("{name}.so"));
    let flags = [&["-std=c11", "-ffreestanding"], flags].concat();
    shared_library(&library, &["kernels/sched/sched.c"], &flags);
    library
}

/// The core, and the number of histories, that the test which runs this process names.
fn another_core() -> (Api, u64) {
    let library = std::env::var_os(LIBRARY).expect("a library of the core");
    let histories = std::env::var(HISTORIES).expect("a number of histories");
    let histories = histories.parse().expect("a number");
    (Api::load(Path::new(&library)), histories)
}

#[test]
#[ignore = "the other tests here run it, each with a library for it"]
fn histories_with_another_core() {
    let (api, histories) = another_core();
    for_seeds(
        histories,
        |seed| history::run(api, seed, Options::default()),
        |_| {},
    )
    .unwrap_or_else(|message| panic!("{message}"));
}

/// `test` passes with the core as it is, and finds each bug.
fn each_is_found(test: &str, mutants: &[(u32, &str)]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let good = core(folder.path(), "good", &["-O2"]);
    run_child(test, &good, 500, &[]).good();
    for (number, bug) in mutants {
        let mutation = format!("-DTG_MUTATION={number}");
        let library = core(folder.path(), &mutation, &["-O2", &mutation]);
        let Ended { code, stderr, .. } = run_child(test, &library, 20_000, &[]);
        assert!(
            code != 0 && stderr.contains("seed "),
            "mutant {number} ({bug}) was not found: {code} {stderr}"
        );
    }
}

#[test]
fn every_mutant_is_found() {
    each_is_found("histories_with_another_core", &MUTANTS);
}

#[test]
#[ignore = "another test here runs it, each time with a library for it"]
fn claims_with_another_core() {
    let (api, histories) = another_core();
    for_seeds(histories, |seed| claims::run(api, seed, Lanes::ONE), |_| {})
        .unwrap_or_else(|message| panic!("{message}"));
}

#[test]
fn every_mutant_of_claims_is_found() {
    each_is_found("claims_with_another_core", &CLAIM_MUTANTS);
}

/// The environment that a sanitized library needs in a program that is not.
fn sanitizer_environment() -> Vec<(&'static str, String)> {
    let output = Command::new("gcc")
        .arg("-print-file-name=libasan.so")
        .output()
        .expect("gcc starts: its sanitizers are needed here");
    let runtime = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert!(Path::new(&runtime).is_absolute(), "gcc has no libasan.so");
    vec![
        ("LD_PRELOAD", runtime),
        ("ASAN_OPTIONS", "detect_leaks=0".to_owned()),
        ("UBSAN_OPTIONS", "print_stacktrace=1".to_owned()),
    ]
}

const SANITIZERS: [&str; 4] = [
    "-O1",
    "-g",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
];

#[test]
fn the_sanitizers_find_nothing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let library = core(folder.path(), "sanitized", &SANITIZERS);
    child(&library, 4000, &sanitizer_environment()).good();
    let claims = "claims_with_another_core";
    run_child(claims, &library, 2000, &sanitizer_environment()).good();
}

/// The gaps between tables are traps in a sanitized build: a write past a table is found there.
#[test]
fn the_sanitizers_find_a_write_past_a_table() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mutation = format!("-DTG_MUTATION={OUT_OF_BOUNDS}");
    let mut flags = SANITIZERS.to_vec();
    flags.push(&mutation);
    let library = core(folder.path(), "past", &flags);
    let Ended { code, stderr, .. } = child(&library, 4000, &sanitizer_environment());
    assert!(
        code != 0 && stderr.contains("use-after-poison"),
        "{code} {stderr}"
    );
}
