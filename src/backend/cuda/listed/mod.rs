//! What a GPU is given, as data that any build can show: calls of kernels, and graphs captured of them.

pub mod calls;
pub mod captured;
pub mod techniques;
