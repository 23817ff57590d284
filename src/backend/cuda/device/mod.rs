//! A GPU as the device of a run.

mod in_a_row;
pub mod links;
mod memory;
mod routing;
mod stages;
pub mod stamps;
mod start;

pub use memory::on_paper;
pub use stages::GpuStages;
pub use start::{capture_all, launched};

use crate::backend::GpuSpec;
use crate::backend::cuda::driver::gpu::OpenGpu;
use crate::backend::cuda::tuning::KernelChoice;
use crate::backend::cuda::tuning::gpu::Gpu;
use crate::backend::device::{Device, EngineSpec, Stages, Started, Wanted, Watch};
use crate::bytes::Bytes;
use crate::error::Result;
use crate::plan::{Budget, LayerRange, MemoryPlan};

/// The share of a GPU's free memory that a run takes when nobody says otherwise: graphs and the driver need some too.
const FREE_PERCENT: u64 = 90;

/// A GPU, and how it is used.
#[derive(Debug, Clone)]
pub struct GpuDevice {
    pub gpu: OpenGpu,
    /// What it was opened by.
    pub spec: GpuSpec,
}

impl Device for GpuDevice {
    type Spec = GpuSpec;

    fn open(spec: &GpuSpec) -> Result<Self> {
        let gpu = OpenGpu::new(spec.ordinal)?;
        let kernels = KernelChoice::open(spec.kernel_file.as_deref())?;
        Ok(Self {
            gpu: gpu.served_by(kernels),
            spec: spec.clone(),
        })
    }

    fn info(&self) -> Option<String> {
        Some(self.gpu.info.to_string())
    }

    fn known(&self) -> Option<&'static Gpu> {
        Gpu::of_driver(&self.gpu.info.name)
    }

    fn kernel_variants(&self) -> Result<Option<String>> {
        Ok(Some(self.gpu.kernel_file()?.name()))
    }

    fn budget(&self, limit: Option<u64>) -> Result<Budget> {
        let free = self.gpu.free_bytes()?;
        let share = free / 100 * FREE_PERCENT;
        Ok(match limit {
            Some(limit) if limit <= share => Budget::new(Some(limit)),
            _ => Budget {
                bytes: share,
                source: format!(
                    "{FREE_PERCENT}% of the {} free on {}",
                    Bytes(free),
                    self.gpu.info
                ),
            },
        })
    }

    fn memory(&self, wanted: &Wanted<'_>) -> Result<MemoryPlan> {
        let budget = self.budget(wanted.memory_limit)?;
        let ranges = [LayerRange::whole(&wanted.plan.config)];
        memory::on_gpu(wanted, &ranges, self.spec.launch, &self.gpu.info, budget)
    }

    fn start(&self, spec: &EngineSpec<'_>, watch: Watch<'_>) -> Result<Started> {
        start::start(self, spec, watch)
    }

    fn stages(&self, spec: &EngineSpec<'_>) -> Result<Stages> {
        let way = self.spec.launch.of_scheduled();
        Ok(vec![Box::new(self.hosted(spec, way, false)?.0)])
    }
}
