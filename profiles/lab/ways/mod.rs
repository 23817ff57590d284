//! Every way that CUDA has of launching a step, over the same small kernels (kernels/ways): what `bench launch --launch all`
//! compares. A file a way, or a few that differ in a line; [`open`] is their table.

mod conditional;
mod device;
mod dynamic;
mod ground;
mod host;
mod persistent;
pub mod step;
mod update;

pub use ground::{Chunk, Ground, Run};
pub use step::Foreseen;

use crate::backend::cuda::driver::gpu::OpenGpu;
use crate::backend::cuda::engine::waiter::Wait;
use crate::backend::cuda::listed::techniques::Technique;
use crate::error::Result;

/// A way, made ready.
trait Steps {
    /// Runs steps until `until` are done, which are at most [`step::STAMPS`] more; gives how many launches the host made.
    ///
    /// # Errors
    /// What the driver or the GPU refused, or that a step did not end in time.
    fn run(&mut self, ground: &mut Ground, until: u64) -> Result<u64>;
}

/// Makes `technique` ready for `steps`. `renew`: launches in a chain of siblings.
///
/// # Errors
/// What the driver refuses: a node, a launch, memory.
pub fn open(gpu: &OpenGpu, technique: Technique, steps: &Foreseen, renew: u32) -> Result<Run> {
    use Technique as T;
    let mut ground = Ground::new(gpu, technique, steps, renew)?;
    let steps: Box<dyn Steps> = match technique {
        T::GraphQueued => Box::new(host::Queued::new(&ground)?),
        T::KernelsSpin => Box::new(host::Kernels::new(&ground)?),
        T::GraphSpin => Box::new(host::Graphs::new(&ground, None)?),
        T::GraphBlock => Box::new(host::Graphs::new(&ground, Some(Wait::Block))?),
        T::GraphEvent => Box::new(host::Graphs::new(&ground, Some(Wait::Event))?),
        T::GraphParams => Box::new(update::Params::new(&ground)?),
        T::GraphUpdate => Box::new(update::Whole::new(&ground)?),
        T::GraphRecapture => Box::new(update::Recapture::new(&ground)?),
        T::DeviceSibling | T::DeviceTail | T::DeviceScheduler | T::DeviceForget => {
            Box::new(device::Chain::new(&mut ground, technique)?)
        }
        T::Conditional => Box::new(conditional::Loop::new(&ground)?),
        T::Persistent => Box::new(persistent::Stays::new(&ground)?),
        T::Cdp => Box::new(dynamic::Scheduler::new(&ground, false)?),
        T::CdpStream => Box::new(dynamic::Scheduler::new(&ground, true)?),
    };
    Ok(Run::new(ground, steps))
}
