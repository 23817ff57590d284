//! What the kernels of a stage share, in the memory of its GPU.

use crate::backend::cuda::memory::buffer::Buffer;
use crate::error::Result;
use crate::sys::abi;
use cudarc::driver::{CudaContext, CudaStream};
use std::sync::Arc;

/// Memory of one GPU at fixed addresses, which the captured kernels hold.
pub(super) struct Blocks {
    /// `tg_state`: the scheduler's on the first, elsewhere what steps bring.
    pub(super) state: Buffer,
    /// A copy of the rings' head, for the layout in it.
    pub(super) head: Buffer,
    /// `tg_graphs`
    pub(super) table: Buffer,
    /// `tg_stage`
    pub(super) stage: Buffer,
}

impl Blocks {
    /// Allocates the blocks; the state block's image is in its own.
    pub(super) fn new(
        context: &Arc<CudaContext>,
        stream: &CudaStream,
        state: &[u8],
    ) -> Result<Self> {
        let named = |what, bytes| Buffer::named(context, what, bytes);
        let blocks = Self {
            state: named("the scheduler", state.len())?,
            head: named("the rings' layout", size_of::<abi::tg_rings>())?,
            table: named("the table of graphs", size_of::<abi::tg_graphs>())?,
            stage: named("a stage's links", size_of::<abi::tg_stage>())?,
        };
        blocks.state.write(stream, 0, state)?;
        blocks.stage.fill(stream, 0)?;
        Ok(blocks)
    }
}
