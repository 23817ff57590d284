//! An engine that, in the course of a job, measures what else could serve its decode steps: when a whole step of the rows
//! asked for has run, that step's graph is captured by one variant after the other and launched again and again by the
//! host with nothing in between (as [`super::bare`] does), all variants in turns.

use super::bare::{launches, of_stage};
use super::variants::{Timed, choose, families, finalists, near, refined};
use crate::backend::LaunchWay;
use crate::backend::cuda::device::GpuDevice;
use crate::backend::cuda::engine::hosted::{HostLaunched, OtherStep, StagePlace};
use crate::backend::cuda::engine::model::{ModelProgram, programs};
use crate::backend::cuda::families::Bucket;
use crate::backend::cuda::tuning::Shape;
use crate::backend::cuda::tuning::variants::{Architecture, Entry, Variant};
use crate::backend::device::EngineSpec;
use crate::backend::{StageBackend, StepView};
use crate::error::{Error, Result};
use crate::model::DType;
use crate::plan::StepKind;
use crate::runtime::SingleEngine;
use crate::sys::abi;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Launches of one graph in a row: as many as take this long, within these limits.
const IN_A_ROW: Duration = Duration::from_millis(12);
const LAUNCHES: RangeInclusive<u32> = 4..=16;
/// Times that all variants are gone through, and those that meet again.
const ROUNDS: usize = 5;
const FINAL_ROUNDS: usize = 15;
/// Launches before the first time. Each advances the convolutions' state, which comes to rest after as many as a state has
/// rows, one layer after the other (36 of LFM2-8B-A1B): from then on all variants find the same rows, and so the same experts.
const SETTLING: u32 = 64;

/// What was found for a bucket.
#[derive(Debug, Clone)]
pub struct Found {
    pub rows: u32,
    /// Variants that were measured.
    pub measured: usize,
    /// The variants that met again.
    pub finalists: Vec<Timed>,
    /// What serves it now.
    pub current: Timed,
    pub chosen: Timed,
}

/// What is measured, and what came of it.
#[derive(Default)]
pub struct Tuning {
    /// The next decode step of so many rows.
    pub wanted: Option<u32>,
    pub found: Option<Found>,
}

struct TunedStage {
    inner: HostLaunched,
    program: ModelProgram,
    architecture: Architecture,
    dtype: DType,
    entries: Vec<Entry>,
    slots: u32,
    tuning: Arc<Mutex<Tuning>>,
}

impl StageBackend for TunedStage {
    fn run(&mut self, view: &StepView<'_>) -> Result<()> {
        self.inner.run(view)?;
        let (header, tuning) = (view.header(), self.tuning.clone());
        let mut tuning = tuning.lock();
        if header.kind == abi::TG_KIND_DECODE && tuning.wanted == Some(header.rows) {
            tuning.wanted = None;
            tuning.found = Some(self.search(view, header.rows)?);
        }
        Ok(())
    }
}

impl TunedStage {
    fn search(&mut self, view: &StepView<'_>, rows: u32) -> Result<Found> {
        let bucket = Bucket {
            kind: StepKind::Decode,
            rows,
            sequences: self.slots.min(rows),
        };
        let current = self.program.chosen_variant(bucket)?;
        let every = families(current, &self.entries, rows);
        let mut all = self.time(view, &every, ROUNDS)?;
        let mut best = choose(&all).variant;
        let mut around = near(&all);
        // Around what came near, then around what that found.
        for _ in 0..2 {
            let timed = self.time(view, &refined(best, &around), ROUNDS)?;
            let found = choose(&timed).variant;
            all.extend(timed);
            if found == best {
                break;
            }
            (best, around) = (found, vec![found]);
        }
        let finalists = self.time(view, &finalists(current, &all), FINAL_ROUNDS)?;
        let variants: HashSet<Variant> = all.iter().map(|timed| timed.variant).collect();
        Ok(Found {
            rows,
            measured: variants.len(),
            current: finalists[0].clone(),
            chosen: choose(&finalists).clone(),
            finalists,
        })
    }

    /// Times those of `variants` that can serve the step, of which the first always does.
    fn time(
        &mut self,
        view: &StepView<'_>,
        variants: &[Variant],
        rounds: usize,
    ) -> Result<Vec<Timed>> {
        let rows = view.header().rows;
        let mut steps: Vec<(Timed, OtherStep)> = Vec::new();
        for &variant in variants {
            let known = variant.check(self.architecture, self.dtype, rows);
            let program = known.and_then(|()| self.program.with_variant(variant, rows));
            let timed = Timed {
                variant,
                ms: vec![],
            };
            match program {
                Ok(program) => steps.push((timed, self.inner.other(view, program)?)),
                Err(why) if steps.is_empty() => {
                    return Err(Error::Runtime(format!(
                        "{variant} serves {rows} tokens and cannot: {why}: this is a bug in tailgraph"
                    )));
                }
                Err(_) => {}
            }
        }
        self.inner.repeat_other(&steps[0].1, SETTLING)?;
        for round in 0..rounds {
            for turn in 0..steps.len() {
                let index = (turn + round) % steps.len();
                let (timed, step) = &mut steps[index];
                // Its code and what it leaves in the caches.
                let start = Instant::now();
                self.inner.repeat_other(step, 0)?;
                let launches = launches(IN_A_ROW, start.elapsed(), LAUNCHES);
                let took = self.inner.repeat_other(step, launches)? / launches;
                timed.ms.push(took.as_secs_f64() * 1e3);
            }
        }
        Ok(steps.into_iter().map(|(timed, _)| timed).collect())
    }
}

/// An engine that is not launched yet, of a plan of one stage, and what it measures. Its tokens mean nothing.
///
/// # Errors
/// Fails as [`SingleEngine::of`] does.
pub fn engine(
    device: &GpuDevice,
    spec: &EngineSpec<'_>,
) -> Result<(SingleEngine, Arc<Mutex<Tuning>>)> {
    let spec = EngineSpec {
        options: &spec.options.one_step_in_flight(),
        ..*spec
    };
    let (options, gpu, dtype) = (spec.options, &device.gpu, device.spec.dtype);
    let file = gpu.kernel_file()?;
    let bucket_sizes = spec.plan.bucket_sizes.reachable(options);
    let placement = device.placement(&spec, &bucket_sizes, options, false);
    let mut stages = programs(gpu, spec.model, &placement)?;
    let (Some(program), true) = (stages.pop(), stages.is_empty()) else {
        return Err(Error::Usage(
            "--stages: variants are measured on a model of one stage".into(),
        ));
    };
    let (place, way) = (StagePlace { index: 0, count: 1 }, LaunchWay::HostKernels);
    let own = Box::new(program.clone());
    let tuning = Arc::new(Mutex::new(Tuning::default()));
    let stage = TunedStage {
        inner: HostLaunched::new(&gpu.context, own, place, &bucket_sizes, options, way)?,
        program,
        architecture: file.file.architecture,
        dtype,
        entries: file
            .choice(dtype, Shape::of(&spec.model.config))
            .entries
            .to_vec(),
        slots: options.max_seqs,
        tuning: tuning.clone(),
    };
    Ok((of_stage(stage, &spec)?, tuning))
}
