//! The device that a [`DeviceSpec`] names, opened.

use crate::backend::cpu::Cpu;
#[cfg(feature = "cuda")]
use crate::backend::cuda::device::GpuDevice;
#[cfg(not(feature = "cuda"))]
use crate::backend::spec::without_gpu_support;
use crate::backend::{Device, DeviceSpec};
use crate::error::Result;

/// A device that is there, as what it is: some commands are of GPUs alone.
pub enum Target {
    Cpu(Cpu),
    #[cfg(feature = "cuda")]
    Gpu(GpuDevice),
}

impl Target {
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

    /// Whatever it is.
    pub fn device(&self) -> &dyn Device {
        match self {
            Self::Cpu(cpu) => cpu,
            #[cfg(feature = "cuda")]
            Self::Gpu(gpu) => gpu,
        }
    }
}
