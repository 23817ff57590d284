//! What needs an NVIDIA GPU: every kernel against a plain implementation. Ignored unless asked for, so that a
//! run without a GPU says so instead of passing:
//!
//!     cargo test --features cuda --test gpu -- --include-ignored
#![cfg(feature = "cuda")]

mod attention;
mod capture;
mod conv;
mod embed;
mod experts;
mod linear;
mod norm;
mod rig;
mod sample;
mod support;
