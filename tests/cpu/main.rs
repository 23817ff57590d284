//! The CPU reference through its public interface, driven step by step without the scheduler core.

mod block;
mod formulas;
mod golden;
mod goldens;
mod machine;
mod options;
mod refusals;
mod speed;
