//! What a GPU's dispatcher works on (kernels/sched/dispatch.cuh): memory of one scheduler's own.

use crate::backend::cuda::driver::launch::Argument;
use crate::backend::cuda::families::StepAt;
use crate::backend::cuda::memory::buffer::Buffer;
use crate::backend::cuda::memory::pinned::Pinned;
use crate::error::Result;
use crate::sys::abi;
use cudarc::driver::CudaContext;
use std::mem::offset_of;
use std::sync::Arc;

/// Memory at fixed addresses, which the captured kernels hold.
pub struct Blocks {
    /// `tg_state`
    pub state: Buffer,
    /// `tg_rings`
    pub rings: Arc<Pinned>,
    /// A copy of the rings' head, for the layout in it.
    pub head: Buffer,
    /// `tg_graphs`
    pub table: Buffer,
    /// `tg_chain`
    pub chain: Buffer,
}

impl Blocks {
    /// # Errors
    /// [`crate::Error::Memory`] where there is too little; [`crate::Error::Runtime`] for what the driver refuses.
    pub fn new(context: &Arc<CudaContext>, state_bytes: usize, ring_bytes: usize) -> Result<Self> {
        Ok(Self {
            state: Buffer::named(context, "the scheduler", state_bytes)?,
            rings: Pinned::unset(context, ring_bytes)?,
            head: Buffer::named(context, "the rings' layout", size_of::<abi::tg_rings>())?,
            table: Buffer::named(context, "the table of graphs", size_of::<abi::tg_graphs>())?,
            chain: Buffer::named(context, "the chain of graphs", size_of::<abi::tg_chain>())?,
        })
    }

    /// Where the one step in flight stands.
    pub fn step(&self) -> StepAt {
        StepAt {
            state: self.state.at(0),
            step: self.state.at(offset_of!(abi::tg_state, steps)),
            h: None,
        }
    }

    /// The dispatcher's arguments; `place` is a `TG_DISPATCH_*`.
    pub fn dispatch(&self, place: u32) -> [Argument; 6] {
        [
            Argument::Address(self.state.at(0)),
            Argument::Address(self.rings.device()),
            Argument::Address(self.head.at(0)),
            Argument::Address(self.table.at(0)),
            Argument::Address(self.chain.at(0)),
            Argument::U32(place),
        ]
    }
}

/// Bytes of device memory that a scheduler takes for a state block of `state_bytes`.
pub fn table_bytes(state_bytes: usize) -> usize {
    state_bytes
        + size_of::<abi::tg_rings>()
        + size_of::<abi::tg_graphs>()
        + size_of::<abi::tg_chain>()
}
