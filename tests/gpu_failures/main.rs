//! What the binary makes of a GPU that is missing, too small, or fails: with a libcuda.so of our own in the driver's
//! place (driver/), so that all of it runs where there is no GPU.
#![cfg(feature = "cuda")]

mod budget;
mod doctor;
mod faults;
mod machine;
mod memory;
mod rig;
mod stuck;
