//! What happens to a run, and when.

use crate::common::compile::shared_library;
use crate::job::{Job, Kind};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::Duration;
use tailgraph::files::names::beside;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// A signal after so many microseconds.
    Signal(&'static str, u64),
    /// Files may have so many bytes.
    SizeLimit(u64),
    /// The n-th call that changes a file fails by itself: EIO.
    BadBlock(u32),
    /// All writes from the n-th on fail: ENOSPC.
    FullDisk(u32),
    /// The input vanishes so many microseconds after it was opened.
    NoInput(u64),
    /// A second run of the same output begins after so many microseconds.
    SecondWriter(u64),
}

/// Picks trouble, as many of each sort as of every other: `turn` picks the sort, `random` the moment within a run of `whole`.
pub fn pick(kind: Kind, turn: usize, random: u64, whole: Duration) -> Trouble {
    let after_us = random % (whole.as_micros() as u64).max(1);
    match turn % 9 {
        0 => Trouble::Signal("KILL", after_us),
        1 => Trouble::Signal("INT", after_us),
        2 => Trouble::Signal("TERM", after_us),
        3 => Trouble::Signal("HUP", after_us),
        4 => Trouble::SizeLimit(random % kind.bytes()),
        5 => Trouble::BadBlock((random % kind.calls()) as u32),
        6 => Trouble::FullDisk((random % kind.calls()) as u32),
        7 => Trouble::NoInput(after_us / 2),
        _ => Trouble::SecondWriter(after_us),
    }
}

/// Runs `command` with it; and whether a second run was refused.
pub fn run(job: &Job, mut command: Command, trouble: Trouble) -> (Output, bool) {
    let mut was_refused = false;
    match trouble {
        Trouble::SizeLimit(bytes) => limit_files(&mut command, bytes),
        Trouble::BadBlock(call) => fail(&mut command, call, libc::EIO),
        Trouble::FullDisk(call) => fail(&mut command, call, libc::ENOSPC),
        _ => {}
    }
    let mut child = command.spawn().unwrap();
    match trouble {
        Trouble::Signal(name, after_us) => {
            std::thread::sleep(Duration::from_micros(after_us));
            // It may have ended already.
            let id = child.id().to_string();
            let sent = Command::new("kill")
                .args([&format!("-{name}"), &id])
                .output();
            sent.unwrap();
        }
        Trouble::NoInput(after_us) => {
            // The output is claimed once the input is open.
            let partial = beside(&job.output(), ".partial");
            while !partial.exists() && child.try_wait().unwrap().is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_micros(after_us));
            if job.kind.has_journal() {
                std::fs::write(job.input(), "").unwrap();
            } else {
                // It is read as a whole.
                std::fs::remove_file(job.input()).unwrap();
            }
        }
        Trouble::SecondWriter(after_us) => {
            std::thread::sleep(Duration::from_micros(after_us));
            // By another name of the same file.
            let name = format!(
                "link-{}",
                job.output().file_name().unwrap().to_str().unwrap()
            );
            let link = job.path(&name);
            std::os::unix::fs::symlink(job.output(), &link).unwrap();
            let second = job.command_to(&link, &[]).output().unwrap();
            let said = String::from_utf8_lossy(&second.stderr).into_owned();
            let refused = match second.status.code() {
                Some(1) => said.contains("another run is writing"),
                // The first has filled the folder.
                code => code == Some(2) && job.kind == Kind::Synth && job.is_done(),
            };
            assert!(second.status.success() || refused, "{second:?}");
            was_refused = refused;
        }
        _ => {}
    }
    (child.wait_with_output().unwrap(), was_refused)
}

fn limit_files(command: &mut Command, bytes: u64) {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    let set = move || {
        // SAFETY: changes a limit of the child alone.
        match unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec it makes one system call.
    unsafe { command.pre_exec(set) };
}

fn fail(command: &mut Command, call: u32, error: i32) {
    command.env("LD_PRELOAD", failing());
    command.env("TEST_FAIL_AT", call.to_string());
    command.env("TEST_FAIL_ERRNO", error.to_string());
}

/// The library that makes calls fail, built once.
pub fn failing() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join("failing.so");
        let flags = ["-O1", "-Wall", "-Werror", "-ldl"];
        shared_library(&library, &["tests/faults/failing.c"], &flags);
        library
    })
}
