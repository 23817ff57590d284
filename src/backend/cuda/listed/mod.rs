//! What a GPU is given, as data that any build can show: calls of kernels, graphs captured of them, and
//! ways to launch these; what lies between GPUs, and ways to hand rows on there.

pub mod calls;
pub mod captured;
pub mod handover;
pub mod links;
pub mod techniques;
