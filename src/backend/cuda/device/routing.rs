//! A stage that says where its rows go.

use crate::backend::RoutingSink;
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::call::{KernelCall, ReadyCall};
use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::engine::model::InOrder;
use crate::backend::cuda::engine::program::StepProgram;
use crate::backend::cuda::families::{Bucket, StepAt};
use crate::error::Result;
use crate::plan::OpKind;
use crate::sys::abi;
use cudarc::driver::{CudaStream, result};
use std::mem::offset_of;
use std::sync::Arc;

/// Waits after every router and reads what it chose: only for steps that the host launches kernel by kernel and nobody
/// times. It cannot be captured.
pub struct RoutingReader {
    pub program: InOrder,
    /// Where a router leaves what it chose, `u32 [rows, K]`, and K.
    pub chosen: (Address, usize),
    pub routing: Arc<dyn RoutingSink>,
}

impl StepProgram for RoutingReader {
    fn lower(&self, bucket: Bucket, at: StepAt) -> Result<Vec<KernelCall>> {
        self.program.lower(bucket, at)
    }

    unsafe fn enqueue(
        &self,
        stream: &CudaStream,
        bucket: Bucket,
        at: StepAt,
        calls: &[ReadyCall],
    ) -> Result<()> {
        for (index, call) in calls.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { call.launch(stream) }?;
            // The last call of a router has chosen.
            let next = calls.get(index + 1).and_then(router);
            if let Some(layer) = router(call).filter(|layer| next != Some(*layer)) {
                // SAFETY: the caller's promise.
                let experts = unsafe { self.chosen(stream, at) }?;
                self.routing.routed(bucket.kind, layer, &experts)?;
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        self.program.check()
    }
}

/// The layer whose router a call does or has a share in.
fn router(call: &ReadyCall) -> Option<usize> {
    let mut ops = call.ops().iter();
    ops.find(|op| op.kind == OpKind::Router)?.layer
}

impl RoutingReader {
    /// What the router that was enqueued last chooses, `[rows, K]`: waits for it.
    ///
    /// # Safety
    /// There is a step at `at` by then.
    unsafe fn chosen(&self, stream: &CudaStream, at: StepAt) -> Result<Vec<u32>> {
        let refused = |error| failed("waiting for a router on the GPU", error);
        stream.synchronize().map_err(refused)?;
        let read = |address: Address, numbers: &mut [u32]| {
            // SAFETY: there are so many numbers at the address, and waiting has bound the context to this thread.
            let copied = unsafe { result::memcpy_dtoh_sync(numbers, address) };
            copied.map_err(|error| failed("copying what a router chose from the GPU", error))
        };
        // There is a step by the caller's promise; its rows fit its bucket, and the array the largest one.
        let mut rows = [0];
        read(at.step + offset_of!(abi::tg_step, rows) as u64, &mut rows)?;
        let (address, each) = self.chosen;
        let mut experts = vec![0; rows[0] as usize * each];
        read(address, &mut experts)?;
        Ok(experts)
    }
}
