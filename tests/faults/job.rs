//! A command over a small input, in a folder of its own.

use crate::common::fixtures::fixture;
use crate::common::program::command;
use crate::common::rows::{read_text, text, without_timing};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock};

pub const ROWS: usize = 24;
/// What stands under the name of the output before the run.
pub const BEFORE: &str = "of an earlier run\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Generate,
    /// Answers in a compressed file, and one of rows in error, of which there are none.
    Packed,
    /// `generate --record`: the recording is what is looked at, and the answers.
    Record,
    /// Logits in any order.
    Score,
    /// Rows of logprobs.
    Logprobs,
    /// `trace` of a job, with its answers.
    Trace,
    /// `trace` of a recording.
    From,
    Bench,
    /// A page and a picture.
    Report,
    /// A folder.
    Synth,
}

/// Each with how many turns of every trouble it gets: where rows are at stake, many.
pub const KINDS: [(Kind, usize); 10] = [
    (Kind::Generate, 6),
    (Kind::Packed, 4),
    (Kind::Record, 6),
    (Kind::Score, 6),
    (Kind::Logprobs, 6),
    (Kind::Trace, 2),
    (Kind::From, 2),
    (Kind::Bench, 2),
    (Kind::Report, 2),
    (Kind::Synth, 2),
];

impl Kind {
    /// Its rows are kept in a journal.
    pub fn has_journal(self) -> bool {
        matches!(
            self,
            Self::Generate | Self::Packed | Self::Record | Self::Trace
        )
    }

    /// Calls that change a file in an undisturbed run, about.
    pub fn calls(self) -> u64 {
        match self {
            Self::From | Self::Bench => 8,
            Self::Report => 14,
            Self::Synth => 140,
            _ => 50,
        }
    }

    /// Bytes of the largest file, about.
    pub fn bytes(self) -> u64 {
        match self {
            Self::Bench => 6_000,
            Self::Report => 25_000,
            _ => 60_000,
        }
    }
}

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
        job.write_input();
        for output in job.outputs() {
            match kind {
                Kind::Synth => std::fs::create_dir(output).unwrap(),
                _ => std::fs::write(output, BEFORE).unwrap(),
            }
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
        self.path(match self.kind {
            Kind::Score => "out.safetensors",
            Kind::Trace | Kind::From | Kind::Bench => "out.json",
            Kind::Report => "out.html",
            Kind::Synth => "model",
            Kind::Packed => "out.jsonl.zst",
            _ => "out.jsonl",
        })
    }

    pub fn journal(&self) -> PathBuf {
        match self.kind {
            Kind::Packed => self.path("out.jsonl.zst.partial"),
            _ => self.path("out.jsonl.partial"),
        }
    }

    /// The journal has one.
    pub fn has_rows(&self) -> bool {
        let journal = std::fs::read(self.journal()).unwrap_or_default();
        journal.iter().filter(|&&byte| byte == b'\n').count() > 1
    }

    fn record(&self) -> PathBuf {
        self.path("run.record")
    }

    /// All that it writes.
    pub fn outputs(&self) -> Vec<PathBuf> {
        match self.kind {
            Kind::Record => vec![self.output(), self.record()],
            Kind::Packed => vec![self.output(), self.path("errors")],
            Kind::Trace => vec![self.output(), self.path("out.jsonl")],
            Kind::Report => vec![self.output(), self.path("out.svg")],
            _ => vec![self.output()],
        }
    }

    pub fn write_input(&self) {
        let written = match self.kind {
            Kind::From => made("run.record", &["generate", "-q", "--record"], &["a prompt"]),
            Kind::Report => {
                let bench = [
                    "bench", "-q", "-p4", "-n4", "-b1", "-r1", "--format", "json",
                ];
                made("bench.json", &[&bench[..], &["-o"]].concat(), &[])
            }
            Kind::Synth => std::fs::read(fixture("goldens/lfm2moe-tiny-a/config.json")).unwrap(),
            Kind::Bench => b"[buckets]\ndecode = [1, 4]\n".to_vec(),
            _ => self.rows().into_bytes(),
        };
        std::fs::write(self.input(), written).unwrap();
    }

    /// Rows of many lengths, some sampled; without ids, so that places count.
    fn rows(&self) -> String {
        let row = |i: usize| match self.kind {
            Kind::Score | Kind::Logprobs => {
                format!("{{\"input_ids\":[{},9,80,{}]}}\n", 8 + i, 20 + i)
            }
            _ => format!(
                "{{\"prompt\":\"row {i}\",\"max_new_tokens\":{},\"temperature\":{}}}\n",
                2 + i * 5 % 14,
                i % 2
            ),
        };
        (0..ROWS).map(row).collect()
    }

    /// The command, quiet, with `more` arguments.
    pub fn command(&self, more: &[&str]) -> Command {
        self.command_to(&self.output(), more)
    }

    pub fn command_to(&self, output: &Path, more: &[&str]) -> Command {
        let (input, record) = (self.input(), self.record());
        let (answers, svg) = (self.path("out.jsonl"), self.path("out.svg"));
        let errors = self.path("errors");
        let (input, record) = (text(&input), text(&record));
        let preset = format!("random:{input}");
        let model = ["--model", "random:tiny", "--device", "cpu", "-q"];
        let few = ["--max-seqs", "4"];
        let args: &[&[&str]] = match self.kind {
            Kind::Generate => &[&["generate", "-i", input], &model, &few],
            Kind::Packed => &[
                &["generate", "-i", input, "--errors", text(&errors)],
                &model,
                &few,
            ],
            Kind::Record => &[&["generate", "-i", input, "--record", record], &model, &few],
            Kind::Score => &[&["score", "-i", input], &model, &few],
            Kind::Logprobs => &[&["score", "--logprobs", "-i", input], &model, &few],
            Kind::Trace => {
                let answers = ["--answers", text(&answers)];
                return self.quiet(
                    &[&["trace", "-i", input], &answers, &model, &few],
                    output,
                    more,
                );
            }
            Kind::From => &[&["trace", "-q", "--from", input]],
            Kind::Bench => {
                let size = ["-b4", "-n8", "-r2", "--warm-up", "0", "--format", "json"];
                return self.quiet(
                    &[&["bench", "--bucket-file", input], &size, &model],
                    output,
                    more,
                );
            }
            Kind::Report => &[&["report", input, "--svg", text(&svg)]],
            Kind::Synth => &[&["synth", "-q", "--model", &preset]],
        };
        self.quiet(args, output, more)
    }

    fn quiet(&self, args: &[&[&str]], output: &Path, more: &[&str]) -> Command {
        let mut command = command(&args.concat());
        // The threads of many runs at once would only be in each other's way.
        command.env("RAYON_NUM_THREADS", "1");
        command.arg("--output").arg(output).args(more);
        let rows = self.kind.has_journal() || matches!(self.kind, Kind::Score | Kind::Logprobs);
        if rows && !more.contains(&"--resume") {
            command.arg("--overwrite");
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::piped());
        command
    }

    /// Each output is what it was, or whole.
    pub fn check(&self, what: &str) {
        for output in self.outputs() {
            assert!(
                self.is_untouched(&output) || self.is_whole(&output),
                "{what}: {output:?} is neither what it was nor whole"
            );
        }
    }

    pub fn is_done(&self) -> bool {
        self.outputs().iter().all(|output| self.is_whole(output))
    }

    pub fn is_untouched(&self, output: &Path) -> bool {
        match self.kind {
            // A folder is no model as long as it has none.
            Kind::Synth => !output.join("config.json").exists(),
            _ => std::fs::read(output).unwrap() == BEFORE.as_bytes(),
        }
    }

    fn is_whole(&self, output: &Path) -> bool {
        if self.kind == Kind::Synth {
            return files(output) == *synthesized();
        }
        let found = std::fs::read(output).unwrap();
        match output.file_name().and_then(|name| name.to_str()) {
            // A schedule is another each time; its last line says that it is all there.
            Some("run.record") => {
                found.ends_with(b"}}\n")
                    && lines(&found).last().is_some_and(|l| l["done"].is_object())
            }
            // So are times.
            Some("out.json") => serde_json::from_slice::<Value>(&found).is_ok(),
            Some("out.html") => found.trim_ascii_end().ends_with(b"</html>"),
            Some("out.svg") => found.trim_ascii_end().ends_with(b"</svg>"),
            Some("out.safetensors") => found == undisturbed(self.kind),
            Some("errors") => found.is_empty(),
            Some("out.jsonl.zst") => {
                let text = read_text(output);
                answers(text.as_bytes()) == answers(undisturbed(self.kind))
            }
            _ => answers(&found) == answers(undisturbed(self.kind)),
        }
    }

    /// What else is in the folder.
    pub fn leftovers(&self) -> Vec<String> {
        let records = ["out.jsonl.job.json", "out.jsonl.zst.job.json"].map(|name| self.path(name));
        let known = self
            .outputs()
            .into_iter()
            .chain(records)
            .chain([self.input()]);
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
    lines(text).into_iter().map(without_timing).collect()
}

/// What the command writes when nothing happens.
fn undisturbed(kind: Kind) -> &'static [u8] {
    static GENERATED: OnceLock<Vec<u8>> = OnceLock::new();
    static SCORED: OnceLock<Vec<u8>> = OnceLock::new();
    static LOGPROBS: OnceLock<Vec<u8>> = OnceLock::new();
    let (kind, cell) = match kind {
        Kind::Score => (kind, &SCORED),
        Kind::Logprobs => (kind, &LOGPROBS),
        _ => (Kind::Generate, &GENERATED),
    };
    cell.get_or_init(|| {
        let job = Job::new(kind);
        let ended = job.command(&[]).output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        std::fs::read(job.output()).unwrap()
    })
}

/// The files of a folder, by name.
fn files(folder: &Path) -> BTreeMap<OsString, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap();
    let entries = entries.map(|entry| entry.unwrap());
    entries
        .map(|entry| (entry.file_name(), std::fs::read(entry.path()).unwrap()))
        .collect()
}

fn synthesized() -> &'static BTreeMap<OsString, Vec<u8>> {
    static MADE: OnceLock<BTreeMap<OsString, Vec<u8>>> = OnceLock::new();
    MADE.get_or_init(|| {
        let job = Job::new(Kind::Synth);
        let ended = job.command(&[]).output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        files(&job.output())
    })
}

/// What `before`, the file `name` and `after` write there, made once for all.
fn made(name: &str, before: &[&str], after: &[&str]) -> Vec<u8> {
    static MADE: Mutex<BTreeMap<String, Vec<u8>>> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock().unwrap();
    let make = || {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(name);
        let model = ["--model", "random:tiny", "--device", "cpu"];
        let args = [before, &[text(&file)], after, &model].concat();
        let ended = command(&args).output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        std::fs::read(&file).unwrap()
    };
    made.entry(name.to_owned()).or_insert_with(make).clone()
}
