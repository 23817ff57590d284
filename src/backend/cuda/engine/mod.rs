//! What runs steps: a model's stages as programs, and the ways to launch them. May use all but `device`.

pub mod ahead;
pub mod captures;
pub mod delivery;
pub mod dispatcher_blocks;
pub mod host_pipeline;
pub mod hosted;
mod instantiate;
pub mod model;
pub mod pipeline;
pub mod program;
pub mod scheduler;
mod shared_block;
pub mod shared_queue;
pub mod step_copy;
pub mod waiter;
