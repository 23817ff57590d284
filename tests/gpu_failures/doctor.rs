//! `doctor` where something is wrong with the GPU.

use crate::common::program::Ended;
use crate::rig::Run;

fn doctor(device: &[&str]) -> Run {
    Run::new(&["doctor", "--model", "random:tiny"]).and(device)
}

/// The line of a check, and the advice below it.
fn check<'a>(ended: &'a Ended, name: &str) -> (&'a str, &'a str) {
    let mut lines = ended.stdout.lines();
    let line = lines.find(|line| line.split_whitespace().nth(1) == Some(name));
    let line = line.unwrap_or_else(|| panic!("no {name} in {}", ended.stdout));
    (line, lines.next().unwrap_or_default())
}

/// Each problem, asked for the GPU and not.
#[test]
fn every_problem_is_told_with_what_to_do() {
    for (name, value, part, advice) in [
        ("DEVICES", "0", "shows no GPU", "nvidia-smi"),
        ("VERSION", "12040", "speaks CUDA 12.4", "update it to 580"),
        (
            "FAIL",
            "cuInit:1:999",
            "cuInit with CUDA_ERROR_UNKNOWN",
            "nvidia-smi",
        ),
    ] {
        let asked = doctor(&["--device", "cuda"]).with(name, value).end();
        let (line, below) = check(&asked, "gpu");
        assert_eq!((asked.code, asked.stderr.as_str()), (1, ""), "{line}");
        assert!(line.starts_with("problem"), "{line}");
        assert!(below.contains(part) && below.contains(advice), "{below}");

        let not_asked = doctor(&[]).with(name, value).end();
        let (line, below) = check(&not_asked, "gpu");
        assert_eq!(
            (not_asked.code, not_asked.stderr.as_str()),
            (0, ""),
            "{line}"
        );
        assert!(
            line.starts_with("warn") && below.contains(part),
            "{line} {below}"
        );
        assert!(check(&not_asked, "model").0.starts_with("ok"));
    }
}

#[test]
fn a_gpu_without_kernels_is_named() {
    let run = |device: &[&str]| doctor(device).with("CAPABILITY", "7.5").end();
    let ended = run(&["--device", "cuda"]);
    let (line, below) = check(&ended, "gpu");
    assert!(ended.code == 1 && line.starts_with("problem"), "{line}");
    assert!(
        below.contains("compute capability 7.5")
            && below.contains("expected compute capability 8.x"),
        "{below}"
    );
    assert_eq!(run(&[]).code, 0);
}

#[test]
fn a_gpu_that_is_too_small_is_a_problem_of_the_model() {
    let ended = doctor(&["--device", "cuda"])
        .with("MEMORY", 3_000_000)
        .end();
    assert_eq!(ended.code, 1);
    let (line, below) = check(&ended, "model");
    assert!(
        line.contains("not enough memory") && line.contains("weights 5.4 MiB + "),
        "{line}"
    );
    assert!(
        below.contains("raise --memory-limit") || below.contains("lower --max-context"),
        "{below}"
    );
    assert!(check(&ended, "gpu").0.starts_with("ok"));
}

/// A wrong option stays one, whatever else is wrong.
#[test]
fn a_gpu_that_is_not_there_is_wrong_usage() {
    doctor(&["--device", "cuda:7"])
        .end()
        .fails_in_a_line(2, &["cuda:7 does not exist", "cuda:0 alone"]);
}

/// Of another model's kernels is said what would find its own; of the one that they were chosen for nothing.
#[test]
fn borrowed_kernels_are_said_with_what_tune_would_bring() {
    let ended = doctor(&["--device", "cuda"]).end();
    let (line, _) = check(&ended, "kernels");
    for part in [
        "ok ",
        "graphs/sm_90.toml",
        "h256-e8-f64: those of h2048-e32-f1792 serve",
        "`tailgraph tune --model random:tiny --dtype bf16 -o FILE`",
    ] {
        assert!(line.contains(part), "{line} lacks {part}");
    }
    let own = Run::new(&[
        "doctor",
        "--model",
        "random:lfm2-8b-a1b",
        "--device",
        "cuda",
    ])
    .end();
    assert!(!own.stdout.contains(" kernels "), "{}", own.stdout);
}
