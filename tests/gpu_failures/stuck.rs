//! Steps that never end, and what a user sees of them.

use crate::rig::{Run, WAIT, assert_served};
use std::time::{Duration, Instant};

const ROWS: usize = 3;
const LIMIT: [&str; 2] = ["--step-timeout-ms", "500"];

fn stuck(run: Run, parts: &[&str]) {
    let start = Instant::now();
    let (ended, answers) = run.and(&LIMIT).over_rows(ROWS);
    ended.fails_in_a_line(1, parts);
    assert_served(&answers, ROWS, 1, parts);
    // And the device is given a while to stop before it is given up.
    assert!(start.elapsed() > Duration::from_millis(500));
}

/// Rows are served one after the other, three steps each: step 4 is the second of row 1.
#[test]
fn a_step_that_never_ends_is_named() {
    let step = [
        "step 4 (stage 0, decode bucket of 1 token, 1 used)",
        "expected at most 0.5 s",
        "a kernel is stuck",
    ];
    stuck(
        Run::generate("device-graph").with("DEVICE", "stuck:4"),
        &step,
    );
    for way in ["host-kernels", "host-graph", "host-graph-ahead"] {
        stuck(
            Run::generate(way).with("FAIL", format!("{WAIT}:hang")),
            &step,
        );
    }
    // In those, step 5 is behind step 4 by then where the host runs ahead; where a token may end the row, none is.
    let ahead = Run::generate("host-graph-ahead").and(&["--ignore-eos=false"]);
    stuck(ahead.with("FAIL", format!("{WAIT}:hang")), &step);
}

/// The launch is accepted, and nothing ever happens.
#[test]
fn a_scheduler_that_never_turns_is_found() {
    let run = Run::generate("device-graph")
        .with("DEVICE", "dead")
        .and(&LIMIT);
    let (ended, answers) = run.over_rows(ROWS);
    let parts = ["taken no request for", "expected a turn within 0.5 s"];
    ended.fails_in_a_line(1, &parts);
    assert_served(&answers, ROWS, 0, &parts);
}

#[test]
fn the_limit_is_an_option_of_gpus() {
    let run = Run::new(&[
        "generate",
        "--model",
        "random:tiny",
        "--device",
        "cpu",
        "one",
    ])
    .and(&LIMIT);
    run.end()
        .fails_in_a_line(2, &["--step-timeout-ms", "--device cuda"]);
}
