//! The engine on an NVIDIA GPU, with a step that has no model (kernels/step/probe.cu): the three ways to launch, what the
//! device does without its host, and what the host makes of trouble; and all that is timed, for which a test wants the GPU
//! alone. Ignored unless asked for, so that a run without a GPU says so instead of passing:
//!
//!     cargo test --features cuda --test gpu_engine -- --include-ignored --nocapture --test-threads=1
#![cfg(feature = "cuda")]

mod alone;
mod bench;
mod clocks;
#[path = "../common/mod.rs"]
mod common;
mod graphs;
mod measuring;
mod replay;
mod rig;
mod stamps;
mod timing;
mod trouble;
mod ways;
