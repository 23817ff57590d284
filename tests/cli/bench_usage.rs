//! `bench` with options that do not go together or are out of range: what was expected is said.

use crate::bench::bench;
use crate::common::program::run;

#[test]
fn wrong_usage_says_what_was_expected() {
    let dir = tempfile::tempdir().unwrap();
    let few = dir.path().join("few.toml");
    std::fs::write(&few, "[buckets]\ndecode = [1, 8]\n").unwrap();
    let few = few.to_str().unwrap();
    let cases: [(&[&str], &str); 29] = [
        (&["-b", "8-1"], "ascends"),
        (&["-b", "0"], "at least 1"),
        (&["-b", "-1"], "invalid value '-1' for '--batch"),
        (
            &["--launch", "host-graph"],
            "--launch: the CPU launches no kernels",
        ),
        (
            &["--launch", "bare"],
            "--launch: the CPU launches no kernels",
        ),
        (
            &["score", "--launch", "bare"],
            "--launch bare: a way of `bench decode`",
        ),
        (
            &["--dtype", "f32,bf16"],
            "--dtype bf16: the CPU computes in f32 only",
        ),
        (&["-n", "2", "-b", "1"], "--gen-len"),
        (
            &["--request-rate", "4"],
            "unexpected argument '--request-rate'",
        ),
        (&["score", "--steps", "x"], "unexpected argument '--steps'"),
        (
            &["serve", "--max-concurrency", "3000"],
            ": 3000 sequences at once: expected 1 to 1024",
        ),
        (
            &["--prompt-len", "4-8"],
            "found a range of lengths, expected steps of equal sequences",
        ),
        (
            &["score", "--logits-on-device"],
            "--logits-on-device: expected --device cuda",
        ),
        (&["serve", "--request-rate", "0"], "at least 1e-6"),
        (&["serve", "--request-rate", "1e-300"], "at least 1e-6"),
        (&["score", "-n", "4"], "unexpected argument '-n'"),
        (&["--bandwidth", "-1"], "expected a number above 0"),
        (&["--pause", "-1"], "expected seconds, 0 to 3600"),
        (&["--pause", "x"], "expected seconds, 0 to 3600"),
        (&["none"], "unrecognized subcommand 'none'"),
        (
            &["-b", "1,100000"],
            ": 100000 sequences at once: expected 1 to 1024",
        ),
        (
            &["-p", "100000"],
            ": --prompt-len 100000 and 128 to generate, 100128 tokens: expected 1 to 4096",
        ),
        (
            &["-p", "4,2000", "-n", "4,2200"],
            ": --prompt-len 2000 and 2200 to generate, 4200 tokens: expected 1 to 4096",
        ),
        (
            &["prefill", "-p", "4096"],
            ": --prompt-len 4096 and 1 to generate, 4097 tokens: expected 1 to 4096",
        ),
        (
            &["score", "-p", "4097"],
            ": --prompt-len 4097 and 0 to generate, 4097 tokens: expected 1 to 4096",
        ),
        (
            &["serve", "--request-rate", "4", "-b", "3000"],
            ": 3000 sequences at once: expected 1 to 1024",
        ),
        (
            &["-b", "3000", "--max-seqs", "4000"],
            ": --max-seqs 4000: expected 1 to 1024",
        ),
        (
            &["-p", "9000", "--max-context", "8000"],
            ": --max-context 8000: expected 1 to 4096",
        ),
        (
            &["--bucket-file", few],
            ": 32 sequences at once: expected 1 to 8",
        ),
    ];
    for (args, expected) in cases {
        let ended = bench(args);
        ended.fails(2, &[expected]);
        assert_eq!(ended.stdout, "", "{args:?}");
    }
    let ended = run(&["bench"]);
    assert_eq!(ended.code, 2);
    assert!(ended.stderr.contains("--model <MODEL>"), "{}", ended.stderr);
}

/// Each kind has the options that it has a use for, and `bench` without one those of decode.
#[test]
fn help_of_a_kind_is_its_own() {
    let help = |kind: &[&str]| run(&[&["bench"], kind, &["--help"]].concat()).stdout;
    for (kind, own, other) in [
        (&[][..], "--steps", "--request-rate"),
        (&["decode"], "--steps", "--max-concurrency"),
        (&["prefill"], "[default: 512]", "--gen-len"),
        (&["score"], "--logits-on-device", "--steps"),
        (&["serve"], "--request-rate", "--logits"),
        (&["kernel"], "--tokens", "--batch"),
    ] {
        let help = help(kind);
        let help = help.split("Examples:").next().unwrap();
        assert!(
            help.contains(own) && help.contains("--repeats"),
            "{kind:?}: {help}"
        );
        assert!(!help.contains(other), "{kind:?}: {help}");
    }
}
