//! The binary over the test's driver.

use crate::common::compile::shared_library;
use crate::common::program::{self, Ended};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;
use tempfile::TempDir;

/// The ways to launch, as the command line spells them.
pub const WAYS: [&str; 4] = [
    "host-kernels",
    "host-graph",
    "host-graph-ahead",
    "device-graph",
];

/// The arguments that ask for one of [`WAYS`].
pub fn launch(way: &str) -> Vec<&str> {
    ["--launch"].into_iter().chain(way.split(' ')).collect()
}

/// Where the host waits for the samples of step 4: each step copies them once. Start-up waits too, more often in one way
/// than in another, so waits are not counted.
pub const WAIT: &str = "cuStreamSynchronize:cuMemcpyDtoHAsync_v2+5";

/// The folder of the driver, compiled once; it goes with the process's temporary files.
static DRIVER: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let sources = ["driver", "graphs", "device", "order"]
        .map(|name| format!("tests/gpu_failures/driver/{name}.c"));
    let flags = [
        "-std=gnu11",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-lpthread",
    ];
    shared_library(
        &folder.path().join("libcuda.so"),
        &sources.each_ref().map(String::as_str),
        &flags,
    );
    let over = format!("-L{}", folder.path().display());
    shared_library(
        &folder.path().join("libnccl.so.2"),
        &["tests/gpu_failures/driver/nccl.c"],
        &[&flags[..], &[&over, "-lcuda"]].concat(),
    );
    folder
});

/// The folder that libcuda.so is found in.
pub fn driver() -> &'static Path {
    DRIVER.path()
}

/// A command of the binary and what its driver is told (driver/driver.h).
pub struct Run(Command);

impl Run {
    pub fn new(arguments: &[&str]) -> Self {
        Self(program::command(arguments)).over(driver())
    }

    /// `generate` of the tiny model on the GPU, one sequence at a time.
    pub fn generate(way: &str) -> Self {
        let model = ["generate", "--model", "random:tiny", "--device", "cuda"];
        let sizes = ["--max-seqs", "1", "--step-tokens", "512"];
        let run = Self::new(&model).and(&launch(way)).and(&sizes);
        run.and(&["--max-new-tokens", "3", "--quiet"])
    }

    pub fn and(mut self, arguments: &[&str]) -> Self {
        self.0.args(arguments);
        self
    }

    /// TEST_CUDA_`name`
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.0.env(format!("TEST_CUDA_{name}"), value.to_string());
        self
    }

    /// Another folder to find libcuda.so in.
    pub fn over(mut self, driver: &Path) -> Self {
        self.0.env("LD_LIBRARY_PATH", driver);
        self
    }

    pub fn command(self) -> Command {
        self.0
    }

    pub fn end(mut self) -> Ended {
        program::end(&mut self.0, "")
    }

    /// Over `rows` prompts in JSON lines; the answers besides.
    pub fn over_rows(self, rows: usize) -> (Ended, Vec<Value>) {
        let folder = tempfile::tempdir().unwrap();
        let input = folder.path().join("in.jsonl").to_str().unwrap().to_owned();
        std::fs::write(&input, (0..rows).map(line).collect::<String>()).unwrap();
        // A file would have no rows in it until all are done.
        let ended = self.and(&["--input", &input]).end();
        let answers = ended.rows();
        (ended, answers)
    }

    /// Over such rows without end, so that each of several GPUs has some, however slow it is beside the others: only a failure
    /// ends this.
    pub fn over_endless_rows(mut self) -> (Ended, Vec<Value>) {
        let ended = program::end_endless(&mut self.0, line);
        let answers = ended.rows();
        (ended, answers)
    }
}

/// What `row` asks for.
fn line(row: usize) -> String {
    format!("{{\"id\":\"{row}\",\"prompt\":\"ab\"}}\n")
}

/// Asserts that the first `served` rows have three tokens each, and that all others that have an answer, which is at
/// least the next, have errors that hold all parts. Rows that had not been read when the run failed have none.
pub fn assert_served(answers: &[Value], rows: usize, served: usize, parts: &[&str]) {
    let answered = (served + 1).min(rows)..=rows;
    assert!(answered.contains(&answers.len()), "{answers:?}");
    for (row, answer) in answers.iter().enumerate() {
        assert_eq!(answer["id"], row.to_string());
        if row < served {
            assert_eq!(answer["text"], "AAA", "{answer}");
            assert_eq!(answer["finish_reason"], "length", "{answer}");
            continue;
        }
        assert_eq!(answer["error"]["code"], "device", "{answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        for part in parts {
            assert!(message.contains(part), "{message} lacks {part}");
        }
    }
}

/// Asserts that a run has failed, with an error that holds all parts: some rows have it too, and all others, at least `served`, are
/// served.
pub fn fails((ended, answers): &(Ended, Vec<Value>), served: usize, parts: &[&str]) {
    ended.fails_in_a_line(1, parts);
    let failed = |answer: &&Value| answer["error"]["code"] == "device";
    let (failed, done): (Vec<_>, Vec<_>) = answers.iter().partition(failed);
    assert!(!failed.is_empty() && done.len() >= served, "{answers:?}");
    for answer in done {
        assert_eq!(answer["text"], "AAA", "{answer}");
    }
    for answer in failed {
        let message = answer["error"]["message"].as_str().unwrap();
        for part in parts {
            assert!(message.contains(part), "{message} lacks {part}");
        }
    }
}
