//! Runs of all commands that write files that are killed, interrupted, starved of disk, given a bad one, or met by
//! another run, at random moments. What was there before is there as it was, or the new file is there whole; and a run
//! that is resumed gives the file that an undisturbed one gives, `timing` aside.
//!
//! - `job`: a command, its files, and what it gives when nothing happens
//! - `trouble`: what happens to it; `failing.c` is preloaded where the disk is bad
//! - `harness`: many runs with each; `full`: a file system that is really full

#[path = "../common/mod.rs"]
mod common;
mod full;
mod harness;
mod job;
mod no_locks;
mod trouble;
