//! OUTPUT.partial as a disk or another run has changed it: what is not as it was written is no answer.

use crate::resume::{input, open, refusal, run};
use tailgraph::io::partial::Start;

#[test]
fn a_flipped_bit_is_an_answer_to_be_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, output) = (dir.path().join("whole"), dir.path().join("out"));
    run(&whole, &input(0..30), false, None);
    let expected = std::fs::read_to_string(&whole).unwrap();
    run(&output, &input(0..30), false, Some(60));
    let partial = dir.path().join("out.partial");
    let journal = std::fs::read(&partial).unwrap();
    let header = journal.iter().position(|&byte| byte == b'\n').unwrap();
    let kept = open(&output, Start::Resume).unwrap().1.len();
    for at in (0..journal.len()).step_by(61).chain([header]) {
        let mut damaged = journal.clone();
        damaged[at] ^= 1 << (at % 8);
        std::fs::write(&partial, &damaged).unwrap();
        if at <= header {
            let refused = refusal(&output, Start::Resume);
            assert!(refused.contains("--overwrite"), "byte {at}: {refused}");
            assert_eq!(std::fs::read(&partial).unwrap(), damaged);
            continue;
        }
        let summary = run(&output, &input(0..30), true, None);
        assert_eq!(
            std::fs::read_to_string(&output).unwrap(),
            expected,
            "byte {at}"
        );
        // A line end that is lost damages two.
        let again = kept as u64 - summary.counts.kept;
        assert!(again <= 2, "byte {at}: {again}");
    }
}

/// Some file systems give no locks: a second run goes on from the same place, and writes over what this one wrote.
#[test]
fn what_another_writes_over_the_journal_is_no_answer() {
    let with = |from: &'static str, to: &'static str| {
        move |text: &str| {
            assert!(text.contains(from));
            text.replace(from, to)
        }
    };
    // Another's records, each of them whole.
    let exchanged = |text: &str| {
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        [lines[0], lines[2], lines[1], lines[3]].concat()
    };
    let changes: [&dyn Fn(&str) -> String; 4] = [
        &with("\"row\":1,", "\"row\":2,"),
        &with("{\"id\":1}", "{\"id\"\n1}"),
        &with("\"answer\":{\"id\":1},", "\"answer\" {\"id\":1},"),
        &exchanged,
    ];
    for change in changes {
        let dir = tempfile::tempdir().unwrap();
        let output = dir.path().join("out");
        let (mut journal, _) = open(&output, Start::Afresh).unwrap();
        for row in 0..3 {
            journal
                .put(row, 9, row != 2, &format!("{{\"id\":{row}}}"))
                .unwrap();
        }
        let partial = dir.path().join("out.partial");
        let text = std::fs::read_to_string(&partial).unwrap();
        std::fs::write(&partial, change(&text)).unwrap();
        let error = journal.assemble().unwrap_err().to_string();
        assert!(error.contains("was written, expected no other"), "{error}");
        assert!(!output.exists());
        // Untouched it is an answer.
        std::fs::write(&partial, text).unwrap();
        let (mut journal, _) = open(&output, Start::Resume).unwrap();
        journal.put(5, 9, true, "{}").unwrap();
        journal.assemble().unwrap();
    }
}
