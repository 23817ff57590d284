//! What runs models, whatever it is.

use super::{DeviceScheduler, RoutingSink, SharedSink, StageBackend};
use crate::backend::cuda::tuning::gpu::Gpu;
use crate::backend::timing::{StageClock, StepClock};
use crate::error::Result;
use crate::model::{Model, ModelSource};
use crate::plan::{
    BucketSizes, Budget, EngineOptions, Limits, MemoryPlan, OpKind, Plan, Precision,
};
use std::sync::Arc;
use std::time::Duration;

/// A device that is open.
pub trait Device {
    /// What is chosen about it.
    type Spec
    where
        Self: Sized;

    /// # Errors
    /// [`crate::Error::Usage`] for one that there is not; [`crate::Error::Runtime`] where the machine lacks what it needs;
    /// [`crate::Error::File`] for a file of the spec that is wrong.
    fn open(spec: &Self::Spec) -> Result<Self>
    where
        Self: Sized;

    /// The driver's name for it, where it has one.
    fn info(&self) -> Option<String>;

    /// What its times are measured against, where that is known.
    fn known(&self) -> Option<&'static Gpu>;

    /// What says which kernels serve which bucket, where there is a choice: an architecture and a digest.
    ///
    /// # Errors
    /// The file that was named is for other devices.
    fn kernel_variants(&self) -> Result<Option<String>>;

    /// The memory that a run may take: `limit` in bytes where it is given, else a share of what is free.
    ///
    /// # Errors
    /// The driver does not say.
    fn budget(&self, limit: Option<u64>) -> Result<Budget>;

    /// Sizes of a run, before any weight is loaded.
    ///
    /// # Errors
    /// A model that the device does not take, limits that cannot be, too little memory.
    fn memory(&self, wanted: &Wanted<'_>) -> Result<MemoryPlan>;

    /// Loads a model, and gets ready what runs its steps.
    ///
    /// # Errors
    /// [`crate::Error::Usage`] for what the device does not take; [`crate::Error::Memory`] where there is too little;
    /// [`crate::Error::Runtime`] for what its driver refuses.
    fn start(&self, spec: &EngineSpec<'_>, watch: Watch<'_>) -> Result<Started>;

    /// Starts all stages for a scheduler on the host, whatever the device could do itself.
    ///
    /// # Errors
    /// Fails as [`Device::start`] does.
    fn stages(&self, spec: &EngineSpec<'_>) -> Result<Stages>;
}

/// One for each stage, in order, or one for all.
pub type Stages = Vec<Box<dyn StageBackend>>;

/// A model as an engine runs it.
#[derive(Clone, Copy)]
pub struct EngineSpec<'a> {
    pub model: &'a Arc<Model>,
    pub plan: &'a Plan,
    pub options: &'a EngineOptions,
    /// Takes the logits that requests ask for; without one, none may.
    pub sink: &'a SharedSink,
}

/// What is looked at while steps run.
#[derive(Clone, Copy)]
pub enum Watch<'a> {
    Nothing,
    /// How long each part of a step takes. GPUs run the kernels of the operation `in_a_row`
    /// [`IN_A_ROW`](crate::backend::timing::IN_A_ROW) times.
    Times {
        in_a_row: Option<OpKind>,
    },
    /// When stages that have a GPU each, and hand steps to each other, had each step; nothing elsewhere.
    Stages,
    /// Where rows are routed, for which steps wait.
    Routing(&'a Arc<dyn RoutingSink>),
}

/// A model that is ready for its first step.
pub struct Started {
    pub runs: Runs,
    /// The buckets that there are.
    pub bucket_sizes: BucketSizes,
    pub options: EngineOptions,
    pub clocks: Clocks,
    /// A step that takes longer fails the run.
    pub step_timeout: Option<Duration>,
}

/// Where the times of steps come out, if they are timed.
#[derive(Default)]
pub struct Clocks {
    /// Where [`Watch::Times`] asks for them.
    pub parts: Option<Box<dyn StepClock>>,
    /// Where [`Watch::Stages`] does.
    pub stages: Option<Box<dyn StageClock>>,
}

/// What runs steps.
pub enum Runs {
    /// The host schedules.
    Stages(Stages),
    /// The device schedules.
    Scheduler(Box<dyn DeviceScheduler>),
}

/// What a run wants of a device's memory.
pub struct Wanted<'a> {
    pub model: &'a ModelSource,
    /// Weights are in the host's memory in another format than the model's.
    pub converts: bool,
    pub plan: &'a Plan,
    pub precision: Precision,
    pub limits: &'a Limits,
    /// See [`Device::budget`].
    pub memory_limit: Option<u64>,
    /// Requests may ask for logits.
    pub delivers: bool,
    /// That are to share the device's memory, where that is the host's; weights are there once.
    pub engines: u32,
    pub core: CoreSizes,
}

/// Says what the scheduler's core takes on so many devices that schedule themselves, each with a stage, for buckets and sizes that
/// are asked about.
///
/// # Errors
/// [`crate::Error::Usage`] for sizes that break one of the core's rules.
pub type CoreSizes = fn(&BucketSizes, &EngineOptions, u32) -> Result<CoreBytes>;

/// What the scheduler's core takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoreBytes {
    /// A whole `tg_state` block.
    pub state: usize,
    /// The block of the rings, which the host sees too.
    pub rings: usize,
    /// What a step is, on its way to the next stage, without its activations.
    pub step: usize,
}
