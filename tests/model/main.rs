//! Models through the library: configurations, checkpoints on disk, random presets, and the two made equal.

mod checkpoint;
#[path = "../common/mod.rs"]
mod common;
mod config;
mod config_refused;
mod defects;
mod generation;
mod quantized;
mod random;
mod shards;
mod synth;
