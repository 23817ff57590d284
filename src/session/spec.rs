//! What a run is to be: plain data, which the command line or a program fills in.
//!
//! Sizes are checked against the model and each other when a model is opened, since their defaults follow from its
//! configuration, its bucket sizes and the memory that is there.

pub use crate::backend::{DeviceSpec, GpuSpec, Handover, LaunchWay, Parallel};
use crate::error::{Error, Result};
use crate::io::identity::Identity;
use crate::io::row::Options;
use crate::model::{ModelConfig, ModelSource, WeightsAs};
use crate::plan::{GraphFile, Limits, Plan, Precision};
use crate::text::threads;
use chrono::NaiveDateTime;
use std::path::PathBuf;
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
#[non_exhaustive]
pub struct RunSpec {
    pub model: ModelSource,
    /// The format of its matrices.
    pub weights: WeightsAs,
    pub device: DeviceSpec,
    /// More devices, used as the first one is.
    pub beside: Vec<DeviceSpec>,
    /// What they are there for.
    pub parallel: Parallel,
    /// Bucket sizes and stages from this TOML file; `None`: the built-in one.
    pub bucket_file: Option<PathBuf>,
    /// Slots, context, page, step and chunk in tokens, stages. A size that is `None` becomes the default that
    /// [`Limits`] documents; [`super::Opened::options`] has what all came to.
    pub limits: Limits,
    /// Bytes of the device's memory to use at most; `None`: on a GPU 90% of what is free, on the CPU 80% of what
    /// is available, or 4 GiB where the system does not say.
    pub memory_limit: Option<u64>,
    /// A Jinja template to render conversations by; `None`: the model's own.
    pub chat_template: Option<PathBuf>,
    /// The time that chat templates read; `None`: when they are loaded, in local time.
    pub now: Option<NaiveDateTime>,
    /// Time that the text work of a question has, and the reading of the tokenizer and the template.
    pub text_timeout: Duration,
    /// What a question falls back to that does not say; generation_config.json's values come after these.
    pub defaults: Options,
    /// Seed of the run: with a question's number it keys the sampling of one that has no seed of its own.
    pub seed: u64,
    /// Completions may ask for their prompts' logprobs (`echo`), for which a GPU captures more graphs and has more to do in each
    /// step. On a CPU they always may.
    pub prompt_logprobs: bool,
}

impl RunSpec {
    /// A run of `model` (a checkpoint's directory, `ORG/NAME[@REVISION]` or `random:PRESET[@SEED]`) with every default: on the first GPU where
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
            weights: WeightsAs::Stored,
            device,
            beside: Vec::new(),
            parallel: Parallel::default(),
            bucket_file: None,
            limits: Limits::default(),
            memory_limit: None,
            chat_template: None,
            now: None,
            text_timeout: threads::DEFAULT_LIMIT,
            defaults: Options::default(),
            seed: 0,
            prompt_logprobs: false,
        }
    }

    /// The operations, bucket sizes and stages that this run has of a model of that configuration.
    ///
    /// # Errors
    /// A plan file that cannot be read or is wrong; [`Error::Usage`] for stages that there cannot be.
    pub fn plan(&self, config: &Arc<ModelConfig>) -> Result<Plan> {
        let graphs = GraphFile::open(self.bucket_file.as_deref())?;
        if self.beside.is_empty() || self.parallel == Parallel::Replicas {
            return graphs.plan(config.clone(), &self.limits);
        }
        let devices = 1 + self.beside.len();
        let limits = Limits {
            stages: Some(self.limits.stages.unwrap_or(devices)),
            ..self.limits
        };
        let plan = graphs.plan(config.clone(), &limits);
        plan.map_err(|error| match (error, self.limits.stages) {
            (Error::Usage(message), None) => Error::Usage(format!(
                "a stage on each of the {devices} devices of `device`: {message}"
            )),
            (error, _) => error,
        })
    }

    /// The types of what is computed with and of the matrices of the model, which has this configuration.
    ///
    /// # Errors
    /// [`ModelSource::matrix_format`]'s.
    pub fn precision(&self, config: &ModelConfig) -> Result<Precision> {
        let matrices = self.weights.of(self.model.matrix_format(config)?);
        Ok(self.device.precision(matrices))
    }

    /// `identity` with the types that answers depend on.
    pub fn with_types(&self, identity: Identity) -> Identity {
        let identity = identity.with("--dtype", self.device.dtype().name());
        let chosen = [
            ("--weights", self.weights.chosen()),
            ("--activations", self.device.activations().chosen()),
        ];
        chosen
            .into_iter()
            .fold(identity, |identity, (name, chosen)| match chosen {
                Some(chosen) => identity.with(name, chosen),
                None => identity,
            })
    }

    /// Whether a device has the weights in the host's memory, as [`Self::weights`] says.
    pub fn converts_on_host(&self) -> bool {
        let mut devices = self.devices();
        self.weights != WeightsAs::Stored && devices.any(|device| device.launch().is_none())
    }

    /// The devices that run the whole model beside the first one.
    pub fn replicas(&self) -> &[DeviceSpec] {
        match self.parallel {
            Parallel::Replicas => &self.beside,
            Parallel::Stages => &[],
        }
    }

    /// All devices, the first one first.
    pub fn devices(&self) -> impl Iterator<Item = &DeviceSpec> {
        std::iter::once(&self.device).chain(&self.beside)
    }

    /// The device of a stage of `stages`: neighbours are together, and each device has about as many.
    pub fn device_of(&self, stage: usize, stages: usize) -> &DeviceSpec {
        let (first, of_stages) = (&self.device, self.parallel == Parallel::Stages);
        match stage * (1 + self.beside.len()) / stages.max(1) {
            index if index > 0 && of_stages => self.beside.get(index - 1).unwrap_or(first),
            _ => first,
        }
    }
}
