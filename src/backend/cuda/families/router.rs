//! Which experts each row goes to: the router, and the token sort behind it for who does not sort by itself.

use super::Lowering;
use super::experts::{Routing, instance};
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::arguments::arguments;
use crate::backend::cuda::driver::launch::{Kernel, Launch};
use crate::backend::cuda::families::limits::Library;
use crate::backend::cuda::matrix::Matrix;
use crate::backend::cuda::tuning::limits::{WORD_EXPERTS, expert_words};
use crate::error::Result;
use crate::sys::abi;

/// Up to this many rows one block sorts the tokens; more are sorted by the blocks of a cluster where there are such (sort_many.cu).
const SORT_ROWS: u32 = 1024;
/// From this many rows on a block without a cluster takes [`abi::TG_ROUTER_MANY_ROWS`], and reads the gate for all of them.
const ROUTER_MANY_ROWS: u32 = 128;
/// Rows of a bucket that the clusters of few rows serve, at most.
const ROUTE_FEW_ROWS: u32 = 256;
/// Experts that one kernel takes which is all of the router.
const ROUTE_EXPERTS: usize = abi::TG_ROUTE_WORDS as usize * WORD_EXPERTS;
/// Clusters of eight that leave room beside each block for one of the experts' kernel: a block an SM.
const ROUTE_CLUSTERS: u32 = 16;

/// What the router reads, all f32, and what predictions read in its place.
#[derive(Debug, Clone, Copy)]
pub struct RouterWeights {
    /// `[H]`: the FFN norm's.
    pub norm: Address,
    /// `[E, H]`
    pub gate: Matrix,
    /// `[E]`, or 0.
    pub bias: Address,
    /// bf16 `[E, H]`, `gate` times `norm`: for blocks that predict alone, which no result depends on. 0 where none do, with more
    /// than [`SKINNY_EXPERTS`](crate::backend::cuda::tuning::limits::SKINNY_EXPERTS).
    pub predictor: Address,
}

/// Dynamic shared memory of a block without a cluster: its rows, normed, and their products with the gate.
pub fn router_shared_bytes(rows: u32, hidden: u32) -> u32 {
    4 * rows * (hidden + abi::TG_MAX_EXPERTS)
}

/// Whether one kernel is all of the router.
fn routes_at_once(experts: u32, hidden: u32) -> bool {
    experts as usize <= ROUTE_EXPERTS && hidden <= abi::TG_ROUTE_HIDDEN
}

/// Kernels that are all of the router. Where there are more experts than they take, `routes_at_once` says so.
#[derive(Debug)]
pub struct Route {
    /// For steps of up to [`ROUTE_FEW_ROWS`].
    few: Kernel,
    /// For more.
    many: Kernel,
    /// What a block of `many` has: columns, and dynamic shared memory.
    columns: u32,
    shared_bytes: u32,
    multiprocessors: u32,
}

impl Route {
    /// Those for rows of type `x`.
    ///
    /// # Errors
    /// The driver refuses.
    pub(super) fn load(library: &Library, x: &str, experts: usize) -> Result<Self> {
        let types = format!("{x}{}", instance(expert_words(experts.min(ROUTE_EXPERTS))));
        let name = format!("tg_route_many_{types}");
        let ([columns, shared_bytes], many) = library.with_constants::<[u32; 2]>(&name)?;
        many.allow_shared(shared_bytes)?;
        Ok(Self {
            few: library.kernel(&format!("tg_route_{types}"))?,
            many,
            columns,
            shared_bytes,
            multiprocessors: library.gpu.class.multiprocessors,
        })
    }
}

/// How blocks share experts, columns and rows.
#[derive(Debug, PartialEq, Eq)]
struct RouteClusters {
    /// Blocks of a cluster, a power of two.
    blocks: u32,
    /// Clusters that are launched.
    clusters: u32,
    /// Rows of a cluster, or of each of its tiles.
    rows_each: u32,
}

impl RouteClusters {
    /// A block has [`abi::TG_ROUTE_EACH`] of a word's experts at a time and half of the columns.
    fn of_few_rows(rows: u32, experts: u32) -> Self {
        let sharers = experts.min(u32::BITS).div_ceil(abi::TG_ROUTE_EACH);
        let rows_each = rows.div_ceil(ROUTE_CLUSTERS).min(abi::TG_ROUTE_ROWS);
        Self {
            blocks: abi::TG_ROUTE_SHARES * sharers.next_power_of_two(),
            clusters: rows.div_ceil(rows_each),
            rows_each,
        }
    }

    /// A block has all experts and some of the columns, and a multiprocessor for itself. A cluster's blocks lie in one GPC, whose
    /// multiprocessors may be no multiple of them: by hand 29 to 32 clusters of four have room at once on an H200 of 132. One that
    /// had none would begin when the others have ended.
    fn of_many_rows(rows: u32, hidden: u32, columns: u32, multiprocessors: u32) -> Self {
        let blocks = hidden.div_ceil(columns).next_power_of_two().max(2);
        let room = (multiprocessors / blocks * 6 / 7).max(1);
        Self {
            blocks,
            clusters: rows.div_ceil(abi::TG_ROUTE_MANY_ROWS).min(room),
            rows_each: abi::TG_ROUTE_MANY_ROWS,
        }
    }
}

impl<'a> Lowering<'a> {
    /// The kernel for blocks without a cluster, of one row each or of many, and its dynamic shared memory.
    fn router_alone(&self) -> (&'a Kernel, RouteClusters, u32) {
        let (kernels, rows) = (self.kernels, self.bucket.rows);
        let bytes = |rows| router_shared_bytes(rows, self.hidden());
        let many = abi::TG_ROUTER_MANY_ROWS;
        let fits = bytes(many) <= kernels.router_many_bytes;
        let (rows_each, kernel) = if rows >= ROUTER_MANY_ROWS && fits {
            (many, &kernels.router_many)
        } else {
            (1, &kernels.router_1)
        };
        let alone = RouteClusters {
            blocks: 1,
            clusters: rows.div_ceil(rows_each),
            rows_each,
        };
        (kernel, alone, bytes(rows_each))
    }

    /// The FFN norm of h f32 `[R, H]`, as x `[R, H]` in the operand type; from it experts and weights of each row;
    /// then, where [`Pairs::sorted`](super::experts::Pairs::sorted), the rows in order of expert. Shapes as [`Routing`] and [`RouterWeights`] say.
    pub fn router(&mut self, routing: &Routing, x: Address, h: Address, weights: &RouterWeights) {
        let ((experts, top_k), hidden, rows) = (self.experts(), self.hidden(), self.bucket.rows);
        let (kernels, config) = (self.kernels, self.config);
        let route = kernels.route.as_ref();
        let route = route.filter(|_| routes_at_once(experts, hidden));
        let mut threads = abi::TG_NORM_THREADS;
        let (kernel, clusters, shared_bytes) = match route {
            Some(route) if rows > ROUTE_FEW_ROWS => {
                threads = abi::TG_ROUTE_MANY_THREADS;
                let (columns, multiprocessors) = (route.columns, route.multiprocessors);
                let clusters = RouteClusters::of_many_rows(rows, hidden, columns, multiprocessors);
                (&route.many, clusters, route.shared_bytes)
            }
            Some(route) => (&route.few, RouteClusters::of_few_rows(rows, experts), 0),
            None => self.router_alone(),
        };
        let RouteClusters {
            blocks,
            clusters,
            rows_each,
        } = clusters;
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
        let args = abi::tg_route_args {
            counts: routing.tile_count,
            eps: config.norm_eps,
            rows_each,
        };
        let normalize = u32::from(config.norm_topk_prob);
        let scaling = config.routed_scaling_factor;
        let launch = Launch {
            shared_bytes,
            cluster: blocks,
            ..Launch::blocks(clusters * blocks, threads)
        };
        let arguments = arguments![&arrays, &args, hidden, experts, top_k, normalize, scaling];
        self.push(kernel, launch, arguments);
        self.with_weights([weights.gate]);
        if self.pairs().sorted {
            self.sort_tokens(routing);
        }
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
    fn one_kernel_routes_what_its_blocks_hold() {
        let at_once = [(32, 2048), (64, 2048), (65, 2048), (32, 2080)]
            .map(|(experts, hidden)| routes_at_once(experts, hidden));
        assert_eq!(at_once, [true, true, false, false]);
        let few = RouteClusters::of_few_rows;
        let blocks = [1, 8, 9, 17, 32, 64].map(|experts| few(1, experts).blocks);
        assert_eq!(blocks, [2, 2, 4, 8, 8, 8]);
        let rows = [1, 16, 17, 64, 128, 256].map(|rows| few(rows, 32).rows_each);
        assert_eq!(rows, [1, 1, 2, 4, 8, 8]);
        let many = |rows, hidden, columns| {
            let of = RouteClusters::of_many_rows(rows, hidden, columns, 132);
            (of.blocks, of.clusters)
        };
        let clusters = [32, 1024, 1056, 2048].map(|hidden| many(8192, hidden, 512));
        assert_eq!(clusters, [(2, 56), (2, 56), (4, 28), (4, 28)]);
        assert_eq!(many(8192, 2048, 256), (8, 13));
        let clusters = [257, 272, 273, 448, 449].map(|rows| many(rows, 2048, 512).1);
        assert_eq!(clusters, [17, 17, 18, 28, 28]);
    }
}
