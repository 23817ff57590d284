//! A file system that is full, where one may be mounted.

use crate::job::{BEFORE, Job, Kind};
use std::path::Path;
use std::process::{Command, Stdio};

struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        // The folder's own removal says if it is still there.
        let _ = Command::new("umount").arg(self.0).output();
    }
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
        std::fs::create_dir(&small).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=12k", "tmpfs"])
            .arg(&small)
            .stderr(Stdio::null())
            .status();
        if !mounted.is_ok_and(|status| status.success()) {
            eprintln!(
                "skipped: this user may not mount a file system; /dev/full and limits are tested elsewhere"
            );
            return;
        }
        let _mounted = Mounted(&small);
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
