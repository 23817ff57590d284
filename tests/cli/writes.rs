//! What holds for every command that writes a file, whatever it writes.

use crate::common::fixtures::golden;
use crate::common::program::{Ended, bare_command, binary, end, make_pipe, run, send};
use crate::common::rows::text;
use crate::signals::{is_not_empty, wait_for};
use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tailgraph::files::names::{UNFINISHED, beside};

const BEFORE: &str = "of an earlier run\n";

/// Commands by their arguments, FILE being the one that is written, and what they read.
struct Writers {
    folder: tempfile::TempDir,
    all: Vec<Vec<String>>,
}

impl Writers {
    /// `model`: what those run that run one.
    fn of(model: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| text(&folder.path().join(name)).to_owned();
        let (rows, bench, record) = (at("rows.jsonl"), at("bench.json"), at("run.record"));
        fs::write(&rows, "{\"input_ids\":[9,8,80]}\n").unwrap();
        let size = "-p 4 -n 4 -b 1 -r 1 --warm-up 0 --format json";
        let device = format!("--model {model} --device cpu");
        let tiny = "--model random:tiny --device cpu";
        let words = |line: String| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for made in [
            format!("bench {tiny} -q {size} -o {bench}"),
            format!("generate {tiny} -q --max-new-tokens 1 --record {record} x"),
        ] {
            let args = words(made);
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            run(&args).good();
        }
        let generate = format!("{device} --max-new-tokens 1 x");
        let all = [
            format!("generate {generate} --overwrite -o FILE"),
            format!("generate {generate} -o /dev/null --record FILE"),
            format!("score {device} -i {rows} --overwrite -o FILE"),
            format!("score {device} -i {rows} --logprobs --overwrite -o FILE"),
            format!("score {device} -i {rows} --logprobs -o /dev/null --record FILE"),
            format!("trace {generate} --answers /dev/null -o FILE"),
            format!("trace {generate} -o /dev/null --overwrite --answers FILE"),
            format!("trace {generate} -o /dev/null --answers /dev/null --record FILE"),
            format!("bench {device} {size} -o FILE"),
            format!("inspect --model {model} -o FILE"),
            format!("trace --from {record} -o FILE"),
            format!("bench compare {bench} {bench} -o FILE"),
            format!("report {bench} -o FILE"),
            format!("report {bench} --svg FILE"),
        ];
        let all = all.map(words).into();
        Self { folder, all }
    }

    /// Those that run the model.
    fn models(&self) -> impl Iterator<Item = &Vec<String>> {
        self.all
            .iter()
            .filter(|args| args.contains(&"--model".to_owned()))
    }

    fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(name)
    }

    fn names(&self) -> Vec<OsString> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }
}

fn command(args: &[String], file: impl AsRef<OsStr>) -> Command {
    let mut command = bare_command();
    let filled = |arg: &String| {
        if arg == "FILE" {
            file.as_ref().to_owned()
        } else {
            arg.into()
        }
    };
    command.args(args.iter().map(filled));
    command.env("RAYON_NUM_THREADS", "1");
    command
}

/// Only `score` asks for the end of the name, which does not matter to the others.
const NAME: &str = "out.safetensors";

#[test]
fn a_file_keeps_its_mode_and_the_links_to_it() {
    let writers = Writers::of("random:tiny");
    let (link, file) = (writers.path(NAME), writers.path("behind"));
    let hard = writers.path("hard");
    symlink("behind", &link).unwrap();
    for args in &writers.all {
        fs::write(&file, BEFORE).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        fs::hard_link(&file, &hard).unwrap();
        let before = writers.names();
        end(&mut command(args, &link), "").good();
        // What the answers are to stands beside them.
        let _ = fs::remove_file(writers.path("behind.job.json"));
        assert_eq!(writers.names(), before, "{args:?}");
        assert!(link.is_symlink(), "{args:?}");
        assert_ne!(fs::read(&file).unwrap(), BEFORE.as_bytes(), "{args:?}");
        assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o640, "{args:?}");
        // Another name of what was there keeps it.
        assert_eq!(fs::read(&hard).unwrap(), BEFORE.as_bytes(), "{args:?}");
        fs::remove_file(&hard).unwrap();
    }
}

/// By names that are no text, and that no terminal is to obey.
#[test]
fn a_link_to_nothing_gets_its_file() {
    let writers = Writers::of("random:tiny");
    let link = writers.path(OsStr::from_bytes(b"l\xff\x1b[31m\n.safetensors"));
    let file = writers.path(OsStr::from_bytes(b"f\xff"));
    symlink(&file, &link).unwrap();
    for args in &writers.all {
        let ended = end(&mut command(args, &link), "");
        assert!(!ended.stderr.contains('\u{1b}'), "{}", ended.stderr);
        ended.good();
        assert!(link.is_symlink() && file.is_file(), "{args:?}");
        fs::remove_file(&file).unwrap();
    }
}

/// Rows of a run that goes on are there, or of one that is to be resumed.
#[test]
fn none_takes_the_name_of_an_unfinished_file() {
    let writers = Writers::of("random:tiny");
    let link = writers.path(NAME);
    for ending in UNFINISHED {
        let file = writers.path(format!("answers.jsonl{ending}"));
        symlink(&file, &link).unwrap();
        fs::write(&file, BEFORE).unwrap();
        let before = writers.names();
        for args in &writers.all {
            let ended = end(&mut command(args, &link), "");
            ended.fails_in_a_line(2, &[text(&file), "expected another"]);
            assert_eq!(fs::read(&file).unwrap(), BEFORE.as_bytes(), "{args:?}");
            assert_eq!(writers.names(), before, "{args:?}");
        }
        fs::remove_file(&link).unwrap();
    }
}

#[test]
fn pipes_and_open_files_are_written_to_as_they_are() {
    let writers = Writers::of("random:tiny");
    let (file, pipe, copy) = (
        writers.path("open"),
        writers.path(NAME),
        writers.path("copy"),
    );
    make_pipe(&pipe);
    for args in &writers.all {
        let script = "f=$1; shift; { echo first >&9; exec \"$0\" \"$@\"; } 9> \"$f\"";
        let to_open = command(args, "/dev/fd/9");
        let mut shell = Command::new("sh");
        shell
            .args(["-c", script])
            .arg(binary())
            .arg(&file)
            .args(to_open.get_args());
        let ended = end(&mut shell, "");
        let logits = args[0] == "score" && args.ends_with(&["-o".into(), "FILE".into()]);
        if logits && !args.contains(&"--logprobs".to_owned()) {
            // They are not written in order.
            ended.fails(2, &["expected a name that ends in .safetensors"]);
            end(&mut command(args, &pipe), "").fails(1, &["found a pipe or a device"]);
            continue;
        }
        ended.good();
        let written = fs::read_to_string(&file).unwrap();
        let rest = written.strip_prefix("first\n");
        assert!(
            rest.is_some_and(|rest| !rest.is_empty()),
            "{args:?}: {written}"
        );
        let mut reader = Command::new("cp").arg(&pipe).arg(&copy).spawn().unwrap();
        end(&mut command(args, &pipe), "").good();
        assert!(reader.wait().unwrap().success());
        assert!(copy.metadata().unwrap().len() > 0, "{args:?}");
    }
}

/// Found after the work, it would be too late. What a command tells of its work is more than a line.
#[test]
fn what_cannot_be_written_is_refused_before_work_begins() {
    let writers = Writers::of("random:tiny");
    let at = |name: &str| writers.path(format!("{name}.safetensors"));
    fs::create_dir(at("folder")).unwrap();
    symlink("loop.safetensors", at("loop")).unwrap();
    fs::write(at("locked"), BEFORE).unwrap();
    fs::write(at("journal"), BEFORE).unwrap();
    let journal = beside(&at("journal"), ".partial");
    fs::write(&journal, "{\"journal\":{}}\n{\"row\":0}\n").unwrap();
    let lock = fs::File::create(beside(&at("locked"), ".partial")).unwrap();
    lock.lock().unwrap();
    let before = writers.names();
    for args in &writers.all {
        let mut args = args.clone();
        args.retain(|arg| arg != "--overwrite");
        for (file, code, expected) in [
            ("/proc/out.safetensors".into(), 1, "/proc/out.safetensors"),
            (
                writers.path("rows.jsonl/out.safetensors"),
                1,
                "Not a directory",
            ),
            (at("no/such"), 1, "no such directory"),
            (
                at(&"x".repeat(240)),
                1,
                "File name too long (os error 36), expected a shorter name",
            ),
            (at("folder"), 1, "found a directory"),
            (at("loop"), 1, "links one after the other"),
            (at("locked"), 1, "another run is writing it"),
            (at("journal"), 1, "of an unfinished job"),
        ] {
            let ended = end(&mut command(&args, &file), "");
            let answers = file == at("journal") && ended.code == 2;
            if answers {
                // A job goes on from its own journal.
                ended.fails_in_a_line(2, &["--overwrite starts afresh"]);
            } else {
                ended.fails_in_a_line(code, &[expected]);
            }
            assert_eq!(ended.stdout, "", "{args:?}");
        }
        assert_eq!(writers.names(), before, "{args:?}");
        for name in ["locked", "journal"] {
            assert_eq!(fs::read(at(name)).unwrap(), BEFORE.as_bytes(), "{args:?}");
        }
        assert!(journal.metadata().unwrap().len() > 0, "{args:?}");
    }
}

/// Answers in the place of the weights are the end of a checkpoint.
#[test]
fn no_file_of_the_model_is_written_over() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        fs::copy(Path::new(&golden("a")).join(name), at(name)).unwrap();
    }
    symlink("model.safetensors", at("link.safetensors")).unwrap();
    let before = fs::read(at("model.safetensors")).unwrap();
    let writers = Writers::of(text(folder.path()));
    for args in writers.models() {
        for name in ["model.safetensors", "link.safetensors"] {
            let ended = end(&mut command(args, at(name)), "");
            ended.fails_in_a_line(2, &["found the model file, expected another"]);
        }
    }
    assert_eq!(fs::read(at("model.safetensors")).unwrap(), before);
    // Nor is one put there that the next run would read.
    let generate = &writers.all[0];
    let ended = end(&mut command(generate, at("chat_template.jinja")), "");
    ended.fails_in_a_line(2, &["found the model file"]);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4);
}

#[test]
fn a_signal_ends_each_with_its_code_and_leaves_what_was_there() {
    let writers = Writers::of("random:tiny");
    let (file, pipe) = (writers.path(NAME), writers.path("pipe"));
    fs::write(&file, BEFORE).unwrap();
    // A report waits for its input: by then its outputs are claimed.
    make_pipe(&pipe);
    for (signal, code) in [("-INT", 130), ("-HUP", 129), ("-TERM", 143)] {
        let args = ["report", text(&pipe), "-o", "FILE"].map(str::to_owned);
        let mut report = command(&args, &file);
        let report = report.stderr(Stdio::piped()).stdout(Stdio::piped());
        let child = report.spawn().unwrap();
        let partial = beside(&file, ".partial");
        wait_for("claim", || partial.exists());
        send(&child, signal);
        let ended = Ended::of(child.wait_with_output().unwrap());
        assert_eq!(ended.code, code, "{}", ended.stderr);
        assert!(!partial.exists());
        assert_eq!(fs::read(&file).unwrap(), BEFORE.as_bytes());
    }
}

#[test]
fn an_interrupted_folder_has_no_weights_left() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    let args = ["synth", "--model", "random:lfm2-8b-a1b", "-q", "-o", "FILE"].map(str::to_owned);
    let mut synth = command(&args, &model);
    let mut child = synth.spawn().unwrap();
    let shard = folder
        .path()
        .join("model.partial/model-00001-of-00004.safetensors");
    wait_for("shard", || is_not_empty(&shard));
    send(&child, "-INT");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
