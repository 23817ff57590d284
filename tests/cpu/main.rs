//! The CPU reference through its public interface, driven step by step without the scheduler core.

mod golden;
mod goldens;
mod machine;
mod options;
mod refusals;
mod speed;
