//! `bench` with options that do not go together or are out of range: what was expected is said.

use crate::bench::bench;
use crate::common::program::run;

#[test]
fn wrong_usage_says_what_was_expected() {
    let dir = tempfile::tempdir().unwrap();
    let few = dir.path().join("few.toml");
    std::fs::write(&few, "[buckets]\ndecode = [1, 8]\n").unwrap();
    let few = few.to_str().unwrap();
    let cases: [(&[&str], &str); 35] = [
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
        (
            &["--context", "128"],
            "--context 128: expected more than the 128 tokens",
        ),
        (&["--context", "256", "-p", "8"], "cannot be used with"),
        (&["-n", "2", "-b", "1"], "--gen-len"),
        (
            &["--request-rate", "4"],
            "unexpected argument '--request-rate'",
        ),
        (&["score", "--steps", "x"], "unexpected argument '--steps'"),
        (
            &["serve"],
            "<--request-rate <RATES>|--max-concurrency <LIST>|--arrivals <FILE>>",
        ),
        (
            &["serve", "--arrivals", "x", "--num-prompts", "4"],
            "cannot be used with '--num-prompts <N>'",
        ),
        (
            &["serve", "--max-concurrency", "3000"],
            ": --max-concurrency 3000: expected 1 to 1024",
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
        (&["score", "--expect", "x"], "--input"),
        (&["--bandwidth", "-1"], "expected a number above 0"),
        (&["--pause", "-1"], "expected seconds, 0 to 3600"),
        (&["--pause", "x"], "expected seconds, 0 to 3600"),
        (&["none"], "unrecognized subcommand 'none'"),
        (&["-b", "1,100000"], ": --batch 100000: expected 1 to 1024"),
        (
            &["-p", "100000"],
            ": --prompt-len 100000 and --gen-len 128, 100128 tokens: expected 1 to 4096",
        ),
        (
            &["-p", "4,2000", "-n", "4,2200"],
            ": --prompt-len 2000 and --gen-len 2200, 4200 tokens: expected 1 to 4096",
        ),
        (
            &["--context", "512,100000"],
            ": --context 100000: expected 1 to 4096",
        ),
        (
            &["prefill", "-p", "4096"],
            ": --prompt-len 4096 and its first token, 4097 tokens: expected 1 to 4096",
        ),
        (
            &["score", "-p", "4097"],
            ": --prompt-len 4097: expected 1 to 4096",
        ),
        (
            &["serve", "--request-rate", "4", "-b", "3000"],
            ": --batch 3000: expected 1 to 1024",
        ),
        (
            &["-b", "3000", "--max-seqs", "4000"],
            ": --max-seqs 4000: expected 1 to 1024",
        ),
        (
            &["-p", "9000", "--max-context", "8000"],
            ": --max-context 8000: expected 1 to 4096",
        ),
        (&["--bucket-file", few], ": --batch 32: expected 1 to 8"),
    ];
    for (args, expected) in cases {
        let ended = bench(args);
        ended.fails(2, &[expected]);
        assert_eq!(ended.stdout, "", "{args:?}");
    }
    let arrivals = dir.path().join("arrivals");
    std::fs::write(&arrivals, "0\n1 5000 3\n2 4 4\n").unwrap();
    let ended = bench(&["serve", "--arrivals", arrivals.to_str().unwrap()]);
    assert_eq!(ended.code, 2);
    let expected = "/arrivals, a prompt of 5000 and 3 to generate, 5003 tokens: expected 1 to 4096";
    assert!(ended.stderr.contains(expected), "{}", ended.stderr);
    let ended = run(&["bench"]);
    assert_eq!(ended.code, 2);
    assert!(ended.stderr.contains("--model <MODEL>"), "{}", ended.stderr);
}

/// Each kind has the options that it has a use for, and `bench` without one those of decode.
#[test]
fn help_of_a_kind_is_its_own() {
    let help = |kind: &[&str]| run(&[&["bench"], kind, &["--help"]].concat()).stdout;
    for (kind, own, other) in [
        (&[][..], "--penalties", "--request-rate"),
        (&["decode"], "--penalties", "--max-concurrency"),
        (&["prefill"], "[default: 512]", "--gen-len"),
        (&["score"], "--logits-on-device", "--steps"),
        (&["serve"], "--request-rate", "--logits"),
        (&["kernel"], "--rows", "--batch"),
    ] {
        let help = help(kind);
        assert!(
            help.contains(own) && help.contains("--repeats"),
            "{kind:?}: {help}"
        );
        assert!(!help.contains(other), "{kind:?}: {help}");
    }
}
