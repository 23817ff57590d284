//! Router, token sort and the experts' feed-forwards against f64.

use crate::rig::{
    OPERANDS, Rig, Step, TYPES, assert_close, assert_same_bits, config, encode, operand, rounded,
    rounding,
};
use crate::support::{Gpu, Random};
use rayon::prelude::*;
use tailgraph::backend::cuda::buffer::Buffer;
use tailgraph::backend::cuda::ops::Enqueue;
use tailgraph::backend::cuda::ops::experts::{
    EXPERT_TILE_BYTES, ExpertWeights, NextNorm, RouterWeights, Routing, most_expert_tiles,
};
use tailgraph::model::{DType, ModelConfig};
use tailgraph::plan::StepKind;

/// A routing's arrays, poisoned.
struct RoutingOnGpu {
    experts: Buffer,
    weights: Buffer,
    scores: Buffer,
    rows: Buffer,
    place: Buffer,
    tiles: Buffer,
    tile_count: Buffer,
}

impl RoutingOnGpu {
    fn new(gpu: &Gpu, config: &ModelConfig, enqueue: &Enqueue) -> Self {
        let (experts, top_k) = (config.num_experts as u32, config.num_experts_per_tok as u32);
        let bucket = enqueue.bucket.rows;
        let pairs = (bucket * top_k) as usize;
        let most = most_expert_tiles(bucket, experts, top_k, enqueue.expert_tile_rows());
        Self {
            experts: gpu.poisoned(pairs * 4),
            weights: gpu.poisoned(pairs * 4),
            scores: gpu.poisoned((bucket * experts) as usize * 4),
            rows: gpu.poisoned(pairs * 4),
            place: gpu.poisoned(pairs * 4),
            tiles: gpu.poisoned(most as usize * EXPERT_TILE_BYTES),
            tile_count: gpu.poisoned(4),
        }
    }

    fn addresses(&self) -> Routing {
        Routing {
            experts: self.experts.at(0),
            weights: self.weights.at(0),
            scores: self.scores.at(0),
            rows: self.rows.at(0),
            place: self.place.at(0),
            tiles: self.tiles.at(0),
            tile_count: self.tile_count.at(0),
        }
    }
}

fn mixture(hidden: usize, inner: usize, experts: usize, top_k: usize) -> ModelConfig {
    ModelConfig {
        hidden_size: hidden,
        moe_intermediate_size: inner,
        num_experts: experts,
        num_experts_per_tok: top_k,
        ..config()
    }
}

/// Router's inputs, all f32.
#[derive(Clone)]
struct RouterCase {
    config: ModelConfig,
    h: Vec<f32>,
    norm: Vec<f32>,
    gate: Vec<f32>,
    bias: Option<Vec<f32>>,
}

impl RouterCase {
    /// Also holds x to the bits that the norm alone gives.
    fn run(&self, gpu: &Gpu, dtype: DType, rows: usize, bucket: usize) -> (Vec<u32>, Vec<f32>) {
        let rig = Rig::new(gpu, self.config.clone(), operand(dtype));
        let step = Step::of_rows(rows).upload(gpu);
        let enqueue = rig.enqueue(&step, StepKind::Mixed, bucket);
        let routing = RoutingOnGpu::new(gpu, &self.config, &enqueue);
        let f32s = |values: &[f32]| gpu.values(DType::F32, values);
        let (h, norm, gate) = (f32s(&self.h), f32s(&self.norm), f32s(&self.gate));
        let bias = self.bias.as_ref().map(|bias| f32s(bias));
        let bias = bias.as_ref().map_or(0, |bias| bias.at(0));
        let weights = RouterWeights {
            norm: norm.at(0),
            gate: gate.at(0),
            bias,
        };
        let row_bytes = self.config.hidden_size * dtype.bytes();
        let [x, alone] = [(); 2].map(|()| gpu.poisoned(bucket * row_bytes));
        // SAFETY: the arrays have the shapes that the operations ask for.
        unsafe {
            enqueue
                .router(&routing.addresses(), x.at(0), h.at(0), &weights)
                .unwrap();
            enqueue.norm(alone.at(0), h.at(0), norm.at(0)).unwrap();
        }
        assert!(
            gpu.get(&x) == gpu.get(&alone),
            "{dtype:?} {rows} of {bucket} rows: x is not the norm's"
        );
        (
            gpu.get_u32(&routing.experts),
            gpu.get_values(DType::F32, &routing.weights),
        )
    }

    /// Scores, and scores with bias, of one row.
    fn scores(&self, row: usize) -> (Vec<f64>, Vec<f64>) {
        let hidden = self.config.hidden_size;
        let h = &self.h[row * hidden..][..hidden];
        let squares: f64 = h.iter().map(|&v| f64::from(v).powi(2)).sum();
        let scale = 1.0 / (squares / hidden as f64 + f64::from(self.config.norm_eps)).sqrt();
        let score = |gate: &[f32]| {
            let products = h.iter().zip(&self.norm).zip(gate);
            let terms =
                products.map(|((&h, &n), &g)| f64::from(h) * scale * f64::from(n) * f64::from(g));
            1.0 / (1.0 + (-terms.sum::<f64>()).exp())
        };
        let scores: Vec<f64> = self.gate.chunks(hidden).map(score).collect();
        let biased = scores.iter().enumerate();
        let biased = biased
            .map(|(e, s)| s + self.bias.as_ref().map_or(0.0, |b| f64::from(b[e])))
            .collect();
        (scores, biased)
    }

    fn check(&self, row: usize, experts: &[u32], weights: &[f32]) {
        let (scores, biased) = self.scores(row);
        let k = self.config.num_experts_per_tok;
        assert!(
            experts.windows(2).all(|pair| pair[0] < pair[1]),
            "row {row}: {experts:?}"
        );
        let chosen = |e: usize| experts.contains(&(e as u32));
        let least = |inside: bool| {
            let those = (0..scores.len()).filter(|&e| chosen(e) == inside);
            those.map(|e| biased[e]).collect::<Vec<_>>()
        };
        let worst = least(true).into_iter().fold(f64::INFINITY, f64::min);
        let best_left = least(false).into_iter().fold(f64::NEG_INFINITY, f64::max);
        assert!(
            worst >= best_left - 1e-6,
            "row {row}: {experts:?} of {biased:?}"
        );
        let sum: f64 = experts.iter().map(|&e| scores[e as usize]).sum();
        let expected: Vec<f64> = experts
            .iter()
            .map(|&e| {
                let over = if self.config.norm_topk_prob {
                    sum + 1e-6
                } else {
                    1.0
                };
                scores[e as usize] / over * f64::from(self.config.routed_scaling_factor)
            })
            .collect();
        assert_eq!(experts.len(), k);
        assert_close(&format!("row {row}"), weights, &expected, |_, w| 3e-6 * w);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_router_chooses_the_best_and_weighs_them() {
    let gpu = Gpu::new();
    let mut random = Random(41);
    for (hidden, experts, top_k) in [
        (2048, 32, 4),
        (32, 4, 1),
        (96, 128, 8),
        (5120, 33, 3),
        (64, 8, 8),
    ] {
        for bucket in [1, 7, 64, 150, 256, 301] {
            let config = ModelConfig {
                norm_topk_prob: random.below(2) == 0,
                routed_scaling_factor: [1.0, 2.5][random.below(2)],
                ..mixture(hidden, 64, experts, top_k)
            };
            let rows = 1 + random.below(bucket);
            let case = RouterCase {
                h: random.values(bucket * hidden, 4.0),
                norm: random.values(hidden, 1.5),
                gate: random.values(experts * hidden, 3.0 / (hidden as f32).sqrt()),
                bias: (random.below(2) == 0).then(|| random.values(experts, 0.3)),
                config,
            };
            let dtype = OPERANDS[random.below(OPERANDS.len())];
            let (chosen, weights) = case.run(&gpu, dtype, rows, bucket);
            let (used, padding) = chosen.split_at(rows * top_k);
            assert!(padding.iter().all(|&e| e == u32::MAX), "padding was routed");
            for row in 0..rows {
                let weights = &weights[row * top_k..][..top_k];
                case.check(row, &used[row * top_k..][..top_k], weights);
            }
        }
    }
}

/// Equal scores: the lower index wins, however far apart they are.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn ties_go_to_the_lower_expert() {
    let gpu = Gpu::new();
    let case = RouterCase {
        config: mixture(32, 64, 100, 5),
        h: vec![1.0; 32],
        norm: vec![1.0; 32],
        gate: vec![0.0; 100 * 32],
        bias: Some(
            (0..100)
                .map(|e| if e % 33 == 7 { 1.0 } else { 0.0 })
                .collect(),
        ),
    };
    for bucket in [1, 300] {
        let case = RouterCase {
            h: vec![1.0; bucket * 32],
            ..case.clone()
        };
        let experts = case.run(&gpu, DType::F32, 1, bucket).0;
        assert_eq!(experts[..5], [0, 1, 7, 40, 73]);
    }
}

/// Experts `[rows, K]`, ascending and distinct in a row, drawn from the first `among`.
fn random_experts(random: &mut Random, rows: usize, among: usize, top_k: usize) -> Vec<u32> {
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
        (4096, 32, 32, 4),
        (4096, 16, 1, 1),
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
        unsafe { enqueue.sort_tokens(&routing.addresses()) }.unwrap();

        let mut pairs: Vec<usize> = (0..chosen.len()).collect();
        pairs.sort_by_key(|&pair| chosen[pair]);
        let sorted = gpu.get_u32(&routing.rows);
        let place = gpu.get_u32(&routing.place);
        for (at, &pair) in pairs.iter().enumerate() {
            assert_eq!(sorted[at] as usize, pair / top_k, "row at place {at}");
            assert_eq!(place[pair] as usize, at, "place of pair {pair}");
        }
        assert!(sorted[pairs.len()..].iter().all(|&row| row == u32::MAX));

        let count = gpu.get_u32(&routing.tile_count)[0] as usize;
        let tiles = gpu.get_u32(&routing.tiles);
        let tile_rows = enqueue.expert_tile_rows();
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
        assert!(count * 4 <= tiles.len());
    }
}

/// A mixture's weights, its input and a routing made up for it.
struct MixtureCase {
    /// `[rows, K]`
    experts: Vec<u32>,
    weights: Vec<f32>,
    /// `[rows, H]`
    x: Vec<f32>,
    h: Vec<f32>,
    /// `[E, M, H]`
    gate: Vec<f32>,
    up: Vec<f32>,
    /// `[E, H, M]`
    down: Vec<f32>,
}

impl MixtureCase {
    fn new(random: &mut Random, rig: &Rig, rows: usize, among: usize) -> Self {
        let (types, config) = (rig.kernels.types, &rig.config);
        let (hidden, inner) = (config.hidden_size, config.moe_intermediate_size);
        let top_k = config.num_experts_per_tok;
        let matrices = config.num_experts * hidden * inner;
        let mut matrix = |fan_in: usize| {
            rounded(
                types.weights,
                &random.values(matrices, 1.7 / (fan_in as f32).sqrt()),
            )
        };
        let (gate, up, down) = (matrix(hidden), matrix(hidden), matrix(inner));
        Self {
            experts: random_experts(random, rows, among, top_k),
            weights: random.values(rows * top_k, 1.0),
            x: rounded(types.operand, &random.values(rows * hidden, 2.0)),
            h: random.values(rows * hidden, 3.0),
            gate,
            up,
            down,
        }
    }

    /// h after the mixture, `[rows, H]`. The norm that is done beside it is held to the bits that it has alone.
    fn run(&self, rig: &Rig, bucket: usize) -> Vec<f32> {
        let (gpu, types, config) = (rig.gpu, rig.kernels.types, &rig.config);
        let (hidden, inner) = (config.hidden_size, config.moe_intermediate_size);
        let top_k = config.num_experts_per_tok;
        let rows = self.x.len() / hidden;
        let step = Step::of_rows(rows).upload(gpu);
        let enqueue = rig.enqueue(&step, StepKind::Mixed, bucket);
        let routing = RoutingOnGpu::new(gpu, config, &enqueue);
        let chosen: Vec<u8> = self.experts.iter().flat_map(|e| e.to_le_bytes()).collect();
        routing.experts.write(&gpu.stream, 0, &chosen).unwrap();
        let weights = encode(DType::F32, &self.weights);
        routing.weights.write(&gpu.stream, 0, &weights).unwrap();
        // Gate and up of an expert side by side, as fused checkpoints have them.
        let matrix = inner * hidden;
        let gate_up: Vec<f32> = self
            .gate
            .chunks(matrix)
            .zip(self.up.chunks(matrix))
            .flat_map(|(gate, up)| [gate, up].concat())
            .collect();
        let gate_up = gpu.values(types.weights, &gate_up);
        let down = gpu.values(types.weights, &self.down);
        let expert_weights = ExpertWeights {
            gate: gate_up.at(0),
            up: gate_up.at(matrix * types.weights.bytes()),
            gate_up_stride: 2 * matrix as u64,
            down: down.at(0),
            down_stride: matrix as u64,
        };
        let x = gpu.values(types.operand, &self.x);
        let h = gpu.poisoned(bucket * hidden * 4);
        h.write(&gpu.stream, 0, &encode(DType::F32, &self.h))
            .unwrap();
        let y = gpu.poisoned(bucket * top_k * inner * types.operand.bytes());
        let partial = gpu.poisoned(bucket * top_k * hidden * 4);
        let norm: Vec<f32> = self.weights.iter().cycle().take(hidden).copied().collect();
        let norm = gpu.values(DType::F32, &norm);
        let [next, alone] = [(); 2].map(|()| gpu.poisoned(bucket * hidden * types.operand.bytes()));
        let next_norm = NextNorm {
            x: next.at(0),
            weight: norm.at(0),
        };
        let routing = routing.addresses();
        // SAFETY: the arrays have the shapes that the operations ask for.
        unsafe {
            enqueue.sort_tokens(&routing).unwrap();
            enqueue
                .expert_gate_up(&routing, &expert_weights, y.at(0), x.at(0))
                .unwrap();
            enqueue
                .expert_down(
                    &routing,
                    &expert_weights,
                    h.at(0),
                    y.at(0),
                    partial.at(0),
                    Some(next_norm),
                )
                .unwrap();
            enqueue.norm(alone.at(0), h.at(0), norm.at(0)).unwrap();
        }
        assert!(
            gpu.get(&next) == gpu.get(&alone),
            "{types:?} {rows} of {bucket} rows: x is not the norm's"
        );
        let mut h = gpu.get_values(DType::F32, &h);
        let padding = h.split_off(rows * hidden);
        assert!(padding.iter().all(|v| v.is_nan()), "padding was written");
        h
    }

    fn expected(&self, rig: &Rig, row: usize) -> Vec<f64> {
        let config = &rig.config;
        let (hidden, inner) = (config.hidden_size, config.moe_intermediate_size);
        let top_k = config.num_experts_per_tok;
        let matrix = hidden * inner;
        let x = &self.x[row * hidden..][..hidden];
        let mut h: Vec<f64> = self.h[row * hidden..][..hidden]
            .iter()
            .map(|&v| f64::from(v))
            .collect();
        for i in row * top_k..(row + 1) * top_k {
            let of =
                |matrices: &[f32]| matrices[self.experts[i] as usize * matrix..][..matrix].to_vec();
            let (gate, up, down) = (of(&self.gate), of(&self.up), of(&self.down));
            let dot = |w: &[f32], x: &[f32]| {
                let products = w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x));
                products.sum::<f64>()
            };
            let y: Vec<f32> = gate
                .chunks(hidden)
                .zip(up.chunks(hidden))
                .map(|(gate, up)| {
                    let g = dot(gate, x);
                    (g / (1.0 + (-g).exp()) * dot(up, x)) as f32
                })
                .collect();
            let y = rounded(rig.kernels.types.operand, &y);
            for (h, down) in h.iter_mut().zip(down.chunks(inner)) {
                *h += f64::from(self.weights[i]) * dot(down, &y);
            }
        }
        h
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn mixtures_are_those_of_f64() {
    let gpu = Gpu::new();
    let mut random = Random(43);
    for types in TYPES {
        // (bucket, H, M, E, of which chosen, K): one expert with every row, experts with none, every tile
        for (bucket, hidden, inner, experts, among, top_k) in [
            (1, 128, 64, 8, 8, 2),
            (8, 96, 224, 8, 1, 1),
            (64, 256, 96, 32, 32, 4),
            (300, 128, 64, 16, 3, 3),
            (512, 128, 96, 4, 4, 2),
            (1500, 64, 160, 8, 8, 4),
        ] {
            let rig = Rig::new(&gpu, mixture(hidden, inner, experts, top_k), types);
            let rows = bucket - random.below(bucket.min(7));
            let case = MixtureCase::new(&mut random, &rig, rows, among);
            let h = case.run(&rig, bucket);
            let every = rows.div_ceil(64);
            (0..rows).into_par_iter().step_by(every).for_each(|row| {
                let what = format!("{types:?} rows {rows} of {bucket} row {row}");
                // y near the middle of two values may round the other way: a few of them, by one step.
                let allowed = |_, v: f64| 2e-6 * (1.0 + v.abs()) + rounding(types.operand) * 0.5;
                let found = &h[row * hidden..][..hidden];
                assert_close(&what, found, &case.expected(&rig, row), allowed);
            });
        }
    }
}

/// A row with other companions, elsewhere, in the same bucket: the same bits.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_row_of_a_mixture_does_not_depend_on_its_companions() {
    let gpu = Gpu::new();
    let mut random = Random(44);
    for dtype in OPERANDS {
        for bucket in [8, 64, 1024] {
            let (hidden, top_k) = (128, 4);
            let rig = Rig::new(&gpu, mixture(hidden, 96, 8, top_k), operand(dtype));
            let many = MixtureCase::new(&mut random, &rig, bucket, 8);
            let all = many.run(&rig, bucket);
            for row in [0, bucket / 3, bucket - 1] {
                let place = random.below(bucket / 2);
                let mut moved = MixtureCase::new(&mut random, &rig, place + 1, 5);
                moved.x[place * hidden..].copy_from_slice(&many.x[row * hidden..][..hidden]);
                moved.h[place * hidden..].copy_from_slice(&many.h[row * hidden..][..hidden]);
                moved.experts[place * top_k..]
                    .copy_from_slice(&many.experts[row * top_k..][..top_k]);
                moved.weights[place * top_k..]
                    .copy_from_slice(&many.weights[row * top_k..][..top_k]);
                moved.gate.clone_from(&many.gate);
                moved.up.clone_from(&many.up);
                moved.down.clone_from(&many.down);
                assert_same_bits(
                    &format!("{dtype:?} bucket {bucket} row {row} at {place}"),
                    &moved.run(&rig, bucket)[place * hidden..][..hidden],
                    &all[row * hidden..][..hidden],
                );
            }
        }
    }
}
