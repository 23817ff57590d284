//! tailgraph: batch inference for LFM2-MoE models whose schedule runs where the model runs.
//!
//! The layers, from the command line down; each may use only what stands to its right:
//! `cli` -> `report`, `bench` -> `trace` -> `io`, `text` -> `runtime` -> `backend` -> `sys`, and everyone may use `plan` ->
//! `model` -> `json`, `magic`, `files` -> `error`.
//!
//! - [`model`]: config.json, weights (a checkpoint on disk or a random preset), nothing about how it runs
//! - [`plan`]: a model as stages of operations with shapes, bytes and FLOPs; bucket ladders; memory arithmetic
//! - [`backend`]: runs the operations of one stage for one step; `cpu` is the f32 reference
//! - [`runtime`]: the scheduler core, the rings around it, stage threads; [`runtime::Engine`] is the way in
//! - [`text`]: tokenizers, chat templates, detokenization, stop strings
//! - [`io`]: rows, arrays and output files
//! - [`trace`]: a run, or a recording of one, as a timeline for Perfetto
//! - [`report`]: measurements and timelines as one HTML page
//! - [`bench`]: runs that are timed, and what is said about them
//! - [`cli`]: the commands
//! - [`json`]: JSON as Python reads it; [`magic`]: what a file is by its first bytes
//! - [`telemetry`]: progress on a terminal
//! - [`files`]: files that are whole or not there, locks, streams; [`at_start`]: what the process was started with
//! - [`sys`]: the structs shared with C, made by bindgen

pub mod at_start;
pub mod backend;
pub mod bench;
pub mod cli;
pub mod error;
pub mod files;
pub mod io;
pub mod json;
pub mod magic;
pub mod model;
pub mod plan;
pub mod report;
pub mod runtime;
pub mod sys;
pub mod telemetry;
pub mod text;
pub mod trace;

pub use error::{Error, Result};
