//! From what was measured to the results that are printed.

use super::work::{Tried, Unit, Work};
use crate::bench::Kind;
use crate::bench::floors::{self, Rates};
use crate::bench::row::{Measured, Setting, Subject};
use crate::error::Result;
use crate::io::arrays::Sample;
use crate::plan::cost::distinct_experts;
use serde_json::Value;

impl Work<'_> {
    /// The result of one point. `cost_ns`: what measuring adds for each token.
    pub fn row(
        &self,
        subject: &Subject,
        unit: &Unit,
        tried: &Tried,
        cost_ns: f64,
    ) -> Result<Value> {
        let (opened, point) = (&unit.opened, &tried.point);
        let precision = opened.precision()?;
        let device = opened.target.device().info().unwrap_or_default();
        let rates = Rates::new(self.args.bandwidth, self.args.tflops, &device, precision);
        let uniform = |samples: &Vec<Sample>| {
            samples
                .windows(2)
                .all(|pair| pair[0].tokens.len() == pair[1].tokens.len())
        };
        let cost = match self.samples.as_ref().is_none_or(uniform) {
            true => floors::cost(point, &opened.plan, &opened.options, precision),
            false => None,
        };
        let rows = match point.kind {
            Kind::Decode => Some(point.batch),
            Kind::Prefill | Kind::Score => Some(
                opened
                    .options
                    .step_tokens
                    .min(point.batch.saturating_mul(point.prompt_tokens)),
            ),
            Kind::Serve | Kind::Launch => None,
        };
        let measured = Measured {
            subject,
            setting: &Setting {
                launch: unit.way.map(|way| way.name().to_owned()),
                dtype: opened.spec.device.dtype().name().to_owned(),
                bucket_file: unit.bucket_file.clone(),
                kernel_file: unit.kernel_file.clone(),
                kernel_variants: opened.kernel_variants.clone(),
                max_seqs: opened.options.max_seqs,
                max_context: opened.options.max_context,
                step_tokens: opened.options.step_tokens,
            },
            point,
            kernels: None,
            startup: &unit.startup,
            repeats: &tried.repeats,
            cost,
            rates: rates.as_ref(),
            vocabulary_share: tried.vocabulary_share,
            spread: tried.spread,
            experts_expected: rows.map(|rows| distinct_experts(&self.config, f64::from(rows))),
            verdict: tried.verdict,
            cost_ns,
        };
        Ok(measured.row())
    }
}
