//! A model on its way to an engine: first what is cheap and finds mistakes, then the weights.

use super::args::{EngineArgs, RunArgs};
use super::device::Device;
use super::settings;
use super::target::Target;
use crate::backend::{SharedSink, cpu};
use crate::error::Result;
use crate::model::{GenerationConfig, Model, ModelConfig, ModelSource};
use crate::plan::{EngineOptions, Limits, Plan};
use crate::runtime::{Engine, EngineStatus, Event, Request};
use crate::telemetry::warn;
use std::sync::Arc;
use std::time::Duration;

/// A model whose configuration is read and whose sizes fit, without its weights.
pub struct Opened {
    pub source: ModelSource,
    target: Target,
    pub config: Arc<ModelConfig>,
    pub generation: GenerationConfig,
    pub plan: Plan,
    pub options: EngineOptions,
}

impl Opened {
    /// `delivers`: the engine will be started with a sink.
    ///
    /// # Errors
    /// A wrong configuration or plan file, impossible sizes, too little memory.
    pub fn new(
        source: ModelSource,
        target: Target,
        run: &RunArgs,
        engine: &EngineArgs,
        limits: &Limits,
        delivers: bool,
    ) -> Result<Self> {
        if let Target::Cpu {
            passed_over: Some(why),
        } = &target
        {
            warn(&format!("running on the CPU, for {why}"));
        }
        let (config, generation) = source.config()?;
        let config = Arc::new(config);
        let plan = settings::plan(&config, &run.buckets, limits)?;
        let budget = engine.budget(&target)?;
        let memory = settings::memory(&source, &target, &plan, limits, budget, delivers)?;
        Ok(Self {
            source,
            target,
            config,
            generation,
            plan,
            options: memory.options,
        })
    }

    /// prompt + max_new_tokens of one sequence, at most.
    pub fn max_context(&self) -> u32 {
        let pool = u64::from(self.options.pages) * u64::from(self.options.page_tokens);
        u32::try_from(pool).map_or(self.options.max_context, |pool| {
            pool.min(self.options.max_context)
        })
    }

    /// Loads the weights and starts an engine on them.
    pub fn start(&self, sink: &SharedSink) -> Result<Engine> {
        let model = Model::load(&self.source)?;
        for warning in &model.warnings {
            warn(warning);
        }
        match &self.target {
            Target::Cpu { .. } => {
                let stages = cpu::stages(&Arc::new(model), &self.plan, &self.options, sink)?;
                Engine::start(stages, &self.plan.ladders, &self.options)
            }
            #[cfg(feature = "cuda")]
            Target::Gpu {
                gpu,
                dtype,
                launch,
                step_timeout,
            } => {
                let mut engine = Engine::on_gpu(
                    gpu,
                    &model,
                    &self.plan,
                    &self.options,
                    *dtype,
                    *launch,
                    sink,
                )?;
                engine.watch(*step_timeout);
                engine.launch()?;
                Ok(engine)
            }
        }
    }
}

impl Device for Engine {
    fn try_submit(&mut self, request: &Request) -> Result<Option<u64>> {
        Engine::try_submit(self, request)
    }

    fn cancel(&mut self, request: u64) -> bool {
        Engine::cancel(self, request)
    }

    fn next_event(&mut self, wait: Duration) -> Result<Option<Event>> {
        Engine::next_event(self, wait)
    }

    fn status(&self) -> EngineStatus {
        Engine::status(self)
    }
}
