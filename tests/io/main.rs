//! Rows, arrays and outputs through the library, on a device of the tests' own.

mod answers;
mod arrays;
mod choices;
#[path = "../common/mod.rs"]
mod common;
mod compare;
mod conversations;
mod damaged;
mod documented_calls;
mod fakes;
mod grammar;
mod job;
mod limits;
mod lines;
mod lost;
mod mutation;
mod numbers;
mod openai;
mod penalties;
mod refused;
mod resume;
mod rows;
mod tool_calls;
mod wrong;
