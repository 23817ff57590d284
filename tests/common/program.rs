//! The binary as tests run it, and how it ended.

use serde_json::Value;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Longer than any run here takes, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(300);

/// A pipe by that name.
pub fn make_pipe(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status().unwrap();
    assert!(made.success(), "mkfifo {}", path.display());
}

/// Built beside the tests, or what TAILGRAPH_BINARY names where they were built elsewhere.
pub fn binary() -> PathBuf {
    let built = || env!("CARGO_BIN_EXE_tailgraph").into();
    std::env::var_os("TAILGRAPH_BINARY").map_or_else(built, PathBuf::from)
}

pub fn command(args: &[&str]) -> Command {
    let mut command = bare_command();
    command.args(args);
    command
}

/// Without arguments.
pub fn bare_command() -> Command {
    hearing(binary())
}

/// `program` with signals as in a terminal: `nohup` has HUP ignored, a shell INT in what it starts in the background, and tests
/// and what they start would keep that.
pub fn hearing(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    let hears = || {
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM, libc::SIGPIPE] {
            // SAFETY: a call that a process may make between fork and exec.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: as said there.
    unsafe { command.pre_exec(hears) };
    command
}

/// How a command ended.
pub struct Ended {
    /// The command, where this is known.
    what: String,
    /// -1: by a signal.
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    pub fn of(output: Output) -> Self {
        Self {
            what: String::new(),
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    pub fn rows(&self) -> Vec<Value> {
        super::rows::rows(&self.stdout)
    }

    /// Standard output of a command that ended well.
    pub fn good(self) -> String {
        assert_eq!(self.code, 0, "{}: {}", self.what, self.stderr);
        self.stdout
    }

    /// It failed with `code`, and what it said has all of `parts`.
    pub fn fails(&self, code: i32, parts: &[&str]) {
        let Self { what, stderr, .. } = self;
        assert_eq!(self.code, code, "{what}: {stderr}");
        for part in parts {
            assert!(stderr.contains(part), "{what}: {stderr} lacks {part}");
        }
    }

    /// Fails as [`Self::fails`] has it, in one line, which says whose it is.
    pub fn fails_in_a_line(&self, code: i32, parts: &[&str]) {
        self.fails(code, &[parts, &["tailgraph: "]].concat());
        let Self { what, stderr, .. } = self;
        assert_eq!(stderr.lines().count(), 1, "{what}: {stderr}");
    }
}

/// Standard output of a run that ends well.
pub fn tailgraph(args: &[&str]) -> String {
    run(args).good()
}

pub fn run(args: &[&str]) -> Ended {
    run_with_input(args, "")
}

pub fn run_with_input(args: &[&str], input: &str) -> Ended {
    end(&mut command(args), input)
}

/// This test program again, with one test alone.
pub fn this_program(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--include-ignored", "--nocapture"]);
    command
}

/// Runs `command` with `input` as its standard input.
pub fn end(command: &mut Command, input: &str) -> Ended {
    end_within(PATIENCE, command, input)
}

/// Runs `command` as [`end`] does; where it takes longer than `limit` it is killed, and says so.
pub fn end_within(limit: Duration, command: &mut Command, input: &str) -> Ended {
    let input = input.to_owned();
    // A command that does not read its input closes it: that is no failure of the test.
    end_fed(limit, command, move |mut stdin| {
        drop(stdin.write_all(input.as_bytes()));
    })
}

/// Writes `line(0)`, `line(1)` and so on until the command has ended, so no command can end because there is nothing left to do.
pub fn end_endless(
    command: &mut Command,
    line: impl Fn(usize) -> String + Send + 'static,
) -> Ended {
    end_fed(PATIENCE, command, move |mut stdin| {
        let written = (0..).map(|at| stdin.write_all(line(at).as_bytes()));
        written.take_while(Result::is_ok).for_each(drop);
    })
}

/// `feed` writes the standard input, and returns soon after nobody reads it any more.
fn end_fed(
    limit: Duration,
    command: &mut Command,
    feed: impl FnOnce(ChildStdin) + Send + 'static,
) -> Ended {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let id = child.id().to_string();
    let stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || feed(stdin));
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output().unwrap()));
    let in_time = receiver.recv_timeout(limit);
    let late = in_time.is_err();
    let output = in_time.unwrap_or_else(|_| {
        let killed = Command::new("kill").args(["-KILL", &id]).status();
        assert!(killed.unwrap().success());
        receiver.recv().unwrap()
    });
    writer.join().unwrap();
    let mut ended = Ended {
        what: format!("{command:?}"),
        ..Ended::of(output)
    };
    if late {
        ended.stderr += &format!("\nkilled by the test after {limit:?}");
    }
    ended
}

/// Sends `child` a signal, "-INT" for one.
pub fn send(child: &Child, signal: &str) {
    let id = child.id().to_string();
    let sent = Command::new("kill").args([signal, &id]).status();
    assert!(sent.unwrap().success());
}

/// A script of profiles/ that leaves its results in `out`, with a small model.
pub fn recipe(script: &str, out: &Path) -> Command {
    let profiles = Path::new(env!("CARGO_MANIFEST_DIR")).join("profiles");
    let mut command = hearing("bash");
    command
        .arg(profiles.join(script))
        .arg(out)
        .env("TAILGRAPH", binary())
        .env("MODEL", "random:tiny");
    command
}

/// What `bench` measures of `kind` on random:tiny.
pub fn bench(kind: &str, arguments: &[&str]) -> Vec<Value> {
    let head = ["bench", kind, "--model", "random:tiny", "--quiet"];
    let tail = ["--format", "json"];
    serde_json::from_str(&tailgraph(&[&head[..], arguments, &tail].concat())).unwrap()
}
