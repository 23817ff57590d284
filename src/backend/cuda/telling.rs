//! A stage that says where its rows go.

use super::launch::Address;
use super::model::ModelProgram;
use super::module::failed;
use super::ops::Bucket;
use super::program::{StepAt, StepProgram};
use crate::backend::RoutingSink;
use crate::error::Result;
use crate::plan::{Op, OpKind};
use crate::sys::abi;
use cudarc::driver::{CudaStream, result};
use std::mem::offset_of;
use std::sync::Arc;

/// Waits after every router and reads what it chose: only for steps that the host launches kernel by kernel and nobody
/// times. It cannot be captured.
pub struct Telling {
    pub program: ModelProgram,
    pub routing: Arc<dyn RoutingSink>,
}

impl StepProgram for Telling {
    unsafe fn enqueue(&self, stream: &CudaStream, bucket: Bucket, at: StepAt) -> Result<()> {
        let mut tell = |op: Op| match (op.kind, op.layer) {
            // By then the layer's router has chosen: in kernels of its own, or for few rows in gate and up's.
            (OpKind::ExpertDown, Some(layer)) => {
                // SAFETY: the caller's promise.
                let experts = unsafe { self.chosen(stream, at) }?;
                self.routing.routed(bucket.kind, layer, &experts)
            }
            _ => Ok(()),
        };
        // SAFETY: the caller's promise.
        unsafe { self.program.enqueue_marked(stream, bucket, at, &mut tell) }
    }

    fn check(&self) -> Result<()> {
        self.program.check()
    }
}

impl Telling {
    /// What the router that was enqueued last chooses, `[rows, K]`: waits for it.
    ///
    /// # Safety
    /// There is a step at `at` by then.
    unsafe fn chosen(&self, stream: &CudaStream, at: StepAt) -> Result<Vec<u32>> {
        let refused = |error| failed("waiting for a router on the GPU", error);
        stream.synchronize().map_err(refused)?;
        let mut rows = [0];
        // SAFETY: the caller's promise.
        unsafe { read(at.step + offset_of!(abi::tg_step, rows) as u64, &mut rows) }?;
        let (address, each) = self.program.chosen_experts();
        let mut experts = vec![0; rows[0] as usize * each];
        // SAFETY: a step's rows fit its bucket, and the array the largest one.
        unsafe { read(address, &mut experts) }?;
        Ok(experts)
    }
}

/// # Safety
/// There are so many numbers at `address`.
unsafe fn read(address: Address, numbers: &mut [u32]) -> Result<()> {
    // SAFETY: the caller's promise; `chosen` has bound the context to this thread by waiting.
    let copied = unsafe { result::memcpy_dtoh_sync(numbers, address) };
    copied.map_err(|error| failed("copying what a router chose from the GPU", error))
}
