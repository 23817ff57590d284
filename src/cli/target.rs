//! What a run runs on: `--device`, `--dtype` and `--launch` together.

use super::args::{Launch as Way, RunArgs};
#[cfg(feature = "cuda")]
use crate::backend::cuda::gpu::OpenGpu;
use crate::error::{Error, Result};
use crate::model::DType;
use crate::plan::KernelChoice;
use crate::plan::budget::Budget;
#[cfg(feature = "cuda")]
use crate::plan::bytes::Bytes;
#[cfg(feature = "cuda")]
use crate::runtime::cuda::Launch;
use crate::telemetry::warn;
#[cfg(feature = "cuda")]
use std::time::Duration;

/// Of a GPU's free memory, what a run takes when nobody says otherwise: graphs and the driver need some too.
#[cfg(feature = "cuda")]
const FREE_PERCENT: u64 = 90;

/// How long a step may take where nobody says otherwise: the largest one on the slowest GPU takes a few seconds.
#[cfg(feature = "cuda")]
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// A device that is there, and how it is used.
pub enum Target {
    Cpu {
        /// Why it is not the GPU, which nobody asked for, but which is there.
        passed_over: Option<String>,
    },
    #[cfg(feature = "cuda")]
    Gpu {
        gpu: OpenGpu,
        dtype: DType,
        launch: Launch,
        /// See [`crate::runtime::Engine::watch`].
        step_timeout: Duration,
    },
}

/// `--device` as written.
enum Asked {
    /// The first GPU where this build and the machine have one.
    Default,
    Cpu,
    /// Its ordinal, which a build without GPU support has no use for.
    Gpu(#[cfg_attr(not(feature = "cuda"), expect(dead_code))] u32),
}

fn usage<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::Usage(message.into()))
}

impl RunArgs {
    /// Opens what the flags name.
    ///
    /// # Errors
    /// [`Error::Usage`] for a device or a combination that there is not; [`Error::Runtime`] where the machine or its
    /// driver lacks what is asked for.
    pub fn target(&self) -> Result<Target> {
        if self.ahead && self.launch != Some(Way::HostGraph) {
            return usage(
                "--ahead: expected --launch host-graph with it; in the other ways nobody waits for the host to launch a graph",
            );
        }
        match self.asked()? {
            Asked::Cpu => self.cpu(None),
            #[cfg(feature = "cuda")]
            Asked::Gpu(ordinal) => self.gpu(ordinal),
            #[cfg(not(feature = "cuda"))]
            Asked::Gpu(_) => usage(format!(
                "--device {}: this build has no GPU support; build it with `cargo build --release --features cuda`, or use --device cpu",
                self.device.as_deref().unwrap_or_default()
            )),
            Asked::Default => self.default(),
        }
    }

    #[cfg(not(feature = "cuda"))]
    fn default(&self) -> Result<Target> {
        self.cpu(None)
    }

    /// The first GPU. Where there is none the CPU does; where there is one that cannot be used, it says so.
    #[cfg(feature = "cuda")]
    fn default(&self) -> Result<Target> {
        use crate::backend::cuda::driver::{Missing, probe};
        match probe().and_then(|driver| driver.gpu(0).map(|_| ())) {
            Ok(()) => self.gpu(0),
            Err(Missing::Library | Missing::Gpu) => self.cpu(None),
            Err(missing) => self.cpu(Some(missing.to_string())),
        }
    }

    fn asked(&self) -> Result<Asked> {
        let device = match self.device.as_deref() {
            None => return Ok(Asked::Default),
            Some("cpu") => return Ok(Asked::Cpu),
            Some("cuda") => return Ok(Asked::Gpu(0)),
            Some(device) => device,
        };
        let numbers = device
            .strip_prefix("cuda:")
            .map(|list| list.split(',').map(str::parse::<u32>).collect::<Vec<_>>());
        match numbers.as_deref() {
            Some(&[Ok(ordinal)]) => Ok(Asked::Gpu(ordinal)),
            Some(list) if list.iter().all(|number| number.is_ok()) => {
                // A build without GPU support says that first.
                if cfg!(not(feature = "cuda")) {
                    return Ok(Asked::Gpu(0));
                }
                usage(format!(
                    "--device {device}: this version runs a model on one GPU, expected cuda:N with one number"
                ))
            }
            _ => usage(format!(
                "--device {device}: expected cpu, cuda, or cuda: with GPU numbers such as cuda:0,1"
            )),
        }
    }

    fn cpu(&self, passed_over: Option<String>) -> Result<Target> {
        match self.precision.dtype() {
            None | Some(DType::F32) => {}
            Some(_) if self.precision.fp16 => return usage("--fp16: the CPU computes in f32 only"),
            Some(dtype) => {
                let name = format!("{dtype:?}").to_lowercase();
                return usage(format!("--dtype {name}: the CPU computes in f32 only"));
            }
        }
        if self.launch.is_some() {
            return usage(
                "--launch: the CPU launches no kernels; it is an option of --device cuda",
            );
        }
        if self.buckets.kernel_file.is_some() {
            return usage("--kernel-file: it is an option of --device cuda");
        }
        if self.step_timeout_ms.is_some() {
            return usage("--step-timeout-ms: it is an option of --device cuda");
        }
        Ok(Target::Cpu { passed_over })
    }

    #[cfg(feature = "cuda")]
    fn gpu(&self, ordinal: u32) -> Result<Target> {
        Ok(Target::Gpu {
            gpu: OpenGpu::new(ordinal)?,
            dtype: self.precision.dtype().unwrap_or(DType::BF16),
            launch: match self.launch {
                Some(Way::HostKernels) => Launch::HostKernels,
                Some(Way::HostGraph) if self.ahead => Launch::HostGraphAhead,
                Some(Way::HostGraph) => Launch::HostGraph,
                Some(Way::DeviceGraph) | None => Launch::DeviceGraph,
            },
            step_timeout: self
                .step_timeout_ms
                .map_or(STEP_TIMEOUT, Duration::from_millis),
        })
    }
}

impl Target {
    /// Says why the CPU serves, where that was not to be expected.
    pub fn warn_if_passed_over(&self) {
        if let Self::Cpu {
            passed_over: Some(why),
        } = self
        {
            warn(&format!("running on the CPU, for {why}"));
        }
    }

    /// As in `--device`, without which one.
    pub fn device(&self) -> &'static str {
        match self {
            Self::Cpu { .. } => "cpu",
            #[cfg(feature = "cuda")]
            Self::Gpu { .. } => "cuda",
        }
    }

    /// What is known of the GPU; none on the CPU, and of a GPU that nothing is known of.
    pub fn known_gpu(&self) -> Option<&'static crate::plan::Gpu> {
        match self {
            Self::Cpu { .. } => None,
            #[cfg(feature = "cuda")]
            Self::Gpu { gpu, .. } => {
                let name = gpu.info.name.to_ascii_lowercase();
                crate::plan::gpu::GPUS
                    .into_iter()
                    .find(|known| name.contains(known.name))
            }
        }
    }

    /// As in `--launch`; none on the CPU.
    pub fn launch(&self) -> Option<String> {
        match self {
            Self::Cpu { .. } => None,
            #[cfg(feature = "cuda")]
            Self::Gpu { launch, .. } => Some(
                match launch {
                    Launch::HostKernels => "host-kernels",
                    Launch::HostGraph | Launch::HostGraphAhead => "host-graph",
                    Launch::DeviceGraph => "device-graph",
                }
                .to_owned(),
            ),
        }
    }

    /// Type of matrix inputs, keys and values, and conv state.
    pub fn dtype(&self) -> DType {
        match self {
            Self::Cpu { .. } => DType::F32,
            #[cfg(feature = "cuda")]
            Self::Gpu { dtype, .. } => *dtype,
        }
    }

    /// What says which kernels serve which bucket, as its architecture and digest; none on the CPU.
    ///
    /// # Errors
    /// [`KernelChoice::for_gpu`]'s.
    pub fn kernel_variants(
        &self,
        #[cfg_attr(not(feature = "cuda"), expect(unused_variables))] kernels: &KernelChoice,
    ) -> Result<Option<String>> {
        match self {
            Self::Cpu { .. } => Ok(None),
            #[cfg(feature = "cuda")]
            Self::Gpu { gpu, .. } => {
                let file = kernels.for_gpu(gpu.info.compute_capability)?;
                Ok(Some(file.name()))
            }
        }
    }

    /// On a GPU, another type of matrix inputs: `f32`, `bf16` or `f16`.
    ///
    /// # Errors
    /// Any other name.
    pub fn set_dtype(&mut self, name: &str) -> Result<()> {
        #[cfg_attr(not(feature = "cuda"), expect(unused_variables))]
        let named = match name {
            "f32" => DType::F32,
            "bf16" => DType::BF16,
            "f16" => DType::F16,
            _ => return usage(format!("found the dtype {name}, expected f32, bf16 or f16")),
        };
        match self {
            Self::Cpu { .. } => {}
            #[cfg(feature = "cuda")]
            Self::Gpu { dtype, .. } => *dtype = named,
        }
        Ok(())
    }

    /// Of the device's memory: `limit` where it is given, else a share of what is free.
    ///
    /// # Errors
    /// The driver does not say.
    pub fn budget(&self, limit: Option<u64>) -> Result<Budget> {
        match self {
            Self::Cpu { .. } => Ok(Budget::new(limit)),
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
