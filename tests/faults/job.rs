//! A command over a small input, in a folder of its own.

use crate::common::program::command;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

pub const ROWS: usize = 24;
/// What stands under the name of the output before the run.
pub const BEFORE: &str = "of an earlier run\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Generate,
    /// `generate --record`: the recording is what is looked at, and the answers.
    Record,
    /// Logits in any order,
    Score,
    /// ... and rows of logprobs.
    Logprobs,
}

pub const KINDS: [Kind; 4] = [Kind::Generate, Kind::Record, Kind::Score, Kind::Logprobs];

pub struct Job {
    pub kind: Kind,
    folder: tempfile::TempDir,
}

impl Job {
    pub fn new(kind: Kind) -> Self {
        let job = Self {
            kind,
            folder: tempfile::tempdir().unwrap(),
        };
        std::fs::write(job.input(), job.rows()).unwrap();
        for output in job.outputs() {
            std::fs::write(output, BEFORE).unwrap();
        }
        job
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn input(&self) -> PathBuf {
        self.path("rows.jsonl")
    }

    pub fn output(&self) -> PathBuf {
        match self.kind {
            Kind::Score => self.path("out.safetensors"),
            _ => self.path("out.jsonl"),
        }
    }

    fn record(&self) -> PathBuf {
        self.path("run.record")
    }

    /// All that it writes.
    pub fn outputs(&self) -> Vec<PathBuf> {
        match self.kind {
            Kind::Record => vec![self.output(), self.record()],
            _ => vec![self.output()],
        }
    }

    /// Of many lengths, some sampled; without ids, so that places count.
    pub fn rows(&self) -> String {
        let row = |i: usize| match self.kind {
            Kind::Generate | Kind::Record => format!(
                "{{\"prompt\":\"row {i}\",\"max_new_tokens\":{},\"temperature\":{}}}\n",
                2 + i * 5 % 14,
                i % 2
            ),
            Kind::Score | Kind::Logprobs => {
                format!("{{\"input_ids\":[{},9,80,{}]}}\n", 8 + i, 20 + i)
            }
        };
        (0..ROWS).map(row).collect()
    }

    /// The command, quiet, with `more` arguments.
    pub fn command(&self, more: &[&str]) -> Command {
        self.command_to(&self.output(), more)
    }

    pub fn command_to(&self, output: &Path, more: &[&str]) -> Command {
        let mut command = command(&[
            match self.kind {
                Kind::Generate | Kind::Record => "generate",
                Kind::Score | Kind::Logprobs => "score",
            },
            "--device",
            "cpu",
            "--model",
            "random:tiny",
            "-q",
            "--max-seqs",
            "4",
        ]);
        command
            .arg("--input")
            .arg(self.input())
            .arg("--output")
            .arg(output);
        match self.kind {
            Kind::Record => drop(command.arg("--record").arg(self.record())),
            Kind::Logprobs => drop(command.arg("--logprobs")),
            Kind::Generate | Kind::Score => {}
        }
        // The threads of many runs at once would only be in each other's way.
        command.env("RAYON_NUM_THREADS", "1");
        command
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command.stderr(Stdio::piped());
        command
    }

    /// Each output is what it was, or whole.
    pub fn check(&self, what: &str) {
        for output in self.outputs() {
            let found =
                std::fs::read(&output).unwrap_or_else(|e| panic!("{what}: {output:?}: {e}"));
            assert!(
                found == BEFORE.as_bytes() || self.is_whole(&output, &found),
                "{what}: {output:?} is neither what it was nor whole"
            );
        }
    }

    pub fn is_done(&self) -> bool {
        let done = |output: &PathBuf| self.is_whole(output, &std::fs::read(output).unwrap());
        self.outputs().iter().all(done)
    }

    fn is_whole(&self, output: &Path, found: &[u8]) -> bool {
        if output == self.record() {
            // A schedule is another each time; its last line says that it is all there.
            return found.ends_with(b"}}\n")
                && lines(found).last().is_some_and(|l| l["done"].is_object());
        }
        let expected = undisturbed(self.kind);
        match self.kind {
            Kind::Score => found == expected,
            _ => answers(found) == answers(expected),
        }
    }

    /// What else is in the folder.
    pub fn leftovers(&self) -> Vec<String> {
        let known = self.outputs().into_iter().chain([self.input()]);
        let known: Vec<PathBuf> = known.collect();
        let entries = std::fs::read_dir(self.folder.path()).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        let others = paths.filter(|path| !known.contains(path) && !path.is_symlink());
        others.map(|path| path.display().to_string()).collect()
    }
}

fn lines(text: &[u8]) -> Vec<Value> {
    let lines = text
        .split(|&byte| byte == b'\n')
        .filter(|line| !line.is_empty());
    lines
        .map(|line| serde_json::from_slice(line).unwrap_or_default())
        .collect()
}

/// Without what may differ between two runs.
fn answers(text: &[u8]) -> Vec<Value> {
    let mut lines = lines(text);
    for line in &mut lines {
        if let Some(fields) = line.as_object_mut() {
            fields.remove("timing");
        }
    }
    lines
}

/// What the command writes when nothing happens.
fn undisturbed(kind: Kind) -> &'static [u8] {
    static GENERATED: OnceLock<Vec<u8>> = OnceLock::new();
    static SCORED: OnceLock<Vec<u8>> = OnceLock::new();
    static LOGPROBS: OnceLock<Vec<u8>> = OnceLock::new();
    let (kind, cell) = match kind {
        Kind::Generate | Kind::Record => (Kind::Generate, &GENERATED),
        Kind::Score => (kind, &SCORED),
        Kind::Logprobs => (kind, &LOGPROBS),
    };
    cell.get_or_init(|| {
        let job = Job::new(kind);
        let ended = job.command(&[]).output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        std::fs::read(job.output()).unwrap()
    })
}
