//! A mixture's products by whichever family serves a bucket's experts, and in which order they want the pairs.

use super::experts::{ExpertRows, ExpertWeights, Pairs, Routing};
use super::{Lowering, persistent};
use crate::plan::Op;

impl Lowering<'_> {
    /// As this bucket's experts want them.
    pub fn pairs(&self) -> Pairs {
        match self.grouped() {
            Some((_, shape)) => Pairs {
                sorted: false,
                tile_rows: shape.tile_rows,
            },
            None if self.persistent_experts().is_some() => Pairs {
                sorted: true,
                tile_rows: persistent::ROWS,
            },
            None => {
                let (experts, top_k) = self.experts();
                let rows = self.bucket.rows;
                Pairs {
                    sorted: true,
                    tile_rows: self.kernels.tiled.expert_tile_rows(rows, experts, top_k),
                }
            }
        }
    }

    /// y and partial, as [`ExpertRows`] says, by what serves this bucket's experts: all that comes before
    /// [`Lowering::combine_experts`]. `ops`: gate and up, then down.
    /// `routing` is this step's.
    pub fn expert_products(
        &mut self,
        routing: &Routing,
        weights: &ExpertWeights,
        rows: &ExpertRows,
        pairs: Pairs,
        ops: &[Op],
    ) {
        let (gate_up, down) = ops.split_at(ops.len() / 2);
        match (self.grouped(), self.persistent_experts()) {
            (Some(grouped), _) => {
                self.doing(ops);
                self.grouped_experts(grouped, routing, weights, rows);
            }
            (None, Some(persistent)) => {
                self.doing(gate_up);
                self.persistent_expert_gate_up(persistent, routing, weights, rows);
                self.doing(down);
                self.persistent_expert_down(persistent, routing, weights, rows);
            }
            (None, None) => {
                self.doing(gate_up);
                self.tiled_expert_gate_up(routing, weights, rows, pairs);
                self.doing(down);
                self.tiled_expert_down(routing, weights, rows, pairs);
            }
        }
    }
}
