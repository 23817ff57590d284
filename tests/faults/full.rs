//! A file system that is full, where one may be mounted.

use crate::job::{BEFORE, Job, Kind};
use std::path::Path;
use std::process::{Command, Stdio};

struct Mounted<'a>(&'a Path);

impl<'a> Mounted<'a> {
    /// `None`, which it says, where this user may mount nothing.
    fn of(folder: &'a Path, size: &str) -> Option<Self> {
        std::fs::create_dir(folder).unwrap();
        let mounted = mount("", size, folder);
        if !mounted {
            eprintln!(
                "skipped: this user may not mount a file system; /dev/full and limits are tested elsewhere"
            );
        }
        mounted.then_some(Self(folder))
    }

    fn resize(&self, size: &str) {
        assert!(mount("remount,", size, self.0));
    }
}

fn mount(how: &str, size: &str, folder: &Path) -> bool {
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", &format!("{how}size={size}"), "tmpfs"])
        .arg(folder)
        .stderr(Stdio::null())
        .status();
    mounted.is_ok_and(|status| status.success())
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        // The folder's own removal says if it is still there.
        let _ = Command::new("umount").arg(self.0).output();
    }
}

/// Room for all rows, but not for the file of them as well.
#[test]
fn an_output_that_has_no_room_is_made_later() {
    let job = Job::new(Kind::Generate);
    let small = job.path("small");
    let Some(mounted) = Mounted::of(&small, "12k") else {
        return;
    };
    let output = small.join("out.jsonl");
    std::fs::write(&output, BEFORE).unwrap();
    let second = small.join("out.jsonl.partial.tmp");
    let first = job.command_to(&output, &[]).output().unwrap();
    assert_eq!(first.status.code(), Some(1), "{first:?}");
    let resumed = |size: &str| {
        mounted.resize(size);
        let ended = job.command_to(&output, &["--resume"]).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        (ended.status.code(), said)
    };
    let mut sizes = (3..1000).map(|pages| resumed(&format!("{}k", 4 * pages)));
    let (code, said) = sizes
        .find(|(_, said)| said.contains(second.to_str().unwrap()))
        .expect("a size between that of the journal and that of both");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("with --resume puts them together"), "{said}");
    assert_eq!(std::fs::read(&output).unwrap(), BEFORE.as_bytes());
    assert!(!second.exists());
    let (code, said) = resumed("16M");
    assert_eq!(code, Some(0), "{said}");
    let lines = |path: &Path| std::fs::read_to_string(path).unwrap().lines().count();
    assert_eq!(lines(&output), lines(&job.input()));
}

#[test]
fn a_full_file_system_leaves_the_output_and_a_journal() {
    for (kind, name) in [
        (Kind::Generate, "out.jsonl"),
        (Kind::Score, "out.safetensors"),
        (Kind::Trace, "out.json"),
        (Kind::Report, "out.html"),
    ] {
        let job = Job::new(kind);
        let small = job.path("small");
        let Some(_mounted) = Mounted::of(&small, "12k") else {
            return;
        };
        let output = small.join(name);
        std::fs::write(&output, BEFORE).unwrap();
        let ended = job.command_to(&output, &[]).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(1), "{said}");
        assert!(
            said.contains(name) && said.contains("No space left"),
            "{said}"
        );
        assert_eq!(std::fs::read(&output).unwrap(), BEFORE.as_bytes());
        let partial = small.join(format!("{name}.partial"));
        // What can be read, or gone on from, is kept.
        let kept = matches!(kind, Kind::Generate | Kind::Trace);
        assert_eq!(partial.exists(), kept, "{kind:?}");
    }
}
