//! Mixtures of experts: router, token sort, and the experts' feed-forwards.

use super::super::launch::{Address, Argument, Launch};
use super::Enqueue;
use super::kernels::{Route, SHARED_BYTES};
use super::linear::{Epilogue, Grouped, Product};
use crate::error::Result;

/// As kernels/experts.cuh has it.
pub const MAX_EXPERTS: usize = 128;
/// Bytes of an `ExpertTile` there.
pub const EXPERT_TILE_BYTES: usize = 16;
/// Bytes of the tiles' count and of what kernels count up behind it: `EXPERT_COUNTS` words.
pub const EXPERT_COUNTS_BYTES: usize = 64;

/// As kernels/norm.cuh has it: the router and the combination of experts norm rows too.
const NORM_THREADS: u32 = 256;
/// Experts that one block scores (kernels/router.cu).
const SCORE_EXPERTS: u32 = 8;
const SORT_THREADS: u32 = 1024;
/// Up to this many rows the one block of the token sort also chooses the experts (kernels/experts.cu).
const CHOOSE_ROWS: u32 = 256;
/// From this many rows on a block of the router takes four, and reads the gate a quarter as often.
const ROUTER_MANY_ROWS: u32 = 128;
/// What kernels/route.cu takes, and its warps, each of which has an expert.
const ROUTE_EXPERTS: u32 = 32;
const ROUTE_HIDDEN: u32 = 2048;
const ROUTE_ROWS: u32 = 256;
const ROUTE_WARPS: u32 = 8;
/// Clusters of four that fit an H200 at once with an SM to each block; with two blocks an SM, twice as many.
const ROUTE_CLUSTERS: u32 = 30;

/// Where a step's routing lies. R rows, K experts each, R K pairs.
#[derive(Debug, Clone, Copy)]
pub struct Routing {
    /// `uint32_t [R, K]`, ascending in a row.
    pub experts: Address,
    /// f32 `[R, K]`, beside them.
    pub weights: Address,
    /// f32 `[R, E]`: scratch.
    pub scores: Address,
    /// f32 `[R, H / 16, 33]`: scratch of the kernels for few rows, for the buckets that they serve.
    pub score_parts: Address,
    /// `uint32_t [R K]`: the row at each place of the sort.
    pub rows: Address,
    /// `uint32_t [R K]`: the place of each pair.
    pub place: Address,
    /// [`most_expert_tiles`] entries of [`EXPERT_TILE_BYTES`].
    pub tiles: Address,
    /// How many, and what the kernel for wide steps counts: [`EXPERT_COUNTS_BYTES`].
    pub tile_count: Address,
    /// `uint32_t [R]`, 0 between steps: scratch, for buckets of up to [`ROUTE_ROWS`] rows.
    pub chosen: Address,
}

/// Matrices of a mixture's experts, one expert after the other.
#[derive(Debug, Clone, Copy)]
pub struct ExpertWeights {
    /// w1 of the first expert, `[M, H]`.
    pub gate: Address,
    /// w3 of the first expert, `[M, H]`.
    pub up: Address,
    /// Elements from one expert's w1 (and w3) to the next one's.
    pub gate_up_stride: u64,
    /// w2 of the first expert, `[H, M]`.
    pub down: Address,
    /// Elements from one expert's w2 to the next one's.
    pub down_stride: u64,
}

/// What goes through a mixture's experts: x as it is, the others by place of the sort.
#[derive(Debug, Clone, Copy)]
pub struct ExpertRows {
    /// `[R, H]`, operand type.
    pub x: Address,
    /// `[R K, M]`, operand type: what gate and up make of x.
    pub y: Address,
    /// f32 `[R K, H]`: what down makes of y.
    pub partial: Address,
}

/// What the router reads, all f32.
#[derive(Debug, Clone, Copy)]
pub struct RouterWeights {
    /// `[H]`: the FFN norm's.
    pub norm: Address,
    /// `[E, H]`
    pub gate: Address,
    /// `[E]`, or 0.
    pub bias: Address,
}

/// A norm that an operation does for the one after it, because it has the rows.
#[derive(Debug, Clone, Copy)]
pub struct NextNorm {
    /// `[R, H]`, operand type.
    pub x: Address,
    /// f32 `[H]`
    pub weight: Address,
}

/// Dynamic shared memory of a router block: its rows, normed, their scores and what orders those.
pub fn router_shared_bytes(rows: u32, hidden: u32) -> u32 {
    4 * rows * (hidden + 2 * MAX_EXPERTS as u32)
}

/// Whether one kernel is router and sort: kernels/route.cu.
fn routes_at_once(rows: u32, experts: u32, hidden: u32) -> bool {
    rows <= ROUTE_ROWS && experts <= ROUTE_EXPERTS && hidden <= ROUTE_HIDDEN
}

/// Blocks of a cluster, each with [`ROUTE_WARPS`] of the experts: a power of two.
fn route_blocks(experts: u32) -> u32 {
    experts.div_ceil(ROUTE_WARPS).next_power_of_two()
}

/// Rows of a router block.
fn router_rows(rows: u32, hidden: u32) -> u32 {
    match rows >= ROUTER_MANY_ROWS && router_shared_bytes(4, hidden) <= SHARED_BYTES {
        true => 4,
        false => 1,
    }
}

/// Tiles of a step, at most: one may be ragged for each expert that has rows.
pub fn most_expert_tiles(rows: u32, experts: u32, top_k: u32, tile_rows: u32) -> u32 {
    let pairs = rows * top_k;
    (pairs / tile_rows + experts.min(pairs)).min(pairs)
}

/// What the token sort leaves.
fn sorted(routing: &Routing) -> [Argument; 4] {
    [
        Argument::Address(routing.tiles),
        Argument::Address(routing.tile_count),
        Argument::Address(routing.rows),
        Argument::Address(routing.place),
    ]
}

impl Enqueue<'_> {
    /// The FFN norm of h f32 `[R, H]`, as x `[R, H]` in the operand type; from it experts and weights of each row;
    /// then the rows in order of expert.
    ///
    /// # Safety
    /// [`Enqueue`]'s; shapes as [`Routing`] and [`RouterWeights`] say.
    pub unsafe fn router(
        &self,
        routing: &Routing,
        x: Address,
        h: Address,
        weights: &RouterWeights,
    ) -> Result<()> {
        let at_once = routes_at_once(self.bucket.rows, self.experts().0, self.hidden());
        if let Some(route) = self.kernels.route.as_ref().filter(|_| at_once) {
            // SAFETY: the caller's promise.
            return unsafe { self.route(route, routing, x, h, weights) };
        }
        // SAFETY: the caller's promise.
        unsafe {
            if self.bucket.rows <= CHOOSE_ROWS {
                self.score_experts(routing, x, h, weights)?;
                self.choose_and_sort(routing, weights.bias)
            } else {
                self.choose_experts(routing, x, h, weights)?;
                self.sort_tokens(routing)
            }
        }
    }

    /// All of it in one kernel, whose clusters all fit the GPU at once and have as few rows each as that allows.
    unsafe fn route(
        &self,
        route: &Route,
        routing: &Routing,
        x: Address,
        h: Address,
        weights: &RouterWeights,
    ) -> Result<()> {
        let (kernel, clusters) = match self.bucket.rows <= ROUTE_CLUSTERS {
            true => (&route.few, ROUTE_CLUSTERS),
            false => (&route.many, 2 * ROUTE_CLUSTERS),
        };
        let rows_each = self.bucket.rows.div_ceil(clusters);
        let blocks = route_blocks(self.experts().0);
        let arguments = [
            &sorted(routing)[..],
            &[Argument::Address(routing.chosen)],
            &self.choosing(routing, x, h, weights),
            &[
                Argument::U32(self.expert_tile_rows()),
                Argument::U32(rows_each),
                Argument::F32(self.config.norm_eps),
            ],
        ]
        .concat();
        let launch = Launch {
            grid: (self.bucket.rows.div_ceil(rows_each) * blocks, 1, 1),
            threads: NORM_THREADS,
            shared_bytes: 0,
            cluster: blocks,
            early: self.early,
        };
        // SAFETY: the caller's promise; these are tg_route_*'s arguments.
        unsafe { kernel.launch(self.stream, launch, &arguments) }
    }

    /// x, and the score of each row with each expert.
    unsafe fn score_experts(
        &self,
        routing: &Routing,
        x: Address,
        h: Address,
        weights: &RouterWeights,
    ) -> Result<()> {
        let (experts, hidden) = (self.experts().0, self.hidden());
        let rows = router_rows(self.bucket.rows, hidden);
        let kernel = match rows {
            4 => &self.kernels.scores_4,
            _ => &self.kernels.scores_1,
        };
        let arguments = [
            Argument::Address(routing.scores),
            Argument::Address(x),
            Argument::Address(h),
            Argument::Address(weights.norm),
            Argument::Address(weights.gate),
            Argument::Address(self.step),
            Argument::U32(hidden),
            Argument::U32(experts),
            Argument::F32(self.config.norm_eps),
        ];
        let grid = (
            experts.div_ceil(SCORE_EXPERTS),
            self.bucket.rows.div_ceil(rows),
            1,
        );
        // SAFETY: the caller's promise; these are tg_scores_*'s arguments.
        unsafe { self.launch(kernel, grid, NORM_THREADS, 4 * rows * hidden, &arguments) }
    }

    /// Experts and weights from the scores, and the token sort.
    unsafe fn choose_and_sort(&self, routing: &Routing, bias: Address) -> Result<()> {
        let arguments = [
            &sorted(routing)[..],
            &[
                Argument::Address(routing.experts),
                Argument::Address(routing.weights),
                Argument::Address(routing.scores),
                Argument::Address(bias),
                Argument::Address(self.step),
            ],
            &self.weighing(),
            &[Argument::U32(self.expert_tile_rows())],
        ]
        .concat();
        let threads = (32 * self.bucket.rows).clamp(MAX_EXPERTS as u32, SORT_THREADS);
        let kernel = &self.kernels.choose_and_sort;
        // SAFETY: the caller's promise; these are tg_choose_and_sort's arguments.
        unsafe { self.launch(kernel, (1, 1, 1), threads, 0, &arguments) }
    }

    /// x, experts and weights in one go: for buckets with rows enough to fill the GPU.
    unsafe fn choose_experts(
        &self,
        routing: &Routing,
        x: Address,
        h: Address,
        weights: &RouterWeights,
    ) -> Result<()> {
        let hidden = self.hidden();
        let rows = router_rows(self.bucket.rows, hidden);
        let kernel = match rows {
            4 => &self.kernels.router_4,
            _ => &self.kernels.router_1,
        };
        let arguments = [
            &self.choosing(routing, x, h, weights)[..],
            &[Argument::F32(self.config.norm_eps)],
        ]
        .concat();
        let grid = (self.bucket.rows.div_ceil(rows), 1, 1);
        let shared_bytes = router_shared_bytes(rows, hidden);
        // SAFETY: the caller's promise; these are tg_router_*'s arguments.
        unsafe { self.launch(kernel, grid, NORM_THREADS, shared_bytes, &arguments) }
    }

    /// What the kernels that choose experts from rows have in common.
    fn choosing(
        &self,
        routing: &Routing,
        x: Address,
        h: Address,
        weights: &RouterWeights,
    ) -> Vec<Argument> {
        let arrays = [
            Argument::Address(routing.experts),
            Argument::Address(routing.weights),
            Argument::Address(x),
            Argument::Address(h),
            Argument::Address(weights.norm),
            Argument::Address(weights.gate),
            Argument::Address(weights.bias),
            Argument::Address(self.step),
            Argument::U32(self.hidden()),
        ];
        [&arrays[..], &self.weighing()].concat()
    }

    /// How many experts there are, and how scores become weights: `Weighing` of kernels/experts.cuh.
    pub(super) fn weighing(&self) -> [Argument; 4] {
        let (experts, top_k) = self.experts();
        [
            Argument::U32(experts),
            Argument::U32(top_k),
            Argument::U32(u32::from(self.config.norm_topk_prob)),
            Argument::F32(self.config.routed_scaling_factor),
        ]
    }

    /// The token sort alone, from `routing.experts`.
    ///
    /// # Safety
    /// [`Enqueue`]'s; shapes as [`Routing`] says.
    pub unsafe fn sort_tokens(&self, routing: &Routing) -> Result<()> {
        let arguments = [
            &sorted(routing)[..],
            &[
                Argument::Address(routing.experts),
                Argument::Address(self.step),
                Argument::U32(self.experts().1),
                Argument::U32(self.expert_tile_rows()),
            ],
        ]
        .concat();
        let kernel = &self.kernels.sort_tokens;
        // SAFETY: the caller's promise; these are tg_sort_tokens's arguments.
        unsafe { self.launch(kernel, (1, 1, 1), SORT_THREADS, 0, &arguments) }
    }

    /// y = silu(w1_e x) * w3_e x. Nothing where one kernel does gate, up and down ([`Enqueue::wide`]): then
    /// [`Enqueue::expert_down`] is all of it.
    ///
    /// # Safety
    /// [`Enqueue`]'s; `routing` is this step's.
    pub unsafe fn expert_gate_up(
        &self,
        routing: &Routing,
        weights: &ExpertWeights,
        rows: &ExpertRows,
    ) -> Result<()> {
        if self.wide().is_some() {
            return Ok(());
        }
        let product = Product {
            y: rows.y,
            x: rows.x,
            w: weights.gate,
            w_pair: weights.up,
            bias: 0,
            outputs: self.config.moe_intermediate_size as u32,
            inner: self.hidden(),
            epilogue: Epilogue::SiluMul,
        };
        let grouped = self.grouped(routing, routing.rows, weights.gate_up_stride);
        // SAFETY: the caller's promise.
        unsafe { self.grouped_product(&product, &grouped, self.expert_tile_rows()) }
    }

    /// h f32 `[R, H]` += sum over a row's experts of weight * w2_e y, ascending, y being [`Enqueue::expert_gate_up`]'s.
    /// Where `next` is given, also what it says.
    ///
    /// # Safety
    /// [`Enqueue`]'s; `routing` is this step's, and sorted for this call.
    pub unsafe fn expert_down(
        &self,
        routing: &Routing,
        weights: &ExpertWeights,
        h: Address,
        rows: &ExpertRows,
        next: Option<NextNorm>,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            match self.wide() {
                Some(wide) => self.wide_experts(wide, routing, weights, rows)?,
                None => self.grouped_down(routing, weights, rows)?,
            }
        }
        let arguments = [
            Argument::Address(h),
            Argument::Address(rows.partial),
            Argument::Address(routing.weights),
            Argument::Address(routing.place),
            Argument::Address(next.map_or(0, |next| next.x)),
            Argument::Address(next.map_or(0, |next| next.weight)),
            Argument::Address(self.step),
            Argument::U32(self.hidden()),
            Argument::U32(self.experts().1),
            Argument::F32(self.config.norm_eps),
        ];
        let kernel = &self.kernels.combine_experts;
        let grid = (self.bucket.rows, 1, 1);
        // SAFETY: the caller's promise; these are tg_combine_experts_*'s arguments.
        unsafe { self.launch(kernel, grid, NORM_THREADS, 0, &arguments) }
    }

    /// partial = w2_e y.
    ///
    /// # Safety
    /// [`Enqueue::expert_down`]'s.
    unsafe fn grouped_down(
        &self,
        routing: &Routing,
        weights: &ExpertWeights,
        rows: &ExpertRows,
    ) -> Result<()> {
        let product = Product {
            y: rows.partial,
            x: rows.y,
            w: weights.down,
            w_pair: 0,
            bias: 0,
            outputs: self.hidden(),
            inner: self.config.moe_intermediate_size as u32,
            epilogue: Epilogue::StoreF32,
        };
        let grouped = self.grouped(routing, 0, weights.down_stride);
        // SAFETY: the caller's promise.
        unsafe { self.grouped_product(&product, &grouped, self.expert_tile_rows()) }
    }

    /// Rows of an expert tile, at most, from the bucket alone.
    pub fn expert_tile_rows(&self) -> u32 {
        if let Some((_, shape)) = self.wide() {
            return shape.tile_rows;
        }
        let (experts, top_k) = self.experts();
        let rows = self.bucket.rows;
        self.kernels.linear.expert_tile_rows(rows, experts, top_k)
    }

    fn grouped(&self, routing: &Routing, gather: Address, expert_stride: u64) -> Grouped {
        let (experts, top_k) = self.experts();
        Grouped {
            tiles: routing.tiles,
            tile_count: routing.tile_count,
            gather,
            expert_stride,
            most_tiles: most_expert_tiles(
                self.bucket.rows,
                experts,
                top_k,
                self.expert_tile_rows(),
            ),
        }
    }

    /// Experts of a layer, and of a row.
    fn experts(&self) -> (u32, u32) {
        let config = self.config;
        (config.num_experts as u32, config.num_experts_per_tok as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn router_blocks_take_more_rows_where_there_are_many_and_they_fit() {
        assert_eq!(router_rows(1, 2048), 1);
        assert_eq!(router_rows(512, 2048), 4);
        assert_eq!(router_rows(512, 8192), 1);
    }

    #[test]
    fn one_kernel_routes_what_its_blocks_hold() {
        assert!(routes_at_once(256, 32, 2048));
        assert!(!routes_at_once(257, 32, 2048));
        assert!(!routes_at_once(16, 33, 2048));
        assert!(!routes_at_once(16, 32, 2080));
        assert_eq!([1, 8, 9, 17, 32].map(route_blocks), [1, 1, 2, 4, 4]);
    }

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
