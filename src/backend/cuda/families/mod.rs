//! Kernel families, one file each: which shapes a family serves, how it sizes its launches, and which calls it makes for an
//! operation of a plan. Kernels, blocks and shared memory follow from shapes, the bucket and its variant alone; what differs from
//! step to step the kernels read from the step descriptor. So a call is a value: nothing here talks to a GPU.
//!
//! May use `plan`, `model`, `error` and this backend's calls; knows no weights and no arena: callers pass addresses. Which
//! family does which operations is not decided here, but by `lower`.

pub mod attention;
pub mod conv;
pub mod experts;
pub mod grouped;
pub mod head;
pub mod kernels;
pub mod limits;
pub mod needed;
pub mod norm;
pub mod packed;
pub mod persistent;
pub mod router;
pub mod share;
pub mod skinny;
pub mod swap_ab;
pub mod tiled;
mod variant;

pub use kernels::{Kernels, Products};

use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::call::KernelCall;
use crate::backend::cuda::driver::launch::{Argument, Kernel, Launch};
use crate::backend::cuda::matrix::Matrix;
use crate::backend::cuda::tuning::variants::Variant;
use crate::model::ModelConfig;
use crate::plan::{Op, StepKind};
use crate::sys::abi;
use std::mem::offset_of;

/// What every launch of a graph is sized by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    pub kind: StepKind,
    pub rows: u32,
    /// Most sequences of one of its steps: the slots, or the rows where they are fewer. Also most sampled rows.
    pub sequences: u32,
}

/// Where the step to run is described whenever the kernels run. These addresses are the same for every step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepAt {
    /// `tg_state *`: slots and pages; the step's tables are at offsets from here.
    pub state: Address,
    /// `tg_step *`
    pub step: Address,
    /// Where the residual stream of a model's step lies: f32 `[R, H]`; none: in its arena.
    pub h: Option<Address>,
}

/// Makes the calls of one step, in order, for one bucket.
///
/// Addresses that its methods are given are those of arrays with the documented shapes, which live, and are used by nothing
/// else, whenever the calls run.
pub struct Lowering<'a> {
    pub config: &'a ModelConfig,
    pub kernels: &'a Kernels,
    /// Those that multiply for the next calls.
    products: &'a Products,
    pub bucket: Bucket,
    /// What serves the bucket: [`Kernels::variant`].
    pub variant: Variant,
    /// `tg_state *`
    state: Address,
    /// `tg_step *`: where the descriptor of the step to run lies whenever the kernels run, or of those of its rows that are needed.
    step: Address,
    /// `tg_step *`: of all rows.
    whole_step: Address,
    /// Launch each kernel while the one before still runs (sm_90 and later overlap their edges).
    pdl: bool,
    /// The next call starts once those before it have ended.
    starts_behind: bool,
    /// Where the step's query tiles are listed already: they are those of all layers.
    query_tiles: Option<Address>,
    /// Weights of the layer's experts that a dense product may prefetch.
    ahead: Option<abi::tg_prefetch_args>,
    /// One of the layer's calls prefetches some of them.
    prefetched: bool,
    /// What the next calls are noted to do.
    ops: Vec<Op>,
    calls: Vec<KernelCall>,
}

impl<'a> Lowering<'a> {
    /// `pdl`: the GPU overlaps launches.
    pub fn new(
        config: &'a ModelConfig,
        kernels: &'a Kernels,
        bucket: Bucket,
        variant: Variant,
        at: StepAt,
        pdl: bool,
    ) -> Self {
        Self {
            config,
            kernels,
            products: &kernels.products,
            bucket,
            variant,
            state: at.state,
            step: at.step,
            whole_step: at.step,
            pdl,
            starts_behind: false,
            query_tiles: None,
            ahead: None,
            prefetched: false,
            ops: vec![],
            calls: vec![],
        }
    }

    /// The calls from here on do these operations of the plan, or have a share in them.
    pub fn doing(&mut self, ops: &[Op]) {
        self.products = self.kernels.products_of(ops);
        self.ops = ops.to_vec();
    }

    /// All calls so far.
    pub fn into_calls(self) -> Vec<KernelCall> {
        self.calls
    }

    fn call(
        &mut self,
        kernel: &Kernel,
        grid: (u32, u32, u32),
        threads: u32,
        shared_bytes: u32,
        arguments: Vec<Argument>,
    ) {
        let launch = Launch {
            grid,
            shared_bytes,
            ..Launch::blocks(1, threads)
        };
        self.push(kernel, launch, arguments);
    }

    /// A call of a kernel that has no dynamic shared memory.
    fn call_plain(
        &mut self,
        kernel: &Kernel,
        grid: (u32, u32, u32),
        threads: u32,
        arguments: Vec<Argument>,
    ) {
        self.call(kernel, grid, threads, 0, arguments);
    }

    /// A call of blocks in clusters, without dynamic shared memory.
    fn call_clusters(
        &mut self,
        kernel: &Kernel,
        (blocks, cluster): (u32, u32),
        threads: u32,
        arguments: Vec<Argument>,
    ) {
        let launch = Launch {
            cluster,
            ..Launch::blocks(blocks, threads)
        };
        self.push(kernel, launch, arguments);
    }

    fn push(&mut self, kernel: &Kernel, mut launch: Launch, arguments: Vec<Argument>) {
        launch.pdl = self.pdl && !std::mem::take(&mut self.starts_behind);
        self.calls.push(KernelCall {
            kernel: kernel.clone(),
            launch,
            arguments,
            weights: vec![],
            ops: self.ops.clone(),
        });
    }

    /// The newest call multiplies with these.
    fn with_weights(&mut self, weights: impl Into<Vec<Matrix>>) {
        let call = self.calls.last_mut();
        call.expect("a call reads them").weights = weights.into();
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
