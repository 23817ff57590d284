//! From the last layer's rows to logits and tokens.

use super::{ModelAddresses, misplaced};
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::families::Lowering;
use crate::backend::cuda::families::head::{Found, LogitsPart, Noted, logits_parts};
use crate::error::Result;
use crate::plan::{Op, StepKind};

pub(super) fn final_norm(model: &ModelAddresses, to: &mut Lowering<'_>, ops: &[Op]) -> Result<()> {
    to.final_norm(model.x(), model.h(), model.vector(&ops[0])?);
    Ok(())
}

/// The LM head over normed rows.
pub(super) fn logits(model: &ModelAddresses, to: &mut Lowering<'_>, ops: &[Op]) -> Result<()> {
    let (lm_head, _) = model.matrix(&ops[0])?;
    part_by_part(model, to, ops, |to, part, logits, best| {
        let (x, delivered) = ((model.x(), model.prepared()), model.logits.is_some());
        to.lm_head(part, delivered, logits, best, x, lm_head)
    });
    Ok(())
}

/// The LM head that norms its rows itself.
pub(super) fn skinny(model: &ModelAddresses, to: &mut Lowering<'_>, ops: &[Op]) -> Result<()> {
    let skinny = to.skinny().ok_or_else(|| misplaced(&ops[0]))?;
    let norm = model.vector(&ops[0])?;
    let (lm_head, _) = model.matrix(&ops[1])?;
    part_by_part(model, to, ops, |to, _, logits, best| {
        Some(to.skinny_project(skinny, (logits, best), model.h(), norm, &lm_head, None))
    });
    Ok(())
}

/// Logits by `product`, which is told where they and the best of them go, to the host and to tokens. Those of a score step are dead once the next tile is there, so a tile goes
/// from its product to the host and to sampling in one go.
fn part_by_part<'a>(
    model: &ModelAddresses,
    to: &mut Lowering<'a>,
    ops: &[Op],
    product: impl Fn(&mut Lowering<'a>, LogitsPart, Address, Address) -> Option<Found>,
) {
    let logits = model.at(model.places.logits);
    let best = model.at(model.places.sample_best);
    let meetings = model.at(model.places.sample_meetings);
    let noted = Noted {
        seen: model.at(model.places.seen),
        counts: model.at(model.places.counts),
    };
    let (lm_head, sample) = ops.split_at(ops.len() - 1);
    let bucket = to.bucket;
    // A row of a decode step is marked as it is sampled.
    if bucket.kind != StepKind::Decode {
        to.doing(sample);
        to.mark_seen(noted);
    }
    let mut parts = logits_parts(bucket.kind, bucket.rows).peekable();
    while let Some(part) = parts.next() {
        to.doing(lm_head);
        let found = product(to, part, logits, best);
        if let Some(ring) = &model.logits {
            to.deliver(part, parts.peek().is_none(), logits, ring);
        }
        to.doing(sample);
        to.sample(part, logits, noted, best, found, meetings);
    }
}
