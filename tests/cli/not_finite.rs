//! Checkpoints with a number that is none: rows that meet it end with an error, all others are served.

use crate::run::{Ended, run, run_with_input};
use crate::spoilt::{INFINITY, MAX_NEW_TOKENS, NAN, Victim, checkpoint, input, spoil};
use std::path::Path;

fn generate(model: &Path) -> Ended {
    let common = ["generate", "--device", "cpu", "--quiet", "--ignore-eos"];
    let sizes = ["--max-seqs", "2", "--max-new-tokens", MAX_NEW_TOKENS];
    let model = ["--model", model.to_str().unwrap()];
    run_with_input(&[&common[..], &sizes, &model].concat(), &input())
}

#[test]
fn a_row_without_a_next_token_fails_and_the_others_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let model = checkpoint(folder.path());
    let clean = generate(&model);
    assert_eq!(clean.code, 0, "{}", clean.stderr);
    let victim = Victim::choose(&clean.rows());
    spoil(&model, "model.embed_tokens.weight", victim.token, 3, NAN);
    let spoilt = generate(&model);
    assert_eq!(spoilt.code, 3, "{}", spoilt.stderr);
    victim.check(&clean.rows(), &spoilt.rows());
}

#[test]
fn a_head_that_is_not_finite_fails_every_row() {
    let folder = tempfile::tempdir().unwrap();
    let model = checkpoint(folder.path());
    spoil(&model, "lm_head.weight", 77, 0, INFINITY);
    let ended = generate(&model);
    assert_eq!(ended.code, 3, "{}", ended.stderr);
    let rows = ended.rows();
    assert!(!rows.is_empty());
    for row in rows {
        assert_eq!(row["error"]["code"], "non_finite_logits", "{row}");
    }

    let prompts = folder.path().join("prompts.jsonl");
    std::fs::write(&prompts, "{\"input_ids\":[60,61,62]}\n").unwrap();
    let logits = folder.path().join("logits.safetensors");
    let [model, prompts, logits] = [&model, &prompts, &logits].map(|path| path.to_str().unwrap());
    let files = ["--model", model, "--input", prompts, "--output", logits];
    let score = ["score", "--device", "cpu", "--logits", "last"];
    let ended = run(&[&score[..], &files].concat());
    assert_eq!(ended.code, 1, "{}", ended.stderr);
    let says = "logits that are not finite";
    assert!(ended.stderr.contains(says), "{}", ended.stderr);
}
