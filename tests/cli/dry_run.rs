//! `--dry-run`: what a run would take and which rows would fail, without a run.

use crate::common::program::run;
use crate::common::rows::{mixed_input, text};
use std::fs;

/// The number between two words.
fn number(said: &str, before: &str, behind: &str) -> f64 {
    let (_, rest) = said.split_once(before).unwrap_or_else(|| panic!("{said}"));
    let (number, _) = rest.split_once(behind).unwrap_or_else(|| panic!("{said}"));
    number.parse().unwrap_or_else(|_| panic!("{said}"))
}

#[test]
fn a_dry_run_says_what_the_run_then_takes() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.jsonl"), dir.path().join("out.jsonl"));
    let more = "{torn\n{\"prompt\":\"x\",\"max_new_tokens\":100000}\n";
    let rows = mixed_input(|_, row| row["max_new_tokens"] = 40.into());
    fs::write(&input, rows + more).unwrap();
    let model = [
        "--model",
        "random:tiny",
        "--device",
        "cpu",
        "--input",
        text(&input),
    ];
    let generate = [&["generate", "--output", text(&output)], &model[..]].concat();
    let dry = run(&[&generate[..], &["--dry-run"]].concat());
    dry.fails(3, &[]);
    let said = dry.stdout;
    for part in [
        "26 rows, 2 would fail\n  line 25: invalid_json: ",
        "\n  line 26: context_length: found 2 prompt tokens",
        "\n1098 prompt tokens in 24 sequences, at most 88 in one; at most 960 new tokens\nmemory\n",
        "\n  budget ",
        " and decode steps of 1, 4, 16 sequences, timed here; an upper bound, since 5 sequences may",
    ] {
        assert!(said.contains(part), "{said}");
    }
    assert_eq!(
        fs::read_dir(dir.path()).unwrap().count(),
        1,
        "a file was written"
    );
    let ended = run(&generate);
    ended.fails(3, &["\n1098 prompt tokens ("]);
    // Within 10% on a quiet machine, which one that runs tests is not.
    let (expected, took) = (
        number(&said, "time ", " s once"),
        number(&ended.stderr, ") in ", " s\n"),
    );
    assert!(
        expected > took / 8.0 && expected < took * 8.0,
        "{said}{}",
        ended.stderr
    );

    let score = [&["score", "--dry-run"], &model[..]].concat();
    let dry = run(&score);
    dry.fails(3, &[]);
    for part in [
        "at most 0 new tokens\nmemory\n",
        " prompt tokens, timed here\n",
    ] {
        assert!(dry.stdout.contains(part), "{}", dry.stdout);
    }
    run(&[&score[..], &["--shard", "0/2"]].concat()).fails(2, &["--dry-run"]);
    fs::write(&input, "").unwrap();
    let said = run(&score).good();
    assert!(
        said.contains("0 rows, 0 would fail\n") && !said.contains("time"),
        "{said}"
    );
}
