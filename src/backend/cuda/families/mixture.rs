//! A mixture's products by whichever family serves a bucket's experts, in which order they want the pairs, and their sum.

use super::Lowering;
use super::experts::{ExpertRows, ExpertWeights, NextNorm, Pairs, Routing};
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::launch::Argument;
use crate::plan::Op;
use crate::sys::abi;

/// Rows of a bucket of which a block combines two, at most.
const COMBINED_BY_TWO: u32 = 64;

/// Rows that a block of `tg_combine_*` takes. Where there are so few blocks, one of two rows leaves
/// an SM no room for another, but for one of the kernel behind it, which has then all its blocks early (profiles/log/many-rows-blocks.md).
fn combined_by_block(rows: u32) -> u32 {
    if rows.is_multiple_of(2) && rows <= COMBINED_BY_TWO {
        abi::TG_COMBINE_ROWS
    } else {
        1
    }
}

impl Lowering<'_> {
    /// How the kernels of this bucket's experts take their pairs of a row and an expert.
    pub fn pairs(&self) -> Pairs {
        match (self.grouped(), self.persistent_experts()) {
            (Some((grouped, shape)), _) => Pairs {
                sorted: false,
                tile_rows: shape.tile_rows,
                rounded: grouped.rounds(self.bucket.rows, shape),
            },
            (None, Some(persistent)) => Pairs {
                sorted: true,
                tile_rows: abi::TG_PERSISTENT_ROWS,
                rounded: persistent.rounds(),
            },
            (None, None) => {
                let (experts, top_k) = self.experts();
                let rows = self.bucket.rows;
                Pairs {
                    sorted: true,
                    tile_rows: self.kernels.tiled.expert_tile_rows(rows, experts, top_k),
                    rounded: false,
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
            (None, None) => self.tiled_experts(routing, weights, rows, pairs, [gate_up, down]),
        }
    }

    /// h f32 `[R, H]` += sum over a row's experts, ascending, of weight times what down made of it. Where `next` is given, also
    /// what it says.
    /// `routing` is this step's.
    pub fn combine_experts(
        &mut self,
        routing: &Routing,
        h: Address,
        rows: &ExpertRows,
        pairs: Pairs,
        next: Option<NextNorm>,
    ) {
        let (_, top_k) = self.experts();
        let args = abi::tg_combine_args {
            h,
            y: rows.partial,
            weights: routing.weights,
            place: if pairs.sorted { routing.place } else { 0 },
            x: next.map_or(0, |next| next.x),
            norm_weight: next.map_or(0, |next| next.weight),
            step: self.step,
            hidden: self.hidden(),
            k: top_k,
            eps: self.config.norm_eps,
            // What the grouped kernel's predecessors wrote may be read early.
            known: (!pairs.sorted).into(),
        };
        let arguments = vec![Argument::of(&args)];
        let combine = self.kernels.combine.kernel(top_k, pairs.rounded);
        let each = combined_by_block(self.bucket.rows);
        let grid = (self.bucket.rows / each, 1, 1);
        self.call(combine, grid, each * abi::TG_NORM_THREADS, 0, arguments);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_combine_whole_rows() {
        let each = [1, 2, 33, 64, 66, 4096].map(combined_by_block);
        assert_eq!(each, [1, 2, 1, 2, 1, 1]);
    }

    /// A register more, and an SM has room for three of its blocks: those of 512 rows would come in two rounds.
    #[test]
    #[cfg(feature = "cuda")]
    fn an_sm_has_room_for_four_blocks_that_combine_rounded_sums() {
        use crate::backend::cuda::driver::image;
        const SM_REGISTERS: u32 = 65_536;
        for name in [
            "tg_combine_rounded_four_bf16",
            "tg_combine_rounded_four_f16",
        ] {
            let kernel = image::kernel(name, "sm_90a").unwrap();
            let of_block = kernel.registers.next_multiple_of(8) * abi::TG_NORM_THREADS;
            assert!(SM_REGISTERS / of_block >= 4, "{kernel:?}");
        }
    }
}
