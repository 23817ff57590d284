//! The scheduler core's trickiest rules, one scenario each, with what must come out written down.

#[path = "../common/mod.rs"]
mod common;
#[path = "../sched/mod.rs"]
mod sched;

mod grow;
mod prefixes;
mod queue;
mod requests;
mod rings;
mod steps;
mod support;
