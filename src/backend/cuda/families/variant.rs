//! Which of the kernels serve a bucket: the plan's variants, as far as these kernels can do what they say.

use super::{Bucket, Kernels};
use crate::backend::cuda::tuning::Shape;
use crate::backend::cuda::tuning::limits::SWAP_AB_ROWS;
use crate::backend::cuda::tuning::variants::{Able, Experts, Linear, Variant};
use crate::error;
use crate::model::ModelConfig;
use crate::plan::{Precision, StepKind};

impl Kernels {
    /// What serves a bucket.
    ///
    /// # Errors
    /// [`crate::Error::File`]: a file that was named asks for what these kernels cannot do for the model.
    pub fn variant(&self, config: &ModelConfig, bucket: Bucket) -> error::Result<Variant> {
        let choice = self.file.choice(self.precision.compute, Shape::of(config));
        let able = AbleFor(self, config);
        match bucket.kind {
            StepKind::Decode => choice.decode(bucket.rows, &able),
            StepKind::Mixed | StepKind::Score => Ok(choice.prompts(bucket.rows, &able)),
        }
    }

    /// Whether these kernels can serve decode buckets of `rows` rows so.
    ///
    /// # Errors
    /// Why not.
    pub fn can(&self, config: &ModelConfig, variant: Variant, rows: u32) -> Result<(), String> {
        let able = AbleFor(self, config);
        able.linear(variant, rows)?;
        able.experts(variant, rows)
    }
}

struct AbleFor<'a>(&'a Kernels, &'a ModelConfig);

impl AbleFor<'_> {
    fn lacking(&self) -> String {
        let Precision {
            compute, weights, ..
        } = self.0.precision;
        format!(
            "these kernels are for rows and weights of one 16-bit type, or bf16 or f32 rows and weights in bf16 or 8 bits, found {} and {}",
            compute.name(),
            weights.name()
        )
    }

    fn skinny(&self, variant: Variant, rows: u32) -> Result<(), String> {
        let Self(kernels, config) = self;
        let skinny = kernels
            .products
            .skinny
            .as_ref()
            .ok_or_else(|| self.lacking())?;
        let Linear::Skinny { stages } = variant.linear else {
            return Err("the experts of few tokens go with their products".to_owned());
        };
        let sizing = skinny.sizing(stages);
        sizing.serves(config, rows, variant.experts.follow_skinny())?;
        match variant.experts {
            Experts::Fused => skinny.fuses(sizing, config, rows),
            Experts::Skinny | Experts::Grouped(_) | Experts::Persistent | Experts::Tiled => Ok(()),
        }
    }

    fn persistent(&self) -> Result<(), String> {
        let persistent = self.0.products.persistent.as_ref();
        persistent.map(|_| ()).ok_or_else(|| self.lacking())
    }
}

impl Able for AbleFor<'_> {
    fn linear(&self, variant: Variant, rows: u32) -> Result<(), String> {
        match variant.linear {
            Linear::Skinny { .. } => self.skinny(variant, rows),
            Linear::SwapAb if rows > SWAP_AB_ROWS => Err(format!(
                "the swap-AB kernels take up to {SWAP_AB_ROWS} tokens"
            )),
            Linear::SwapAb if self.0.products.swap_ab.is_some() => Ok(()),
            Linear::SwapAb => Err(self.lacking()),
            Linear::Persistent => self.persistent(),
            Linear::Tiled => Ok(()),
        }
    }

    fn experts(&self, variant: Variant, rows: u32) -> Result<(), String> {
        match variant.experts {
            Experts::Skinny | Experts::Fused => self.skinny(variant, rows),
            Experts::Grouped(shape) => {
                let grouped = self.0.products.grouped.as_ref();
                let grouped = grouped.ok_or_else(|| self.lacking())?;
                grouped.serves(self.1, rows, shape)
            }
            Experts::Persistent => self.persistent(),
            Experts::Tiled => Ok(()),
        }
    }
}
