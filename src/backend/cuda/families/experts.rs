//! Mixtures of experts: their feed-forwards, and what these and the router (router.rs) agree on.

use super::Lowering;
use super::limits::Library;
use super::tiled::{Bf16x3, ByExpert, Epilogue, Product};
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::launch::Kernel;
use crate::backend::cuda::matrix::Matrix;
pub use crate::backend::cuda::tuning::limits::EXPERT_COUNTS_BYTES;
use crate::backend::cuda::tuning::limits::WORD_EXPERTS;
use crate::error::{Error, Result};
use crate::plan::{Op, Precision};
use crate::sys::abi;

/// What ends the name of a kernel's instance for experts of so many words of bits.
pub(super) fn instance(words: u32) -> String {
    match words {
        1 => String::new(),
        words => format!("_e{}", words as usize * WORD_EXPERTS),
    }
}

/// Where a step's routing lies. R rows, K experts each, R K pairs.
#[derive(Debug, Clone, Copy)]
pub struct Routing {
    /// `uint32_t [R, K]`, ascending in a row.
    pub experts: Address,
    /// f32 `[R, K]`, beside them.
    pub weights: Address,
    /// f32 `[R, E]`: scratch.
    pub scores: Address,
    /// Scratch of the skinny kernels, for the buckets that they serve: `expert_score_parts` of the arena.
    pub score_parts: Address,
    /// `uint32_t [R K]`: the row at each place of the sort; this and the next two where [`Pairs::sorted`].
    pub rows: Address,
    /// `uint32_t [R K]`: the place of each pair.
    pub place: Address,
    /// [`most_expert_tiles`] entries of [`abi::TG_EXPERT_TILE_BYTES`].
    pub tiles: Address,
    /// How many, and what the kernel for wide steps counts: [`EXPERT_COUNTS_BYTES`].
    pub tile_count: Address,
}

/// Matrices of a mixture's first expert, [packed](super::packed); those of the others lie behind them.
#[derive(Debug, Clone, Copy)]
pub struct ExpertWeights {
    /// w1, `[M, H]`.
    pub gate: Matrix,
    /// w3, `[M, H]`, with gate's stride.
    pub up: Matrix,
    /// w2, `[H, M]`.
    pub down: Matrix,
}

/// In which order a mixture's kernels take pairs of a row and one of its experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pairs {
    /// The token sort lists them by expert. Else the experts' kernel sorts for itself, and leaves its sums by pair.
    pub sorted: bool,
    /// Rows of an expert's tile, at most.
    pub tile_rows: u32,
    /// What down makes is rounded to the operand type.
    pub rounded: bool,
}

/// The kernels that add up what a row's experts made.
#[derive(Debug)]
pub struct Combine {
    /// They take f32 sums: of up to [`abi::TG_COMBINE_FOUR`] experts a row, and of any number.
    of_f32: [Kernel; 2],
    /// The same of [rounded](Pairs::rounded) ones; of operands of 16 bits.
    of_rounded: Option<[Kernel; 2]>,
}

impl Combine {
    pub(super) fn load(library: &Library, precision: Precision) -> Result<Self> {
        let operand = precision.compute.name();
        let both = |of: &str| {
            let kernel = |experts| library.kernel(&format!("tg_combine_{of}{experts}"));
            Ok::<_, Error>([
                kernel(format!("four_{}", operand))?,
                kernel(format!("experts_{}", operand))?,
            ])
        };
        Ok(Self {
            of_f32: both("")?,
            of_rounded: precision
                .compute
                .is_half()
                .then(|| both("rounded_"))
                .transpose()?,
        })
    }

    /// For so many experts a row, and such sums.
    pub(super) fn kernel(&self, top_k: u32, rounded: bool) -> &Kernel {
        let [four, any] = if rounded {
            let of_rounded = self.of_rounded.as_ref();
            of_rounded.expect("only operands of 16 bits have experts whose sums are rounded")
        } else {
            &self.of_f32
        };
        if top_k <= abi::TG_COMBINE_FOUR {
            four
        } else {
            any
        }
    }
}

/// What goes through a mixture's experts: x as it is, the others by place of the sort, `partial` by pair unless
/// [`Pairs::sorted`].
#[derive(Debug, Clone, Copy)]
pub struct ExpertRows {
    /// `[R, H]`, operand type.
    pub x: Address,
    /// bf16 `[3, R, H]`: scratch for x as bf16x3, of f32 rows.
    pub bf16x3: Address,
    /// `[R K, M]`, operand type or as bf16x3: what gate and up make of x.
    pub y: Address,
    /// `[R K, H]`, f32 or as [`Pairs::rounded`] says: what down makes of y.
    pub partial: Address,
}

/// A norm that an operation does for the one after it, because it has the rows.
#[derive(Debug, Clone, Copy)]
pub struct NextNorm {
    /// `[R, H]`, operand type.
    pub x: Address,
    /// f32 `[H]`
    pub weight: Address,
}

/// Tiles of a step, at most: one may be ragged for each expert that has rows.
pub fn most_expert_tiles(rows: u32, experts: u32, top_k: u32, tile_rows: u32) -> u32 {
    let pairs = rows * top_k;
    (pairs / tile_rows + experts.min(pairs)).min(pairs)
}

impl Lowering<'_> {
    /// y = silu(w1_e x) * w3_e x, then partial = w2_e y.
    /// `routing` is this step's. `ops`: gate and up, then down.
    pub(super) fn tiled_experts(
        &mut self,
        routing: &Routing,
        weights: &ExpertWeights,
        rows: &ExpertRows,
        pairs: Pairs,
        [gate_up, down]: [&[Op]; 2],
    ) {
        self.doing(gate_up);
        let product = Product {
            y: rows.y,
            x: rows.x,
            w: weights.gate,
            w_pair: Some(weights.up),
            bias: 0,
            epilogue: Epilogue::SiluMul,
            bf16x3: Bf16x3::Scratch(rows.bf16x3),
        };
        let by_expert = self.by_expert(routing, routing.rows, pairs);
        self.tiled_by_expert(&product, &by_expert, pairs.tile_rows);
        self.doing(down);
        let product = Product {
            y: rows.partial,
            x: rows.y,
            w: weights.down,
            w_pair: None,
            epilogue: Epilogue::StoreF32,
            bf16x3: Bf16x3::There,
            ..product
        };
        let by_expert = self.by_expert(routing, 0, pairs);
        self.tiled_by_expert(&product, &by_expert, pairs.tile_rows);
    }

    fn by_expert(&self, routing: &Routing, gather: Address, pairs: Pairs) -> ByExpert {
        let (experts, top_k) = self.experts();
        ByExpert {
            tiles: routing.tiles,
            tile_count: routing.tile_count,
            gather,
            most_tiles: most_expert_tiles(self.bucket.rows, experts, top_k, pairs.tile_rows),
        }
    }

    /// Experts of a layer, and of a row.
    pub(super) fn experts(&self) -> (u32, u32) {
        let config = self.config;
        (config.num_experts as u32, config.num_experts_per_tok as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All pairs on one expert, and spread one by one.
    #[test]
    fn expert_tiles_never_exceed_the_bound() {
        for (rows, experts, top_k, tile_rows) in [(1, 32, 4, 8), (7, 8, 2, 8), (4096, 32, 4, 128)] {
            let most = most_expert_tiles(rows, experts, top_k, tile_rows);
            let pairs: u32 = rows * top_k;
            assert!(pairs.div_ceil(tile_rows) <= most);
            let spread: u32 = (0..experts)
                .map(|e| (pairs / experts + u32::from(e < pairs % experts)).div_ceil(tile_rows))
                .sum();
            assert!(spread <= most, "{spread} tiles, {most} foreseen");
        }
    }
}
