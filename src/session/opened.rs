//! A model on its way to an engine: first what is cheap and finds mistakes, then the weights.

use super::recording::{Keep, Recorded};
use super::sizes;
use super::spec::{DeviceSpec, Parallel, RunSpec};
use super::target::Target;
use crate::backend::SharedSink;
use crate::backend::device::{Clocks, EngineSpec, Runs, Watch};
use crate::backend::timing::StepClock;
use crate::error::{Error, Result};
use crate::io::identity::Identity;
use crate::io::record::{Header, VERSION};
use crate::model::fingerprint::fingerprint;
use crate::model::{GenerationConfig, Model, ModelConfig};
use crate::plan::{EngineOptions, OpKind, Plan, Precision, StepKind};
use crate::runtime::{Engine, EngineShape, Replica, Replicas, SingleEngine};
use crate::telemetry::warn;
use crate::trace::parts::Costs;
use crate::trace::{Begin, Live};
use std::error::Error as _;
use std::sync::Arc;
use std::time::Instant;

/// A model whose configuration is read and whose sizes fit, without its weights.
pub struct Opened {
    pub spec: RunSpec,
    pub target: Target,
    /// Devices of the spec that run the whole model beside it.
    pub replicas: Vec<Target>,
    pub config: Arc<ModelConfig>,
    pub generation: GenerationConfig,
    pub plan: Plan,
    /// The sizes that the spec's limits came to.
    pub options: EngineOptions,
    /// See [`crate::backend::Device::kernel_variants`]: of all devices, each once.
    pub kernel_variants: Option<String>,
    /// Engines are started with a sink: requests may ask for logits.
    pub delivers: bool,
}

impl Opened {
    /// For answers to questions, of which some may want logits where the spec or the device has it so.
    ///
    /// # Errors
    /// Fails as [`Opened::new`] does.
    pub fn to_answer(spec: RunSpec) -> Result<Self> {
        let delivers = spec.prompt_logprobs || spec.device.launch().is_none();
        let mut opened = Self::new(spec, delivers)?;
        let kinds = [StepKind::Decode, StepKind::Mixed, StepKind::Score];
        opened.only(&kinds[..2 + usize::from(delivers)]);
        Ok(opened)
    }

    /// Opens the device too. `delivers`: the engine will be started with a sink.
    ///
    /// # Errors
    /// [`Target::open`]'s; as [`Opened::on`].
    pub fn new(spec: RunSpec, delivers: bool) -> Result<Self> {
        let target = Target::of(&spec)?;
        Self::on(target, spec, delivers)
    }

    /// Captures graphs only for steps of `kinds`: a run has no others. What that saves is time before the first step.
    pub fn only(&mut self, kinds: &[StepKind]) {
        self.plan.bucket_sizes = self.plan.bucket_sizes.reachable(&self.options).only(kinds);
    }

    /// On `target`, which is `spec`'s device.
    ///
    /// # Errors
    /// A wrong configuration or plan file, impossible sizes, too little memory.
    pub fn on(target: Target, spec: RunSpec, delivers: bool) -> Result<Self> {
        spec.device.warn_if_passed_over();
        let (config, generation) = spec.model.config()?;
        let config = Arc::new(config);
        let plan = spec.plan(&config)?;
        let replicas = spec.replicas().iter().map(Target::open);
        let replicas = replicas.collect::<Result<Vec<_>>>()?;
        let mut names: Vec<String> = Vec::new();
        for device in std::iter::once(&target).chain(&replicas) {
            let name = device.device().kernel_variants()?;
            names.extend(name.filter(|name| !names.contains(name)));
        }
        let kernel_variants = (!names.is_empty()).then(|| names.join(" + "));
        let mut options = sizes::memory(&spec, &target, &plan, delivers)?.options;
        for (replica, device) in replicas.iter().zip(spec.replicas()) {
            let memory = sizes::memory(&spec, replica, &plan, delivers);
            let memory = memory.map_err(|error| match error {
                Error::Memory(message) => Error::Memory(format!("{}: {message}", device.title())),
                error => error,
            })?;
            options = options.least(&memory.options);
        }
        Ok(Self {
            spec,
            target,
            replicas,
            config,
            generation,
            plan,
            options,
            kernel_variants,
            delivers,
        })
    }

    /// prompt + max_new_tokens of one sequence, at most.
    pub fn max_context(&self) -> u32 {
        let pool = u64::from(self.options.pages) * u64::from(self.options.page_tokens);
        u32::try_from(pool).map_or(self.options.max_context, |pool| {
            pool.min(self.options.max_context)
        })
    }

    /// Loads the weights and starts an engine on them, whose run is kept as `keep` says.
    ///
    /// # Errors
    /// Fails as [`load`] and [`Self::engine`] do, and where what is kept cannot be written.
    pub fn start(&self, sink: &SharedSink, mut keep: Keep) -> Result<Recorded> {
        if keep.trace.is_some() && !self.replicas.is_empty() {
            return Err(Error::Usage(
                "a trace: found several devices that run the whole model, expected one, or stages on several".into(),
            ));
        }
        let start = Instant::now();
        let model = load(&self.spec)?;
        let loaded = Instant::now();
        let observe = Observe {
            record: keep.turns(),
            watch: match (&keep.trace, keep.parts) {
                (None, _) => Watch::Nothing,
                (Some(_), false) => Watch::Stages,
                (Some(_), true) => Watch::Times { in_a_row: None },
            },
            trace: keep.trace.as_ref(),
        };
        let started = self.engine(&model, sink, observe)?;
        let launched = Instant::now();
        let sizes = &started.shapes[0].bucket_sizes;
        if !keep.turns() {
            return Recorded::new(started.engine, sizes, vec![], keep, None);
        }
        let headers = self.headers(&started.shapes)?;
        let mut begin = None;
        if let Some(trace) = &mut keep.trace {
            trace.phase("load", (start, loaded))?;
            trace.phase("start the engine", (loaded, launched))?;
            let clocks = started.clocks;
            let parts = clocks.parts.as_ref().map(|clock| clock.zero());
            let of_trace = Begin {
                header: headers[0].clone(),
                clock_zero: started.clock_zero,
                parts: match parts {
                    Some(zero) => Some((self.costs()?, zero)),
                    None => None,
                },
                stages: if clocks.stages.is_some() || started.host_stages > 1 {
                    self.names_of_stages(started.shapes[0].stages as usize)
                } else {
                    vec![]
                },
            };
            begin = Some((of_trace, clocks));
        }
        Recorded::new(started.engine, sizes, headers, keep, begin)
    }

    /// All devices that run the whole model.
    pub fn targets(&self) -> impl Iterator<Item = &Target> {
        std::iter::once(&self.target).chain(&self.replicas)
    }

    /// What a recording of a run begins with, on each of the devices that run the whole model.
    fn headers(&self, shapes: &[EngineShape]) -> Result<Vec<Header>> {
        let device = &self.spec.device;
        let identity = Identity::of_model(&fingerprint(&self.spec.model)?);
        let header = |(engine, target): (&EngineShape, &Target)| {
            Ok(Header {
                version: VERSION,
                model: self.spec.model.to_string(),
                identity: identity.clone(),
                device: device.name().to_owned(),
                dtype: device.dtype().name().to_owned(),
                weights: self.spec.weights.chosen(),
                activations: device.activations().chosen(),
                launch: device.launch().map(|launch| launch.name().to_owned()),
                kernel_variants: target.device().kernel_variants()?,
                engine: engine.clone(),
            })
        };
        shapes.iter().zip(self.targets()).map(header).collect()
    }

    /// The types of a run: see [`RunSpec::precision`].
    ///
    /// # Errors
    /// Fails as [`RunSpec::precision`] does.
    pub fn precision(&self) -> Result<Precision> {
        self.spec.precision(&self.config)
    }

    /// What the parts of a step are measured against.
    ///
    /// # Errors
    /// Fails as [`Self::precision`] does.
    pub fn costs(&self) -> Result<Costs> {
        let precision = self.precision()?;
        let known = self.target.device().known();
        Ok(Costs {
            config: self.config.clone(),
            precision,
            rates: known.map(|gpu| gpu.rates(precision)),
        })
    }

    /// The names of so many stages on tracks.
    fn names_of_stages(&self, stages: usize) -> Vec<String> {
        let name = |stage| match self.spec.parallel {
            Parallel::Stages => {
                let device = self.spec.device_of(stage, stages).title();
                format!("stage {stage} on {device}")
            }
            Parallel::Replicas => format!("stage {stage}"),
        };
        (0..stages).map(name).collect()
    }

    /// Starts an engine on weights that are loaded already: a scheduler on each of the devices that run the whole model, or
    /// on the first alone, where more than events is looked at.
    ///
    /// # Errors
    /// Fails as [`crate::backend::Device::start`], [`SingleEngine::of`] and [`Replicas::new`] do.
    pub fn engine(
        &self,
        model: &Arc<Model>,
        sink: &SharedSink,
        observe: Observe<'_>,
    ) -> Result<Started> {
        let options = EngineOptions {
            record: observe.record,
            ..self.options
        };
        let spec = EngineSpec {
            model,
            plan: &self.plan,
            options: &options,
            sink,
        };
        if self.replicas.is_empty() || !matches!(observe.watch, Watch::Nothing) {
            let mut host_stages = 0;
            let timed = |runs| match (runs, observe.trace) {
                (Runs::Stages(stages), Some(trace)) => {
                    host_stages = stages.len();
                    Ok(Runs::Stages(trace.timed(stages)))
                }
                (runs, _) => Ok(runs),
            };
            let device = self.target.device();
            let (mut engine, clocks) =
                SingleEngine::on_watched(device, &spec, observe.watch, timed)?;
            engine.launch()?;
            return Ok(Started {
                shapes: vec![engine.shape().clone()],
                clocks,
                clock_zero: engine.clock_zero(),
                host_stages,
                engine: Box::new(engine),
            });
        }
        let replica = |(target, device): (&Target, &DeviceSpec)| {
            Replica::on(target.device(), device.title(), &spec)
        };
        let devices = self.targets().zip(self.spec.devices());
        let mut replicas = Replicas::new(devices.map(replica).collect::<Result<_>>()?)?;
        replicas.launch()?;
        Ok(Started {
            shapes: replicas.shapes().cloned().collect(),
            clocks: Clocks::default(),
            clock_zero: None,
            host_stages: 0,
            engine: Box::new(replicas),
        })
    }

    /// An engine whose steps are timed part by part, and where the times come out. `in_a_row`: as [`Watch::Times`] has it.
    ///
    /// # Errors
    /// Fails as [`Self::engine`] does.
    pub fn engine_timed(
        &self,
        model: &Arc<Model>,
        in_a_row: Option<OpKind>,
    ) -> Result<(Box<dyn Engine>, Box<dyn StepClock>)> {
        let observe = Observe::through(Watch::Times { in_a_row });
        let started = self.engine(model, &None, observe)?;
        let clock = started.clocks.parts.ok_or_else(|| {
            Error::Runtime("an engine is timed and has no clock: this is a bug in tailgraph".into())
        })?;
        Ok((started.engine, clock))
    }
}

/// What is looked at while an engine runs, besides its events.
#[derive(Clone, Copy)]
pub struct Observe<'a> {
    /// All turns are wanted ([`EngineOptions::record`]).
    pub record: bool,
    pub watch: Watch<'a>,
    /// Times stages that the host runs side by side.
    pub trace: Option<&'a Live>,
}

impl<'a> Observe<'a> {
    pub const NOTHING: Self = Self::through(Watch::Nothing);

    pub const fn through(watch: Watch<'a>) -> Self {
        Self {
            record: false,
            watch,
            trace: None,
        }
    }
}

/// An engine that is launched, and what is known of it.
pub struct Started {
    pub engine: Box<dyn Engine>,
    /// What a replay of each scheduler's run must be started with.
    pub shapes: Vec<EngineShape>,
    pub clocks: Clocks,
    /// See [`SingleEngine::clock_zero`].
    pub clock_zero: Option<Instant>,
    /// Stages that the host runs, each of which a trace times where there are several.
    host_stages: usize,
}

/// The threads that share the CPU's work, which would else be started, or panic, where they are first needed.
fn start_workers() -> Result<()> {
    match rayon::ThreadPoolBuilder::new().build_global() {
        // They may run already, which is no error of the system's.
        Err(error) if error.source().is_some() => Err(Error::Runtime(format!(
            "{}; RAYON_NUM_THREADS=1 asks for fewer",
            Error::thread(&error)
        ))),
        _ => Ok(()),
    }
}

/// The model's weights as the spec says, whose warnings go to standard error.
///
/// # Errors
/// Fails as [`Model::load`] and [`Model::converted`] do, and where the system refuses threads.
pub fn load(spec: &RunSpec) -> Result<Arc<Model>> {
    start_workers()?;
    let mut model = Model::load(&spec.model)?;
    for warning in &model.warnings {
        warn(warning);
    }
    model.weights_as = spec.weights;
    if spec.converts_on_host() {
        model = model.converted()?;
    }
    Ok(Arc::new(model))
}
