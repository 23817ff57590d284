//! `profile` over an nsys and an ncu of a few lines, which print what they are told; and what `doctor` says of them.

use crate::common::program::{Ended, command, end};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::TempDir;

/// A folder with both tools. They print their name and arguments, each on a line of its own, leave an empty report, and end with
/// `code`, or as `summary` says where they are asked for one.
fn tools(code: i32, summary: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("out")).unwrap();
    for name in ["nsys", "ncu"] {
        let file = folder.path().join(name);
        let script = format!(
            "#!/bin/sh
            case $1 in
              --version) echo 'NVIDIA tool'; echo \"Version $RELEASE (build 1)\"; exit ;;
              stats | --import) {summary}; exit ;;
            esac
            printf '%s\\n' {name} \"$@\"
            for word; do
              case $word in --output=*) echo >\"${{word#*=}}.nsys-rep\" ;; esac
              [ \"$before\" != --export ] || echo >\"$word.ncu-rep\"
              before=$word
            done
            exit {code}\n"
        );
        std::fs::write(&file, script).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    folder
}

fn profile(path: &Path, args: &[&str]) -> Ended {
    let mut command = command(&["profile"]);
    command.args(args).env("PATH", path);
    command.env("CUDA_HOME", path);
    command.current_dir(path);
    end(&mut command, "")
}

fn lines(ended: &Ended) -> Vec<&str> {
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    ended.stdout.lines().collect()
}

#[test]
fn systems_records_from_the_first_range_on() {
    let tools = tools(0, "echo summary of $*");
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
        "--output=out/run",
    ];
    assert_eq!(told[..options.len()], options);
    let [program, command @ ..] = &told[options.len()..] else {
        panic!("{told:?}");
    };
    assert!(program.ends_with("tailgraph"), "{program}");
    assert_eq!(command, ["generate", "--model", "random:tiny", "two words"]);
    for part in [
        "tailgraph: out/run.nsys-rep; ",
        "summary of stats --force-export=true --report=cuda_gpu_kern_sum,nvtx_kern_sum,",
    ] {
        assert!(ended.stderr.contains(part), "{}", ended.stderr);
    }
}

/// An option of the user's takes the place of ours of that name, in whatever way its value is given.
#[test]
fn options_of_the_tool_are_passed_on() {
    let tools = tools(0, ":");
    let given = [
        "--nsys",
        "--trace cuda --stats=true",
        "--nsys=--kill=sigterm --session-new 'two words' --wait profile",
    ];
    let ended = profile(tools.path(), &[&given, &["--", "true"][..]].concat());
    let told = lines(&ended);
    assert_eq!(told[1], "profile");
    assert!(!told.contains(&"--trace=cuda,nvtx,osrt") && !told.contains(&"--kill=none"));
    let theirs = [
        "--output=tailgraph-systems",
        "--trace",
        "cuda",
        "--stats=true",
        "--kill=sigterm",
        "--session-new",
        "two words",
        "--wait",
        "profile",
        "true",
    ];
    assert_eq!(told[told.len() - theirs.len()..], theirs);

    let compute = ["--tool", "compute", "--ncu", "--set basic --nvtx"];
    let ended = profile(tools.path(), &[&compute, &["--", "true"][..]].concat());
    let told = lines(&ended);
    assert!(!told.contains(&"full"), "{told:?}");
    assert_eq!(told.iter().filter(|word| **word == "--nvtx").count(), 1);

    for (given, expected) in [
        (["--nsys", "--a 'b"], "a quote does not end"),
        (["--nsys", "--output=x"], "this command's own --output"),
        (["--nsys", "-f true"], "this command's own --output"),
        (["--ncu", "--set full"], "expected --nsys"),
    ] {
        let ended = profile(tools.path(), &[&given[..], &["--", "true"]].concat());
        assert_eq!((ended.code, &*ended.stdout), (2, ""), "{given:?}");
        assert!(ended.stderr.contains(expected), "{}", ended.stderr);
    }
}

#[test]
fn a_report_is_replaced_only_when_asked() {
    let tools = tools(0, ":");
    let step = [
        "--tool",
        "compute",
        "--",
        "generate",
        "--launch",
        "host-graph",
    ];
    for (report, command, force) in [
        ("r.nsys-rep", &["--", "true"][..], "--force-overwrite=true"),
        ("r.ncu-rep", &step, "--force-overwrite"),
    ] {
        std::fs::write(tools.path().join(report), "old").unwrap();
        for output in ["r", report] {
            let output = ["-o", output];
            let refused = profile(tools.path(), &[&output[..], command].concat());
            assert_eq!((refused.code, &*refused.stdout), (2, ""), "{report}");
            let told = &refused.stderr;
            assert!(
                told.contains(report) && told.contains("--overwrite"),
                "{told}"
            );
            let ended = profile(
                tools.path(),
                &[&output, &["--overwrite"][..], command].concat(),
            );
            assert!(lines(&ended).contains(&force), "{}", ended.stdout);
        }
    }
}

/// Each table of it in short, and not in the way where it cannot be had.
#[test]
fn the_summary_is_short_and_never_an_error() {
    let table = "printf 'Name\\n----\\n'; for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo row $i; done; printf '\\nNext\\n----\\nof it\\n'";
    let ended = profile(tools(0, table).path(), &["--", "true"]);
    lines(&ended);
    let rows = ended.stderr.lines().filter(|line| line.starts_with("row"));
    assert_eq!(rows.count(), 10, "{}", ended.stderr);
    assert!(ended.stderr.contains("\nof it\n"), "{}", ended.stderr);

    let ended = profile(tools(0, "echo no data >&2; exit 3").path(), &["--", "true"]);
    lines(&ended);
    assert!(
        ended.stderr.contains("warning: ") && ended.stderr.contains("exit status: 3: no data"),
        "{}",
        ended.stderr
    );
}

/// Where nsys cannot import what it has recorded it ends well all the same.
#[test]
fn a_report_that_was_not_left_is_an_error() {
    let tools = tools(0, "echo summary");
    std::fs::create_dir(tools.path().join("r.nsys-rep.d")).unwrap();
    std::os::unix::fs::symlink("r.nsys-rep.d/none/none", tools.path().join("r.nsys-rep")).unwrap();
    let ended = profile(tools.path(), &["-o", "r", "--", "true"]);
    ended.fails(1, &["r.nsys-rep: ", "left no such report", ".qdstrm"]);
}

#[test]
fn doctor_names_both_tools_and_their_releases() {
    let tools = tools(0, ":");
    let nowhere = tempfile::tempdir().unwrap();
    for (path, release, status, told) in [
        (
            tools.path(),
            "2025.3.1.90-2531",
            "ok",
            "Nsight Systems 2025.3.1.90-2531, ",
        ),
        (tools.path(), "2026.1", "ok", "Nsight Systems 2026.1, "),
        (tools.path(), "2025.1.2", "warn", "2025.1.2, "),
        (tools.path(), "unknown", "warn", "names no release"),
        (
            nowhere.path(),
            "",
            "warn",
            "no Nsight Systems, which profile runs",
        ),
    ] {
        let mut command = command(&["doctor"]);
        command.env("PATH", path).env("RELEASE", release);
        command.env("CUDA_HOME", path);
        let ended = end(&mut command, "");
        let lines: Vec<&str> = ended.stdout.lines().collect();
        for tool in ["nsys", "ncu"] {
            let at = lines
                .iter()
                .position(|line| line.split_whitespace().nth(1) == Some(tool));
            let at = at.unwrap_or_else(|| panic!("no {tool} in {}", ended.stdout));
            assert!(lines[at].starts_with(status), "{}", lines[at]);
            if tool == "nsys" {
                assert!(lines[at].contains(told), "{}", lines[at]);
            }
            if status == "warn" {
                assert!(
                    lines[at + 1].contains("2025.3 or newer"),
                    "{}",
                    lines[at + 1]
                );
            }
        }
    }
}

#[test]
fn systems_takes_other_ranges() {
    let tools = tools(0, "echo summary of $*");
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
    let ended = profile(
        tools.path(),
        &["--overwrite", "--range", "all", "--", "true"],
    );
    let told = lines(&ended);
    assert!(!told.iter().any(|option| option.contains("capture-range")));
    assert_eq!(told.last(), Some(&"true"));
}

#[test]
fn compute_looks_into_one_step() {
    let tools = tools(0, "echo summary of $*");
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
        "--export",
        "c",
    ];
    assert_eq!(told[..options.len()], options);
}

/// Nsight Compute finds a step by the range that a host opens around it.
#[test]
fn a_step_without_a_range_is_refused() {
    let tools = tools(0, ":");
    for (command, code) in [
        (&["generate", "--launch=host-kernels"][..], 0),
        (&["generate", "--launch", "device-graph"], 2),
        (&["generate", "--launch=device-graph"], 2),
        (&["generate", "--launch"], 2),
        (&["generate", "x"], 2),
        (&["./another", "program"], 0),
    ] {
        let ended = profile(
            tools.path(),
            &[&["--overwrite", "--tool", "compute", "--"], command].concat(),
        );
        assert_eq!(ended.code, code, "{command:?}: {}", ended.stderr);
        let told = ended.stderr.contains("expected --launch host-graph");
        assert_eq!(told, code == 2, "{}", ended.stderr);
    }
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
    let failing = tools(7, ":");
    let ended = profile(failing.path(), &["--", "true"]);
    assert_eq!(ended.code, 1);
    assert!(ended.stderr.contains("exit status: 7"), "{}", ended.stderr);
    let ended = profile(failing.path(), &["--print"]);
    assert_eq!(ended.code, 2, "no command: {}", ended.stderr);
}
