//! Rows, arrays and outputs through the library, on a device of the tests' own.

mod answers;
mod arrays;
mod compare;
mod fakes;
mod grammar;
mod job;
mod lines;
mod lost;
#[path = "../memory_common/mod.rs"]
mod memory_common;
mod mutation;
mod openai;
mod refused;
mod resume;
mod rows;
