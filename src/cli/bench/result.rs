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
        let gpu = opened.target.device().known();
        let rates = Rates::new(self.args.bandwidth, self.args.tflops, gpu, precision);
        let uniform = |samples: &Vec<Sample>| {
            samples
                .windows(2)
                .all(|pair| pair[0].tokens.len() == pair[1].tokens.len())
        };
        // Floors are those of one device.
        let alike = opened.spec.beside.is_empty()
            && point.ragged_from.is_none()
            && self.samples.as_ref().is_none_or(uniform);
        let by = rates.clone().unwrap_or_else(Rates::unlimited);
        let least = |experts_hit| {
            let (plan, options) = (&opened.plan, &opened.options);
            let least = || floors::least(point, plan, options, precision, experts_hit, &by);
            alike.then(least).flatten()
        };
        let counted = tried.spread.map(|spread| spread.experts_hit_mean);
        let rows = match point.kind {
            Kind::Decode => Some(point.batch),
            Kind::Prefill | Kind::Score => Some(
                opened
                    .options
                    .step_tokens
                    .min(point.batch.saturating_mul(point.mean_prompt())),
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
                replicas: opened.targets().count(),
                stage_devices: opened.spec.devices().count() / opened.targets().count(),
                max_seqs: opened.options.max_seqs,
                max_context: opened.options.max_context,
                step_tokens: opened.options.step_tokens,
                chunk_tokens: opened.options.chunk_tokens,
            },
            point,
            kernels: None,
            logits_on_device: (point.kind == Kind::Score).then_some(self.args.logits_on_device),
            startup: &unit.startup,
            repeats: &tried.repeats,
            least: least(None),
            counted_least: counted.and_then(|hit| least(Some(hit))),
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
