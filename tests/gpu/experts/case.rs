//! A mixture's weights, its input and a routing made up for it: what kernels and f64 make of them.

use crate::common::random::Random;
use crate::rig::{
    Rig, Step, assert_close, encode, exact_rows, expert_matrix, held, held_rows, rounding,
};
use crate::routing::{RoutingOnGpu, random_experts};
use rayon::prelude::*;
use tailgraph::backend::cuda::families::experts::{ExpertRows, ExpertWeights, NextNorm};
use tailgraph::backend::cuda::families::packed;
use tailgraph::backend::cuda::matrix::Matrix;
use tailgraph::backend::cuda::memory::buffer::Buffer;
use tailgraph::backend::cuda::tuning::variants::{Experts, Linear, Variant};
use tailgraph::model::{DType, WeightFormat};
use tailgraph::plan::{Activations, Precision, StepKind};

/// A mixture's weights, its input and a routing made up for it.
pub struct MixtureCase {
    /// `[rows, K]`
    pub experts: Vec<u32>,
    pub weights: Vec<f32>,
    /// `[rows, H]`
    pub x: Vec<f32>,
    pub h: Vec<f32>,
    /// `[E, M, H]`
    pub gate: Vec<f32>,
    pub up: Vec<f32>,
    /// `[E, H, M]`
    pub down: Vec<f32>,
    /// The ups of an expert lie before its gates.
    pub up_first: bool,
    /// What serves it; `None`: what serves as many rows of prompts.
    pub by: Option<Experts>,
}

/// `[E, 2, M, H]` and `[E, H, M]`
pub struct WeightsOnGpu {
    pub gate_up: Buffer,
    pub down: Buffer,
    pub up_first: bool,
    /// The scales of gate, up and down, `[E, M]` and `[E, H]`, if they are in 8 bits.
    pub scales: Option<[Buffer; 3]>,
    /// The width of what an expert reads.
    pub hidden: usize,
    pub inner: usize,
}

impl WeightsOnGpu {
    pub fn addresses(&self, format: WeightFormat) -> ExpertWeights {
        let (hidden, inner) = (self.hidden, self.inner);
        let of_gate = packed::elements(inner, hidden);
        let halves = [0, of_gate * format.bytes()]
            .map(|at| expert_matrix(self.gate_up.at(at), format, [inner, hidden], 2 * of_gate));
        let [gate, up] = if self.up_first {
            [halves[1], halves[0]]
        } else {
            halves
        };
        let of_down = packed::elements(hidden, inner);
        let down = expert_matrix(self.down.at(0), format, [hidden, inner], of_down);
        let [gate, up, down] = match &self.scales {
            None => [gate, up, down],
            Some(scales) => [(gate, 0), (up, 1), (down, 2)].map(|(matrix, i)| Matrix {
                scale: Some(scales[i].at(0)),
                ..matrix
            }),
        };
        ExpertWeights { gate, up, down }
    }
}

/// What serves dense products beside the experts: rows in 8 bits are for all or none.
fn linear(types: Precision) -> Linear {
    match types.activations {
        Activations::FP8 => Linear::Persistent,
        Activations::Stored => Linear::Tiled,
    }
}

impl MixtureCase {
    pub fn new(random: &mut Random, rig: &Rig, rows: usize, among: usize) -> Self {
        let (types, config) = (rig.kernels.precision, &rig.config);
        let (hidden, inner) = (config.hidden_size, config.moe_intermediate_size);
        let top_k = config.num_experts_per_tok;
        let matrices = config.num_experts * hidden * inner;
        let mut matrix = |fan_in: usize| {
            let values = random.values(matrices, 1.7 / (fan_in as f32).sqrt());
            held(types.weights, &values, fan_in)
        };
        let (gate, up, down) = (matrix(hidden), matrix(hidden), matrix(inner));
        Self {
            experts: random_experts(random, rows, among, top_k),
            weights: random.values(rows * top_k, 1.0),
            x: exact_rows(types, &random.values(rows * hidden, 2.0), hidden),
            h: random.values(rows * hidden, 3.0),
            gate,
            up,
            down,
            up_first: random.below(2) == 1,
            by: None,
        }
    }

    /// The weights on the GPU, gate and up of an expert side by side, as fused checkpoints have them.
    pub fn upload(&self, rig: &Rig) -> WeightsOnGpu {
        let (gpu, format, config) = (rig.gpu, rig.kernels.precision.weights, &rig.config);
        let (hidden, inner) = (config.hidden_size, config.moe_intermediate_size);
        let matrix = inner * hidden;
        let gate_up: Vec<f32> = self
            .gate
            .chunks(matrix)
            .zip(self.up.chunks(matrix))
            .flat_map(|(gate, up)| {
                if self.up_first {
                    [up, gate].concat()
                } else {
                    [gate, up].concat()
                }
            })
            .collect();
        WeightsOnGpu {
            gate_up: gpu.packed(format, &gate_up, [inner, hidden]),
            down: gpu.packed(format, &self.down, [hidden, inner]),
            up_first: self.up_first,
            scales: (format == WeightFormat::E4M3).then(|| {
                [
                    (&self.gate, hidden),
                    (&self.up, hidden),
                    (&self.down, inner),
                ]
                .map(|(values, columns)| gpu.scales(format, values, columns))
            }),
            hidden,
            inner,
        }
    }

    /// h after the mixture, `[rows, H]`. The norm that is done beside it is held to the bits that it has alone.
    pub fn run(&self, rig: &Rig, bucket: usize) -> Vec<f32> {
        self.run_with(rig, bucket, &self.upload(rig), || ())
    }

    /// Calls `before` when all is there but the launches.
    pub fn run_with(
        &self,
        rig: &Rig,
        bucket: usize,
        weights: &WeightsOnGpu,
        before: impl FnOnce(),
    ) -> Vec<f32> {
        let (gpu, types, config) = (rig.gpu, rig.kernels.precision, &rig.config);
        let (hidden, inner) = (config.hidden_size, config.moe_intermediate_size);
        let top_k = config.num_experts_per_tok;
        let rows = self.x.len() / hidden;
        let step = Step::of_rows(rows).upload(gpu);
        let linear = linear(types);
        let enqueue = match self.by {
            None => rig.enqueue(&step, StepKind::Mixed, bucket),
            Some(experts) => rig
                .enqueue_by(&step, bucket, Variant { linear, experts })
                .unwrap(),
        };
        let on_gpu = RoutingOnGpu::new(gpu, config, &enqueue);
        let chosen: Vec<u8> = self.experts.iter().flat_map(|e| e.to_le_bytes()).collect();
        on_gpu.experts.write(&gpu.stream, 0, &chosen).unwrap();
        let of_experts = encode(DType::F32, &self.weights);
        on_gpu.weights.write(&gpu.stream, 0, &of_experts).unwrap();
        let expert_weights = weights.addresses(types.weights);
        let x = gpu.values(types.compute, &self.x);
        let h = gpu.poisoned(bucket * hidden * 4);
        h.write(&gpu.stream, 0, &encode(DType::F32, &self.h))
            .unwrap();
        // Room for what is left as it is, and as bf16 parts.
        let y = gpu.poisoned(bucket * top_k * inner * 6);
        let parts = gpu.poisoned(bucket * hidden * 6);
        let partial = gpu.poisoned(bucket * top_k * hidden * 4);
        let norm: Vec<f32> = self.weights.iter().cycle().take(hidden).copied().collect();
        let norm = gpu.values(DType::F32, &norm);
        let [next, alone] = [(); 2].map(|()| gpu.poisoned(bucket * hidden * types.compute.bytes()));
        let next_norm = NextNorm {
            x: next.at(0),
            weight: norm.at(0),
        };
        let routing = on_gpu.addresses();
        let between = ExpertRows {
            x: x.at(0),
            prepared: parts.at(0),
            y: y.at(0),
            partial: partial.at(0),
        };
        let pairs = enqueue.pairs();
        gpu.stream.synchronize().unwrap();
        before();
        // SAFETY: the arrays have the shapes that the operations ask for.
        unsafe {
            enqueue.run(|to| to.sort_tokens(&routing));
            if !pairs.sorted {
                // The counts alone are for who sorts by itself.
                for array in [&on_gpu.rows, &on_gpu.place, &on_gpu.tiles] {
                    array.fill(&gpu.stream, 0xff).unwrap();
                }
            }
            enqueue.run(|to| {
                to.expert_products(&routing, &expert_weights, &between, &[]);
                to.combine_experts(&routing, h.at(0), &between, Some(next_norm));
                to.norm(alone.at(0), h.at(0), norm.at(0));
            });
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

    /// Whether what down makes is rounded.
    pub fn rounds(&self, rig: &Rig, bucket: usize) -> bool {
        let step = Step::of_rows(self.x.len() / rig.config.hidden_size).upload(rig.gpu);
        let linear = linear(rig.kernels.precision);
        let enqueue = match self.by {
            None => rig.enqueue(&step, StepKind::Mixed, bucket),
            Some(experts) => rig
                .enqueue_by(&step, bucket, Variant { linear, experts })
                .unwrap(),
        };
        enqueue.pairs().rounded
    }

    /// Fails where a row of h, of up to 64 of them, is not what f64 makes of it.
    pub fn is_near(&self, rig: &Rig, h: &[f32], bucket: usize) {
        let (types, hidden) = (rig.kernels.precision, rig.config.hidden_size);
        let rows = self.x.len() / hidden;
        let by_size = f64::from(u8::from(self.rounds(rig, bucket))) * rounding(types.compute);
        let every = rows.div_ceil(64);
        (0..rows).into_par_iter().step_by(every).for_each(|row| {
            let what = format!("{types:?} rows {rows} of {bucket} row {row}");
            // y near the middle of two values may round the other way: a few of them, by one step.
            let (expected, sizes) = self.expected(rig, row);
            // In 8 bits the steps are larger, and so are the sums' errors, of which some make y round the other way.
            let y = match types.activations {
                Activations::FP8 => 0.25,
                Activations::Stored => rounding(types.compute) * 0.5,
            };
            let allowed = |i: usize, v: f64| 2e-6 * (1.0 + v.abs()) + y + by_size * sizes[i];
            let found = &h[row * hidden..][..hidden];
            assert_close(&what, found, &expected, allowed);
        });
    }

    /// Fails where h is not near what another family finds of the same: as near as y, of which a few round the other way, and sums
    /// that are rounded allow.
    pub fn is_near_others(&self, what: &str, rig: &Rig, rounds: bool, h: &[f32], others: &[f32]) {
        let (operand, hidden) = (rig.kernels.precision.compute, rig.config.hidden_size);
        assert_eq!(h.len(), others.len(), "{what}");
        (0..h.len() / hidden).into_par_iter().for_each(|row| {
            let of_row = |h: &[f32]| h[row * hidden..][..hidden].to_vec();
            let expected: Vec<f64> = of_row(others).into_iter().map(f64::from).collect();
            let by_size = if rounds {
                self.expected(rig, row).1
            } else {
                vec![0.0; hidden]
            };
            let allowed = |i: usize, v: f64| {
                4e-6 * (1.0 + v.abs()) + rounding(operand) + rounding(operand) * by_size[i]
            };
            assert_close(
                &format!("{what}, row {row}"),
                &of_row(h),
                &expected,
                allowed,
            );
        });
    }

    /// What a row should be: h, and the sizes of what its experts add to it.
    pub fn expected(&self, rig: &Rig, row: usize) -> (Vec<f64>, Vec<f64>) {
        let config = &rig.config;
        let (hidden, inner) = (config.hidden_size, config.moe_intermediate_size);
        let top_k = config.num_experts_per_tok;
        let matrix = hidden * inner;
        let x = &self.x[row * hidden..][..hidden];
        let mut h: Vec<f64> = self.h[row * hidden..][..hidden]
            .iter()
            .map(|&v| f64::from(v))
            .collect();
        let mut sizes = vec![0.0; hidden];
        for i in row * top_k..(row + 1) * top_k {
            let at = self.experts[i] as usize * matrix;
            let [gate, up, down] =
                [&self.gate, &self.up, &self.down].map(|matrices| &matrices[at..][..matrix]);
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
            let y = held_rows(rig.kernels.precision, &y, inner);
            for ((h, size), down) in h.iter_mut().zip(&mut sizes).zip(down.chunks(inner)) {
                let added = f64::from(self.weights[i]) * dot(down, &y);
                *h += added;
                *size += added.abs();
            }
        }
        (h, sizes)
    }
}
