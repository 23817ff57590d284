//! A [`Device`] runs a model's steps: the operations of one stage at a time. Backends know the plan and the model, and read step
//! descriptors through [`StepView`]; they know nothing of requests, queues or text.

pub mod cpu;
pub mod cuda;
pub mod device;
mod in_turn;
pub mod spec;
pub mod step;
pub mod timing;

pub use device::Device;
pub use in_turn::InTurn;
pub use spec::{DeviceSpec, GpuSpec, Handover, LaunchWay, Parallel};
pub use step::StepView;

use crate::error::{Error, Result};
use crate::plan::{BucketSizes, StepKind};
use crate::sys::abi::tg_claimer;
use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

/// Runs one stage. Steps come in order; rows at or past the step's `rows` do not exist here.
pub trait StageBackend: Send {
    /// Runs every operation of the stage for `step`: from the activations that the stage before has left there, and leaves
    /// its own for the next ([`StepView::activations`]).
    fn run(&mut self, step: &StepView<'_>) -> Result<()>;

    /// f32 that it leaves for the next stage, a row.
    fn row_floats(&self) -> usize {
        0
    }

    /// For a backend of a whole model that can start a step before others are finished.
    fn ahead(&mut self) -> Option<&mut dyn RunsAhead> {
        None
    }
}

/// Which steps may be unfinished beside each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overlap {
    /// Two: behind a step one decode step of the same sequences, whose input is what the first one samples.
    Behind,
    /// So many steps over so many stages: of different sequences, or of chunks of a prompt that follow each other.
    Beside { stages: u32, steps: u32 },
}

impl Overlap {
    /// Steps that may be unfinished.
    pub fn steps(self) -> u32 {
        match self {
            Self::Behind => 2,
            Self::Beside { steps, .. } => steps,
        }
    }
}

/// Runs a step in two halves, so that its device has the next one at hand when it is through.
pub trait RunsAhead {
    fn overlap(&self) -> Overlap {
        Overlap::Behind
    }

    /// Starts `step`, with no others unfinished than [`RunsAhead::overlap`] says.
    ///
    /// # Errors
    /// Fails as [`StageBackend::run`] does.
    fn start(&mut self, step: &StepView<'_>) -> Result<()>;

    /// The stage that `step`, the oldest that is unfinished, is in. `None`: [`RunsAhead::finish`] may be called; a backend that
    /// always says so does its waiting there.
    ///
    /// # Errors
    /// Fails as [`StageBackend::run`] does.
    fn stage_of(&mut self, _step: &StepView<'_>) -> Result<Option<u32>> {
        Ok(None)
    }

    /// Waits for `step`, the oldest that is unfinished, and leaves its results.
    ///
    /// # Errors
    /// Fails as [`StageBackend::run`] does.
    fn finish(&mut self, step: &StepView<'_>) -> Result<()>;
}

/// Memory that the host reads and writes, and perhaps a device too: the same bytes for both. It stays where it is,
/// and lives as long as the value; who may touch what, and when, its users settle among themselves.
pub trait SharedRegion: Send + Sync {
    /// Aligned to 128 bytes.
    fn start(&self) -> NonNull<u8>;
    fn bytes(&self) -> usize;
}

/// The memory of a queue that schedulers of several devices claim from by themselves.
pub struct QueueMemory {
    /// What the host and all of them see: a `tg_queue` and its tables.
    pub region: Box<dyn SharedRegion>,
    /// Its first byte as the devices see it.
    pub address: u64,
    /// The word that they compare and swap, as they see it.
    pub claimed: u64,
    /// Whose memory that is in, for devices of its kind. It is freed with this value.
    pub owner: Box<dyn Any + Send + Sync>,
}

/// A scheduler's place at such a queue.
#[derive(Debug, Clone, Copy)]
pub struct Claimer {
    /// The claimer's words, with addresses as devices see them. What lies in the device's own memory, `numbers` and `seen`, is
    /// the device's to set.
    pub words: tg_claimer,
    /// Entries of its `numbers`: those of waiting requests, and of slots.
    pub numbers: u32,
}

/// A device that runs all stages and the scheduler core itself: once launched, it takes requests from the ring block
/// and leaves events there, and the host is needed for nothing else.
pub trait DeviceScheduler: Send {
    /// The device, or devices, as messages name them.
    fn name(&self) -> String;

    /// How many devices it is, each of which runs a stage beside the others.
    fn stages(&self) -> u32 {
        1
    }

    /// One of them, as messages name it.
    fn stage_name(&self, stage: u32) -> String {
        format!("stage {stage} on {}", self.name())
    }

    /// Lets it claim its requests from a queue, if it is told to ([`DeviceScheduler::claim_from`]). To be called before
    /// [`DeviceScheduler::prepare`].
    ///
    /// # Errors
    /// [`crate::Error::Runtime`] for what the device refuses.
    fn may_claim(&mut self) -> Result<()> {
        Ok(())
    }

    /// Gets everything ready but the launch: copies `state`, a whole `tg_state` block that no turn has been taken on,
    /// to the device, captures a step for every bucket of `bucket_sizes` with at most `slots` sequences each, and makes
    /// the block for the rings, `ring_bytes` long, that both sides see.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] where there is not enough; [`crate::Error::Runtime`] for what the device refuses.
    fn prepare(
        &mut self,
        state: &[u8],
        ring_bytes: usize,
        bucket_sizes: &BucketSizes,
        slots: u32,
    ) -> Result<Box<dyn SharedRegion>>;

    /// Starts the scheduler, with the rings laid out. Once, after [`DeviceScheduler::prepare`].
    ///
    /// # Errors
    /// [`crate::Error::Runtime`] for what the device refuses.
    fn launch(&mut self) -> Result<()>;

    /// Memory for a queue that this scheduler and those of other devices could claim their requests from by themselves
    /// (kernels/sched/claim.h): a block of `bytes`, cleared. `None` where this one cannot.
    ///
    /// # Errors
    /// Fails as [`DeviceScheduler::prepare`] does.
    fn queue_memory(&self, bytes: usize) -> Result<Option<QueueMemory>> {
        let _ = bytes;
        Ok(None)
    }

    /// Whether this scheduler can claim from a queue there, which may be another device's.
    ///
    /// # Errors
    /// [`crate::Error::Runtime`] where the device does not say.
    fn reaches(&self, queue: &QueueMemory) -> Result<bool> {
        let _ = queue;
        Ok(false)
    }

    /// Makes it take its requests from the queue, which it reaches, and not from the rings. It may claim
    /// ([`DeviceScheduler::may_claim`]). To be called between [`DeviceScheduler::prepare`] and [`DeviceScheduler::launch`].
    ///
    /// # Errors
    /// Fails as [`DeviceScheduler::prepare`] does.
    fn claim_from(&mut self, queue: &Arc<QueueMemory>, claimer: Claimer) -> Result<()> {
        let _ = (queue, claimer);
        Err(Error::Runtime(
            "this scheduler claims nothing by itself: this is a bug in tailgraph".into(),
        ))
    }

    /// Whether the scheduler is still running on the device; it ends by itself once the core has nothing more to do.
    ///
    /// # Errors
    /// [`crate::Error::Runtime`] where the device failed, naming what its driver said: nothing runs there any more.
    fn running(&mut self) -> Result<bool>;
}

/// Takes the logits that requests asked for. Called from the last stage's thread; may block (back-pressure).
pub trait LogitsSink: Send + Sync {
    /// `logits` is `[n, V]`: positions `first_position ..` of the request's prompt, in order.
    ///
    /// # Errors
    /// They cannot be taken, which ends the run.
    fn rows(&self, request: u64, first_position: u32, logits: &[f32]) -> Result<()>;
}

/// Takes logits that nobody has a use for.
pub struct UnreadLogits;

impl LogitsSink for UnreadLogits {
    fn rows(&self, _: u64, _: u32, _: &[f32]) -> Result<()> {
        Ok(())
    }
}

/// Told where a step's rows go, layer by layer, after each router.
pub trait RoutingSink: Send + Sync {
    /// `experts` is `[rows, K]`, those of a row ascending.
    ///
    /// # Errors
    /// What was told cannot be.
    fn routed(&self, kind: StepKind, layer: usize, experts: &[u32]) -> Result<()>;
}

/// A shared sink, or none where no request may ask for logits.
pub type SharedSink = Option<Arc<dyn LogitsSink>>;
