//! A stage that says where its rows go.

use crate::backend::RoutingSink;
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::call::{KernelCall, ReadyCall};
use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::engine::model::{ChosenExperts, InOrder};
use crate::backend::cuda::engine::program::StepProgram;
use crate::backend::cuda::families::{Bucket, StepAt};
use crate::error::Result;
use crate::plan::{Op, OpKind, StepKind};
use crate::sys::abi;
use cudarc::driver::{CudaStream, result};
use std::mem::offset_of;
use std::sync::Arc;

/// Waits after every router and reads what it chose: only for steps that the host launches kernel by kernel and nobody
/// times. It cannot be captured.
pub struct RoutingReader {
    pub program: InOrder,
    pub chosen: ChosenExperts,
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
            if let Some(op) = router(call).filter(|op| next != Some(*op)) {
                let needed = self.chosen.needed.filter(|needed| needed.are_all_of(&op));
                let step = match needed {
                    Some(_) if bucket.kind == StepKind::Mixed => self.chosen.needed_step,
                    _ => at.step,
                };
                // SAFETY: the caller's promise.
                let experts = unsafe { self.chosen(stream, step) }?;
                let layer = op.layer.unwrap_or_default();
                self.routing.routed(bucket.kind, layer, &experts)?;
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        self.program.check()
    }
}

/// The router that a call does or has a share in.
fn router(call: &ReadyCall) -> Option<Op> {
    let mut ops = call.ops().iter();
    ops.find(|op| op.kind == OpKind::Router).copied()
}

impl RoutingReader {
    /// What the router that was enqueued last chooses, `[rows, K]`: waits for it.
    ///
    /// # Safety
    /// There is a `tg_step` at `step` by then.
    unsafe fn chosen(&self, stream: &CudaStream, step: Address) -> Result<Vec<u32>> {
        let refused = |error| failed("waiting for a router on the GPU", error);
        stream.synchronize().map_err(refused)?;
        let read = |address: Address, numbers: &mut [u32]| {
            // SAFETY: there are so many numbers at the address, and waiting has bound the context to this thread.
            let copied = unsafe { result::memcpy_dtoh_sync(numbers, address) };
            copied.map_err(|error| failed("copying what a router chose from the GPU", error))
        };
        // There is a step by the caller's promise; its rows fit its bucket, and the array the largest one.
        let mut rows = [0];
        read(step + offset_of!(abi::tg_step, rows) as u64, &mut rows)?;
        let ChosenExperts {
            experts: address,
            each,
            ..
        } = self.chosen;
        let mut experts = vec![0; rows[0] as usize * each];
        read(address, &mut experts)?;
        Ok(experts)
    }
}
