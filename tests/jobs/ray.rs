//! Ray: two workers, one killed in the middle.

use crate::common::program::{Ended, binary};
use crate::common::python::jobs_interpreter;
use crate::{Job, MODEL, OPTIONS, SHARDS, kill, script};
use std::process::{Command, Stdio};

#[test]
fn a_killed_worker_of_ray_loses_no_row() {
    let Some(python) = jobs_interpreter("Ray") else {
        return;
    };
    let job = Job::new(60);
    let mut ray = Command::new(python);
    ray.arg(script("ray_shards.py"))
        .args(["--shards", &SHARDS.to_string(), "--model", MODEL, "--input"])
        .arg(job.input())
        .arg("--output")
        .arg(job.output())
        .arg("--")
        .args(OPTIONS)
        .env("TAILGRAPH", binary())
        .env("RAY_USAGE_STATS_ENABLED", "0")
        .env("RAY_DISABLE_IMPORT_WARNING", "1");
    let ray = ray
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    kill(parent(job.in_the_middle(1)));
    let ended = Ended::of(ray.wait_with_output().unwrap());
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    job.is_that_of_one_run(&(ended.stdout + &ended.stderr));
}

/// The worker that runs a process.
fn parent(process: i32) -> i32 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    line.unwrap().trim().parse().unwrap()
}
