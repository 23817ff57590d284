//! The engine around a backend that samples by a formula: pipelines, cancels, timeouts, back-pressure, and
//! what the caller sees when a stage fails.

mod ends;
mod rig;
mod schedule;
mod trace;
mod trouble;
