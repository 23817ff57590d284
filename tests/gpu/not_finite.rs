//! A number that is none on a GPU: the row that meets it ends with an error, and it stays there: neither its
//! companions nor whoever gets its slot and pages next see anything of it.

use crate::binary::{generate_rows, path};
use crate::spoilt::{MAX_NEW_TOKENS, NAN, Victim, checkpoint, input, spoil};

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_row_without_a_next_token_fails_and_the_others_are_served() {
    for (launch, dtype) in [
        ("device-graph", "bf16"),
        ("device-graph", "f32"),
        ("host-graph", "f16"),
        ("host-kernels", "bf16"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let model = checkpoint(folder.path());
        let rows = path(folder.path(), "rows.jsonl");
        std::fs::write(&rows, input()).unwrap();
        let run = || {
            let common = ["--model", model.to_str().unwrap(), "--ignore-eos"];
            let way = ["--launch", launch, "--dtype", dtype];
            // One after the other in the same slot and the same pages, so that steps do not depend on time.
            let sizes = ["--max-seqs", "1", "--max-new-tokens", MAX_NEW_TOKENS];
            let output = path(folder.path(), "answers.jsonl");
            let files = ["--input", &rows, "--output", &output];
            generate_rows(&[&common[..], &way, &sizes, &files].concat(), &output)
        };
        let (code, clean) = run();
        assert_eq!(code, 0);
        let victim = Victim::choose(&clean);
        spoil(&model, "model.embed_tokens.weight", victim.token, 3, NAN);
        let (code, spoilt) = run();
        assert_eq!(code, 3, "{launch} {dtype}");
        victim.check(&clean, &spoilt);
        println!(
            "{launch} {dtype}: row {} after {}",
            victim.row, victim.after
        );
    }
}
