//! What several test programs share; each includes this folder.
//!
//! - [`random`]: seeded random input
//! - [`engine`]: requests to an engine and what comes of them; [`program`]: the binary as tests run it, and how it ended;
//!   [`compile`]: C programs of the tests
//! - [`rows`]: rows of JSON lines; [`schema`]: JSON against tests/schemas/
//! - [`fixtures`]: where they are; [`golden`]: the golden checkpoints and what transformers computes with them;
//!   [`checkpoint`]: small models, and safetensors files taken apart
//! - `probe`: a step without a model (GPUs only)
//! - [`fuzz`]: how long mutation tests run; [`memory`]: how much memory a program took
//! - [`text`]: the fixtures' tokenizers and templates
//! - [`python`]: the pinned Python, and the folder of published files
//! - [`traced`]: a measured run as the trace of its records has it

#![allow(dead_code, reason = "each program uses its part")]

pub mod checkpoint;
pub mod compile;
pub mod engine;
pub mod fixtures;
pub mod fuzz;
pub mod golden;
pub mod memory;
pub mod probe;
pub mod program;
pub mod python;
pub mod random;
pub mod rows;
pub mod schema;
pub mod text;
pub mod traced;
