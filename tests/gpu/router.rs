//! The router against f64.

use crate::common::random::Random;
use crate::rig::{OPERANDS, Rig, Step, assert_close, assert_same_bits, matrix, operand, rounding};
use crate::routing::{RoutingOnGpu, mixture};
use crate::support::Gpu;
use tailgraph::backend::cuda::families::router::RouterWeights;
use tailgraph::backend::cuda::tuning::variants::Variant;
use tailgraph::model::{DType, ModelConfig, WeightFormat};
use tailgraph::plan::StepKind;

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
    /// Rows enough for `bucket`.
    fn random(random: &mut Random, config: ModelConfig, bucket: usize) -> Self {
        let (hidden, experts) = (config.hidden_size, config.num_experts);
        Self {
            h: random.values(bucket * hidden, 4.0),
            norm: random.values(hidden, 1.5),
            gate: random.values(experts * hidden, 3.0 / (hidden as f32).sqrt()),
            bias: (random.below(2) == 0).then(|| random.values(experts, 0.3)),
            config,
        }
    }

    /// Also where the experts' kernels need the sort: to the same bits.
    fn run(&self, gpu: &Gpu, dtype: DType, rows: usize, bucket: usize) -> (Vec<u32>, Vec<f32>) {
        let found = self.run_by(gpu, dtype, rows, bucket, None);
        let sorted = self.run_by(gpu, dtype, rows, bucket, Some(Variant::TILED));
        assert_eq!(found.0, sorted.0, "{dtype:?} {rows} of {bucket} rows");
        let what = format!("{dtype:?} {rows} of {bucket} rows: weights");
        assert_same_bits(&what, &found.1, &sorted.1);
        found
    }

    /// By what serves as many rows of prompts, or a variant. Also holds x to what the norm alone gives, and the sort, where it
    /// is needed, to a plain one.
    fn run_by(
        &self,
        gpu: &Gpu,
        dtype: DType,
        rows: usize,
        bucket: usize,
        by: Option<Variant>,
    ) -> (Vec<u32>, Vec<f32>) {
        let rig = Rig::new(gpu, self.config.clone(), operand(dtype));
        let step = Step::of_rows(rows).upload(gpu);
        let enqueue = match by {
            None => rig.enqueue(&step, StepKind::Mixed, bucket),
            Some(variant) => rig.enqueue_by(&step, bucket, variant).unwrap(),
        };
        assert!(by != Some(Variant::TILED) || enqueue.pairs().sorted);
        let routing = RoutingOnGpu::new(gpu, &self.config, &enqueue);
        let f32s = |values: &[f32]| gpu.values(DType::F32, values);
        let (h, norm, gate) = (f32s(&self.h), f32s(&self.norm), f32s(&self.gate));
        let bias = self.bias.as_ref().map(|bias| f32s(bias));
        let bias = bias.as_ref().map_or(0, |bias| bias.at(0));
        let shape = [self.config.num_experts, self.config.hidden_size];
        let weights = RouterWeights {
            norm: norm.at(0),
            gate: matrix(&gate, WeightFormat::F32, shape),
            bias,
            // Nobody predicts here.
            predictor: 0,
        };
        let row_bytes = self.config.hidden_size * dtype.bytes();
        let [x, alone] = [(); 2].map(|()| gpu.poisoned(bucket * row_bytes));
        // SAFETY: the arrays have the shapes that the operations ask for.
        unsafe {
            enqueue.run(|to| {
                let routing = routing.addresses();
                to.router(&routing, x.at(0), h.at(0), &weights);
                to.norm(alone.at(0), h.at(0), norm.at(0));
            });
        }
        // The sum of squares may be in another order, and what is rounded then rounds the other way.
        let [x, alone] = [x, alone].map(|buffer| gpu.get_values(dtype, &buffer));
        let (used, padding) = x.split_at(rows * self.config.hidden_size);
        let expected: Vec<f64> = alone[..used.len()].iter().map(|&v| f64::from(v)).collect();
        let what = format!("{dtype:?} {rows} of {bucket} rows: x");
        assert_close(&what, used, &expected, |_, v| {
            (2.0 * rounding(dtype)).max(1e-6) * v.abs()
        });
        assert!(
            padding.iter().all(|v| v.is_nan()),
            "{what}: padding was written"
        );
        let experts = gpu.get_u32(&routing.experts);
        let top_k = self.config.num_experts_per_tok;
        let tile_rows = enqueue.pairs().tile_rows;
        if enqueue.pairs().sorted {
            routing.check_sort(gpu, &experts[..rows * top_k], top_k, tile_rows);
        } else {
            routing.check_counts(gpu);
        }
        (experts, gpu.get_values(DType::F32, &routing.weights))
    }

    /// [`Self::run`], and each row held to f64.
    fn run_and_check(&self, gpu: &Gpu, dtype: DType, rows: usize, bucket: usize) -> Vec<f32> {
        let top_k = self.config.num_experts_per_tok;
        let (chosen, weights) = self.run(gpu, dtype, rows, bucket);
        let (used, padding) = chosen.split_at(rows * top_k);
        assert!(
            padding.iter().all(|&e| e == u32::MAX),
            "padding was routed: {rows} of {bucket} rows"
        );
        self.check_all(used, &weights);
        weights
    }

    /// Nine rows in a bucket and in others: the same experts, and the same bits of their weights.
    fn check_alike(&self, gpu: &Gpu, dtype: DType, first: usize, buckets: &[usize]) {
        let used = 9 * self.config.num_experts_per_tok;
        let (experts, weights) = self.run(gpu, dtype, 9, first);
        for &bucket in buckets {
            let (others, found) = self.run(gpu, dtype, 9, bucket);
            assert_eq!(experts[..used], others[..used]);
            let what = format!("{dtype:?}: weights of 9 rows of {first} and of {bucket}");
            assert_same_bits(&what, &weights[..used], &found[..used]);
        }
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

    fn check_all(&self, chosen: &[u32], weights: &[f32]) {
        let top_k = self.config.num_experts_per_tok;
        for (row, experts) in chosen.chunks(top_k).enumerate() {
            self.check(row, experts, &weights[row * top_k..][..top_k]);
        }
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
        // Clusters of 4 whose last block has no expert, and clusters of 2.
        (96, 20, 3),
        (544, 12, 4),
        // Experts that a cluster multiplies in two goes: one in the second, all, and as many as half of it.
        (96, 33, 3),
        (2048, 64, 4),
        (1056, 50, 8),
        // With many rows there are clusters of 4 whose last block has no column, and of 2 whose last has some of its own.
        (1056, 20, 2),
        (992, 9, 2),
    ] {
        for bucket in [1, 7, 64, 150, 256, 301, 900] {
            let config = ModelConfig {
                norm_topk_prob: random.below(2) == 0,
                routed_scaling_factor: [1.0, 2.5][random.below(2)],
                ..mixture(hidden, 64, experts, top_k)
            };
            let rows = 1 + random.below(bucket);
            let case = RouterCase::random(&mut random, config, bucket);
            let dtype = OPERANDS[random.below(OPERANDS.len())];
            case.run_and_check(&gpu, dtype, rows, bucket);
        }
    }
}

/// Where one kernel routes: rows below, at and above what its clusters take one each of, in all types. Rows come twice, and
/// the second ones have the bits of the first, wherever they lie.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_row_of_a_full_bucket_is_routed() {
    let gpu = Gpu::new();
    let mut random = Random(43);
    for (hidden, experts, top_k) in [(2048, 32, 4), (544, 12, 3), (2048, 64, 4)] {
        for bucket in [9, 30, 31, 32, 33, 60, 61, 64, 128, 200, 256, 512, 1024] {
            for dtype in OPERANDS {
                let config = mixture(hidden, 64, experts, top_k);
                let mut case = RouterCase::random(&mut random, config, bucket);
                let again = bucket / 2 + 1;
                let (first, second) = case.h.split_at_mut(again * hidden);
                second.copy_from_slice(&first[..second.len()]);
                let weights = case.run_and_check(&gpu, dtype, bucket, bucket);
                let (first, second) = weights.split_at(again * top_k);
                let what =
                    format!("{dtype:?} {bucket} rows of {hidden}: weights of rows that come again");
                assert_same_bits(&what, &first[..second.len()], second);
            }
        }
    }
}

/// More tiles for a cluster than it has stages, so that each stage serves both groups of choosers by turns.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn stages_serve_both_groups_of_choosers() {
    let gpu = Gpu::new();
    let mut random = Random(47);
    for (hidden, experts, top_k) in [(64, 8, 2), (96, 33, 3), (32, 4, 1), (64, 64, 4)] {
        for dtype in OPERANDS {
            let config = mixture(hidden, 64, experts, top_k);
            let case = RouterCase::random(&mut random, config, 257);
            let (chosen, weights) = case.run_by(&gpu, dtype, 257, 257, None);
            case.check_all(&chosen, &weights);
        }
    }
}

/// Rows enough for the kernel that takes eight of them a block where there are too many experts for a cluster. The last block has
/// fewer.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn each_of_many_rows_is_routed() {
    let gpu = Gpu::new();
    let mut random = Random(45);
    for (hidden, experts, top_k) in [(256, 96, 4), (96, 65, 3)] {
        for dtype in OPERANDS {
            let config = mixture(hidden, 64, experts, top_k);
            let case = RouterCase::random(&mut random, config, 2048);
            case.run_and_check(&gpu, dtype, 2045, 2048);
        }
    }
}

/// Many tiles for each cluster, of which the last has fewer rows; and the bits of fewer rows. (Too many for the host.)
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn thousands_of_rows_are_routed_by_clusters() {
    let gpu = Gpu::new();
    let mut random = Random(46);
    for (hidden, experts, top_k) in [(2048, 32, 4), (96, 33, 3), (2048, 64, 4)] {
        for dtype in OPERANDS {
            let config = mixture(hidden, 64, experts, top_k);
            let case = RouterCase::random(&mut random, config, 8192);
            case.run_and_check(&gpu, dtype, 8189, 8192);
            case.check_alike(&gpu, dtype, 512, &[8192]);
        }
    }
}

/// However many rows a cluster has, and wherever in it a row is: of few rows and of many, which are summed in orders of their own.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_row_is_routed_alike_among_few_and_many() {
    let gpu = Gpu::new();
    let mut random = Random(44);
    let cases = [32, 64].map(|experts| {
        let config = mixture(2048, 64, experts, 4);
        RouterCase::random(&mut random, config, 1024)
    });
    for (case, dtype) in cases
        .iter()
        .flat_map(|case| OPERANDS.map(|dtype| (case, dtype)))
    {
        for (first, buckets) in [(16, [33, 128, 256]), (257, [400, 512, 1024])] {
            case.check_alike(&gpu, dtype, first, &buckets);
        }
    }
}

/// Equal scores: the lower index wins, however far apart they are.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn ties_go_to_the_lower_expert() {
    let gpu = Gpu::new();
    for (experts, expected) in [
        (100, vec![0, 1, 7, 40, 73]),
        (64, vec![0, 1, 2, 7, 40]),
        (32, vec![0, 1, 2, 3, 7]),
    ] {
        for bucket in [1, 300] {
            let bias = |e| if e % 33 == 7 { 1.0 } else { 0.0 };
            let case = RouterCase {
                config: mixture(32, 64, experts, 5),
                h: vec![1.0; bucket * 32],
                norm: vec![1.0; 32],
                gate: vec![0.0; experts * 32],
                bias: Some((0..experts).map(bias).collect()),
            };
            let found = case.run(&gpu, DType::F32, 1, bucket).0;
            assert_eq!(found[..5], expected, "{experts} experts");
        }
    }
}
