//! The engine around a backend that samples by a formula, on threads and on a device's scheduler: pipelines, cancels,
//! timeouts, back-pressure, and what the caller sees when a stage or the device fails.

#[path = "../common/mod.rs"]
mod common;
mod device;
mod ends;
mod on_device;
mod prefixes;
mod replicas;
mod rig;
mod schedule;
mod trace;
mod trouble;
