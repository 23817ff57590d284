//! The engine on an NVIDIA GPU, with a step that has no model (kernels/probe.cu): the three ways to launch, what the
//! device does without its host, and what the host makes of trouble. Ignored unless asked for, so that a run without
//! a GPU says so instead of passing:
//!
//!     cargo test --features cuda --test gpu_engine -- --include-ignored --nocapture
#![cfg(feature = "cuda")]

mod alone;
mod clocks;
mod graphs;
mod measuring;
mod replay;
mod rig;
mod stamps;
mod timing;
#[path = "../trace_common/mod.rs"]
mod trace_common;
mod trouble;
mod ways;
