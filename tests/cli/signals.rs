//! Signals, and what else ends a job or keeps it from beginning.

use crate::common::program::{
    Ended, binary, command, end, hearing, make_pipe, run, run_with_input, send,
};
use crate::common::rows::text;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Many more rows than are served before what a test does.
pub fn many_rows(folder: &Path) -> String {
    let rows: String = (0..20_000)
        .map(|i| format!("{{\"id\":{i},\"prompt\":\"row {i}\",\"max_new_tokens\":24}}\n"))
        .collect();
    let path = folder.join("rows.jsonl");
    std::fs::write(&path, rows).unwrap();
    text(&path).to_owned()
}

pub fn generate(more: &[&str]) -> Command {
    command(
        &[
            &[
                "generate",
                "--device",
                "cpu",
                "--model",
                "random:tiny",
                "-q",
            ],
            more,
        ]
        .concat(),
    )
}

/// `script` with the binary as its `$0` and `args` as its arguments.
pub fn shell(script: &str, args: &[&str]) -> Command {
    let mut command = hearing("sh");
    command.args(["-c", script]).arg(binary()).args(args);
    command
}

pub const GENERATE: &str = "exec \"$0\" generate --device cpu --model random:tiny -q \"$@\"";

pub fn wait_for(what: &str, mut there: impl FnMut() -> bool) {
    let start = Instant::now();
    while !there() {
        assert!(start.elapsed() < Duration::from_secs(120), "no {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn is_not_empty(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.len() > 0)
}

#[test]
fn each_signal_has_its_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let input = many_rows(folder.path());
    for (signal, code) in [("-INT", 130), ("-HUP", 129), ("-TERM", 143)] {
        let output = folder.path().join(signal);
        let mut child = generate(&["-i", &input, "-o", text(&output)]);
        let child = child.stderr(Stdio::piped()).spawn().unwrap();
        let partial = folder.path().join(format!("{signal}.partial"));
        wait_for("rows", || is_not_empty(&partial));
        send(&child, signal);
        let ended = Ended::of(child.wait_with_output().unwrap());
        ended.fails(code, &["--resume goes on"]);
        assert!(!output.exists() && partial.exists());
    }
}

/// A pipe that nobody reads is waited for, before there is a run that could end in order.
#[test]
fn a_signal_before_the_run_ends_it_at_once_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    make_pipe(&pipe);
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let output = folder.path().join("out");
        let files = ["-o", text(&output), "--record", text(&pipe), "x"];
        let mut child = generate(&files).spawn().unwrap();
        let partial = folder.path().join("out.partial");
        wait_for("claim", || partial.exists());
        send(&child, signal);
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert!(!partial.exists() && !output.exists());
    }
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    make_pipe(&pipe);
    let input = many_rows(folder.path());
    let mut child = generate(&["-i", &input, "-o", text(&pipe)])
        .spawn()
        .unwrap();
    // Somebody who opens the pipe and reads nothing more: the run gets stuck in writing.
    let mut reader = std::fs::File::open(&pipe).unwrap();
    reader.read_exact(&mut [0]).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    for _ in 0..2 {
        send(&child, "-INT");
        std::thread::sleep(Duration::from_millis(100));
    }
    let start = Instant::now();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(start.elapsed() < Duration::from_secs(20));
    drop(reader);
}

/// `nohup` starts a program so, and so does a shell what it starts in the background.
#[test]
fn what_was_ignored_stays_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let input = many_rows(folder.path());
    let output = folder.path().join("out");
    let partial = folder.path().join("out.partial");
    let script = format!("trap '' HUP INT; {GENERATE}");
    let mut child = shell(&script, &["-i", &input, "-o", text(&output)]);
    let mut child = child.stderr(Stdio::null()).spawn().unwrap();
    wait_for("rows", || is_not_empty(&partial));
    for signal in ["-HUP", "-INT"] {
        send(&child, signal);
        send(&child, signal);
    }
    let before = partial.metadata().unwrap().len();
    wait_for("more rows", || partial.metadata().unwrap().len() > before);
    assert!(child.try_wait().unwrap().is_none());
    send(&child, "-TERM");
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

#[test]
fn a_file_that_outgrows_its_limit_is_an_error_like_any_other() {
    let folder = tempfile::tempdir().unwrap();
    let input = many_rows(folder.path());
    let output = folder.path().join("out");
    std::fs::write(&output, "before").unwrap();
    let script = format!("ulimit -f 16; {GENERATE}");
    let mut limited = shell(&script, &["-i", &input, "-o", text(&output), "--overwrite"]);
    end(&mut limited, "").fails(1, &["out.partial: File too large"]);
    assert_eq!(std::fs::read_to_string(&output).unwrap(), "before");
    assert!(is_not_empty(&folder.path().join("out.partial")));
}

#[test]
fn an_input_that_is_shortened_is_no_end_of_the_job() {
    let folder = tempfile::tempdir().unwrap();
    let input = many_rows(folder.path());
    let output = folder.path().join("out");
    let partial = folder.path().join("out.partial");
    let child = generate(&["-i", &input, "-o", text(&output)])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for("rows", || is_not_empty(&partial));
    std::fs::write(&input, "").unwrap();
    let ended = Ended::of(child.wait_with_output().unwrap());
    ended.fails(1, &["it was shortened while it was read"]);
    assert!(!output.exists() && partial.exists());
}

#[test]
fn two_runs_of_one_output_are_one_too_many() {
    let folder = tempfile::tempdir().unwrap();
    let input = many_rows(folder.path());
    let (output, link) = (folder.path().join("out"), folder.path().join("link"));
    std::os::unix::fs::symlink("out", &link).unwrap();
    let partial = folder.path().join("out.partial");
    let mut first = generate(&["-i", &input, "-o", text(&output)])
        .spawn()
        .unwrap();
    wait_for("rows", || is_not_empty(&partial));
    for more in [&[][..], &["--resume"], &["--overwrite"]] {
        let mut second = generate(&[&["-o", text(&link), "x"], more].concat());
        end(&mut second, "").fails(1, &["another run is writing it"]);
    }
    let score = [
        "score",
        "--model",
        "random:tiny",
        "--logprobs",
        "-i",
        &input,
        "-o",
        text(&link),
    ];
    run(&score).fails(1, &["another run is writing it"]);
    let report = run(&["report", text(&partial), "-o", text(&link)]);
    report.fails(2, &["is written by way of"]);
    assert!(first.try_wait().unwrap().is_none());
    first.kill().unwrap();
    first.wait().unwrap();
    // Nor does another command write over the rows.
    run(&score).fails(1, &["found rows of an unfinished job"]);
}

#[test]
fn a_resumed_run_with_nothing_to_do_leaves_the_recording_of_the_run_before() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (out, record) = (at("out"), at("run"));
    for (device, names) in [("cpu", &["run"][..]), ("cpu:0,1", &["run.0", "run.1"])] {
        let go = |more: &[&str]| {
            let args = [
                "generate",
                "--model",
                "random:tiny",
                "-q",
                "--device",
                device,
            ];
            let files = ["-o", text(&out), "--record", text(&record)];
            run(&[&args[..], &files, more, &["one prompt", "and another"]].concat())
        };
        assert_eq!(go(&["--overwrite"]).code, 0);
        let of_run = |name: &&str| std::fs::read_to_string(at(name)).unwrap();
        let before: Vec<_> = names.iter().map(of_run).collect();
        let ended = go(&["--resume"]);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        assert!(
            ended.stderr.contains("what --record wrote before stays"),
            "{}",
            ended.stderr
        );
        assert_eq!(names.iter().map(of_run).collect::<Vec<_>>(), before);
        for name in names {
            assert!(!at(&format!("{name}.partial")).exists(), "{name}");
        }
        // What is no recording is not left for one: the run may have been stopped with its last answer, its recording
        // without a name.
        for name in names {
            std::fs::write(at(name), "not a recording\n").unwrap();
        }
        assert_eq!(go(&["--resume"]).code, 0);
        for recording in names.iter().map(of_run) {
            assert!(recording.starts_with("{\"header\""), "{recording}");
            assert!(recording.trim_end().ends_with("}}"), "{recording}");
        }
    }
}

#[test]
fn an_interrupted_recording_stays_under_the_name_of_an_unfinished_one() {
    let folder = tempfile::tempdir().unwrap();
    let input = many_rows(folder.path());
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("run"), "of an earlier run").unwrap();
    let args = [
        "-i",
        &input,
        "-o",
        text(&at("out")),
        "--record",
        text(&at("run")),
    ]
    .map(str::to_owned);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let child = generate(&args).stderr(Stdio::piped()).spawn().unwrap();
    wait_for("rows", || is_not_empty(&at("out.partial")));
    send(&child, "-INT");
    let ended = Ended::of(child.wait_with_output().unwrap());
    ended.fails(
        130,
        &["run.partial, which the next run with --record writes over"],
    );
    assert_eq!(
        std::fs::read_to_string(at("run")).unwrap(),
        "of an earlier run"
    );
    let partial = at("run.partial");
    let partial = text(&partial);
    let replayed = run(&[
        "replay",
        "--record",
        partial,
        "--model",
        "random:tiny",
        "--device",
        "cpu",
    ]);
    assert_eq!(replayed.code, 0, "{} {}", replayed.stdout, replayed.stderr);
    let traced = run(&["trace", "--from", partial, "-o", text(&at("trace.json"))]);
    assert_eq!(traced.code, 0, "{}", traced.stderr);
}

/// Found after the work, it would be too late.
#[test]
fn a_place_that_cannot_be_written_is_refused_before_work_begins() {
    let folder = tempfile::tempdir().unwrap();
    let long = folder.path().join("x".repeat(250));
    let link = folder.path().join("loop");
    std::os::unix::fs::symlink("loop", &link).unwrap();
    let cases = [
        ("/proc/out", "/proc/out"),
        (text(&long), "name too long"),
        (text(&link), "links"),
    ];
    for (output, expected) in cases {
        for flag in ["--output", "--record"] {
            let ended = run_with_input(&["generate", "--model", "random:tiny", flag, output], "");
            assert_eq!(ended.code, 1, "{flag} {output}: {}", ended.stderr);
            let said = ended.stderr.to_lowercase();
            assert!(said.contains(expected), "{flag} {output}: {said}");
        }
    }
}
