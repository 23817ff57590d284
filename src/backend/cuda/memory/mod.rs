//! Memory of a GPU and pinned memory of the host: a model's weights there, one arena for all activations, what sequences keep
//! between steps, and whether all of it fits. May use `driver` and `families`, which say how weights are laid out.

pub mod arena;
pub mod arithmetic;
pub mod buffer;
mod convert;
pub mod pinned;
pub mod random;
pub mod staging;
pub mod state;
pub mod weights;
