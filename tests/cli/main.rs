//! Behaviour through the binary: results on standard output, everything else on standard error, exit codes.

mod bench;
mod bench_kernel;
mod bench_load;
mod bench_output;
mod bench_usage;
mod clock;
#[path = "../common/mod.rs"]
mod common;
mod crowded;
mod devices;
mod ends;
mod generate;
mod inspect;
mod interrupted;
mod memory;
mod not_finite;
mod pages;
mod penalties;
mod pipes;
mod profile;
mod progress;
mod prompts;
mod recipes;
mod replay;
mod report;
mod rows;
mod schema;
mod score;
mod shards;
mod signals;
mod text_time;
mod timeline;
mod trace;
mod trace_kernels;
mod usage;
mod writes;
