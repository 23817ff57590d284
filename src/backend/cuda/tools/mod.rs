//! Programs that tell more than a run wants to know: when each kernel ran, where rows were routed, a step without a model, every way
//! to launch one, limits, queues, a GPU that is busy, links between GPUs
//! and every way to hand rows on over them.

pub mod busy;
mod foreseen;
pub mod handover;
pub mod limits;
pub mod links;
pub mod probe;
mod progress;
pub mod queue;
pub mod routing;
pub mod stamps;
pub mod techniques;
