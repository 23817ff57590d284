//! Mixtures of experts: what their kernels and the router (router.rs) agree on, their products by whichever family serves a bucket,
//! and their sum. A dense product may prefetch some of their weights into L2 while it multiplies (kernels/common/prefetch.cuh).

use super::Lowering;
use super::limits::Library;
use super::tiled::{ByExpert, Epilogue, Prepared, Product, Rows};
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::arguments::arguments;
use crate::backend::cuda::driver::launch::Kernel;
use crate::backend::cuda::matrix::Matrix;
pub use crate::backend::cuda::tuning::limits::EXPERT_COUNTS_BYTES;
use crate::backend::cuda::tuning::limits::WORD_EXPERTS;
use crate::backend::cuda::tuning::variants::Linear;
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

/// Where a step's routing lies. R rows, k experts each, R k pairs.
#[derive(Debug, Clone, Copy)]
pub struct Routing {
    /// `uint32_t [R, K]`, ascending in a row.
    pub experts: Address,
    /// f32 `[R, K]`, beside them.
    pub weights: Address,
    /// Scratch of the skinny kernels, for the buckets that they serve: `expert_score_parts` of the arena.
    pub score_parts: Address,
    /// `uint32_t [R k]`: the row at each place of the sort; this and the next two where [`Pairs::sorted`].
    pub rows: Address,
    /// `uint32_t [R k]`: the place of each pair.
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
    /// They take [rounded](Pairs::rounded) sums; operands of 16 bits have them.
    of_rounded: Option<[Kernel; 2]>,
}

impl Combine {
    pub(super) fn load(library: &Library, precision: Precision) -> Result<Self> {
        let operand = precision.compute.name();
        let both = |of: &str| {
            let kernel = |some| library.kernel(&format!("tg_combine_{of}{some}_{operand}"));
            Ok::<_, Error>([kernel("four")?, kernel("experts")?])
        };
        let rounds = precision.compute.is_half();
        Ok(Self {
            of_f32: both("")?,
            of_rounded: rounds.then(|| both("rounded_")).transpose()?,
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
    /// Scratch for x as [`Prepared`].
    pub prepared: Address,
    /// `[R k, I]`, operand type or [`Prepared`]: what gate and up make of x.
    pub y: Address,
    /// `[R k, H]`, f32 or as [`Pairs::rounded`] says: what down makes of y.
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

/// Rows of a bucket of which a block combines two, at most.
const COMBINED_BY_TWO: u32 = 64;

/// Rows that a block of `tg_combine_*` takes. Where there are so few blocks, one of two rows leaves an SM no room for another, but
/// for one of the kernel behind it, all of whose blocks then start before this one ends (profiles/log/many-rows-blocks.md).
fn combined_by_block(rows: u32) -> u32 {
    if rows.is_multiple_of(2) && rows <= COMBINED_BY_TWO {
        abi::TG_COMBINE_ROWS
    } else {
        1
    }
}

/// Whole pieces of each of `matrices` matrices of `matrix_bytes`, of `mib` MiB in all.
fn pieces(mib: u32, matrices: u64, matrix_bytes: u64) -> u32 {
    let each = (u64::from(mib) << 20) / matrices.max(1);
    (each.min(matrix_bytes) / u64::from(abi::TG_PREFETCH_BYTES)) as u32
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
                let tiled = &self.products.tiled;
                Pairs {
                    sorted: true,
                    tile_rows: tiled.expert_tile_rows(self.bucket.rows, experts, top_k),
                    rounded: false,
                }
            }
        }
    }

    /// y and partial, as [`ExpertRows`] says, by what serves this bucket's experts: all that comes before
    /// [`Lowering::combine_experts`]. `ops`: gate and up, then down. `routing` is this step's.
    pub fn expert_products(
        &mut self,
        routing: &Routing,
        weights: &ExpertWeights,
        rows: &ExpertRows,
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
            (None, None) => self.tiled_experts(routing, weights, rows, [gate_up, down]),
        }
    }

    /// h f32 `[R, H]` += sum over a row's experts, ascending, of weight times what down made of it. Where `next` is given, also
    /// what it says. `routing` is this step's.
    pub fn combine_experts(
        &mut self,
        routing: &Routing,
        h: Address,
        rows: &ExpertRows,
        next: Option<NextNorm>,
    ) {
        let (pairs, top_k) = (self.pairs(), self.experts().1);
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
            // What the grouped kernel's predecessors wrote may be read before the grid dependency wait.
            known: (!pairs.sorted).into(),
        };
        let combine = self.kernels.combine.kernel(top_k, pairs.rounded);
        let each = combined_by_block(self.bucket.rows);
        let (grid, threads) = ((self.bucket.rows / each, 1, 1), each * abi::TG_NORM_THREADS);
        self.call_plain(combine, grid, threads, arguments![&args]);
    }

    /// What of a layer's experts this bucket's dense products prefetch: a conv layer's in-projection ([`Lowering::swap_ab_conv`]), or
    /// of many rows each layer's out-projection.
    pub(super) fn prefetch(&self, experts: &ExpertWeights) -> abi::tg_prefetch_args {
        let pieces = match (self.variant.linear, self.grouped()) {
            (Linear::SwapAb | Linear::Persistent, Some((_, shape))) => pieces(
                shape.prefetch_mib,
                2 * self.config.num_experts as u64,
                experts.gate.bytes(),
            ),
            _ => 0,
        };
        abi::tg_prefetch_args {
            gate: experts.gate.address,
            up: experts.up.address,
            expert_bytes: experts.gate.stride_bytes(),
            experts: self.config.num_experts as u32,
            pieces,
        }
    }

    /// [`Lowering::product`] of all rows, behind which come the layer's experts, if it has any: the kernels for many rows may
    /// prefetch some of their weights meanwhile.
    pub fn product_before(&mut self, product: &Product, experts: Option<&ExpertWeights>) {
        self.ahead = experts.map(|experts| self.prefetch(experts));
        self.product(product, Rows::Step);
        self.ahead = None;
    }

    /// y = silu(w1_e x) * w3_e x, then partial = w2_e y.
    /// `routing` is this step's. `ops`: gate and up, then down.
    fn tiled_experts(
        &mut self,
        routing: &Routing,
        weights: &ExpertWeights,
        rows: &ExpertRows,
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
            prepared: Prepared::Scratch(rows.prepared),
        };
        self.tiled_by_expert(&product, &self.by_expert(routing, routing.rows));
        self.doing(down);
        let product = Product {
            y: rows.partial,
            x: rows.y,
            w: weights.down,
            w_pair: None,
            epilogue: Epilogue::StoreF32,
            prepared: Prepared::There,
            ..product
        };
        self.tiled_by_expert(&product, &self.by_expert(routing, 0));
    }

    fn by_expert(&self, routing: &Routing, gather: Address) -> ByExpert {
        let (experts, top_k) = self.experts();
        let tile_rows = self.pairs().tile_rows;
        ByExpert {
            tiles: routing.tiles,
            tile_count: routing.tile_count,
            gather,
            tile_rows,
            most_tiles: most_expert_tiles(self.bucket.rows, experts, top_k, tile_rows),
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

    #[test]
    fn pieces_are_whole_and_of_the_matrix() {
        let matrix = 7_340_032;
        assert_eq!(pieces(16, 64, matrix), 64);
        assert_eq!(pieces(16, 128, matrix), 32, "as much of more experts");
        assert_eq!(pieces(1, 192, matrix), 1, "5,461 bytes each");
        assert_eq!(pieces(1024, 64, matrix), 1792, "all there is");
        assert_eq!(pieces(1, 2, 4095), 0);
        assert_eq!((pieces(0, 64, matrix), pieces(1, 0, matrix)), (0, 256));
    }
}
