//! Pipes whose readers go away, and descriptors that are closed or full.

use crate::common::program::{Ended, command, end, make_pipe};
use crate::common::rows::{rows, text};
use crate::signals::{GENERATE, generate, many_rows, shell};
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

#[test]
fn a_reader_that_goes_away_ends_the_run_by_sigpipe() {
    let folder = tempfile::tempdir().unwrap();
    let input = many_rows(folder.path());
    // The other names are those of the same pipe.
    for output in ["-", "/dev/stdout", "/proc/self/fd/1"] {
        let mut child = generate(&["-i", &input, "-o", output]);
        let mut child = child
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::with_capacity(16, child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert!(line.contains("output_ids"), "{line}");
        let ended = child.wait_with_output().unwrap();
        assert_eq!(
            ended.status.signal(),
            Some(libc::SIGPIPE),
            "{output}: {ended:?}"
        );
        assert_eq!(String::from_utf8_lossy(&ended.stderr), "", "{output}");
    }
}

#[test]
fn a_reader_that_goes_away_is_an_error_where_sigpipe_was_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let input = many_rows(folder.path());
    let script = format!("trap '' PIPE; {GENERATE}");
    let mut child = shell(&script, &["-i", &input]);
    let mut child = child
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let ended = Ended::of(child.wait_with_output().unwrap());
    ended.fails(1, &["standard output: Broken pipe"]);
}

/// Tables and pages end like answers.
#[test]
fn what_is_printed_to_nobody_ends_by_sigpipe() {
    let inspect = ["inspect", "--model", "random:tiny"];
    let commands: [&[&str]; 3] = [&inspect, &["man", "generate"], &["completions", "bash"]];
    for args in commands {
        // Gone before it begins: what is printed would fit a pipe.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut child = command(args);
        let ended = child
            .stdout(writer)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        assert_eq!(
            ended.status.signal(),
            Some(libc::SIGPIPE),
            "{args:?}: {ended:?}"
        );
    }
}

#[test]
fn a_lost_standard_error_loses_messages_only() {
    let rows_of = |command: &mut Command| {
        let ended = command.stdout(Stdio::piped()).output().unwrap();
        assert_eq!(ended.status.code(), Some(0), "{ended:?}");
        assert_eq!(rows(&String::from_utf8_lossy(&ended.stdout)).len(), 1);
    };
    // Not quiet, and with something to warn of.
    let run = "echo '{\"prompt\":\"a\",\"max_new_tokens\":2,\"unknown\":1}' | \"$0\" generate --model random:tiny";
    for closed in ["2>&-", "2>/dev/full"] {
        rows_of(&mut shell(&format!("{run} {closed}"), &[]));
    }
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    rows_of(shell(run, &[]).stderr(writer));
}

#[test]
fn answers_that_cannot_be_written_are_an_error() {
    for (output, expected) in [
        (
            ">&-",
            "standard output: was closed when the program started",
        ),
        (">/dev/full", "standard output: No space left on device"),
        ("1</dev/null", "standard output: is open for reading only"),
        ("-o /dev/fd/9 9>&-", "/dev/fd/9: "),
        (
            "-o /dev/stdout 1</dev/null",
            "/dev/stdout: is open for reading only",
        ),
    ] {
        end(&mut shell(&format!("{GENERATE} x {output}"), &[]), "").fails(1, &[expected]);
    }
    let ended = end(&mut shell(&format!("{GENERATE} <&-"), &[]), "");
    ended.fails(1, &["standard input: was closed when the program started"]);
}

#[test]
fn help_that_cannot_be_written_is_an_error() {
    for asked in ["--help", "--version", "help", "generate --help", "bench -h"] {
        let script = format!("exec \"$0\" {asked} > /dev/full");
        let ended = end(&mut shell(&script, &[]), "");
        ended.fails_in_a_line(1, &["standard output: No space left on device"]);
    }
}

/// Its answers would be its rows, for ever.
#[test]
fn a_pipe_is_not_read_and_written_by_one_run() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    make_pipe(&pipe);
    let other = folder.path().join("other");
    std::os::unix::fs::symlink("pipe", &other).unwrap();
    for run in [
        format!("{GENERATE} -i \"$PIPE\" -o \"$PIPE\""),
        format!("{GENERATE} -i \"$OTHER\" --record \"$PIPE\" -o /dev/null"),
        format!("{GENERATE} -o \"$OTHER\" <> \"$PIPE\""),
        format!("{GENERATE} -i \"$PIPE\" -o /dev/fd/3 3<> \"$PIPE\""),
    ] {
        let mut run = shell(&run, &[]);
        let ended = end(run.env("PIPE", &pipe).env("OTHER", &other), "");
        ended.fails_in_a_line(2, &["found the input file"]);
    }
}

/// Renamed over, a link to an open file would have taken the place of what is open.
#[test]
fn other_names_of_open_files_are_written_to_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let (alias, out) = (folder.path().join("alias"), folder.path().join("out"));
    std::os::unix::fs::symlink("/proc/self/fd/1", &alias).unwrap();
    let input = folder.path().join("in");
    std::fs::write(&input, "{\"prompt\":\"a\",\"max_new_tokens\":2}\n").unwrap();
    for name in [text(&alias), "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        // From where the shell stands in the file.
        let script = format!(
            "{{ echo first; {}; echo last; }} > \"$OUT\"",
            &GENERATE["exec ".len()..]
        );
        let mut run = shell(&script, &["-i", text(&input), "-o", name]);
        let ended = end(run.env("OUT", &out), "");
        assert_eq!(ended.code, 0, "{name}: {}", ended.stderr);
        let written = std::fs::read_to_string(&out).unwrap();
        let lines: Vec<&str> = written.lines().collect();
        assert_eq!(
            (lines[0], lines[2], lines.len()),
            ("first", "last", 3),
            "{name}: {written}"
        );
        assert!(lines[1].contains("output_ids"), "{name}: {written}");
        assert!(alias.is_symlink());
    }
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 3, "{left:?}");
}
