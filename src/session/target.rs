//! The device that a [`DeviceSpec`] names, opened.

use super::spec::RunSpec;
use crate::backend::cpu::Cpu;
use crate::backend::cuda::device::{GpuDevice, GpuStages};
use crate::backend::cuda::driver::gpu::expect_kernels;
use crate::backend::{Device, DeviceSpec};
use crate::backend::{GpuSpec, Parallel};
use crate::error::Result;

/// A device that is there, as what it is: some commands are of GPUs alone.
pub enum Target {
    Cpu(Cpu),
    Gpu(GpuDevice),
    /// Several GPUs, each with a share of the stages.
    Stages(GpuStages),
}

impl Target {
    /// The device that a run's model is put on first: all of its GPUs where they share the stages out.
    ///
    /// # Errors
    /// Fails as [`Target::open`] does.
    pub fn of(spec: &RunSpec) -> Result<Self> {
        if spec.parallel == Parallel::Stages
            && let Some(gpus) = gpus(spec)
        {
            return GpuStages::open(&gpus).map(Self::Stages);
        }
        Self::open(&spec.device)
    }

    /// # Errors
    /// [`Device::open`]'s; [`crate::Error::Usage`] for a GPU in a build without kernels.
    pub fn open(spec: &DeviceSpec) -> Result<Self> {
        match spec {
            DeviceSpec::Cpu { .. } => Cpu::open(&()).map(Self::Cpu),
            DeviceSpec::Gpu(spec) => {
                expect_kernels(&format!("`device` cuda:{}", spec.ordinal))?;
                GpuDevice::open(spec).map(Self::Gpu)
            }
        }
    }

    /// The GPUs that it is; none where it is none.
    pub fn gpus(&self) -> &[GpuDevice] {
        match self {
            Self::Cpu(_) => &[],
            Self::Gpu(gpu) => std::slice::from_ref(gpu),
            Self::Stages(stages) => stages.gpus(),
        }
    }

    /// The number of the GPU that it is, or of the first of several; 0 where it is none.
    pub fn ordinal(&self) -> u32 {
        self.gpus().first().map_or(0, |gpu| gpu.spec.ordinal)
    }

    /// Whatever it is.
    pub fn device(&self) -> &dyn Device {
        match self {
            Self::Cpu(cpu) => cpu,
            Self::Gpu(gpu) => gpu,
            Self::Stages(gpus) => gpus,
        }
    }
}

/// The GPUs of a run on several.
fn gpus(spec: &RunSpec) -> Option<Vec<GpuSpec>> {
    let gpu = |device: &DeviceSpec| match device {
        DeviceSpec::Gpu(gpu) => Some(gpu.clone()),
        DeviceSpec::Cpu { .. } => None,
    };
    let several = !spec.beside.is_empty();
    several.then(|| spec.devices().map(gpu).collect()).flatten()
}
