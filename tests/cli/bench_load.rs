//! `bench` of prompts that differ in length, of requests in a closed loop, and of as many sequences as fill a step.

use crate::bench::{bench, number, results};
use serde_json::Value;

fn one(arguments: &[&str]) -> Value {
    let found = results(&[arguments, &["-r", "1", "--warm-up", "0"]].concat());
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

#[test]
fn lengths_are_drawn_by_the_seed() {
    for kind in ["prefill", "score"] {
        let tokens = |seed| {
            let row = one(&[kind, "-b", "40", "-p", "4-20", "--seed", seed]);
            assert_eq!(row["n_prompt_min"], 4, "{row}");
            assert_eq!(row["n_prompt_max"], 20, "{row}");
            assert_eq!(row["n_prompt"], 12, "{row}");
            assert!(row["floor_ms"].is_null(), "of which lengths?");
            number(&row, "total_input_tokens")
        };
        let (one, again, other) = (tokens("1"), tokens("1"), tokens("2"));
        assert_eq!(one, again);
        assert_ne!(one, other);
        // 480 in the mean, with a standard deviation of 31.
        assert!((356.0..604.0).contains(&one), "{one}");
    }
    let equal = one(&["prefill", "-p", "8"]);
    assert!(equal["n_prompt_min"].is_null() && equal["n_prompt_max"].is_null());
    let shown = bench(&["prefill", "-p", "4-20", "-b", "3", "-r", "1", "--wide"]);
    assert!(shown.stdout.contains("n_prompt 4-20"), "{}", shown.stdout);
}

#[test]
fn prompts_that_begin_alike_are_computed_once() {
    let load = ["serve", "-b", "4", "--num-prompts", "16", "-p", "24-40"];
    let load = [&load[..], &["-n", "3", "--shared-prefix", "20,2"]].concat();
    let shared = one(&load);
    assert_eq!(
        (&shared["shared_prefix"], &shared["prefix_groups"]),
        (&20.into(), &2.into())
    );
    assert!(number(&shared, "prefixes") > 0.0);
    let cached = number(&shared, "total_cached_tokens");
    // The first of each group computes its beginning.
    assert_eq!(cached, 14.0 * 20.0);
    let alone = one(&[&load[..], &["--no-prefix-sharing"]].concat());
    assert_eq!(
        (&alone["prefixes"], &alone["total_cached_tokens"]),
        (&0.into(), &0.into())
    );
    assert_eq!(alone["outputs_sha256"], shared["outputs_sha256"]);
    let none = one(&["serve", "-p", "8", "-n", "2", "-b", "2"]);
    assert!(none["shared_prefix"].is_null() && none["total_cached_tokens"].is_null());
    bench(&["serve", "-p", "24-40", "--shared-prefix", "24"]).fails(
        2,
        &["--shared-prefix: found 24 tokens, expected fewer", "24"],
    );
    for wrong in ["0", "3,0", "3,", "x", "3,4,5"] {
        bench(&["serve", "--shared-prefix", wrong]).fails(2, &["such as 1000,4"]);
    }
}

#[test]
fn a_closed_loop_holds_as_many_sequences_as_are_in_flight() {
    let load = ["serve", "-p", "4-8", "-n", "6", "--num-prompts", "12"];
    let row = one(&[&load[..], &["--max-concurrency", "3"]].concat());
    assert_eq!(row["max_concurrency"], 3);
    assert_eq!(row["request_rate"], "inf");
    assert_eq!((&row["batch"], &row["max_seqs"]), (&3.into(), &3.into()));
    assert_eq!(number(&row, "completed"), 12.0);
    assert_eq!(number(&row, "total_output_tokens"), 72.0);
    // Nobody waits for a place: a first token comes in one step, however late the request.
    assert!(number(&row, "p99_ttft_ms") < number(&row, "duration") * 1e3 / 2.0);
    let row = one(&[&load[..], &["-b", "2"]].concat());
    assert_eq!(
        (&row["max_concurrency"], &row["batch"]),
        (&2.into(), &2.into())
    );

    let rated = [&load[..], &["--max-concurrency", "1,2", "-b", "4"]].concat();
    let rated = [&rated[..], &["--request-rate", "400", "-r", "1"]].concat();
    let found = results(&rated);
    let sizes = |row: &Value| (row["max_concurrency"].as_u64(), row["max_seqs"].as_u64());
    let sizes: Vec<_> = found.iter().map(sizes).collect();
    assert_eq!(sizes, [(Some(1), Some(4)), (Some(2), Some(4))]);
}

#[test]
fn score_has_the_sequences_that_fill_a_step() {
    let seqs = |more: &[&str]| number(&one(&[&["score"], more].concat()), "max_seqs");
    assert_eq!(seqs(&["-b", "40", "-p", "16"]), 32.0, "of 512 rows");
    assert_eq!(seqs(&["-b", "40", "-p", "8-24"]), 32.0);
    assert_eq!(seqs(&["-b", "7", "-p", "16"]), 7.0);
    assert_eq!(seqs(&["-b", "20", "-p", "200"]), 16.0);
    assert_eq!(seqs(&["-b", "40", "-p", "16", "--max-seqs", "5"]), 5.0);
}
