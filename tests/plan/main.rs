//! Plans: stages and bucket sizes, costs against known figures, memory arithmetic, and what `inspect` and `doctor` print.

mod build;
mod cost;
mod device;
mod kernel_gpus;
mod kernel_shapes;
mod kernels;
mod memory;
mod print;
mod rings;
mod support;
