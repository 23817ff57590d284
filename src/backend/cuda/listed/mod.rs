//! What a GPU is given, as data that any build can show: calls of kernels, graphs captured of them, and
//! ways to launch these.

pub mod calls;
pub mod captured;
pub mod techniques;
