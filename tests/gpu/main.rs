//! What needs an NVIDIA GPU: every kernel against a plain implementation. Ignored unless asked for, so that a
//! run without a GPU says so instead of passing:
//!
//!     cargo test --release --features cuda --test gpu -- --include-ignored
#![cfg(feature = "cuda")]

mod embed;
mod norm;
mod support;
