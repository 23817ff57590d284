//! `bench launch --launch all`, `bench limits` and `bench queue`: names, what goes with what, and what is said without a GPU.

use crate::bench::bench;
use crate::common::program::{run, tailgraph};
use tailgraph::backend::cuda::listed::techniques::Technique;

#[test]
fn every_way_is_in_the_help_and_on_the_page() {
    let help = tailgraph(&["bench", "--help"]);
    let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/profiles/launching.md");
    let page = std::fs::read_to_string(page).unwrap();
    for technique in Technique::ALL {
        let about = technique.about();
        let line = format!("- {}: {}", about.name, about.does);
        let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(&line), "no {line:?} in {words}");
        let row = format!(
            "| {} | {} | {} | {} | {} |",
            about.name, about.does, about.choose, about.cannot, about.since
        );
        assert!(
            page.lines().any(|line| line == row),
            "the page has no {row}"
        );
    }
}

#[test]
fn ways_without_a_scheduler_go_by_themselves() {
    let cases: [(&[&str], &str); 10] = [
        (
            &["decode", "--launch", "all"],
            "--launch all: a way of `bench launch`, found `bench decode`",
        ),
        (
            &["decode", "--launch", "device-tail"],
            "--launch device-tail: a way of `bench launch`",
        ),
        (
            &["launch", "--launch", "device-tail,host-graph"],
            "--launch device-tail,host-graph: found a way with a scheduler beside one without",
        ),
        (
            &["launch", "--launch", "all", "-b", "8"],
            "--batch: `bench launch --launch all` has no sequences",
        ),
        (
            &["launch", "--launch", "cdp", "-n", "8"],
            "--gen-len: `bench launch --launch cdp` has no sequences",
        ),
        (
            &["launch", "--steps", "8"],
            "--steps: expected `bench launch --launch all`",
        ),
        (
            &["launch", "--renew", "8"],
            "--renew: expected `bench launch --launch all`",
        ),
        (
            &["decode", "--steps", "8"],
            "--steps: an option of `bench launch`",
        ),
        (
            &["serve", "--gpu-load", "1", "--max-concurrency", "2"],
            "--gpu-load: an option of `bench decode` and `bench launch`",
        ),
        (&["launch", "--launch", "graph"], "invalid value 'graph'"),
    ];
    for (options, expected) in cases {
        let ended = bench(options);
        assert_eq!(ended.code, 2, "{options:?}: {}", ended.stderr);
        assert!(
            ended.stderr.contains(expected),
            "{options:?}: {}",
            ended.stderr
        );
    }
}

#[test]
fn what_needs_a_gpu_says_so() {
    for what in ["limits", "queue", "keep-busy"] {
        let ended = run(&["bench", what, "--device", "cpu"]);
        assert_eq!(ended.code, 2, "{what}: {}", ended.stderr);
        assert!(ended.stderr.contains("GPU"), "{what}: {}", ended.stderr);
        assert!(ended.stdout.is_empty());
    }
    let options = [
        "bench",
        "decode",
        "--model",
        "random:tiny",
        "--device",
        "cpu",
    ];
    let ended = run(&[&options[..], &["--gpu-load", "1"]].concat());
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    assert!(
        ended.stderr.contains("--gpu-load: the CPU"),
        "{}",
        ended.stderr
    );
    let hidden = tailgraph(&["bench", "--help"]);
    assert!(!hidden.contains("keep-busy"));
}
