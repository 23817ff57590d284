//! Models through the library: configurations, checkpoints on disk, random presets, and the two made equal.

mod checkpoint;
mod config;
mod random;
mod support;
mod synth;
