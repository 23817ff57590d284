//! The operations of a plan as kernel launches, one file per family. For each, which kernels, how many blocks
//! and how much shared memory follow from shapes, the bucket and its variant alone, in pure functions; what differs from
//! step to step the kernels read from the step descriptor. So the same calls launch at once or are captured,
//! and nothing here allocates.
//!
//! May use `plan`, `model`, `error` and this backend's launching; knows no weights and no arena: callers pass
//! addresses.

pub mod attention;
pub mod conv;
pub mod deliver;
pub mod experts;
pub mod grouped;
pub mod head;
pub mod kernels;
mod limits;
pub mod norm;
pub mod router;
pub mod skinny;
pub mod swap_ab;
pub mod tiled;
mod variant;

pub use kernels::{Kernels, Types};

use super::launch::{Address, Argument, Kernel, Launch};
use crate::error::Result;
use crate::model::ModelConfig;
use crate::plan::StepKind;
use crate::plan::variants::Variant;
use crate::sys::abi;
use cudarc::driver::CudaStream;
use std::mem::offset_of;

/// What every launch of a graph is sized by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    pub kind: StepKind,
    pub rows: u32,
    /// Most sequences of one of its steps: the slots, or the rows where they are fewer. Also most sampled rows.
    pub sequences: u32,
}

/// Enqueues operations of one stage, for one bucket, on one stream.
///
/// Its methods are `unsafe`: addresses must be of arrays with the documented shapes, alive until the work has
/// run (for a captured graph: whenever it runs), and used by nothing else meanwhile.
pub struct Enqueue<'a> {
    pub config: &'a ModelConfig,
    pub kernels: &'a Kernels,
    pub stream: &'a CudaStream,
    pub bucket: Bucket,
    /// What serves the bucket: [`Kernels::variant`].
    pub variant: Variant,
    /// `tg_state *`
    pub state: Address,
    /// `tg_step *`: where the descriptor of the step to run lies whenever the kernels run.
    pub step: Address,
    /// Launch each kernel while the one before still runs (sm_90 and later overlap their edges).
    pub early: bool,
}

impl Enqueue<'_> {
    /// # Safety
    /// [`Kernel::launch`]'s.
    unsafe fn launch(
        &self,
        kernel: &Kernel,
        grid: (u32, u32, u32),
        threads: u32,
        shared_bytes: u32,
        arguments: &[Argument],
    ) -> Result<()> {
        let launch = Launch {
            grid,
            threads,
            shared_bytes,
            cluster: 1,
            early: self.early,
        };
        // SAFETY: the caller's promise.
        unsafe { kernel.launch(self.stream, launch, arguments) }
    }

    /// `const uint32_t *`: how many rows the step has.
    fn row_count(&self) -> Address {
        self.step + offset_of!(abi::tg_step, rows) as u64
    }

    /// `const uint32_t *`: how many of them are sampled.
    fn sample_count(&self) -> Address {
        self.step + offset_of!(abi::tg_step, sample_rows) as u64
    }

    fn hidden(&self) -> u32 {
        self.config.hidden_size as u32
    }
}
