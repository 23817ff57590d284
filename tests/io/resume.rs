//! OUTPUT.partial: killed runs, torn lines, changed inputs, and what OUTPUT looks like after all.

use crate::common::rows::read_text;
use crate::fakes::Echo;
use crate::job::{run_to, try_run_to};
use std::path::Path;
use tailgraph::io::identity::Identity;
use tailgraph::io::kept::Kept;
use tailgraph::io::output::Output;
use tailgraph::io::partial::{Journal, Start};
use tailgraph::session::job::Summary;

pub fn input(rows: std::ops::Range<usize>) -> String {
    rows.map(|i| {
        let tokens = 1 + i * 7 % 11;
        format!("{{\"id\":\"r{i}\",\"prompt\":\"p{i}\",\"max_new_tokens\":{tokens}}}\n")
    })
    .collect()
}

fn identity() -> Identity {
    Identity::default().with("--temperature", 0.5)
}

pub fn open(output: &Path, start: Start) -> tailgraph::Result<(Journal, Kept)> {
    Journal::open(output, start, &identity())
}

pub fn refusal(output: &Path, start: Start) -> String {
    open(output, start).unwrap_err().to_string()
}

pub fn run(output: &Path, input: &str, resume: bool, fail_after: Option<u64>) -> Summary {
    let start = if resume { Start::Resume } else { Start::Afresh };
    let (journal, kept) = open(output, start).unwrap();
    let mut device = Echo::new(4);
    device.fail_after = fail_after;
    run_to(Output::File(journal), kept, input, &mut device)
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Leaves OUTPUT as an older version wrote it.
fn forget(output: &Path) {
    std::fs::remove_file(tailgraph::io::finished::job_path(output)).unwrap();
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
    assert_eq!(names(dir.path()), ["out.jsonl", "out.jsonl.job.json"]);
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
    assert!(!output.exists(), "of a run that failed");
    let journal = std::fs::read(&partial).unwrap();
    for cut in (0..journal.len()).step_by(97).chain([journal.len()]) {
        std::fs::write(&partial, &journal[..cut]).unwrap();
        // An OUTPUT of another run is not what counts while there is a journal.
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

/// Whether the name that a file gets says how it begins.
fn begins_as_named(output: &Path) -> bool {
    let begin = &std::fs::read(output).unwrap()[..4];
    match output.extension().and_then(|ending| ending.to_str()) {
        Some("gz") => begin.starts_with(b"\x1f\x8b"),
        _ => begin == b"\x28\xb5\x2f\xfd",
    }
}

#[test]
fn a_compressed_output_has_the_rows_of_a_plain_one_and_is_resumed_like_it() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    run(&at("plain"), &input(0..30), false, None);
    run(&at("longer"), &input(0..34), false, None);
    let plain = |name: &str| std::fs::read_to_string(at(name)).unwrap();
    for name in ["out.jsonl.gz", "out.jsonl.zst"] {
        let output = at(name);
        run(&output, &input(0..30), false, Some(60));
        let partial = at(&format!("{name}.partial"));
        let journal = std::fs::read(&partial).unwrap();
        assert!(journal.starts_with(b"{\"journal\":"));
        run(&output, &input(0..30), true, None);
        assert!(begins_as_named(&output));
        assert_eq!(read_text(&output), plain("plain"));

        // Its rows count for the next run, by what they were and by their ids.
        for by_id in [false, true] {
            if by_id {
                forget(&output);
            }
            let summary = run(&output, &input(0..30), true, None);
            assert_eq!((summary.counts.rows, summary.counts.kept), (30, 30));
        }
        let failed = run(&output, &input(0..34), true, Some(3));
        assert!(failed.failure.is_some() && partial.exists());
        assert_eq!(read_text(&output), plain("plain"));
        run(&output, &input(0..34), true, None);
        assert!(begins_as_named(&output));
        assert_eq!(read_text(&output), plain("longer"));
        let left = [name.to_owned(), format!("{name}.job.json")];
        let found: Vec<String> = names(dir.path())
            .into_iter()
            .filter(|found| found.starts_with("out"))
            .collect();
        assert_eq!(found, left);

        let whole = std::fs::read(&output).unwrap();
        let refused = refusal(&output, Start::Afresh);
        assert!(refused.contains("--overwrite"), "{refused}");
        std::fs::write(&output, &whole[..whole.len() / 2]).unwrap();
        let refused = refusal(&output, Start::Resume);
        assert!(refused.contains("cut off or damaged"), "{refused}");
        for path in [output.clone(), tailgraph::io::finished::job_path(&output)] {
            std::fs::remove_file(path).unwrap();
        }
    }
}

/// Two rows in error among the rest: one for good, one as long as it has no time.
fn with_errors(rows: std::ops::Range<usize>) -> String {
    let slow = "{\"id\":\"slow\",\"prompt\":\"abc\",\"timeout_ms\":5}\n";
    format!("oops\n{}{slow}", input(rows))
}

fn open_apart(output: &Path, errors: &Path, start: Start) -> tailgraph::Result<(Journal, Kept)> {
    let (mut journal, kept) = open(output, start)?;
    journal.errors_to(errors, start)?;
    Ok((journal, kept))
}

fn run_apart(at: (&Path, &Path), input: &str, start: Start, fail_after: Option<u64>) -> Summary {
    let (journal, kept) = open_apart(at.0, at.1, start).unwrap();
    let mut device = Echo::new(4);
    device.fail_after = fail_after;
    run_to(Output::File(journal), kept, input, &mut device)
}

#[test]
fn rows_in_error_go_to_a_file_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (output, errors) = (at("out"), at("errors.jsonl.gz"));
    let both = (&*output, &*errors);
    run(&at("plain"), &with_errors(0..9), false, None);
    let plain = read_text(&at("plain"));
    let failed = |line: &&str| line.starts_with("{\"id\":1,") || line.contains("timeout");
    let (wrong, right): (Vec<&str>, Vec<&str>) = plain.lines().partition(failed);
    assert_eq!((wrong.len(), right.len()), (2, 9));
    let check = || {
        assert_eq!(read_text(&errors).lines().collect::<Vec<_>>(), wrong);
        assert_eq!(read_text(&output).lines().collect::<Vec<_>>(), right);
        let found = names(dir.path());
        assert_eq!(
            found,
            [
                "errors.jsonl.gz",
                "out",
                "out.job.json",
                "plain",
                "plain.job.json"
            ]
        );
    };
    let summary = run_apart(both, &with_errors(0..9), Start::Afresh, None);
    assert_eq!((summary.counts.rows, summary.counts.failed), (11, 2));
    check();
    for start in [Start::Afresh, Start::Overwrite] {
        let again = open_apart(&at("other"), &errors, start);
        assert_eq!(again.is_err(), start == Start::Afresh);
    }

    // They are tried again, and the file is of those that are still in error.
    let again = run_apart(both, &with_errors(0..9), Start::Resume, None);
    assert_eq!((again.counts.kept, again.counts.failed), (9, 2));
    check();
    let mended = with_errors(0..9).replace(",\"timeout_ms\":5", "");
    let mended = mended.replace("oops", "{\"prompt\":\"x\"}");
    let summary = run_apart(both, &mended, Start::Resume, None);
    assert_eq!((summary.counts.kept, summary.counts.failed), (9, 0));
    assert_eq!(read_text(&errors), "");
    assert_eq!(read_text(&output).lines().count(), 11);
    // Somebody else's file stays.
    std::fs::write(&errors, "of somebody else").unwrap();
    let refused = open_apart(&output, &errors, Start::Resume).unwrap_err();
    assert!(refused.to_string().contains("not empty"), "{refused}");
    assert_eq!(read_text(&errors), "of somebody else");
}

#[test]
fn a_run_that_ended_between_the_names_of_its_files_is_gone_on_with() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (output, errors) = (at("out"), at("errors"));
    let both = (&*output, &*errors);
    run_apart(both, &with_errors(0..9), Start::Afresh, Some(20));
    assert!(!output.exists() && !errors.exists());
    // The file is found like this where the machine fails then; without a journal it would be anybody's.
    std::fs::write(&errors, "{\"id\":1,\"error\":{}}\n").unwrap();
    assert!(open_apart(&at("other"), &errors, Start::Resume).is_err());
    let summary = run_apart(both, &with_errors(0..9), Start::Resume, None);
    assert_eq!((summary.counts.rows, summary.counts.failed), (11, 2));
    assert_eq!(read_text(&errors).lines().count(), 2);
    assert_eq!(read_text(&output).lines().count(), 9);
    assert_eq!(names(dir.path()), ["errors", "out", "out.job.json"]);
}

#[test]
fn kept_rows_do_not_run_again_and_changed_ones_do() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("out");
    run(&output, &input(0..10), false, Some(30));
    let (journal, kept) = open(&output, Start::Resume).unwrap();
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
    forget(&output);
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

/// These ids would be one and the same as 64-bit floats.
#[test]
fn ids_past_64_bits_are_taken_up_digit_by_digit() {
    let dir = tempfile::tempdir().unwrap();
    let (output, whole) = (dir.path().join("out"), dir.path().join("whole"));
    let ids = [
        "36893488147419103233",
        "36893488147419103234",
        "-36893488147419103234",
    ];
    let rows = |ids: &[&str]| -> String {
        let row = |id: &&str| format!("{{\"id\":{id},\"prompt\":\"p{id}\"}}\n");
        ids.iter().map(row).collect()
    };
    run(&output, &rows(&ids[1..]), false, None);
    forget(&output);
    let summary = run(&output, &rows(&ids), true, None);
    assert_eq!((summary.counts.kept, summary.counts.failed), (2, 0));
    run(&whole, &rows(&ids), false, None);
    let taken_up = std::fs::read_to_string(&output).unwrap();
    assert_eq!(taken_up, std::fs::read_to_string(&whole).unwrap());
    for (line, id) in taken_up.lines().zip(ids) {
        assert!(line.contains(&format!("\"id\":{id},")), "{line}");
    }
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
    assert!(!dir.path().join("out.partial").exists());
    let second = run(&output, &text, true, None);
    assert_eq!((second.counts.kept, second.counts.failed), (3, 1));
}

#[test]
fn an_output_that_is_taken_up_stays_until_all_rows_are_there() {
    let dir = tempfile::tempdir().unwrap();
    let (output, whole) = (dir.path().join("out"), dir.path().join("whole"));
    run(&output, &input(0..10), false, None);
    let before = std::fs::read(&output).unwrap();
    let failed = run(&output, &input(0..30), true, Some(40));
    assert!(failed.failure.is_some());
    assert_eq!(std::fs::read(&output).unwrap(), before);

    // Its answers count only as long as they are the same.
    std::fs::write(&output, "{}\n").unwrap();
    let refused = refusal(&output, Start::Resume);
    assert!(refused.contains("is no longer the file"), "{refused}");
    std::fs::write(&output, before).unwrap();
    let resumed = run(&output, &input(0..30), true, None);
    assert!(resumed.counts.kept >= 10);
    run(&whole, &input(0..30), false, None);
    assert_eq!(
        std::fs::read(&output).unwrap(),
        std::fs::read(&whole).unwrap()
    );
    assert!(!dir.path().join("out.partial").exists());
}

/// Line 2 is answered under its number, which another row has written as its id.
#[test]
fn answers_of_one_id_are_nobodys() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("out");
    let rows = "{\"id\":2,\"prompt\":\"written\"}\n{\"prompt\":\"second\"}\n{\"id\":\"c\",\"prompt\":\"third\"}\n";
    run(&output, rows, false, None);
    forget(&output);
    let before = std::fs::read(&output).unwrap();
    let summary = run(&output, rows, true, None);
    assert_eq!((summary.counts.rows, summary.counts.kept), (3, 1));
    assert_eq!(std::fs::read(&output).unwrap(), before);
}

#[test]
fn what_cannot_be_written_is_said_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let absent = dir.path().join("no/such/dir");
    assert!(refusal(dir.path(), Start::Afresh).contains("found a directory"));
    assert!(refusal(&absent, Start::Afresh).contains("found no such directory"));
    let output = dir.path().join("out");
    let (first, _) = open(&output, Start::Afresh).unwrap();
    for start in [Start::Afresh, Start::Overwrite, Start::Resume] {
        assert!(refusal(&output, start).contains("another run is writing it"));
    }
    drop(first);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Two links to one file are one file, and one lock.
#[test]
fn links_share_the_journal_of_their_target() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir(at("data")).unwrap();
    std::os::unix::fs::symlink("data/out", at("one")).unwrap();
    std::os::unix::fs::symlink(at("one"), at("two")).unwrap();
    let (first, _) = open(&at("one"), Start::Afresh).unwrap();
    assert!(first.path().ends_with("data/out.partial"));
    assert!(refusal(&at("two"), Start::Resume).contains("another run is writing it"));
    drop(first);
    run(&at("two"), &input(0..3), false, None);
    assert!(at("two").is_symlink() && at("one").is_symlink());
    assert_eq!(
        std::fs::read_to_string(at("data/out"))
            .unwrap()
            .lines()
            .count(),
        3
    );
    assert_eq!(names(&at("data")), ["out", "out.job.json"]);
}

#[test]
fn rows_of_an_unfinished_run_are_written_over_only_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    let (output, partial) = (dir.path().join("out"), dir.path().join("out.partial"));
    run(&output, &input(0..30), false, Some(60));
    let journal = std::fs::read(&partial).unwrap();
    let refused = refusal(&output, Start::Afresh);
    assert!(
        refused.contains("--resume") && refused.contains("--overwrite"),
        "{refused}"
    );
    // A run that fails to start takes nothing from an earlier one.
    drop(open(&output, Start::Overwrite).unwrap());
    assert_eq!(std::fs::read(&partial).unwrap(), journal);

    // Without a whole row there is nothing to lose.
    let header = journal.iter().position(|&byte| byte == b'\n').unwrap();
    for cut in [0, 5, header, header + 1, header + 20] {
        std::fs::write(&partial, &journal[..cut]).unwrap();
        drop(open(&output, Start::Afresh).unwrap());
    }
}

#[test]
fn a_finished_output_is_replaced_only_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("out");
    run(&output, &input(0..3), false, None);
    let before = std::fs::read(&output).unwrap();
    let refused = refusal(&output, Start::Afresh);
    assert!(
        refused.contains("--resume") && refused.contains("--overwrite"),
        "{refused}"
    );
    assert_eq!(names(dir.path()), ["out", "out.job.json"]);
    let (journal, kept) = open(&output, Start::Overwrite).unwrap();
    run_to(Output::File(journal), kept, &input(5..9), &mut Echo::new(4));
    assert_ne!(std::fs::read(&output).unwrap(), before);
}

/// The record beside OUTPUT says what each row was: ids do not.
#[test]
fn a_finished_output_is_resumed_by_what_its_rows_were() {
    let dir = tempfile::tempdir().unwrap();
    let (output, whole) = (dir.path().join("out"), dir.path().join("whole"));
    run(&output, &input(0..10), false, None);
    let changed = input(0..14).replace("\"p3\"", "\"changed\"");
    let summary = run(&output, &changed, true, None);
    assert_eq!((summary.counts.rows, summary.counts.kept), (14, 9));
    run(&whole, &changed, false, None);
    assert_eq!(
        std::fs::read(&output).unwrap(),
        std::fs::read(&whole).unwrap()
    );
    let other = Identity::default().with("--temperature", 1);
    let refused = Journal::open(&output, Start::Resume, &other).unwrap_err();
    let refused = refused.to_string();
    assert!(
        refused.contains("out.job.json") && refused.contains("--temperature (was 0.5, is 1)"),
        "{refused}"
    );
    // It is of that file alone.
    std::fs::write(&output, "{\"id\":\"r0\",\"finish_reason\":\"stop\"}\n").unwrap();
    let (_, kept) = open(&output, Start::Resume).unwrap();
    assert_eq!((kept.by_id(), kept.len()), (1, 1));
}

#[test]
fn another_input_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("out");
    let refusal = |input: String| {
        let (journal, kept) = open(&output, Start::Resume).unwrap();
        try_run_to(Output::File(journal), kept, &input, &mut Echo::new(4))
    };
    for finished in [false, true] {
        let fail_after = (!finished).then_some(60);
        let (journal, kept) = open(&output, Start::Overwrite).unwrap();
        let mut device = Echo::new(4);
        device.fail_after = fail_after;
        run_to(Output::File(journal), kept, &input(0..30), &mut device);
        let before = std::fs::read(&output).ok();
        let error = refusal(input(100..130)).unwrap_err().to_string();
        assert!(error.contains("input: found another input"), "{error}");
        if finished {
            let shorter = refusal(input(0..4)).unwrap();
            let error = shorter.failure.unwrap().to_string();
            assert!(error.contains("input: found 4 rows"), "{error}");
            assert!(error.contains("answers to 26 behind"), "{error}");
        }
        assert_eq!(std::fs::read(&output).ok(), before);
    }
}

#[test]
fn what_is_no_journal_of_ours_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (output, partial) = (dir.path().join("out"), dir.path().join("out.partial"));
    let old = "{\"row\":0,\"input\":\"00\",\"done\":true,\"answer\":{}}\n";
    let unsealed =
        "{\"journal\":{\"version\":2,\"of\":[],\"takes_up\":null,\"created\":7}}\n{\"row\":0}\n";
    for text in ["something else\n", "something else", old, unsealed] {
        std::fs::write(&partial, text).unwrap();
        for start in [Start::Afresh, Start::Resume] {
            let refused = refusal(&output, start);
            assert!(
                refused.contains("line 1 is no header of a journal"),
                "{refused}"
            );
            assert!(refused.contains("--overwrite"), "{refused}");
        }
        assert_eq!(std::fs::read_to_string(&partial).unwrap(), text);
    }
}

#[test]
fn a_journal_of_other_options_is_refused_by_their_name() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("out");
    run(&output, &input(0..30), false, Some(60));
    let other = Identity::default().with("--temperature", 1);
    let refused = Journal::open(&output, Start::Resume, &other).unwrap_err();
    let refused = refused.to_string();
    assert!(
        refused.contains("--temperature (was 0.5, is 1)"),
        "{refused}"
    );
}

#[test]
fn the_mode_of_what_is_replaced_is_kept() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("out");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    for bits in [0o600, 0o640, 0o664] {
        std::fs::write(&output, "").unwrap();
        let permissions = std::fs::Permissions::from_mode(bits);
        std::fs::set_permissions(&output, permissions).unwrap();
        let (journal, _) = open(&output, Start::Afresh).unwrap();
        // Nor may anyone read on the way what he may not read in the end.
        assert_eq!(mode(journal.path()) & !bits, 0);
        drop(journal);
        run(&output, &input(0..2), false, None);
        assert_eq!(mode(&output), bits);
    }
}

#[test]
fn a_job_began_when_it_first_did() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("out");
    let (mut journal, _) = open(&output, Start::Afresh).unwrap();
    let begun = journal.created();
    assert!(begun > 1_700_000_000, "{begun}");
    journal.put(0, 1, true, "{}").unwrap();
    drop(journal);
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert_eq!(open(&output, Start::Resume).unwrap().0.created(), begun);
    assert!(open(&output, Start::Overwrite).unwrap().0.created() > begun);
}
