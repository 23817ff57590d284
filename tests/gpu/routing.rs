//! The token sort against a plain one, and what router and experts share.

use crate::common::random::Random;
use crate::rig::{Rig, Step, config, operand};
use crate::support::Gpu;
use tailgraph::backend::cuda::families::Lowering;
use tailgraph::backend::cuda::families::experts::{
    EXPERT_COUNTS_BYTES, Routing, most_expert_tiles,
};
use tailgraph::backend::cuda::memory::arena::EXPERT_TILE_BYTES;
use tailgraph::backend::cuda::memory::buffer::Buffer;
use tailgraph::backend::cuda::tuning::limits::{expert_words, skinny_experts, skinny_told};
use tailgraph::model::{DType, ModelConfig};
use tailgraph::plan::StepKind;

/// A routing's arrays, poisoned.
pub struct RoutingOnGpu {
    pub experts: Buffer,
    pub weights: Buffer,
    pub score_parts: Buffer,
    pub rows: Buffer,
    pub place: Buffer,
    pub tiles: Buffer,
    pub tile_count: Buffer,
}

impl RoutingOnGpu {
    pub fn new(gpu: &Gpu, config: &ModelConfig, to: &Lowering<'_>) -> Self {
        let (experts, top_k) = (config.num_experts as u32, config.num_experts_per_tok as u32);
        let words = expert_words(config.num_experts);
        let bucket = to.bucket.rows;
        let pairs = (bucket * top_k) as usize;
        let most = most_expert_tiles(bucket, experts, top_k, to.pairs().tile_rows);
        Self {
            experts: gpu.poisoned(pairs * 4),
            weights: gpu.poisoned(pairs * 4),
            score_parts: gpu.poisoned(
                8 * skinny_told(words)
                    + bucket as usize
                        * config.hidden_size.div_ceil(16)
                        * (skinny_experts(words) + 1)
                        * 4,
            ),
            rows: gpu.poisoned(pairs * 4),
            place: gpu.poisoned(pairs * 4),
            tiles: gpu.poisoned(most as usize * EXPERT_TILE_BYTES),
            tile_count: gpu.poisoned(EXPERT_COUNTS_BYTES),
        }
    }

    pub fn addresses(&self) -> Routing {
        Routing {
            experts: self.experts.at(0),
            weights: self.weights.at(0),
            score_parts: self.score_parts.at(0),
            rows: self.rows.at(0),
            place: self.place.at(0),
            tiles: self.tiles.at(0),
            tile_count: self.tile_count.at(0),
        }
    }

    /// What the kernel for wide steps counts up is cleared; the number of tiles.
    pub fn check_counts(&self, gpu: &Gpu) -> u32 {
        let counts = gpu.get_u32(&self.tile_count);
        assert!(counts[1..].iter().all(|&count| count == 0), "{counts:?}");
        counts[0]
    }

    /// Holds the sort's arrays to a plain sort of `chosen` `[R, K]`, the experts of the step's rows, in tiles of
    /// `tile_rows` at most.
    pub fn check_sort(&self, gpu: &Gpu, chosen: &[u32], top_k: usize, tile_rows: u32) {
        let mut pairs: Vec<usize> = (0..chosen.len()).collect();
        pairs.sort_by_key(|&pair| chosen[pair]);
        let sorted = gpu.get_u32(&self.rows);
        let place = gpu.get_u32(&self.place);
        for (at, &pair) in pairs.iter().enumerate() {
            assert_eq!(sorted[at] as usize, pair / top_k, "row at place {at}");
            assert_eq!(place[pair] as usize, at, "place of pair {pair}");
        }
        assert!(sorted[pairs.len()..].iter().all(|&row| row == u32::MAX));

        let count = self.check_counts(gpu) as usize;
        let tiles = gpu.get_u32(&self.tiles);
        assert!(count * 4 <= tiles.len());
        let mut next = 0;
        for tile in tiles.chunks(4).take(count) {
            let [expert, first, rows] = [tile[0], tile[1], tile[2]];
            assert_eq!(first, next, "tiles lie end to end");
            assert!(rows >= 1 && rows <= tile_rows);
            let own = &pairs[first as usize..][..rows as usize];
            assert!(own.iter().all(|&pair| chosen[pair] == expert));
            next += rows;
        }
        assert_eq!(next as usize, pairs.len());
    }
}

pub fn mixture(hidden: usize, inner: usize, experts: usize, top_k: usize) -> ModelConfig {
    ModelConfig {
        hidden_size: hidden,
        moe_intermediate_size: inner,
        num_experts: experts,
        num_experts_per_tok: top_k,
        ..config()
    }
}

/// Experts `[rows, K]`, ascending and distinct in a row, drawn from the first `among`.
pub fn random_experts(random: &mut Random, rows: usize, among: usize, top_k: usize) -> Vec<u32> {
    let mut experts = Vec::new();
    for _ in 0..rows {
        let mut all: Vec<u32> = (0..among as u32).collect();
        for i in 0..top_k {
            let other = i + random.below(among - i);
            all.swap(i, other);
        }
        all.truncate(top_k);
        all.sort_unstable();
        experts.extend(all);
    }
    experts
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_token_sort_is_stable_and_tiles_cover_it() {
    let gpu = Gpu::new();
    let mut random = Random(42);
    for (bucket, experts, among, top_k) in [
        (1, 32, 32, 4),
        (8, 8, 1, 1),
        (300, 128, 128, 8),
        (512, 32, 4, 4),
        (1025, 12, 12, 3),
        (1400, 128, 128, 8),
        (4096, 32, 32, 4),
        (4096, 16, 1, 1),
        (8192, 32, 32, 4),
    ] {
        let rig = Rig::new(&gpu, mixture(64, 64, experts, top_k), operand(DType::BF16));
        let rows = bucket - random.below(bucket.min(5));
        let step = Step::of_rows(rows).upload(&gpu);
        let enqueue = rig.enqueue(&step, StepKind::Mixed, bucket);
        let routing = RoutingOnGpu::new(&gpu, &rig.config, &enqueue);
        let chosen = random_experts(&mut random, rows, among, top_k);
        let bytes: Vec<u8> = chosen.iter().flat_map(|e| e.to_le_bytes()).collect();
        routing.experts.write(&gpu.stream, 0, &bytes).unwrap();
        // SAFETY: the arrays have the shapes that `Routing` asks for.
        unsafe { enqueue.run(|to| to.sort_tokens(&routing.addresses())) };

        routing.check_sort(&gpu, &chosen, top_k, enqueue.pairs().tile_rows);
    }
}
