//! What several test programs share; each includes this folder.
//!
//! - [`random`]: seeded random input
//! - [`fuzz`]: how long mutation tests run; [`memory`]: how much memory a program took
//! - [`text`]: the fixtures' tokenizers and templates; [`grammar`]: random templates
//! - [`python`]: the pinned Python, and the folder of published files
//! - [`traced`]: a measured run as the trace of its records has it

#![allow(dead_code, reason = "each program uses its part")]

pub mod fuzz;
pub mod grammar;
pub mod memory;
pub mod python;
pub mod random;
pub mod text;
pub mod traced;
