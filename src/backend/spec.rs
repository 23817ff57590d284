//! What is chosen about the device of a run: plain data. What cannot be together cannot be written: the CPU has neither a launch
//! way nor a type, so a [`DeviceSpec`] has them for a GPU alone.

use crate::error::{Error, Result};
use crate::model::{DType, WeightFormat};
use crate::plan::{Activations, Precision};
use crate::telemetry::warn;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// Who launches the kernels of a step, on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchWay {
    /// Nobody schedules: `bench decode` has the host launch a step's graph again and again. Engines take it for [`Self::HostGraph`].
    Bare,
    /// The host, one by one.
    HostKernels,
    /// The host, a captured graph a step.
    HostGraph,
    /// [`Self::HostGraph`] by a host that asks an event again and again whether the step has ended.
    HostGraphEvent,
    /// [`Self::HostGraph`] by a host that sleeps until an event says that the step has ended.
    HostGraphBlock,
    /// A captured graph a step, the next decode step before the last is through, where that can end no sequence and let none in.
    HostGraphAhead,
    /// The GPU itself, which also schedules.
    DeviceGraph,
    /// [`Self::DeviceGraph`] whose graphs are each launched behind the one before (tail launch) and not beside it.
    DeviceGraphTail,
}

impl LaunchWay {
    /// The name in `--launch`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::HostKernels => "host-kernels",
            Self::HostGraph => "host-graph",
            Self::HostGraphAhead => "host-graph-ahead",
            Self::HostGraphEvent => "host-graph-event",
            Self::HostGraphBlock => "host-graph-block",
            Self::DeviceGraph => "device-graph",
            Self::DeviceGraphTail => "device-graph-tail",
        }
    }

    /// Whether the GPU schedules its own steps.
    pub fn is_device(self) -> bool {
        matches!(self, Self::DeviceGraph | Self::DeviceGraphTail)
    }

    /// Whether it is there to be compared with: `bench` has it, and no run.
    pub fn is_of_bench(self) -> bool {
        matches!(
            self,
            Self::Bare | Self::HostGraphEvent | Self::HostGraphBlock | Self::DeviceGraphTail
        )
    }

    /// Who launches steps that are scheduled already: by graphs where this way has graphs that the host launches, else by kernels.
    pub fn of_scheduled(self) -> Self {
        match self {
            Self::Bare
            | Self::HostGraph
            | Self::HostGraphEvent
            | Self::HostGraphBlock
            | Self::HostGraphAhead => Self::HostGraph,
            Self::HostKernels | Self::DeviceGraph | Self::DeviceGraphTail => Self::HostKernels,
        }
    }
}

/// What several devices do with one model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Parallel {
    /// Each runs the whole of it, and takes its requests from a queue that is everyone's.
    #[default]
    Replicas,
    /// Each runs a range of its layers.
    Stages,
}

/// What steps go through from one GPU to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handover {
    /// The next GPU's memory, which the one before stores into.
    Peer,
    /// Pinned memory of the host.
    Host,
    /// NCCL's send and receive, between stages that the host launches: to compare with.
    Nccl,
}

/// What runs a model, and what is chosen for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceSpec {
    /// Always f32.
    Cpu {
        /// Tells engines that share the host apart; nothing else depends on it.
        number: u32,
        /// Why it is not the GPU, which nobody asked for, but which is there. A warning when the model is opened.
        passed_over: Option<String>,
    },
    Gpu(GpuSpec),
}

/// A GPU, and how it is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuSpec {
    /// The driver's number of the GPU, from 0.
    pub ordinal: u32,
    /// The type of matrix inputs, key-value pages and convolution state.
    pub dtype: DType,
    pub activations: Activations,
    pub launch: LaunchWay,
    /// How stages of one model on several GPUs send steps; `None`: [`Handover::Peer`] where they reach each other's memory, else
    /// [`Handover::Host`].
    pub handover: Option<Handover>,
    /// A step that takes longer fails the run.
    pub step_timeout: Duration,
    /// Which kernels serve which bucket, from this TOML file; `None`: the built-in ones.
    pub kernel_file: Option<PathBuf>,
}

impl GpuSpec {
    /// The largest step on the slowest GPU takes a few seconds.
    pub const STEP_TIMEOUT: Duration = Duration::from_secs(60);

    /// bf16, launched by the device itself.
    pub fn new(ordinal: u32) -> Self {
        Self {
            ordinal,
            dtype: DType::BF16,
            activations: Activations::Stored,
            launch: LaunchWay::DeviceGraph,
            handover: None,
            step_timeout: Self::STEP_TIMEOUT,
            kernel_file: None,
        }
    }

    /// What products are of whose matrices are stored so.
    pub fn precision(&self, matrices: WeightFormat) -> Precision {
        Precision {
            activations: self.activations,
            ..Precision::new(self.dtype, matrices)
        }
    }
}

impl Default for DeviceSpec {
    /// The first GPU. Where there is none it is the CPU; where there is one that cannot be used, also, with the reason.
    fn default() -> Self {
        use crate::backend::cuda::driver::machine::{Missing, probe};
        match probe().and_then(|driver| driver.gpu(0).map(|_| ())) {
            Ok(()) => Self::Gpu(GpuSpec::new(0)),
            Err(Missing::Kernels | Missing::Library | Missing::Gpu) => Self::CPU,
            Err(missing) => Self::Cpu {
                number: 0,
                passed_over: Some(missing.to_string()),
            },
        }
    }
}

/// Reads `cpu`, `cuda` (the first GPU) or a certain one:
///
/// ```
/// use tailgraph::session::DeviceSpec;
/// let device: DeviceSpec = "cuda:1".parse()?;
/// assert_eq!(device.title(), "cuda:1");
/// # Ok::<(), tailgraph::Error>(())
/// ```
impl FromStr for DeviceSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (kind, number) = text.split_once(':').unwrap_or((text, "0"));
        match (kind, number.parse()) {
            ("cpu", Ok(number)) => Ok(Self::cpu(number)),
            ("cuda", Ok(number)) => Ok(Self::Gpu(GpuSpec::new(number))),
            _ => Err(Error::Usage(format!(
                "`device` {text}: expected cpu, cuda, or a certain one such as cuda:1"
            ))),
        }
    }
}

impl DeviceSpec {
    pub const CPU: Self = Self::cpu(0);

    /// One of several engines on the host.
    pub const fn cpu(number: u32) -> Self {
        Self::Cpu {
            number,
            passed_over: None,
        }
    }

    /// The device's name in `--device` with its number: `cuda:1`.
    pub fn title(&self) -> String {
        let number = match self {
            Self::Cpu { number, .. } => number,
            Self::Gpu(gpu) => &gpu.ordinal,
        };
        format!("{}:{number}", self.name())
    }

    /// The device's name in `--device` without its number.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Cpu { .. } => "cpu",
            Self::Gpu(_) => "cuda",
        }
    }

    /// Type of matrix inputs, keys and values, and convolution state.
    pub fn dtype(&self) -> DType {
        match self {
            Self::Cpu { .. } => DType::F32,
            Self::Gpu(gpu) => gpu.dtype,
        }
    }

    /// The CPU multiplies rows as they are.
    pub fn activations(&self) -> Activations {
        match self {
            Self::Cpu { .. } => Activations::Stored,
            Self::Gpu(gpu) => gpu.activations,
        }
    }

    /// What products are of whose matrices are stored so.
    pub fn precision(&self, matrices: WeightFormat) -> Precision {
        match self {
            Self::Cpu { .. } => Precision::new(DType::F32, matrices),
            Self::Gpu(gpu) => gpu.precision(matrices),
        }
    }

    /// The CPU launches nothing.
    pub fn launch(&self) -> Option<LaunchWay> {
        match self {
            Self::Cpu { .. } => None,
            Self::Gpu(gpu) => Some(gpu.launch),
        }
    }

    /// The CPU has one kernel for everything.
    pub fn kernel_file(&self) -> Option<&Path> {
        match self {
            Self::Cpu { .. } => None,
            Self::Gpu(gpu) => gpu.kernel_file.as_deref(),
        }
    }

    /// Says on standard error why the CPU serves, where that was not to be expected.
    pub fn warn_if_passed_over(&self) {
        if let Self::Cpu {
            passed_over: Some(why),
            ..
        } = self
        {
            warn(&format!("running on the CPU, for {why}"));
        }
    }
}
