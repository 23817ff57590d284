//! What a run is to be: plain data, which the command line or a program fills in.
//!
//! What cannot be together cannot be written: the CPU has neither a launch way nor a type, so a [`DeviceSpec`] has them for
//! a GPU alone. Sizes are checked against the model and each other when a model is opened, since their defaults follow
//! from its configuration, its bucket ladders and the memory that is there.

use crate::error::{Error, Result};
use crate::io::row::Options;
use crate::model::{DType, ModelConfig, ModelSource};
use crate::plan::{GraphFile, Limits, Plan};
use crate::runtime::Launch;
use crate::telemetry::warn;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Everything that is chosen about a run.
///
/// ```
/// use tailgraph::session::RunSpec;
/// let mut spec = RunSpec::new("random:tiny")?;
/// spec.limits.max_seqs = Some(4);
/// spec.memory_limit = Some(256 << 20);
/// assert!(RunSpec::new("random:huge").is_err());
/// # Ok::<(), tailgraph::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct RunSpec {
    pub model: ModelSource,
    pub device: DeviceSpec,
    /// Bucket ladders and stages from this TOML file; `None`: the built-in one.
    pub bucket_file: Option<PathBuf>,
    /// Slots, context, page, step and chunk in tokens, stages. A size that is `None` becomes the default that
    /// [`Limits`] documents; [`super::Opened::options`] has what all came to.
    pub limits: Limits,
    /// Bytes of the device's memory to use at most; `None`: on a GPU 90% of what is free, on the CPU what is available.
    pub memory_limit: Option<u64>,
    /// A Jinja template to render conversations by; `None`: the model's own.
    pub chat_template: Option<PathBuf>,
    /// What a question falls back to that does not say; generation_config.json's values come after these.
    pub defaults: Options,
    /// Seed of the run: with a question's number it keys the sampling of one that has no seed of its own.
    pub seed: u64,
}

impl RunSpec {
    /// A run of `model` (a checkpoint's directory, or `random:PRESET[@SEED]`) with every default: on the first GPU where
    /// this build and the machine have one, else on the CPU.
    ///
    /// # Errors
    /// [`ModelSource::parse`]'s: there is no such model.
    pub fn new(model: &str) -> Result<Self> {
        Ok(Self::of(ModelSource::parse(model)?, DeviceSpec::default()))
    }

    /// A run of `model` on `device` with every other default.
    pub fn of(model: ModelSource, device: DeviceSpec) -> Self {
        Self {
            model,
            device,
            bucket_file: None,
            limits: Limits::default(),
            memory_limit: None,
            chat_template: None,
            defaults: Options::default(),
            seed: 0,
        }
    }

    /// The operations, ladders and stages that this run has of a model of that configuration.
    ///
    /// # Errors
    /// A plan file that cannot be read or is wrong; [`Error::Usage`] for stages that there cannot be.
    pub fn plan(&self, config: &Arc<ModelConfig>) -> Result<Plan> {
        let graphs = GraphFile::open(self.bucket_file.as_deref())?;
        graphs.plan(config.clone(), &self.limits)
    }
}

/// What runs a model, and what is chosen for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceSpec {
    /// Always f32.
    Cpu {
        /// Why it is not the GPU, which nobody asked for, but which is there. A warning when the model is opened.
        passed_over: Option<String>,
    },
    Gpu(GpuSpec),
}

/// A GPU, and how it is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuSpec {
    /// As the driver counts them, from 0.
    pub ordinal: u32,
    /// Of matrix inputs, key-value pages and convolution state.
    pub dtype: DType,
    pub launch: Launch,
    /// A step that takes longer fails the run: see [`crate::runtime::Engine::watch`].
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
            launch: Launch::DeviceGraph,
            step_timeout: Self::STEP_TIMEOUT,
            kernel_file: None,
        }
    }
}

impl Default for DeviceSpec {
    /// The first GPU. Where there is none it is the CPU; where there is one that cannot be used, also, with the reason.
    #[cfg(feature = "cuda")]
    fn default() -> Self {
        use crate::backend::cuda::driver::machine::{Missing, probe};
        match probe().and_then(|driver| driver.gpu(0).map(|_| ())) {
            Ok(()) => Self::Gpu(GpuSpec::new(0)),
            Err(Missing::Library | Missing::Gpu) => Self::CPU,
            Err(missing) => Self::Cpu {
                passed_over: Some(missing.to_string()),
            },
        }
    }

    /// The CPU: this build has no GPU support.
    #[cfg(not(feature = "cuda"))]
    fn default() -> Self {
        Self::CPU
    }
}

impl DeviceSpec {
    pub const CPU: Self = Self::Cpu { passed_over: None };

    /// As in `--device`, without which one.
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

    /// The CPU launches nothing.
    pub fn launch(&self) -> Option<Launch> {
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
        } = self
        {
            warn(&format!("running on the CPU, for {why}"));
        }
    }
}

/// What is said of `device`, a GPU as `--device` names it, where this build has no GPU support.
pub fn without_gpu_support(device: &str) -> Error {
    Error::Usage(format!(
        "--device {device}: this build has no GPU support; build it with `cargo build --release --features cuda`, or use --device cpu"
    ))
}
