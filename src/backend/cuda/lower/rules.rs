//! Which kernels do which operations: one table. A rule takes several operations that follow each other in a stage; of the
//! rules that fit, the first counts, so a fused one stands above those of its parts.

use super::{ModelAddresses, head, layer, skinny};
use crate::backend::cuda::families::Lowering;
use crate::backend::cuda::tuning::variants::Experts;
use crate::error::Result;
use crate::plan::OpKind::{self, *};
use crate::plan::{Op, StepKind};

/// How some operations are lowered.
pub(super) struct Rule {
    /// What it does, in the order of a stage.
    pub ops: &'static [OpKind],
    /// Whether it serves the bucket; none always does.
    when: Option<fn(&Lowering<'_>) -> bool>,
    pub lower: fn(&ModelAddresses, &mut Lowering<'_>, &[Op]) -> Result<()>,
}

const MIXTURE: &[OpKind] = &[FfnNorm, Router, ExpertGateUp, ExpertDown];

#[rustfmt::skip] // a table
const RULES: &[Rule] = &[
    // Skinny products norm the rows that they read and convolve what they make. A layer's out-projection begins the router where
    // the experts are skinny too, and gate and up's kernel ends it.
    Rule { ops: &[OperatorNorm, ConvInProj, ShortConv], when: Some(skinny), lower: skinny::conv_in },
    Rule { ops: &[OperatorNorm, QkvProj], when: Some(skinny), lower: skinny::qkv },
    Rule { ops: &[ConvOutProj], when: Some(skinny), lower: skinny::project_out },
    Rule { ops: &[AttentionOutProj], when: Some(skinny), lower: skinny::project_out },
    Rule { ops: &[FfnNorm, DenseGateUp], when: Some(skinny), lower: skinny::dense_gate_up },
    Rule { ops: &[DenseDown], when: Some(skinny), lower: skinny::dense_down },
    Rule { ops: MIXTURE, when: Some(fused_experts), lower: skinny::fused_experts },
    Rule { ops: MIXTURE, when: Some(skinny_experts), lower: skinny::experts },
    Rule { ops: &[FinalNorm, LmHead, Sample], when: Some(skinny), lower: head::skinny },

    // Other products norm no rows; where tiles are whole channels, the in-projection's kernel convolves.
    Rule { ops: &[ConvInProj, ShortConv, ConvOutProj], when: Some(convolves), lower: layer::conv_layer },

    // The router norms its rows; whoever adds the experts up has whole rows, and norms them for the next layer unless its
    // products do.
    Rule { ops: &[FfnNorm, Router, ExpertGateUp, ExpertDown, OperatorNorm], when: Some(norms_apart), lower: layer::mixture },
    Rule { ops: MIXTURE, when: None, lower: layer::mixture },

    Rule { ops: &[QkNormRope, Attention], when: Some(decode), lower: layer::attention_decode },

    Rule { ops: &[Embed], when: None, lower: layer::embed },
    Rule { ops: &[OperatorNorm], when: None, lower: layer::norm },
    Rule { ops: &[ConvInProj], when: None, lower: layer::project },
    Rule { ops: &[ShortConv], when: None, lower: layer::short_conv },
    Rule { ops: &[ConvOutProj], when: None, lower: layer::project_out },
    Rule { ops: &[QkvProj], when: None, lower: layer::project },
    Rule { ops: &[QkNormRope], when: None, lower: layer::qk_norm_rope },
    Rule { ops: &[Attention], when: None, lower: layer::attention },
    Rule { ops: &[AttentionOutProj], when: None, lower: layer::project_out },
    Rule { ops: &[FfnNorm], when: None, lower: layer::norm },
    Rule { ops: &[DenseGateUp], when: None, lower: layer::dense_gate_up },
    Rule { ops: &[DenseDown], when: None, lower: layer::dense_down },
    Rule { ops: &[FinalNorm], when: None, lower: head::final_norm },
    Rule { ops: &[LmHead, Sample], when: None, lower: head::logits },
];

/// The rule for what comes first in `ops`.
pub(super) fn first_of(ops: &[Op], lowering: &Lowering<'_>) -> Option<&'static Rule> {
    let begins = |rule: &&Rule| {
        ops.len() >= rule.ops.len() && ops.iter().zip(rule.ops).all(|(op, kind)| op.kind == *kind)
    };
    let mut fitting = RULES.iter().filter(begins);
    fitting.find(|rule| rule.when.is_none_or(|serves| serves(lowering)))
}

fn decode(lowering: &Lowering<'_>) -> bool {
    lowering.bucket.kind == StepKind::Decode
}

fn skinny(lowering: &Lowering<'_>) -> bool {
    lowering.skinny().is_some()
}

fn norms_apart(lowering: &Lowering<'_>) -> bool {
    !skinny(lowering)
}

fn skinny_experts(lowering: &Lowering<'_>) -> bool {
    lowering.skinny_experts().is_some()
}

fn fused_experts(lowering: &Lowering<'_>) -> bool {
    lowering.variant.experts == Experts::Fused
}

fn convolves(lowering: &Lowering<'_>) -> bool {
    lowering.swap_ab_convolves().is_some() || lowering.persistent_convolves().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So that no stage is left with an operation that nobody does, whatever serves it.
    #[test]
    fn every_operation_has_a_rule_that_always_serves() {
        let served: Vec<OpKind> = RULES
            .iter()
            .filter(|rule| rule.when.is_none())
            .flat_map(|rule| rule.ops)
            .copied()
            .collect();
        for kind in OpKind::ALL {
            assert!(served.contains(&kind), "{kind:?}");
        }
    }

    /// The first that fits counts: one behind another that always serves the same beginning would never be reached.
    #[test]
    fn no_rule_stands_behind_one_that_takes_its_operations() {
        for (index, rule) in RULES.iter().enumerate() {
            let before = RULES[..index].iter();
            let mut always_before = before.filter(|rule| rule.when.is_none());
            assert!(
                !always_before.any(|before| rule.ops.starts_with(before.ops)),
                "{:?}",
                rule.ops
            );
        }
    }
}
