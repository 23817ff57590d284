//! Which rows the last layers have readers for. Attention reads the keys and values of every position; behind the last attention
//! a row is read by the convolutions of rows a few positions on, and by what samples. Of a chunk that leaves its last rows.

use super::{Op, OpKind, StepKind};
use crate::model::{LayerType, ModelConfig};

/// From the attention of `layer` on, a mixed step needs the last `rows` rows of each of its sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeededRows {
    pub layer: usize,
    pub rows: u32,
}

impl NeededRows {
    /// The last row is sampled. Each conv layer reads as many rows before the ones that it computes as it has taps before its last,
    /// and its state for the next chunk is no more than these. `None` of a model without attention.
    pub fn of(config: &ModelConfig) -> Option<Self> {
        let types = &config.layer_types;
        let layer = types
            .iter()
            .rposition(|&found| found == LayerType::FullAttention)?;
        let behind = types.len() - 1 - layer;
        let before = config.conv_l_cache.saturating_sub(1);
        let rows = u32::try_from(behind.saturating_mul(before)).unwrap_or(u32::MAX);
        Some(Self {
            layer,
            rows: rows.saturating_add(1),
        })
    }

    /// [`Self::of`] in a step of this kind: only a mixed one has rows that nobody needs.
    pub fn of_step(config: &ModelConfig, kind: StepKind) -> Option<Self> {
        Self::of(config).filter(|_| kind == StepKind::Mixed)
    }

    /// Operations of a stage that compute all rows; those behind them compute these alone.
    pub fn whole(self, ops: &[Op]) -> usize {
        ops.partition_point(|op| !self.are_all_of(op))
    }

    /// Whether an operation computes these rows alone. Keys and values are of all rows.
    pub fn are_all_of(self, op: &Op) -> bool {
        match op.layer {
            Some(layer) if layer == self.layer => !matches!(
                op.kind,
                OpKind::OperatorNorm | OpKind::QkvProj | OpKind::QkNormRope
            ),
            Some(layer) => layer > self.layer,
            None => op.kind != OpKind::Embed,
        }
    }

    /// Rows that steps of up to `rows` rows in up to `sequences` sequences need, at most.
    pub fn most(self, rows: u32, sequences: u32) -> u32 {
        rows.min(self.rows.saturating_mul(sequences))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelSource;
    use crate::model::tensors::operations;

    fn config(preset: &str) -> ModelConfig {
        let source = ModelSource::parse(preset).unwrap();
        source.config().unwrap().0
    }

    #[test]
    fn two_conv_layers_of_three_taps_need_five_rows() {
        let found = ["random:lfm2-8b-a1b", "random:lfm2-24b-a2b"].map(|preset| {
            let config = config(preset);
            NeededRows::of(&config).unwrap()
        });
        assert_eq!(found.map(|needed| needed.rows), [5, 3]);
        assert_eq!(found[0].layer, 21);
        assert_eq!(found[0].most(8192, 1), 5);
        assert_eq!(found[0].most(8192, 256), 1280);
        assert_eq!(found[0].most(256, 256), 256);
    }

    #[test]
    fn a_model_that_ends_in_attention_needs_a_row_and_one_without_needs_all() {
        let mut config = config("random:tiny");
        let last = config.layer_types.len() - 1;
        config.layer_types[last] = LayerType::FullAttention;
        let needed = NeededRows::of(&config).unwrap();
        assert_eq!((needed.layer, needed.rows), (last, 1));
        config.layer_types.fill(LayerType::Conv);
        assert_eq!(NeededRows::of(&config), None);
    }

    /// What is needed of a pass is its end: nothing in between reads all rows again.
    #[test]
    fn operations_that_need_few_rows_come_last() {
        let config = config("random:lfm2-8b-a1b");
        let needed = NeededRows::of(&config).unwrap();
        let ops = operations(&config, 0..config.num_hidden_layers);
        let first = ops.iter().position(|op| needed.are_all_of(op)).unwrap();
        assert_eq!(ops[first].kind, OpKind::Attention);
        assert!(ops[first..].iter().all(|op| needed.are_all_of(op)));
    }
}
