//! What a GPU is given, as data that any build can show: calls of kernels, graphs captured of them, links between GPUs.

pub mod calls;
pub mod captured;
pub mod links;
