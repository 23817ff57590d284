//! The device that a [`DeviceSpec`] names, opened.

use super::spec::RunSpec;
use crate::backend::cpu::Cpu;
#[cfg(feature = "cuda")]
use crate::backend::cuda::device::{GpuDevice, GpuStages};
#[cfg(not(feature = "cuda"))]
use crate::backend::spec::without_gpu_support;
use crate::backend::{Device, DeviceSpec};
#[cfg(feature = "cuda")]
use crate::backend::{GpuSpec, Parallel};
use crate::error::Result;

/// A device that is there, as what it is: some commands are of GPUs alone.
pub enum Target {
    Cpu(Cpu),
    #[cfg(feature = "cuda")]
    Gpu(GpuDevice),
    /// Several GPUs, each with a share of the stages.
    #[cfg(feature = "cuda")]
    Stages(GpuStages),
}

impl Target {
    /// The device that a run's model is put on first: all of its GPUs where they share the stages out.
    ///
    /// # Errors
    /// As [`Target::open`].
    pub fn of(spec: &RunSpec) -> Result<Self> {
        #[cfg(feature = "cuda")]
        if spec.parallel == Parallel::Stages
            && let Some(gpus) = gpus(spec)
        {
            return GpuStages::open(&gpus).map(Self::Stages);
        }
        Self::open(&spec.device)
    }

    /// # Errors
    /// [`Device::open`]'s; [`crate::Error::Usage`] for a GPU in a build without GPU support.
    pub fn open(spec: &DeviceSpec) -> Result<Self> {
        match spec {
            DeviceSpec::Cpu { .. } => Cpu::open(&()).map(Self::Cpu),
            #[cfg(feature = "cuda")]
            DeviceSpec::Gpu(spec) => GpuDevice::open(spec).map(Self::Gpu),
            #[cfg(not(feature = "cuda"))]
            DeviceSpec::Gpu(gpu) => Err(without_gpu_support(&format!("cuda:{}", gpu.ordinal))),
        }
    }

    /// The GPUs that it is; none where it is none.
    #[cfg(feature = "cuda")]
    pub fn gpus(&self) -> &[GpuDevice] {
        match self {
            Self::Cpu(_) => &[],
            Self::Gpu(gpu) => std::slice::from_ref(gpu),
            Self::Stages(stages) => stages.gpus(),
        }
    }

    /// The number of the GPU that it is, or of the first of several; 0 where it is none.
    pub fn ordinal(&self) -> u32 {
        #[cfg(feature = "cuda")]
        if let [gpu, ..] = self.gpus() {
            return gpu.spec.ordinal;
        }
        0
    }

    /// Whatever it is.
    pub fn device(&self) -> &dyn Device {
        match self {
            Self::Cpu(cpu) => cpu,
            #[cfg(feature = "cuda")]
            Self::Gpu(gpu) => gpu,
            #[cfg(feature = "cuda")]
            Self::Stages(gpus) => gpus,
        }
    }
}

/// Of a run on several GPUs.
#[cfg(feature = "cuda")]
fn gpus(spec: &RunSpec) -> Option<Vec<GpuSpec>> {
    let gpu = |device: &DeviceSpec| match device {
        DeviceSpec::Gpu(gpu) => Some(gpu.clone()),
        DeviceSpec::Cpu { .. } => None,
    };
    let several = !spec.beside.is_empty();
    several.then(|| spec.devices().map(gpu).collect()).flatten()
}
