//! Running the binary.

use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailgraph"));
    command.args(args);
    command
}

/// How a finished command ended.
pub struct Ended {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    pub fn of(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    pub fn rows(&self) -> Vec<Value> {
        rows(&self.stdout)
    }

    /// It failed with `code`, and said so; `what` was run.
    pub fn fails(&self, what: &impl std::fmt::Debug, code: i32, expected: &str) {
        assert_eq!(self.code, code, "{what:?}: {}", self.stderr);
        assert!(self.stderr.contains(expected), "{what:?}: {}", self.stderr);
    }
}

pub fn run(args: &[&str]) -> Ended {
    run_with_input(args, "")
}

pub fn run_with_input(args: &[&str], input: &str) -> Ended {
    let mut child = command(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    // A command that does not read its input closes it: that is no failure of the test.
    let writer = std::thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    Ended::of(output)
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Rows of mixed lengths, some of which end by a stop id; `more` adds to each by its number.
pub fn mixed_input(more: impl Fn(u32, &mut Value)) -> String {
    let row = |i: u32| {
        let ids: Vec<u32> = (0..1 + i * 29 % 90)
            .map(|j| 8 + (i * 37 + j * 11) % 250)
            .collect();
        let mut row = json!({"id": i, "input_ids": ids, "max_new_tokens": 1 + i * 7 % 30});
        more(i, &mut row);
        if i.is_multiple_of(5) {
            row["stop_ids"] = json!((0..16).map(|j| 8 + (i + j * 16) % 250).collect::<Vec<_>>());
        }
        row.to_string() + "\n"
    };
    (0..24).map(row).collect()
}

pub fn rows(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect()
}

/// The rows of a file, without what may differ between two runs.
pub fn rows_without_timing(path: &Path) -> Vec<Value> {
    let mut rows = rows(&std::fs::read_to_string(path).unwrap());
    for row in &mut rows {
        if let Some(fields) = row.as_object_mut() {
            fields.remove("timing");
        }
    }
    rows
}

/// The committed checkpoint with what transformers computes with it.
pub fn golden(name: &str) -> String {
    format!(
        "{}/tests/fixtures/goldens/lfm2moe-tiny-{name}",
        env!("CARGO_MANIFEST_DIR")
    )
}
