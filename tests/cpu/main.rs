//! The CPU reference through its public interface, driven step by step without the scheduler core.

mod block;
#[path = "../common/mod.rs"]
mod common;
mod formulas;
mod goldens;
mod machine;
mod needed;
mod options;
mod refusals;
mod speed;
