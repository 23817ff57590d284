//! Memory of a GPU and pinned memory of the host, and a model's weights there. May use `driver` and `families`, which say how
//! weights are laid out.

pub mod buffer;
mod convert;
pub mod pinned;
pub mod weights;
