//! What needs an NVIDIA GPU: every kernel against a plain implementation, and whole models. Ignored unless asked for,
//! so that a run without a GPU says so instead of passing:
//!
//!     cargo test --features cuda --test gpu -- --include-ignored
#![cfg(feature = "cuda")]

mod ahead;
mod attention;
mod bench;
mod binary;
mod capture;
#[path = "../common/mod.rs"]
mod common;
mod conv;
mod conv_layer;
mod e4m3_rows;
mod embed;
mod engine;
mod experts;
mod goldens;
mod head;
mod inspect;
mod needed;
mod norm;
mod persistent;
mod prefixes;
mod replay;
mod rig;
mod router;
mod routing;
mod sample;
mod share;
mod skinny;
mod stall;
mod support;
mod swap_ab;
mod tiled;
mod tune;
mod variants;
mod ways;
mod weights;
