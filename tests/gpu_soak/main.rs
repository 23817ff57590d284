//! A long and varied load, small: the soak that profiles/soak.rs runs at full size. A program of its own, since it watches
//! the memory of its process and of the GPU. Without a GPU only the CPU's part runs:
//!
//!     cargo test --features cuda --test gpu_soak -- --include-ignored
#![cfg(feature = "cuda")]

mod small;
mod soak;
