//! OUTPUT.partial: killed runs, torn lines, changed inputs, and what OUTPUT looks like after all.

use crate::fakes::Echo;
use crate::job::run_to;
use std::path::Path;
use tailgraph::cli::job::Summary;
use tailgraph::io::output::Output;
use tailgraph::io::partial::Journal;

fn input(rows: std::ops::Range<usize>) -> String {
    rows.map(|i| {
        let tokens = 1 + i * 7 % 11;
        format!("{{\"id\":\"r{i}\",\"prompt\":\"p{i}\",\"max_new_tokens\":{tokens}}}\n")
    })
    .collect()
}

fn run(output: &Path, input: &str, resume: bool, fail_after: Option<u64>) -> Summary {
    let (journal, kept) = Journal::open(output, resume).unwrap();
    let mut device = Echo::new(4);
    device.fail_after = fail_after;
    run_to(Output::File(journal), kept, input, &mut device)
}

#[test]
fn an_uninterrupted_run_leaves_the_output_alone() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("out.jsonl");
    let summary = run(&output, &input(0..30), false, None);
    assert_eq!((summary.counts.rows, summary.counts.failed), (30, 0));
    let text = std::fs::read_to_string(&output).unwrap();
    for (i, line) in text.lines().enumerate() {
        assert!(line.starts_with(&format!("{{\"id\":\"r{i}\",")), "{line}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn resuming_after_any_tear_gives_the_same_file() {
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole");
    run(&whole, &input(0..30), false, None);
    let expected = std::fs::read_to_string(&whole).unwrap();

    let output = dir.path().join("out");
    let partial = dir.path().join("out.partial");
    let summary = run(&output, &input(0..30), false, Some(60));
    assert!(summary.failure.is_some());
    let journal = std::fs::read(&partial).unwrap();
    for cut in (0..journal.len()).step_by(97).chain([journal.len()]) {
        std::fs::write(&partial, &journal[..cut]).unwrap();
        // The OUTPUT of an interrupted run is not what counts while there is a journal.
        std::fs::write(&output, "").unwrap();
        let summary = run(&output, &input(0..30), true, None);
        assert_eq!(
            std::fs::read_to_string(&output).unwrap(),
            expected,
            "cut at {cut}"
        );
        assert_eq!(summary.counts.rows, 30);
        assert!(!partial.exists());
    }
}

#[test]
fn kept_rows_do_not_run_again_and_changed_ones_do() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("out");
    run(&output, &input(0..10), false, Some(30));
    let (journal, kept) = Journal::open(&output, true).unwrap();
    assert!(!kept.is_empty());
    drop(journal);
    let changed = input(0..10).replace("\"p0\"", "\"changed\"");
    let summary = run(&output, &changed, true, None);
    assert!(summary.counts.kept > 0);
    let text = std::fs::read_to_string(&output).unwrap();
    let fresh = dir.path().join("fresh");
    run(&fresh, &changed, false, None);
    assert_eq!(text, std::fs::read_to_string(&fresh).unwrap());
}

#[test]
fn a_finished_output_is_resumed_by_id() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("out");
    let whole = dir.path().join("whole");
    run(&output, &input(0..10), false, None);
    // The input grew at both ends, and a row in between never succeeds.
    let grown = format!(
        "{{\"id\":\"new\",\"prompt\":\"n\"}}\n{}oops\n{}",
        input(0..10),
        input(10..14)
    );
    let summary = run(&output, &grown, true, None);
    assert_eq!(summary.counts.kept, 10);
    assert_eq!(summary.counts.failed, 1);
    run(&whole, &grown, false, None);
    assert_eq!(
        std::fs::read(&output).unwrap(),
        std::fs::read(&whole).unwrap()
    );
}

#[test]
fn a_row_that_timed_out_is_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("out");
    let text = format!(
        "{}{{\"id\":\"slow\",\"prompt\":\"abc\",\"timeout_ms\":5}}\n",
        input(0..3)
    );
    let first = run(&output, &text, false, None);
    assert_eq!(first.counts.failed, 1);
    assert!(dir.path().join("out.partial").exists());
    let second = run(&output, &text, true, None);
    assert_eq!((second.counts.kept, second.counts.failed), (3, 1));
}

#[test]
fn what_cannot_be_written_is_said_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let error = |path: &Path, resume| Journal::open(path, resume).unwrap_err().to_string();
    assert!(error(dir.path(), false).contains("found a directory"));
    assert!(error(&dir.path().join("no/such/dir"), false).contains("no/such/dir.partial"));
    let output = dir.path().join("out");
    let (first, _) = Journal::open(&output, false).unwrap();
    assert!(error(&output, false).contains("another run is writing it"));
    drop(first);
    std::fs::write(dir.path().join("out.partial"), "not a record\n").unwrap();
    assert!(error(&output, true).contains("line 1 is not a record"));
    // A run that fails to start takes nothing from an earlier one.
    drop(Journal::open(&output, false).unwrap());
    assert_eq!(
        std::fs::read(dir.path().join("out.partial")).unwrap(),
        b"not a record\n"
    );
}
