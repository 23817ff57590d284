//! What a GPU is given, as data that any build can show: calls of kernels, graphs captured of them, and
//! ways to launch these; and what lies between GPUs.

pub mod calls;
pub mod captured;
pub mod links;
pub mod techniques;
