//! A file system without locks, as some that machines share.

use crate::job::{Job, Kind};
use crate::trouble::failing;

#[test]
fn that_there_are_no_locks_is_said_once() {
    let job = Job::new(Kind::Generate);
    let run = |preload: bool| {
        let mut command = job.command(&[]);
        command.env("TEST_NO_LOCKS", "1");
        if preload {
            command.env("LD_PRELOAD", failing());
        }
        let ended = command.output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        said.matches("the file system gives no locks (No locks available")
            .count()
    };
    assert_eq!((run(true), run(false)), (1, 0));
}
