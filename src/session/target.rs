//! The device that a [`DeviceSpec`] names, opened.

use super::spec::DeviceSpec;
#[cfg(feature = "cuda")]
use super::spec::GpuSpec;
#[cfg(not(feature = "cuda"))]
use super::spec::without_gpu_support;
#[cfg(feature = "cuda")]
use crate::backend::cuda::driver::gpu::OpenGpu;
#[cfg(feature = "cuda")]
use crate::backend::cuda::tuning::KernelChoice;
use crate::error::Result;
use crate::plan::budget::Budget;
#[cfg(feature = "cuda")]
use crate::plan::bytes::Bytes;

/// Of a GPU's free memory, what a run takes when nobody says otherwise: graphs and the driver need some too.
#[cfg(feature = "cuda")]
const FREE_PERCENT: u64 = 90;

/// A device that is there.
pub enum Target {
    Cpu,
    #[cfg(feature = "cuda")]
    Gpu {
        gpu: OpenGpu,
        /// What it was opened by.
        spec: GpuSpec,
    },
}

impl Target {
    /// # Errors
    /// [`crate::Error::Usage`] for a GPU that there is not, or in a build without GPU support; [`crate::Error::Runtime`]
    /// where the machine or its driver lacks what is asked for; [`crate::Error::File`] for a kernel file that is wrong.
    pub fn open(spec: &DeviceSpec) -> Result<Self> {
        match spec {
            DeviceSpec::Cpu { .. } => Ok(Self::Cpu),
            #[cfg(feature = "cuda")]
            DeviceSpec::Gpu(spec) => Ok(Self::Gpu {
                gpu: OpenGpu::new(spec.ordinal)?
                    .served_by(KernelChoice::open(spec.kernel_file.as_deref())?),
                spec: spec.clone(),
            }),
            #[cfg(not(feature = "cuda"))]
            DeviceSpec::Gpu(gpu) => Err(without_gpu_support(&format!("cuda:{}", gpu.ordinal))),
        }
    }

    /// The GPU, as its driver names it.
    pub fn gpu_info(&self) -> Option<String> {
        match self {
            Self::Cpu => None,
            #[cfg(feature = "cuda")]
            Self::Gpu { gpu, .. } => Some(gpu.info.to_string()),
        }
    }

    /// What is known of the GPU; none on the CPU, and of a GPU that nothing is known of.
    pub fn known_gpu(&self) -> Option<&'static crate::plan::Gpu> {
        match self {
            Self::Cpu => None,
            #[cfg(feature = "cuda")]
            Self::Gpu { gpu, .. } => {
                let name = gpu.info.name.to_ascii_lowercase();
                crate::plan::gpu::GPUS
                    .into_iter()
                    .find(|known| name.contains(known.name))
            }
        }
    }

    /// What says which kernels serve which bucket, as its architecture and digest; none on the CPU.
    ///
    /// # Errors
    /// The file that was named is for other GPUs.
    pub fn kernel_variants(&self) -> Result<Option<String>> {
        match self {
            Self::Cpu => Ok(None),
            #[cfg(feature = "cuda")]
            Self::Gpu { gpu, .. } => Ok(Some(gpu.kernel_file()?.name())),
        }
    }

    /// Of the device's memory: `limit` in bytes where it is given, else a share of what is free.
    ///
    /// # Errors
    /// The driver does not say.
    pub fn budget(&self, limit: Option<u64>) -> Result<Budget> {
        match self {
            Self::Cpu => Ok(Budget::new(limit)),
            #[cfg(feature = "cuda")]
            Self::Gpu { gpu, .. } => {
                let free = gpu.free_bytes()?;
                let share = free / 100 * FREE_PERCENT;
                Ok(match limit {
                    Some(limit) if limit <= share => Budget::new(Some(limit)),
                    _ => Budget {
                        bytes: share,
                        source: format!(
                            "{FREE_PERCENT}% of the {} free on {}",
                            Bytes(free),
                            gpu.info
                        ),
                    },
                })
            }
        }
    }
}
