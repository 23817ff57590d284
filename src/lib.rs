//! tailgraph: batch inference for LFM2-MoE models whose schedule runs where the model runs.
//!
//! As a library, [`session::Session`] is the way in:
//!
//! ```
//! use tailgraph::io::row::Ask;
//! use tailgraph::session::{RunSpec, Session};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let session = Session::open(RunSpec::new("random:tiny")?)?;
//! let mut answer = session.ask(&Ask::text("The tail launches"))?;
//! for piece in &mut answer {
//!     print!("{}", piece?);
//! }
//! assert_eq!(answer.outcome()?.output_ids.len(), 128);
//! # Ok(())
//! # }
//! ```
//!
//! The layers, from the command line down; each may use only what stands to its right, which `tests/layers.rs` holds:
//! `cli` -> `report` -> `bench` -> `command` -> `session` -> `trace` -> `io` -> `text` -> `runtime` -> `backend` -> `plan` ->
//! `model` -> `sys` -> `json` -> `magic` -> `files` -> `telemetry` -> `at_start` -> `error` -> `quote`.
//!
//! - [`cli`]: the commands
//! - [`report`]: measurements and timelines as one HTML page
//! - [`mod@bench`]: runs that are timed, and what is said about them
//! - [`command`]: what commands share: flags, which become a [`session::RunSpec`], and the files that they name
//! - [`session`]: a model, a tokenizer and an engine as one value; the loops over rows and prompts
//! - [`trace`]: a run, or a recording of one, as a timeline for Perfetto
//! - [`io`]: rows, arrays and output files
//! - [`text`]: tokenizers, chat templates, detokenization, stop strings
//! - [`runtime`]: the scheduler core, the rings around it, stage threads; [`runtime::Engine`] takes tokens and gives tokens
//! - [`backend`]: a [`backend::Device`] runs a model's steps, stage by stage; `cpu` is the f32 reference
//! - [`plan`]: a model as stages of operations with shapes, bytes and FLOPs; bucket ladders; memory arithmetic
//! - [`model`]: config.json, weights (a checkpoint on disk or a random preset), nothing about how it runs
//! - [`sys`]: the structs shared with C, made by bindgen
//! - [`json`]: JSON as Python reads it; [`magic`]: what a file is by its first bytes
//! - [`files`]: files that are whole or not there, locks, streams
//! - [`telemetry`]: lines on standard error, ranges for Nsight, phases of start-up
//! - [`at_start`]: what the process was started with
//! - [`error`]: the one error type
//! - [`quote`]: text that nobody has checked, as messages show it

pub mod at_start;
pub mod backend;
pub mod bench;
pub mod cli;
pub mod command;
pub mod error;
pub mod files;
pub mod io;
pub mod json;
pub mod magic;
pub mod model;
pub mod plan;
pub mod quote;
pub mod report;
pub mod runtime;
pub mod session;
pub mod sys;
pub mod telemetry;
pub mod text;
pub mod trace;

pub use error::{Error, Result};
