//! `profile` over an nsys and an ncu of a few lines, which print what they are told.

use crate::common::program::{Ended, command, end};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::TempDir;

/// A folder with both tools; they print their name and arguments, each on a line of its own, and end with `code`.
fn tools(code: i32) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["nsys", "ncu"] {
        let file = folder.path().join(name);
        let script = format!("#!/bin/sh\nprintf '%s\\n' {name} \"$@\"\nexit {code}\n");
        std::fs::write(&file, script).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    folder
}

fn profile(path: &Path, args: &[&str]) -> Ended {
    let mut command = command(&["profile"]);
    command.args(args).env("PATH", path);
    command.env("CUDA_HOME", path).env("CUDA_PATH", path);
    end(&mut command, "")
}

fn lines(ended: &Ended) -> Vec<&str> {
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    ended.stdout.lines().collect()
}

#[test]
fn systems_records_from_the_first_range_on() {
    let tools = tools(0);
    let command = ["--", "generate", "--model", "random:tiny", "two words"];
    let ended = profile(tools.path(), &[&["-o", "out/run"], &command[..]].concat());
    let told = lines(&ended);
    let options = [
        "nsys",
        "profile",
        "--trace=cuda,nvtx,osrt",
        "--cuda-graph-trace=graph:host-and-device",
        "--capture-range=nvtx",
        "--nvtx-capture=load@tailgraph",
        "--capture-range-end=none",
        "--kill=none",
        "--force-overwrite=true",
        "--output=out/run",
    ];
    assert_eq!(told[..options.len()], options);
    let [program, command @ ..] = &told[options.len()..] else {
        panic!("{told:?}");
    };
    assert!(program.ends_with("tailgraph"), "{program}");
    assert_eq!(command, ["generate", "--model", "random:tiny", "two words"]);
    for part in [
        "out/run.nsys-rep",
        "stats --report nvtx_sum,cuda_gpu_kern_sum,cuda_api_sum",
    ] {
        assert!(ended.stderr.contains(part), "{}", ended.stderr);
    }
}

#[test]
fn systems_takes_other_ranges() {
    let tools = tools(0);
    let serve = ["--range", "serve", "--system-wide", "--nodes", "--", "true"];
    let ended = profile(tools.path(), &serve);
    let told = lines(&ended);
    for option in [
        "--nvtx-capture=serve@tailgraph",
        "--capture-range-end=stop",
        "--sample=system-wide",
        "--cpuctxsw=system-wide",
        "--cuda-graph-trace=node",
        "--output=tailgraph-systems",
    ] {
        assert!(told.contains(&option), "{told:?} lacks {option}");
    }
    let ended = profile(tools.path(), &["--range", "all", "--", "true"]);
    let told = lines(&ended);
    assert!(!told.iter().any(|option| option.contains("capture-range")));
    assert_eq!(told.last(), Some(&"true"));
}

#[test]
fn compute_looks_into_one_step() {
    let tools = tools(0);
    let step = [
        "--tool", "compute", "--kind", "mixed", "--bucket", "512", "--stage", "1",
    ];
    let which = [
        "--kernel",
        "tg_tiled.*",
        "--skip",
        "2",
        "--launches",
        "3",
        "-o",
        "c",
    ];
    let command = ["--", "generate", "--launch", "host-graph", "x"];
    let ended = profile(tools.path(), &[&step[..], &which, &command].concat());
    let told = lines(&ended);
    let options = [
        "ncu",
        "--nvtx",
        "--nvtx-include",
        "tailgraph@stage 1 mixed 512/",
        "--graph-profiling",
        "node",
        "--clock-control",
        "none",
        "--set",
        "full",
        "--launch-skip",
        "2",
        "--launch-count",
        "3",
        "--kernel-name",
        "regex:tg_tiled.*",
        "--force-overwrite",
        "--export",
        "c",
    ];
    assert_eq!(told[..options.len()], options);
    let refused = profile(tools.path(), &["--tool", "compute", "--", "generate", "x"]);
    assert_eq!(refused.code, 2, "{}", refused.stdout);
    assert!(
        refused.stderr.contains("--launch host-graph"),
        "{}",
        refused.stderr
    );
}

#[test]
fn the_line_can_be_printed_and_is_what_a_shell_takes() {
    let nowhere = tempfile::tempdir().unwrap();
    let command = ["--", "prog", "two words", "it's"];
    let ended = profile(nowhere.path(), &[&["--print"], &command[..]].concat());
    let printed = lines(&ended);
    assert_eq!(printed.len(), 1);
    assert!(printed[0].contains("nsys profile "), "{}", printed[0]);
    assert!(
        printed[0].ends_with(r"prog 'two words' 'it'\''s'"),
        "{}",
        printed[0]
    );
}

#[test]
fn a_tool_that_fails_is_told_of() {
    let failing = tools(7);
    let ended = profile(failing.path(), &["--", "true"]);
    assert_eq!(ended.code, 1);
    assert!(ended.stderr.contains("exit status: 7"), "{}", ended.stderr);
    let ended = profile(failing.path(), &["--print"]);
    assert_eq!(ended.code, 2, "no command: {}", ended.stderr);
}
