//! tailgraph: batch inference for LFM2-MoE models whose schedule runs where the model runs.
//!
//! A program that uses the library begins with [`session::Session`]:
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
//! `cli` -> `report` -> `bench` -> `command` -> `server` -> `session` -> `trace` -> `io` -> `text` -> `runtime` -> `backend` ->
//! `plan` -> `model` -> `sys` -> `json` -> `magic` -> `files` -> `telemetry` -> `at_start` -> `error` -> `quote` -> `bytes`.
//!
//! What a program needs is in [`session`], [`model`] (where weights come from), [`plan`] (sizes) and [`io::row`] (questions and
//! answers). The other modules are there for the command line, the tests and the laboratory, and may change at any time.

pub(crate) mod at_start;
#[doc(hidden)]
pub mod backend;
#[doc(hidden)]
pub mod bench;
#[doc(hidden)]
pub mod bytes;
#[doc(hidden)]
pub mod cli;
#[doc(hidden)]
pub mod command;
pub mod error;
#[doc(hidden)]
pub mod files;
pub mod io;
#[doc(hidden)]
pub mod json;
pub(crate) mod magic;
pub mod model;
pub mod plan;
pub(crate) mod quote;
#[doc(hidden)]
pub mod report;
#[doc(hidden)]
pub mod runtime;
#[cfg(feature = "server")]
#[doc(hidden)]
pub mod server;
pub mod session;
#[doc(hidden)]
pub mod sys;
#[doc(hidden)]
pub mod telemetry;
#[doc(hidden)]
pub mod text;
#[doc(hidden)]
pub mod trace;

pub use error::{Error, Result};
