//! Which experts each row goes to: the router, and the token sort behind it for who does not sort by itself.

use super::Lowering;
use super::experts::{Routing, instance};
use super::limits::SHARED_BYTES;
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::arguments::arguments;
use crate::backend::cuda::driver::launch::Kernel;
use crate::backend::cuda::matrix::Matrix;
use crate::backend::cuda::tuning::limits::{SKINNY_EXPERTS, WORD_EXPERTS, expert_words};
use crate::sys::abi;

/// Up to this many rows one block sorts the tokens; more are sorted by the blocks of a cluster where there are such (sort_many.cu).
const SORT_ROWS: u32 = 1024;
/// From this many rows on a block that scores experts takes four, and reads the gate a quarter as often.
const ROUTER_MANY_ROWS: u32 = 128;
/// Threads of a block of steps of more rows than [`abi::TG_CHOOSE_ROWS`], where it has the memory: a warp a row.
const ROUTER_MANY_THREADS: u32 = 32 * abi::TG_ROUTER_MANY_ROWS;
/// Experts that one kernel takes which is all of the router.
const ROUTE_EXPERTS: usize = abi::TG_ROUTE_WORDS as usize * WORD_EXPERTS;
/// Clusters of eight that leave room beside each block for one of the experts' kernel: a block an SM.
const ROUTE_CLUSTERS: u32 = 16;
/// Clusters of many rows that have room at once; with more, each would read the gate for fewer rows.
const ROUTE_MANY_CLUSTERS: u32 = 32;

/// Whether blocks that predict for so many experts read a copy of the router (kernels/skinny/prediction.cuh says why).
pub fn predicts_by_copy(experts: usize) -> bool {
    (WORD_EXPERTS + 1..=SKINNY_EXPERTS).contains(&experts)
}

/// What the router reads, all f32, and what predictions read in its place.
#[derive(Debug, Clone, Copy)]
pub struct RouterWeights {
    /// `[H]`: the FFN norm's.
    pub norm: Address,
    /// `[E, H]`
    pub gate: Matrix,
    /// `[E]`, or 0.
    pub bias: Address,
    /// bf16 `[E, H]`, `gate` times `norm`: for blocks that predict alone, which no result depends on. 0 where they read `gate`
    /// ([`predicts_by_copy`]).
    pub predictor: Address,
}

/// Dynamic shared memory of a router block: its rows, normed, their scores and what orders those.
pub fn router_shared_bytes(rows: u32, hidden: u32) -> u32 {
    4 * rows * (hidden + abi::TG_MAX_EXPERTS)
}

/// Whether one kernel is all of the router.
fn routes_at_once(experts: u32, hidden: u32) -> bool {
    experts as usize <= ROUTE_EXPERTS && hidden <= abi::TG_ROUTE_HIDDEN
}

/// That kernel, for steps of few rows of type `x` and for those of many: where there are more experts than it takes,
/// [`routes_at_once`] says so.
pub(super) fn route_names(x: &str, experts: usize) -> [String; 2] {
    let words = expert_words(experts.min(ROUTE_EXPERTS));
    ["", "many_"].map(|rows| format!("tg_route_{rows}{x}{}", instance(words)))
}

/// How the clusters of one of them share experts, columns and rows.
#[derive(Debug, PartialEq, Eq)]
struct RouteClusters {
    /// A power of two.
    blocks: u32,
    rows_each: u32,
}

impl RouteClusters {
    /// A block has [`abi::TG_ROUTE_EACH`] of a word's experts at a time and half of the columns.
    fn of_few_rows(rows: u32, experts: u32) -> Self {
        let sharers = experts.min(u32::BITS).div_ceil(abi::TG_ROUTE_EACH);
        Self {
            blocks: abi::TG_ROUTE_HALVES * sharers.next_power_of_two(),
            rows_each: rows.div_ceil(ROUTE_CLUSTERS).min(abi::TG_ROUTE_ROWS),
        }
    }

    /// A block has all experts and some of the columns.
    fn of_many_rows(rows: u32, hidden: u32) -> Self {
        let blocks = hidden
            .div_ceil(abi::TG_ROUTE_MANY_COLUMNS)
            .next_power_of_two();
        let rows_each = rows
            .div_ceil(ROUTE_MANY_CLUSTERS)
            .min(abi::TG_ROUTE_MANY_ROWS);
        Self {
            blocks: blocks.max(2),
            rows_each: rows_each.next_multiple_of(abi::TG_ROUTE_MANY_TOGETHER),
        }
    }
}

/// Rows of a block that scores experts.
fn router_rows(rows: u32, hidden: u32) -> u32 {
    if rows >= ROUTER_MANY_ROWS && router_shared_bytes(4, hidden) <= SHARED_BYTES {
        4
    } else {
        1
    }
}

/// What the kernels that choose experts from rows have in common.
struct Choosing {
    arrays: abi::tg_choosing_args,
    args: abi::tg_router_args,
    gate: Matrix,
}

impl Lowering<'_> {
    /// The FFN norm of h f32 `[R, H]`, as x `[R, H]` in the operand type; from it experts and weights of each row;
    /// then, where [`Pairs::sorted`](super::experts::Pairs::sorted) (and where choosing and sorting are one kernel), the rows in
    /// order of expert. Shapes as [`Routing`] and [`RouterWeights`] say.
    pub fn router(&mut self, routing: &Routing, x: Address, h: Address, weights: &RouterWeights) {
        let choosing = self.choosing(routing, x, h, weights);
        let at_once = routes_at_once(self.experts().0, self.hidden());
        if let Some(route) = self.kernels.route.as_ref().filter(|_| at_once) {
            self.route(route, routing, &choosing);
            if self.pairs().sorted {
                self.sort_tokens(routing);
            }
        } else if self.bucket.rows <= abi::TG_CHOOSE_ROWS {
            self.score_experts(routing, &choosing);
            self.choose_and_sort(routing, weights.bias);
        } else {
            self.choose_experts(&choosing);
            // Who sorts by itself needs only what this clears, in the rare case that no kernel above does it.
            self.sort_tokens(routing);
        }
    }

    fn choosing(
        &self,
        routing: &Routing,
        x: Address,
        h: Address,
        weights: &RouterWeights,
    ) -> Choosing {
        let (experts, top_k) = self.experts();
        let arrays = abi::tg_choosing_args {
            experts: routing.experts,
            weights: routing.weights,
            x,
            h,
            norm_weight: weights.norm,
            gate: weights.gate.address,
            bias: weights.bias,
            step: self.step,
        };
        let args = abi::tg_router_args {
            hidden: self.hidden(),
            expert_count: experts,
            k: top_k,
            normalize: self.config.norm_topk_prob.into(),
            scaling: self.config.routed_scaling_factor,
            eps: self.config.norm_eps,
        };
        let gate = weights.gate;
        Choosing { arrays, args, gate }
    }

    /// All but the sort in one kernel, as few and as many rows have one: few clusters where these hold all rows.
    fn route(&mut self, [few, many]: &[Kernel; 2], routing: &Routing, choosing: &Choosing) {
        let Choosing { arrays, args, gate } = choosing;
        let &abi::tg_router_args {
            hidden,
            expert_count,
            k,
            normalize,
            scaling,
            eps,
        } = args;
        let rows = self.bucket.rows;
        let (kernel, clusters) = if rows > abi::TG_CHOOSE_ROWS {
            (many, RouteClusters::of_many_rows(rows, hidden))
        } else {
            (few, RouteClusters::of_few_rows(rows, expert_count))
        };
        let RouteClusters { blocks, rows_each } = clusters;
        let args = abi::tg_route_args {
            counts: routing.tile_count,
            eps,
            rows_each,
        };
        let arguments = arguments![arrays, &args, hidden, expert_count, k, normalize, scaling];
        let grid = (rows.div_ceil(rows_each) * blocks, blocks);
        self.call_clusters(kernel, grid, abi::TG_NORM_THREADS, arguments);
        self.with_weights([*gate]);
    }

    /// x, and the score of each row with each expert.
    fn score_experts(&mut self, routing: &Routing, choosing: &Choosing) {
        let Choosing { arrays, args, gate } = choosing;
        let rows = router_rows(self.bucket.rows, args.hidden);
        let kernel = match rows {
            4 => &self.kernels.scores_4,
            _ => &self.kernels.scores_1,
        };
        let shared_bytes = 4 * rows * args.hidden;
        let blocks = args.expert_count.div_ceil(abi::TG_SCORE_EXPERTS);
        let args = abi::tg_scores_args {
            scores: routing.scores,
            x: arrays.x,
            h: arrays.h,
            norm_weight: arrays.norm_weight,
            gate: arrays.gate,
            step: self.step,
            hidden: args.hidden,
            expert_count: args.expert_count,
            eps: args.eps,
            pad: 0,
        };
        let (grid, arguments) = (
            (blocks, self.bucket.rows.div_ceil(rows), 1),
            arguments![&args],
        );
        self.call(kernel, grid, abi::TG_NORM_THREADS, shared_bytes, arguments);
        self.with_weights([*gate]);
    }

    /// Experts and weights from the scores, and the token sort.
    fn choose_and_sort(&mut self, routing: &Routing, bias: Address) {
        let (experts, top_k) = self.experts();
        let args = abi::tg_choose_and_sort_args {
            tiles: routing.tiles,
            tile_count: routing.tile_count,
            rows: routing.rows,
            place: routing.place,
            experts: routing.experts,
            weights: routing.weights,
            scores: routing.scores,
            bias,
            step: self.step,
            expert_count: experts,
            k: top_k,
            normalize: self.config.norm_topk_prob.into(),
            scaling: self.config.routed_scaling_factor,
            tile_rows: self.pairs().tile_rows,
            pad: 0,
        };
        let threads = (32 * self.bucket.rows).clamp(abi::TG_MAX_EXPERTS, abi::TG_SORT_THREADS);
        let kernel = &self.kernels.choose_and_sort;
        self.call_plain(kernel, (1, 1, 1), threads, arguments![&args])
    }

    /// x, experts and weights in one go: for buckets with rows enough to fill the GPU.
    fn choose_experts(&mut self, choosing: &Choosing) {
        let Choosing { arrays, args, gate } = choosing;
        let (all, hidden, kernels) = (self.bucket.rows, args.hidden, self.kernels);
        let many = router_shared_bytes(abi::TG_ROUTER_MANY_ROWS, hidden);
        let (rows, kernel, threads) = if many <= kernels.router_many_bytes {
            let kernel = &kernels.router_many;
            (abi::TG_ROUTER_MANY_ROWS, kernel, ROUTER_MANY_THREADS)
        } else {
            (1, &kernels.router_1, abi::TG_NORM_THREADS)
        };
        let (grid, arguments) = ((all.div_ceil(rows), 1, 1), arguments![arrays, args]);
        let shared_bytes = router_shared_bytes(rows, hidden);
        self.call(kernel, grid, threads, shared_bytes, arguments);
        self.with_weights([*gate]);
    }

    /// The token sort alone, from `routing.experts`.
    /// Shapes as [`Routing`] says.
    pub fn sort_tokens(&mut self, routing: &Routing) {
        let args = abi::tg_sort_tokens_args {
            tiles: routing.tiles,
            tile_count: routing.tile_count,
            rows: routing.rows,
            place: routing.place,
            experts: routing.experts,
            step: self.step,
            k: self.experts().1,
            tile_rows: self.pairs().tile_rows,
        };
        let many = self.kernels.sort_tokens_many.as_ref();
        let (kernel, blocks) = match many.filter(|_| self.bucket.rows > SORT_ROWS) {
            Some(many) => (many, abi::TG_SORT_BLOCKS),
            None => (&self.kernels.sort_tokens, 1),
        };
        let (grid, arguments) = ((blocks, blocks), arguments![&args]);
        self.call_clusters(kernel, grid, abi::TG_SORT_THREADS, arguments);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn router_blocks_take_more_rows_where_there_are_many_and_they_fit() {
        let rows =
            [(1, 2048), (512, 2048), (512, 8192)].map(|(rows, hidden)| router_rows(rows, hidden));
        assert_eq!(rows, [1, 4, 1]);
    }

    #[test]
    fn one_kernel_routes_what_its_blocks_hold() {
        let at_once = [(32, 2048), (64, 2048), (65, 2048), (32, 2080)]
            .map(|(experts, hidden)| routes_at_once(experts, hidden));
        assert_eq!(at_once, [true, true, false, false]);
        let few = RouteClusters::of_few_rows;
        let blocks = [1, 8, 9, 17, 32, 64].map(|experts| few(1, experts).blocks);
        assert_eq!(blocks, [2, 2, 4, 8, 8, 8]);
        let rows = [1, 16, 17, 64, 128, 256].map(|rows| few(rows, 32).rows_each);
        assert_eq!(rows, [1, 1, 2, 4, 8, 8]);
        let many = RouteClusters::of_many_rows;
        let blocks = [32, 256, 288, 544, 1056, 2048].map(|hidden| many(512, hidden).blocks);
        assert_eq!(blocks, [2, 2, 2, 4, 8, 8]);
        let rows = [257, 301, 512, 513, 1024, 8192].map(|rows| many(rows, 2048).rows_each);
        assert_eq!(rows, [12, 12, 16, 20, 32, 32]);
    }
}
