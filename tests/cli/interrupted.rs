//! `generate` killed or interrupted, and run again with `--resume`.

use crate::common::program::{Ended, command, run, send};
use crate::common::rows::rows_without_timing;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const ROWS: usize = 60;
/// Rows of these in error.
const ERRORS: usize = 6;

struct Job {
    dir: tempfile::TempDir,
}

impl Job {
    /// Rows of many lengths, some in error, some sampled.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let input: String = (0..ROWS)
            .map(|i| match i % 20 {
                7 => "broken\n".to_owned(),
                13 => "{\"id\":\"r0\",\"prompt\":\"a second r0\"}\n".to_owned(),
                _ => format!(
                    "{{\"id\":\"r{i}\",\"prompt\":\"row {i}\",\"max_new_tokens\":{},\"temperature\":{}}}\n",
                    5 + i * 13 % 40,
                    i % 2
                ),
            })
            .collect();
        std::fs::write(dir.path().join("input"), input).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn args(&self, output: &str, resume: bool) -> Vec<String> {
        let path = |name: &str| self.path(name).to_str().unwrap().to_owned();
        let mut args: Vec<String> = [
            "generate",
            "--model",
            "random:tiny",
            "--max-seqs",
            "4",
            "--input",
        ]
        .map(str::to_owned)
        .to_vec();
        args.extend([path("input"), "--output".to_owned(), path(output)]);
        if resume {
            args.push("--resume".to_owned());
        }
        args
    }

    fn spawn(&self, output: &str, more: &[&str]) -> Child {
        let args = self.args(output, false);
        let args = args.iter().map(String::as_str).chain(more.iter().copied());
        command(&args.collect::<Vec<_>>())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// A run to "out" that is killed when its journal has more than `lines` lines.
    fn begin_and_kill(&self, lines: usize) {
        let mut child = self.spawn("out", &[]);
        wait_for_lines(&self.path("out.partial"), lines, &mut child);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn run(&self, output: &str, resume: bool) -> Ended {
        let args = self.args(output, resume);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        run(&args)
    }
}

fn count_lines(path: &Path) -> usize {
    std::fs::read(path).map_or(0, |text| text.iter().filter(|&&b| b == b'\n').count())
}

/// Waits until `path` has more than `lines` lines, or the process has ended.
fn wait_for_lines(path: &Path, lines: usize, child: &mut Child) {
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() && count_lines(path) <= lines {
        assert!(start.elapsed() < Duration::from_secs(120), "no progress");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn killed_at_any_moment_and_resumed_gives_the_same_file() {
    let job = Job::new();
    let whole = job.run("whole", false);
    assert_eq!(whole.code, 3, "{}", whole.stderr);
    let expected = rows_without_timing(&job.path("whole"));
    assert_eq!(expected.len(), ROWS);

    // Different moments of one job: each kill hits the run that goes on from the one before. Rows in error are
    // written again by every run, the others once.
    let seed = std::process::id() as usize;
    for turn in 0..4 {
        let partial = job.path("killed.partial");
        let lines = count_lines(&partial) + ERRORS + 1 + (seed >> turn) % 6;
        let mut child = job.spawn("killed", &["--resume"][..usize::from(turn > 0)]);
        wait_for_lines(&partial, lines, &mut child);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let resumed = job.run("killed", true);
    assert_eq!(resumed.code, 3, "{}", resumed.stderr);
    assert_eq!(rows_without_timing(&job.path("killed")), expected);
    assert!(
        resumed.stderr.contains("kept from an earlier run"),
        "{}",
        resumed.stderr
    );
    assert!(!job.path("killed.partial").exists());
    // Once more, from the finished file: the rows in error are all that is done again.
    let again = job.run("killed", true);
    assert_eq!(again.code, 3, "{}", again.stderr);
    assert_eq!(rows_without_timing(&job.path("killed")), expected);
}

/// Where several runs go on from one journal at the same moment, one has it. Others are refused, or find the finished file.
#[test]
fn of_several_resumed_at_once_one_goes_on() {
    let job = Job::new();
    job.run("whole", false);
    job.begin_and_kill(ERRORS + 3);
    let children: Vec<Child> = (0..4).map(|_| job.spawn("out", &["--resume"])).collect();
    let mut through = 0;
    for child in children {
        let ended = Ended::of(child.wait_with_output().unwrap());
        match ended.code {
            1 => ended.fails(1, &["another run is writing it"]),
            code => {
                assert_eq!(code, 3, "{}", ended.stderr);
                through += 1;
            }
        }
    }
    assert!(through > 0);
    assert_eq!(
        rows_without_timing(&job.path("out")),
        rows_without_timing(&job.path("whole"))
    );
    assert!(!job.path("out.partial").exists());
}

#[test]
fn an_interrupt_leaves_the_output_alone_and_what_is_done_in_the_journal() {
    let job = Job::new();
    std::fs::write(job.path("out"), "of an earlier run\n").unwrap();
    let mut child = job.spawn("out", &["--overwrite"]);
    wait_for_lines(&job.path("out.partial"), ERRORS + 3, &mut child);
    send(&child, "-INT");
    let ended = Ended::of(child.wait_with_output().unwrap());
    assert_eq!(ended.code, 130, "{}", ended.stderr);
    assert!(ended.stderr.contains("--resume"), "{}", ended.stderr);
    let before = std::fs::read_to_string(job.path("out")).unwrap();
    assert_eq!(before, "of an earlier run\n");
    let journal = std::fs::read_to_string(job.path("out.partial")).unwrap();
    assert!(journal.lines().count() > ERRORS + 3, "{journal}");
    // What the interrupt cut has no text that could pass for an answer.
    assert!(!journal.contains("\"finish_reason\":\"cancelled\""));
    let resumed = job.run("out", true);
    assert_eq!(resumed.code, 3, "{}", resumed.stderr);
    job.run("whole", false);
    assert_eq!(
        rows_without_timing(&job.path("out")),
        rows_without_timing(&job.path("whole"))
    );
}

/// How many run at once decides no answer, and yet a job goes on as it began: a default need not be the same elsewhere.
#[test]
fn a_resumed_run_has_as_many_sequences_as_the_one_before() {
    let job = Job::new();
    job.begin_and_kill(3);
    let mut args = job.args("out", true);
    args.retain(|word| word != "--max-seqs" && word != "4");
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let resumed = run(&args);
    assert_eq!(resumed.code, 3, "{}", resumed.stderr);
    let said = ", up to 4 at once\n";
    assert!(resumed.stderr.contains(said), "{}", resumed.stderr);
    // Nothing is left of it for the next job.
    let args = args
        .iter()
        .map(|arg| arg.replace("--resume", "--overwrite"));
    let args: Vec<String> = args.collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let fresh = run(&args);
    let said = ", up to 16 at once\n";
    assert!(fresh.stderr.contains(said), "{}", fresh.stderr);
}

#[test]
fn starting_afresh_over_unfinished_rows_is_refused_unless_asked_for() {
    let job = Job::new();
    job.begin_and_kill(3);
    let journal = std::fs::read(job.path("out.partial")).unwrap();
    let fresh = job.run("out", false);
    fresh.fails(2, &["--resume goes on from them, --overwrite"]);
    assert_eq!(std::fs::read(job.path("out.partial")).unwrap(), journal);
    let mut args = job.args("out", false);
    args.push("--overwrite".to_owned());
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let over = run(&args);
    assert_eq!(over.code, 3, "{}", over.stderr);
    assert!(!over.stderr.contains("kept from"), "{}", over.stderr);
    assert_eq!(rows_without_timing(&job.path("out")).len(), ROWS);
    assert!(!job.path("out.partial").exists());
}

#[test]
fn rows_of_another_model_or_other_options_are_refused_by_name() {
    let job = Job::new();
    job.begin_and_kill(ERRORS + 3);
    let journal = std::fs::read(job.path("out.partial")).unwrap();
    let resume = |change: &dyn Fn(&mut Vec<String>)| {
        let mut args = job.args("out", true);
        change(&mut args);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        run(&args)
    };
    let with = |words: &'static [&'static str]| {
        move |args: &mut Vec<String>| args.extend(words.iter().map(|&word| word.to_owned()))
    };
    let seed = |args: &mut Vec<String>| args[2] = "random:tiny@9".to_owned();
    resume(&seed).fails(1, &["differ in weights"]);
    for (words, expected) in [
        (
            &["--temperature", "0.5"][..],
            "--temperature (was 0.0, is 0.5)",
        ),
        (&["--seed", "3"], "--seed (was 0, is 3)"),
        (
            &["--presence-penalty", "1"],
            "--presence-penalty (was not given, is 1.0)",
        ),
        (
            &["--frequency-penalty", "-1"],
            "--frequency-penalty (was not given, is -1.0)",
        ),
        (&["--min-tokens", "1"], "--min-tokens (was not given, is 1)"),
        (&["--stop", "x"], "--stop (was not given, is [\"x\"])"),
        (
            &["--max-context", "100"],
            "--max-context (was 4096, is 100)",
        ),
    ] {
        resume(&with(words)).fails(1, &[expected]);
    }
    assert_eq!(std::fs::read(job.path("out.partial")).unwrap(), journal);
    // Where rows run, and how many at once, is no part of what they are.
    let sizes = &[
        "--max-seqs",
        "2",
        "--step-tokens",
        "128",
        "--memory-limit",
        "1GiB",
        "--timeout-ms",
        "100000",
    ];
    let resumed = resume(&move |args: &mut Vec<String>| {
        args.retain(|word| word != "--max-seqs" && word != "4");
        args.extend(sizes.iter().map(|&word| word.to_owned()));
    });
    assert_eq!(resumed.code, 3, "{}", resumed.stderr);
    assert!(resumed.stderr.contains("kept from"), "{}", resumed.stderr);
    job.run("whole", false);
    assert_eq!(
        rows_without_timing(&job.path("out")),
        rows_without_timing(&job.path("whole"))
    );
}

/// A checkpoint is what is in its files, wherever they lie and whenever they were written.
#[test]
fn a_copied_checkpoint_is_the_same_and_a_changed_one_is_named() {
    let job = Job::new();
    let model = |name: &str| job.path(name).to_str().unwrap().to_owned();
    for (seed, name) in [(7, "m"), (7, "copy"), (8, "other")] {
        let source = format!("random:tiny@{seed}");
        let made = run(&["synth", "-q", "--model", &source, "--output", &model(name)]);
        assert_eq!(made.code, 0, "{}", made.stderr);
    }
    let args = |name: &str, resume: bool| {
        let mut args = job.args("out", resume);
        args[2] = model(name);
        args.push("--ignore-eos".to_owned());
        args
    };
    let resume = |name: &str| {
        let args = args(name, true);
        run(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let begin = args("m", false);
    let begin: Vec<&str> = begin.iter().map(String::as_str).collect();
    let mut child = command(&begin).stderr(Stdio::null()).spawn().unwrap();
    wait_for_lines(&job.path("out.partial"), ERRORS + 3, &mut child);
    child.kill().unwrap();
    child.wait().unwrap();

    resume("other").fails(1, &["differ in weights model"]);
    let changes = [
        ("generation_config.json", "{\"temperature\":0.3}"),
        ("chat_template.jinja", "{{ messages }}"),
        ("tokenizer_config.json", "{}"),
    ];
    for (name, text) in changes {
        let path = job.path("copy").join(name);
        let before = std::fs::read(&path).ok();
        std::fs::write(&path, text).unwrap();
        resume("copy").fails(1, &[name]);
        match before {
            Some(before) => std::fs::write(&path, before).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
    }
    let resumed = resume("copy");
    assert_eq!(resumed.code, 3, "{}", resumed.stderr);
    assert!(resumed.stderr.contains("kept from"), "{}", resumed.stderr);
}

/// A bit of an answer that a disk has flipped, which leaves good JSON, and a line that is nothing.
#[test]
fn damaged_lines_are_said_once_and_their_rows_answered_again() {
    let job = Job::new();
    assert_eq!(job.run("whole", false).code, 3);
    job.begin_and_kill(ERRORS + 6);
    let partial = job.path("out.partial");
    let before = std::fs::read_to_string(&partial).unwrap();
    let at = before.find("\"done\":true,\"answer\":").unwrap();
    let flipped = before[at..].replacen("\"output_ids\":[", "\"output_ids\":[1", 1);
    let (header, rest) = before.split_once('\n').unwrap();
    let rest = &rest[..at - header.len() - 1];
    std::fs::write(&partial, format!("{header}\n?\n{rest}{flipped}")).unwrap();
    let ended = job.run("out", true);
    let said = "found 2 lines that are not as they were written, the first of them line 2: their rows are answered again";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
    assert!(ended.stderr.contains("kept from"), "{}", ended.stderr);
    assert_eq!(
        rows_without_timing(&job.path("out")),
        rows_without_timing(&job.path("whole"))
    );
}
