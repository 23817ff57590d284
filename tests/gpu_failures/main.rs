//! What the binary makes of a GPU that is missing, too small, or fails, and what it says of a GPU's graphs: with a
//! libcuda.so of our own in the driver's place (driver/), so that all of it runs where there is no GPU.
#![cfg(feature = "cuda")]

mod ahead;
mod bench;
mod budget;
#[path = "../common/mod.rs"]
mod common;
mod doctor;
mod faults;
mod graphs;
mod host_stages;
mod inspect;
mod machine;
mod memory;
mod recipes;
mod replicas;
mod rig;
mod stages;
mod stuck;
mod traced;
mod tune;
