//! A host that launches a step's graph before the one ahead of it is through.

use crate::rig::Run;

const ROWS: usize = 300;

/// Rows of many lengths on one GPU. Now and then a step brings in two prompts, and right behind it a sequence in a slot between theirs
/// begins a page: both steps' copies write that slot's row. The driver holds them to their order. It knows of no two places of
/// samples, of which the one is copied while a launch writes the other.
fn run(way: &str, input: &str) -> Run {
    let model = ["generate", "--model", "random:tiny", "--device", "cuda"];
    let sizes = ["--max-seqs", "13", "--step-tokens", "512"];
    let run = Run::new(&model).and(&["--launch", way]);
    let rows = ["--page-tokens", "16", "--quiet", "--input", input];
    run.and(&sizes).and(&rows).with("ORDER", "to")
}

fn row(index: usize) -> String {
    let tokens = 5 + index * index * 7 % 41;
    format!("{{\"id\":\"{index}\",\"prompt\":\"ab\",\"max_new_tokens\":{tokens}}}\n")
}

#[test]
fn pages_that_a_step_begins_go_over_behind_those_of_the_step_ahead() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in.jsonl");
    std::fs::write(&input, (0..ROWS).map(row).collect::<String>()).unwrap();
    let input = input.to_str().unwrap();
    for way in ["host-graph", "host-graph-ahead"] {
        let ended = run(way, input).end();
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{way:?}");
        assert_eq!(ended.rows().len(), ROWS, "{way:?}");
    }
    // A host that does not wait for the copies of the step ahead is noticed.
    let ended = run("host-graph-ahead", input).with("DEAF", "host").end();
    assert_eq!(ended.code, 77, "{}", ended.stderr);
}
