//! Decode steps of few rows: products that stream their weights, with what stands between them folded in
//! (kernels/skinny/skinny.cuh says how). `sizing` says what of a model they have room for and what a block holds, `launch` what is launched.
//!
//! | kernel | operations |
//! |---|---|
//! | `tg_skinny_conv_*` | operator norm, in-projection, short convolution |
//! | `tg_skinny_project_*` | operator norm and q, k, v; or final norm and LM head |
//! | `tg_skinny_held_out_*` | out-projection, or a dense feed-forward's down, of rows of up to 2048; the router's scores, in parts |
//! | `tg_skinny_out_*` | the same of longer rows |
//! | `tg_skinny_gate_up_*` | FFN norm and a dense feed-forward's gate and up |
//! | `tg_skinny_expert_gate_up_*` | the router's choice, FFN norm, gate and up of the chosen experts |
//! | `tg_skinny_down_*` | the chosen experts' down and their sum |
//! | `tg_skinny_experts_*` | of one row: what these two do |
//!
//! A kernel that predicts or chooses experts, leaves what they are chosen by, or reads what was chosen, has an instance `*_e64` for 33 to 64.

mod launch;
mod sizing;

pub use launch::{ConvIn, Prediction, Residual};

use super::Lowering;
use super::experts::instance;
use super::limits::{Library, Limits, types};
use crate::backend::cuda::driver::launch::Kernel;
use crate::backend::cuda::tuning::limits::{FUSED_ROWS, WORD_EXPERTS, expert_words};
use crate::backend::cuda::tuning::variants::{Architecture, Linear};
use crate::error::Result;
use crate::model::ModelConfig;
use crate::plan::Precision;
use sizing::Sizing;

/// The share of an SM's memory that is shared memory of `tg_skinny_held_out_*`: a block's 64 KB of weights stand in the rest on
/// their way to registers.
const HELD_OUT_SHARED_PERCENT: u32 = 10;

/// The kernels for one pair of types, on a GPU that has bulk copies.
#[derive(Debug)]
pub struct Skinny {
    any: Family,
    /// The kernels that store rows in parts, for the buckets of which [`sizing::parts`] says so.
    parts: Option<Family>,
    precision: Precision,
    limits: Limits,
}

#[derive(Debug)]
struct Family {
    conv: Kernel,
    project: Kernel,
    gate_up: Kernel,
    expert_gate_up: Kernel,
    out: Kernel,
    held_out: Kernel,
    down: Kernel,
    /// Serves buckets of one row.
    experts: Option<Kernel>,
}

impl Family {
    /// The kernels of `suffix` for experts of so many words of bits, but `out` of `whole`, which copies its rows ahead as they are. A dense
    /// feed-forward has no experts.
    fn load(library: &Library, suffix: &str, whole: &str, words: u32, fused: bool) -> Result<Self> {
        let block_bytes = library.gpu.limits().block_bytes;
        let kernel_of = |name: &str, suffix: &str, words: u32| {
            let instance = instance(words);
            let kernel = library.kernel(&format!("tg_skinny_{name}_{suffix}{instance}"))?;
            kernel.allow_shared(block_bytes)?;
            Ok::<_, crate::error::Error>(kernel)
        };
        let kernel = |name: &str, words: u32| kernel_of(name, suffix, words);
        let held_out = kernel("held_out", words)?;
        held_out.prefer_shared(HELD_OUT_SHARED_PERCENT)?;
        Ok(Self {
            conv: kernel("conv", words)?,
            project: kernel("project", words)?,
            gate_up: kernel("gate_up", 1)?,
            expert_gate_up: kernel("expert_gate_up", words)?,
            out: kernel_of("out", whole, words)?,
            held_out,
            down: kernel("down", words)?,
            experts: fused.then(|| kernel("experts", words)).transpose()?,
        })
    }
}

impl Skinny {
    /// For a model of so many experts. None where the GPU is older than 9.0 or the types have no such kernels: f32 rows with other
    /// weights than in bf16 or 8 bits.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn load(library: &Library, precision: Precision, experts: usize) -> Result<Option<Self>> {
        if !library.gpu.is(Architecture::has_bulk_copies) || !precision.is_streamed() {
            return Ok(None);
        }
        let (name, words) = (types(precision), expert_words(experts));
        let parts = match sizing::parts(precision, 1) {
            None => None,
            Some(_) if precision.compute.is_half() => {
                let suffix = format!("{name}_f16x2");
                Some(Family::load(library, &suffix, &name, words, true)?)
            }
            // With more words than one the fused experts of f32 rows have too few registers.
            Some(_) => {
                let suffix = format!("{name}_bf16x3");
                Some(Family::load(library, &suffix, &suffix, words, words == 1)?)
            }
        };
        Ok(Some(Self {
            any: Family::load(library, &name, &name, words, parts.is_none())?,
            parts,
            precision,
            limits: library.gpu.limits(),
        }))
    }

    /// For a bucket of `rows` rows.
    fn family(&self, rows: u32) -> &Family {
        match &self.parts {
            Some(parts) if sizing::parts(self.precision, rows).is_some() => parts,
            _ => &self.any,
        }
    }

    /// Whether one kernel does all of the experts of a bucket of `rows` rows that these kernels serve.
    ///
    /// # Errors
    /// What there is no room for.
    pub(super) fn fuses(
        &self,
        sizing: Sizing,
        config: &ModelConfig,
        rows: u32,
    ) -> std::result::Result<(), String> {
        if rows as usize > FUSED_ROWS {
            return Err("the fused experts take buckets of one token".to_owned());
        }
        match self.family(rows).experts {
            Some(_) => sizing.fuses(config),
            None => Err(format!(
                "num_experts is {}, the fused experts take up to {WORD_EXPERTS} in f32",
                config.num_experts
            )),
        }
    }

    /// Sizes launches with rings of up to `stages` stages.
    pub(super) fn sizing(&self, stages: u32) -> Sizing {
        Sizing {
            precision: self.precision,
            limits: self.limits,
            stages,
        }
    }
}

/// The skinny kernels that serve a bucket, and what sizes their launches.
#[derive(Debug, Clone, Copy)]
pub struct SkinnyBucket<'a> {
    family: &'a Family,
    sizing: Sizing,
}

impl<'a> Lowering<'a> {
    /// The skinny kernels, where this bucket's products are theirs.
    pub fn skinny(&self) -> Option<SkinnyBucket<'a>> {
        let Linear::Skinny { stages } = self.variant.linear else {
            return None;
        };
        let skinny = self.products.skinny.as_ref()?;
        Some(SkinnyBucket {
            family: skinny.family(self.bucket.rows),
            sizing: skinny.sizing(stages),
        })
    }

    /// The skinny kernels, where the experts are theirs too.
    pub fn skinny_experts(&self) -> Option<SkinnyBucket<'a>> {
        self.skinny()
            .filter(|_| self.variant.experts.follow_skinny())
    }
}
