//! Memory arithmetic for a run on a GPU. Every number is the size of an allocation: the layouts that are counted here
//! are the ones that memory is allocated by.

mod items;

use self::items::{POOL, items};
use super::arena::{Arena, ArenaShape};
use super::weights::WeightAddresses;
use crate::bytes::Bytes;
use crate::error::{Error, Result};
use crate::plan::memory::{MemoryPlan, too_little};
use crate::plan::options::{DEFAULT_MAX_SEQS, most_seqs};
use crate::plan::{
    Budget, EngineOptions, LayerRange, Limits, Plan, Precision, RingCapacities, Usual,
};

/// What a way of launching takes besides the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overheads {
    /// Tables of the scheduler, in device memory.
    pub scheduler_bytes: u64,
    /// The tokens so far of its sequences, which `scheduler_bytes` includes; 0 where the scheduler runs on the host.
    pub kept_token_bytes: u64,
    /// Pinned memory of the host that steps and the scheduler are reached through.
    pub pinned_bytes: u64,
    /// What the pinned memory holds.
    pub pinned_arithmetic: String,
    /// Pinned too: logits on their way to the host. 0 where nobody asks for any.
    pub logits_bytes: u64,
    pub logits_arithmetic: String,
}

/// A GPU's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceMemory {
    /// All of it, or as much as `--memory-limit` names: a default that followed from what is free just now would change
    /// from run to run, and results with it.
    pub whole: Budget,
    /// What a run may take of it.
    pub budget: Budget,
}

/// Rows of a step where nobody asks for another number, but where their activations take more than a share of the GPU's
/// memory: prompts are read fastest in steps of thousands of rows.
const STEP_TOKENS: u32 = 8192;
/// The share: one in this many.
const ACTIVATIONS_SHARE: u64 = 16;
/// The share of a GPU's memory that nothing is planned for where nobody says how many sequences there are to be: other
/// programs and the driver have some of it. One in this many.
const SPARE_SHARE: u64 = 16;

/// Sizes of a run, as they follow from what was asked for.
struct Sizing<'a> {
    plan: &'a Plan,
    /// The layers of each GPU, with the bytes of their weights.
    ranges: Vec<(&'a LayerRange, u64)>,
    precision: Precision,
    limits: Limits,
    memory: &'a DeviceMemory,
    overheads: &'a dyn Fn(&EngineOptions) -> Result<Overheads>,
}

/// The memory that steps of a run with these options work in.
fn arena(plan: &Plan, precision: Precision, options: &EngineOptions) -> Arena {
    Arena::new(
        &plan.config,
        ArenaShape {
            rows: plan.bucket_sizes.reachable(options).largest() as usize,
            slots: options.max_seqs as usize,
            prefixes: options.prefixes as usize,
            max_context: options.max_context as usize,
            precision,
        },
    )
}

impl MemoryPlan {
    /// Sizes a run as [`MemoryPlan::new`] does, for GPUs that have this memory each and one of `ranges`. Stages of a GPU share
    /// activations, and one step is in flight for each GPU; the GPU that takes most decides. Where nobody asked for a number of
    /// rows, a step has 8,192, halved until its activations take a 16th of the whole memory at most. `overheads` gives the
    /// [`Overheads`] of a run with these sizes.
    ///
    /// # Errors
    /// [`MemoryPlan::new`]'s, and those of `overheads`.
    pub fn on_device(
        (plan, ranges): (&Plan, &[LayerRange]),
        precision: Precision,
        limits: &Limits,
        memory: &DeviceMemory,
        overheads: &dyn Fn(&EngineOptions) -> Result<Overheads>,
    ) -> Result<Self> {
        let DeviceMemory { whole, budget } = memory;
        let weights = |range| WeightAddresses::bytes(&plan.config, range, precision.weights);
        let ranges = ranges.iter().map(|range| (range, weights(range)));
        let sizing = Sizing {
            plan,
            ranges: ranges.collect(),
            precision,
            limits: *limits,
            memory,
            overheads,
        };
        let asked = sizing.options()?;
        let why_step = match limits.step_tokens {
            Some(_) => "`step_tokens`".to_owned(),
            None => format!(
                "`step_tokens` by default: halved while activations take more than {} (1/{ACTIVATIONS_SHARE} of {})",
                Bytes(whole.bytes / ACTIVATIONS_SHARE),
                whole.source
            ),
        };
        let context_pages = asked.max_context.div_ceil(asked.page_tokens);
        let wanted_pages = context_pages.saturating_mul(asked.max_seqs);
        let sized = |pages: u32| sizing.with_pages(asked, pages, &why_step);
        let least_pages = match limits.max_context {
            Some(_) => context_pages,
            None => 1,
        };
        let least = sized(least_pages)?;
        if least.total_bytes() > budget.bytes {
            let context = least.options.max_context;
            let (pool, others): (Vec<_>, Vec<_>) =
                least.items.into_iter().partition(|item| item.name == POOL);
            let pool_bytes = pool.iter().map(|item| item.bytes).sum();
            return Err(too_little(&others, context, pool_bytes, budget));
        }
        // What a pool takes grows with its pages: halve the range in which the largest lies that fits.
        let (mut fits, mut last) = (least_pages, wanted_pages.max(least_pages));
        while fits < last {
            let middle = last - (last - fits) / 2;
            if sized(middle)?.total_bytes() <= budget.bytes {
                fits = middle;
            } else {
                last = middle - 1;
            }
        }
        sized(fits)
    }
}

impl Sizing<'_> {
    /// The largest of [`STEP_TOKENS`], its half, its quarter and so on whose activations are within the share, with `seqs`
    /// sequences where nobody asked for another number.
    fn usual(&self, seqs: u32) -> Result<Usual> {
        let steps = self.ranges.len() as u32;
        let mut rows = STEP_TOKENS;
        loop {
            let usual = Usual { rows, seqs, steps };
            let options = self.limits.resolve(self.plan, usual)?;
            let activations = arena(self.plan, self.precision, &options).activation_bytes as u64;
            let fits = activations <= self.memory.whole.bytes / ACTIVATIONS_SHARE;
            // Where the rest of the options has its own least number of rows, halving goes no further.
            if fits || rows < options.step_tokens || rows == 1 {
                return Ok(Usual {
                    rows: options.step_tokens,
                    ..usual
                });
            }
            rows /= 2;
        }
    }

    /// What was asked for, and defaults for the rest but the pool.
    fn options(&self) -> Result<EngineOptions> {
        let usual = self.usual(self.usual_seqs()?)?;
        self.resolve(usual)
    }

    fn resolve(&self, usual: Usual) -> Result<EngineOptions> {
        let gpus = self.ranges.len() as u32;
        let in_flight = match gpus {
            1 => 1,
            gpus => self.limits.steps_in_flight.unwrap_or(gpus).max(gpus),
        };
        Ok(EngineOptions {
            steps_in_flight: in_flight,
            ..self.limits.resolve(self.plan, usual)?
        })
    }

    /// Sequences at once where nobody asks for another number: as many as the largest bucket of decode steps has that the
    /// whole memory holds with a full context each, no more than the job has, and no fewer than on a CPU.
    fn usual_seqs(&self) -> Result<u32> {
        let jobs = self.limits.requests.unwrap_or(u32::MAX).max(1);
        let least = DEFAULT_MAX_SEQS.min(jobs);
        if self.limits.max_seqs.is_some() || self.limits.prompts.is_some() {
            return Ok(least);
        }
        let most = most_seqs(self.plan).min(jobs);
        let buckets = self.plan.bucket_sizes.decode.iter().rev();
        for seqs in buckets.map(|&bucket| bucket.min(most)) {
            if seqs <= least {
                break;
            }
            if self.holds(seqs)? {
                return Ok(seqs);
            }
        }
        Ok(least)
    }

    /// Whether the whole memory has room for so many sequences of a full context, or as many of them as a step has room for, and
    /// something to spare.
    fn holds(&self, seqs: u32) -> Result<bool> {
        let asked = self.resolve(self.usual(seqs)?)?;
        let pages = asked.max_context.div_ceil(asked.page_tokens);
        let whole = self.memory.whole.bytes;
        let found = self.with_pages(asked, pages.saturating_mul(asked.max_seqs), "")?;
        Ok(found.total_bytes() <= whole - whole / SPARE_SHARE)
    }

    /// `asked` with a pool of so many pages, and no longer a context than they hold.
    fn with_pages(&self, asked: EngineOptions, pages: u32, why_step: &str) -> Result<MemoryPlan> {
        let context = pages.saturating_mul(asked.page_tokens);
        let options = EngineOptions {
            pages,
            max_context: asked.max_context.min(context),
            ..asked
        };
        let overheads = (self.overheads)(&options)?;
        let of_range = |&(range, weight_bytes): &(&LayerRange, u64)| MemoryPlan {
            options,
            rings: RingCapacities::new(&options),
            items: items(
                (self.plan, range, weight_bytes),
                self.precision,
                &options,
                &overheads,
                why_step,
            ),
            budget: self.memory.budget.clone(),
        };
        let plans = self.ranges.iter().map(of_range);
        plans
            .max_by_key(MemoryPlan::total_bytes)
            .ok_or_else(|| Error::Runtime("a run on no GPU: this is a bug in tailgraph".into()))
    }
}
