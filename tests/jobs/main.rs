//! Shards of a job under engines that people run, as profiles/jobs has them: with a worker killed in the middle, the merged
//! file is that of one run.

#[path = "../common/mod.rs"]
mod common;
mod image;
mod kubernetes;
mod ray;
mod slurm;

use common::program::{binary, run};
use common::rows::{rows_without_timing, text};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const MODEL: &str = "random:tiny";
const SHARDS: usize = 2;
/// Few at once: rows come one after the other, so that there is a middle.
const OPTIONS: [&str; 2] = ["--max-seqs", "2"];
/// Longer than any wait here takes, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(240);

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("profiles/jobs")
        .join(name)
}

/// Rows in a folder that all workers share.
struct Job {
    dir: TempDir,
    rows: usize,
}

impl Job {
    fn new(rows: usize) -> Self {
        let job = Self {
            dir: tempfile::tempdir().unwrap(),
            rows,
        };
        let row = |i| {
            json!({"prompt": format!("row {i}"), "max_new_tokens": 40, "temperature": 1})
                .to_string()
                + "\n"
        };
        std::fs::write(job.input(), (0..rows).map(row).collect::<String>()).unwrap();
        job
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn input(&self) -> PathBuf {
        self.at("rows.jsonl")
    }

    fn output(&self) -> PathBuf {
        self.at("answers.jsonl")
    }

    fn shard(&self, index: usize) -> PathBuf {
        self.at(&format!("answers.{index}.jsonl"))
    }

    /// Waits until shard `index` is in the middle, and finds the process that runs it.
    fn in_the_middle(&self, index: usize) -> i32 {
        let journal = self.at(&format!("answers.{index}.jsonl.partial"));
        wait_for("a shard in the middle", || {
            let rows = std::fs::read_to_string(&journal).ok()?.lines().count();
            assert!(!self.shard(index).exists(), "the shard ended too soon");
            (rows > 3).then(|| process(&self.shard(index)))?
        })
    }

    /// The merged file is that of one run, and a run went on from what another left.
    fn is_that_of_one_run(&self, log: &str) {
        let single = self.at("single.jsonl");
        let arguments = ["generate", "--quiet", "--model", MODEL, "--input"];
        run(&[
            &arguments[..],
            &[text(&self.input()), "--output", text(&single)],
            &OPTIONS,
        ]
        .concat())
        .good();
        let merged = rows_without_timing(&self.output());
        assert_eq!(merged.len(), self.rows);
        assert_eq!(merged, rows_without_timing(&single));
        assert!(log.contains("kept from an earlier run"), "{log}");
    }
}

/// The process that is `tailgraph` with `output` on its command line.
fn process(output: &Path) -> Option<i32> {
    let mut processes = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    processes.find(|process| {
        let line = std::fs::read_to_string(format!("/proc/{process}/cmdline")).unwrap_or_default();
        let words: Vec<&str> = line.split('\0').collect();
        words[0] == text(&binary()) && words.contains(&text(output))
    })
}

fn kill(process: i32) {
    // SAFETY: sends a signal and touches no memory.
    assert_eq!(unsafe { libc::kill(process, libc::SIGKILL) }, 0);
}

/// Asks again and again, until there is something.
fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
