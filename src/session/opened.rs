//! A model on its way to an engine: first what is cheap and finds mistakes, then the weights.

use super::recording::{Keep, Recorded, Timed};
use super::replicated::RecordedReplicas;
use super::serving::Serving;
use super::sizes;
use super::spec::{DeviceSpec, Parallel, RunSpec};
use super::target::Target;
use crate::backend::device::{EngineSpec, Runs, Watch};
use crate::backend::timing::StepClock;
use crate::backend::{RoutingSink, SharedSink};
use crate::error::{Error, Result};
use crate::io::identity::Identity;
use crate::io::record::{Header, VERSION};
use crate::model::fingerprint::fingerprint;
use crate::model::{GenerationConfig, Model, ModelConfig, ModelSource};
use crate::plan::{EngineOptions, OpKind, Plan, Precision, StepKind};
use crate::runtime::{Clocks, Engine, Replica, Replicas};
use crate::telemetry::warn;
use crate::trace::parts::Costs;
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
}

impl Opened {
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
        self.plan.ladders = self.plan.ladders.reachable(&self.options).only(kinds);
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
        })
    }

    /// prompt + max_new_tokens of one sequence, at most.
    pub fn max_context(&self) -> u32 {
        let pool = u64::from(self.options.pages) * u64::from(self.options.page_tokens);
        u32::try_from(pool).map_or(self.options.max_context, |pool| {
            pool.min(self.options.max_context)
        })
    }

    /// Loads the weights and starts an engine on them, or one on each device, whose run is kept as `keep` says.
    ///
    /// # Errors
    /// As [`load`], [`Self::engine_of`] and [`Self::replicas_of`]; what is kept cannot be written.
    pub fn start(&self, sink: &SharedSink, mut keep: Keep) -> Result<Serving> {
        if !self.replicas.is_empty() {
            let model = load(&self.spec.model)?;
            let replicas = self.replicas_of(&model, sink, keep.turns())?;
            let headers = match keep.turns() {
                true => self.headers(&replicas)?,
                false => vec![],
            };
            let replicas = RecordedReplicas::new(headers, replicas, keep)?;
            return Ok(Serving::Several(Box::new(replicas)));
        }
        let (engine, clocks, on_host) = self.engine_kept(sink, &mut keep)?;
        let header = match keep.turns() {
            true => Some(self.header(&engine)?),
            false => None,
        };
        let timed = Timed {
            names: match clocks.stages.is_some() || on_host > 1 {
                true => self.names_of_stages(engine.shape().stages as usize),
                false => vec![],
            },
            parts: match clocks.parts {
                Some(clock) => Some((clock, self.costs()?)),
                None => None,
            },
            stages: clocks.stages,
        };
        let engine = Recorded::new(header, engine, keep, timed)?;
        Ok(Serving::One(Box::new(engine)))
    }

    /// What a recording of each replica's run begins with.
    fn headers(&self, replicas: &Replicas) -> Result<Vec<Header>> {
        let header = |(index, target): (usize, &Target)| {
            Ok(Header {
                kernel_variants: target.device().kernel_variants()?,
                ..self.header(replicas.engine(index))?
            })
        };
        self.targets().enumerate().map(header).collect()
    }

    /// All devices that run the whole model.
    pub fn targets(&self) -> impl Iterator<Item = &Target> {
        std::iter::once(&self.target).chain(&self.replicas)
    }

    /// What a recording of an engine's run begins with.
    ///
    /// # Errors
    /// A file of the model cannot be read.
    pub fn header(&self, engine: &Engine) -> Result<Header> {
        Ok(Header {
            version: VERSION,
            model: self.spec.model.to_string(),
            identity: Identity::of_model(&fingerprint(&self.spec.model)?),
            device: self.spec.device.name().to_owned(),
            dtype: self.spec.device.dtype().name().to_owned(),
            launch: self
                .spec
                .device
                .launch()
                .map(|launch| launch.name().to_owned()),
            kernel_variants: self.kernel_variants.clone(),
            engine: engine.shape().clone(),
        })
    }

    /// As [`RunSpec::precision`].
    ///
    /// # Errors
    /// As there.
    pub fn precision(&self) -> Result<Precision> {
        self.spec.precision(&self.config)
    }

    /// What the parts of a step are measured against.
    ///
    /// # Errors
    /// As [`Self::precision`].
    pub fn costs(&self) -> Result<Costs> {
        let precision = self.precision()?;
        let known = self.target.device().known();
        Ok(Costs {
            config: self.config.clone(),
            precision,
            rates: known.map(|gpu| gpu.rates(precision)),
        })
    }

    /// Of so many stages, as tracks have them.
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

    /// With how many stages the host runs one by one, each of which a trace times; one stands for all that one thread runs.
    fn engine_kept(&self, sink: &SharedSink, keep: &mut Keep) -> Result<(Engine, Clocks, usize)> {
        let start = Instant::now();
        let model = load(&self.spec.model)?;
        let loaded = Instant::now();
        let options = self.recording(keep.turns());
        let watch = match (keep.parts, &keep.trace) {
            (true, _) => Watch::Times { in_a_row: None },
            (false, Some(_)) => Watch::Stages,
            (false, None) => Watch::Nothing,
        };
        let mut on_host = 0;
        let timed = |runs| match (runs, &keep.trace) {
            (Runs::Stages(stages), Some(trace)) => {
                on_host = stages.len();
                Ok(Runs::Stages(trace.timed(stages)))
            }
            (runs, _) => Ok(runs),
        };
        let (engine, clocks) = self.launched(&model, sink, options, watch, timed)?;
        if let Some(trace) = &mut keep.trace {
            trace.phase("load", (start, loaded))?;
            trace.phase("start the engine", (loaded, Instant::now()))?;
        }
        Ok((engine, clocks, on_host))
    }

    /// Starts an engine on weights that are loaded already.
    ///
    /// # Errors
    /// As [`crate::backend::Device::start`].
    pub fn engine_of(&self, model: &Arc<Model>, sink: &SharedSink) -> Result<Engine> {
        let (options, watch) = (self.recording(false), Watch::Nothing);
        let (engine, _) = self.launched(model, sink, options, watch, Ok)?;
        Ok(engine)
    }

    /// Starts an engine on each device, on weights that are loaded already.
    ///
    /// # Errors
    /// As [`Replica::on`], [`Replicas::new`] and [`Replicas::launch`].
    pub fn replicas_of(
        &self,
        model: &Arc<Model>,
        sink: &SharedSink,
        record: bool,
    ) -> Result<Replicas> {
        let options = self.recording(record);
        let spec = EngineSpec {
            model,
            plan: &self.plan,
            options: &options,
            sink,
        };
        let replica = |(target, device): (&Target, &DeviceSpec)| {
            Replica::on(target.device(), device.title(), &spec)
        };
        let devices = self.targets().zip(self.spec.devices());
        let mut replicas = Replicas::new(devices.map(replica).collect::<Result<_>>()?)?;
        replicas.launch()?;
        Ok(replicas)
    }

    /// Starts an engine on weights that are loaded already, whose steps are timed part by part; and where the times come out.
    /// `in_a_row`: as [`Watch::Times`] has it.
    ///
    /// # Errors
    /// As [`Engine::on_timed`].
    pub fn engine_timed(
        &self,
        model: &Arc<Model>,
        in_a_row: Option<OpKind>,
    ) -> Result<(Engine, Box<dyn StepClock>)> {
        let (mut engine, clock) = Engine::on_timed(
            self.target.device(),
            &EngineSpec {
                model,
                plan: &self.plan,
                options: &self.options,
                sink: &None,
            },
            in_a_row,
        )?;
        engine.launch()?;
        Ok((engine, clock))
    }

    fn recording(&self, record: bool) -> EngineOptions {
        EngineOptions {
            record,
            ..self.options
        }
    }

    /// Starts an engine that tells `routing` where the rows of every step go, for which it takes its time.
    ///
    /// # Errors
    /// As [`crate::backend::Device::start`].
    pub fn engine_with_routing(
        &self,
        model: &Arc<Model>,
        sink: &SharedSink,
        routing: &Arc<dyn RoutingSink>,
    ) -> Result<Engine> {
        let (options, watch) = (self.options, Watch::Routing(routing));
        let (engine, _) = self.launched(model, sink, options, watch, Ok)?;
        Ok(engine)
    }

    /// `wrap`: see [`Engine::on_watched`].
    fn launched(
        &self,
        model: &Arc<Model>,
        sink: &SharedSink,
        options: EngineOptions,
        watch: Watch<'_>,
        wrap: impl FnOnce(Runs) -> Result<Runs>,
    ) -> Result<Started> {
        let spec = EngineSpec {
            model,
            plan: &self.plan,
            options: &options,
            sink,
        };
        let device = self.target.device();
        let (mut engine, clocks) = Engine::on_watched(device, &spec, watch, wrap)?;
        engine.launch()?;
        Ok((engine, clocks))
    }
}

/// An engine, and where the times of its steps come out, if they are timed.
type Started = (Engine, Clocks);

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

/// The model's weights, whose warnings go to standard error.
///
/// # Errors
/// As [`Model::load`]; the system refused threads.
pub fn load(source: &ModelSource) -> Result<Arc<Model>> {
    start_workers()?;
    let model = Model::load(source)?;
    for warning in &model.warnings {
        warn(warning);
    }
    Ok(Arc::new(model))
}
