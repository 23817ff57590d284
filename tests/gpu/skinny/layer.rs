//! Random layers of many shapes, and what a step of them starts from.

use crate::common::random::Random;
use crate::rig::{Enqueue, Rig, Step, StepOnGpu, Weights, config, matrix, rounded};
use crate::support::Gpu;
use tailgraph::backend::cuda::families::conv::ShortConv;
use tailgraph::backend::cuda::families::experts::ExpertWeights;
use tailgraph::backend::cuda::families::router::RouterWeights;
use tailgraph::backend::cuda::families::skinny::{ConvIn, Prediction, Residual};
use tailgraph::backend::cuda::matrix::Matrix;
use tailgraph::backend::cuda::memory::buffer::Buffer;
use tailgraph::model::declared::Role;
use tailgraph::model::{DType, ModelConfig, WeightFormat};
use tailgraph::plan::Precision;

pub const SLOTS: usize = 9;

#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub hidden: usize,
    pub swap_ab: usize,
    pub inner: usize,
    pub experts: usize,
    pub top_k: usize,
    pub taps: usize,
    pub biases: bool,
}

/// Ragged tiles, one stage of the ring and several, one expert and all of them.
pub const SHAPES: [Shape; 6] = [
    shape(64, 32, 32, 4, 1, 1, false),
    shape(96, 160, 96, 8, 2, 3, true),
    shape(544, 2080, 224, 32, 4, 4, false),
    shape(2048, 7168, 1792, 32, 4, 3, false),
    shape(2080, 96, 2112, 5, 5, 8, true),
    shape(4096, 64, 64, 17, 8, 2, false),
];

/// More than 32 experts: one more, of LFM2-24B-A2B, one less, all that there are; widths that are no whole line, top-k of 3
/// and 8.
pub const WIDE: [Shape; 6] = [
    shape(64, 32, 96, 33, 3, 3, false),
    shape(2048, 7168, 1536, 64, 4, 3, false),
    shape(96, 64, 96, 63, 8, 4, true),
    shape(544, 96, 1792, 50, 3, 2, false),
    shape(2080, 96, 224, 47, 8, 3, true),
    shape(256, 64, 160, 64, 8, 3, false),
];

pub const fn shape(
    hidden: usize,
    swap_ab: usize,
    inner: usize,
    experts: usize,
    top_k: usize,
    taps: usize,
    biases: bool,
) -> Shape {
    Shape {
        hidden,
        swap_ab,
        inner,
        experts,
        top_k,
        taps,
        biases,
    }
}

impl Shape {
    pub fn config(&self) -> ModelConfig {
        ModelConfig {
            hidden_size: self.hidden,
            intermediate_size: self.swap_ab,
            moe_intermediate_size: self.inner,
            num_experts: self.experts,
            num_experts_per_tok: self.top_k,
            conv_l_cache: self.taps,
            conv_bias: self.biases,
            ..config()
        }
    }
}

/// A layer's weights.
pub struct Layer {
    shape: Shape,
    pub norm: Buffer,
    pub ffn_norm: Buffer,
    pub in_proj: Weights,
    pub in_bias: Option<Buffer>,
    pub taps: Buffer,
    pub taps_bias: Option<Buffer>,
    pub out_proj: Weights,
    pub out_bias: Option<Buffer>,
    pub router: Buffer,
    /// [`RouterWeights::predictor`]
    pub predictor: Buffer,
    pub expert_bias: Buffer,
    /// Matrices of each expert: `[M, H]` twice, then `[H, M]`, packed.
    pub experts: [Weights; 3],
    /// `[I, H]` twice, then `[H, I]`.
    pub swap_ab: [Weights; 3],
    pub qkv: Weights,
    pub lm_head: Weights,
}

impl Layer {
    /// `all_alike`: every row goes to the first experts.
    pub fn new(random: &mut Random, rig: &Rig, shape: Shape, all_alike: bool) -> Self {
        let (gpu, weights) = (rig.gpu, rig.kernels.precision.weights);
        let Shape { hidden, inner, .. } = shape;
        let matrix = |random: &mut Random, outputs: usize, fan_in: usize| {
            let values = random.values(outputs * fan_in, 1.7 / (fan_in as f32).sqrt());
            gpu.weights(weights, &values, [outputs, fan_in])
        };
        let of_experts = |random: &mut Random, outputs: usize, fan_in: usize| {
            let values = random.values(
                shape.experts * outputs * fan_in,
                1.7 / (fan_in as f32).sqrt(),
            );
            gpu.expert_weights(weights, &values, [outputs, fan_in])
        };
        let vector = |random: &mut Random, size: usize, scale: f32| {
            gpu.values(DType::F32, &random.values(size, scale))
        };
        let bias = |random: &mut Random, size: usize| {
            shape
                .biases
                .then(|| gpu.values(DType::F32, &random.values(size, 1.0)))
        };
        let scale = 3.0 / (hidden as f32).sqrt();
        let mut expert_bias = random.values(shape.experts, 0.3);
        if all_alike {
            expert_bias[..shape.top_k].fill(10.0);
        }
        let (all, vocabulary) = (shape.experts, rig.config.vocab_size);
        let norm = vector(random, hidden, 1.5);
        let ffn_norm = random.values(hidden, 1.5);
        let router = random.values(all * hidden, scale);
        let rows = router.chunks(hidden);
        let weighed =
            rows.flat_map(|row| row.iter().zip(&ffn_norm).map(|(gate, norm)| gate * norm));
        let weighed: Vec<f32> = weighed.collect();
        Self {
            shape,
            norm,
            ffn_norm: gpu.values(DType::F32, &ffn_norm),
            predictor: gpu.values(DType::BF16, &weighed),
            in_proj: matrix(random, 3 * hidden, hidden),
            in_bias: bias(random, 3 * hidden),
            taps: vector(random, hidden * shape.taps, 1.0),
            taps_bias: bias(random, hidden),
            out_proj: matrix(random, hidden, hidden),
            out_bias: bias(random, hidden),
            router: gpu.values(DType::F32, &router),
            expert_bias: gpu.values(DType::F32, &expert_bias),
            experts: [
                of_experts(random, inner, hidden),
                of_experts(random, inner, hidden),
                of_experts(random, hidden, inner),
            ],
            swap_ab: [
                matrix(random, shape.swap_ab, hidden),
                matrix(random, shape.swap_ab, hidden),
                matrix(random, hidden, shape.swap_ab),
            ],
            qkv: matrix(random, qkv_outputs(&rig.config), hidden),
            lm_head: gpu.weights(
                Role::Head.stored(weights),
                &random.values(vocabulary * hidden, 1.7 / (hidden as f32).sqrt()),
                [vocabulary, hidden],
            ),
        }
    }

    pub fn router(&self) -> RouterWeights {
        RouterWeights {
            norm: self.ffn_norm.at(0),
            gate: matrix(
                &self.router,
                WeightFormat::F32,
                [self.shape.experts, self.shape.hidden],
            ),
            bias: self.expert_bias.at(0),
            predictor: self.predictor.at(0),
        }
    }

    pub fn conv_in(&self) -> ConvIn {
        ConvIn {
            norm: self.norm.at(0),
            in_proj: self.in_proj.matrix,
            bias: at(&self.in_bias),
        }
    }

    pub fn short_conv(&self, x: &Buffer, bcx: u64, state: &Buffer) -> ShortConv {
        ShortConv {
            x: x.at(0),
            bcx,
            state: state.at(0),
            taps: self.taps.at(0),
            bias: at(&self.taps_bias),
        }
    }

    pub fn out(&self, x: &Buffer) -> Residual {
        Residual {
            x: x.at(0),
            w: self.out_proj.matrix,
            bias: at(&self.out_bias),
        }
    }

    /// w1, w3 and w2 of a dense feed-forward.
    pub fn dense(&self) -> [Matrix; 3] {
        [0, 1, 2].map(|which: usize| self.swap_ab[which].matrix)
    }

    /// The layer's first kernel, whole: `x` of `h`, and a prediction.
    pub fn begin(
        &self,
        queue: &Enqueue<'_>,
        gpu: &Gpu,
        input: &Input,
        (x, h): (&Buffer, &Buffer),
        prediction: Option<&Prediction>,
    ) {
        let skinny = queue.skinny().expect("they are loaded");
        let state = gpu.values(queue.kernels.precision.compute, &input.state);
        let conv = self.short_conv(x, 0, &state);
        // SAFETY: every array has the shape that its operation asks for.
        unsafe {
            queue.run(|to| to.skinny_conv(skinny, &conv, &self.conv_in(), h.at(0), prediction));
        }
        gpu.stream.synchronize().unwrap();
    }

    pub fn expert_weights(&self) -> ExpertWeights {
        let [gate, up, down] = [0, 1, 2].map(|which: usize| self.experts[which].matrix);
        ExpertWeights { gate, up, down }
    }
}

pub fn qkv_outputs(config: &ModelConfig) -> usize {
    (config.num_attention_heads + 2 * config.num_key_value_heads) * config.head_dim
}

pub fn at(buffer: &Option<Buffer>) -> u64 {
    buffer.as_ref().map_or(0, |buffer| buffer.at(0))
}

/// What a bucket's rows start from: `[rows, H]`, and every slot's conv state.
pub struct Input {
    pub h: Vec<f32>,
    pub state: Vec<f32>,
    /// Slot and position of each row.
    pub rows: Vec<(usize, usize)>,
}

impl Input {
    pub fn new(random: &mut Random, types: Precision, shape: Shape, rows: usize) -> Self {
        let first = random.below(SLOTS);
        let state = random.values(SLOTS * (shape.taps - 1) * shape.hidden, 1.0);
        Self {
            h: random.values(rows * shape.hidden, 3.0),
            state: rounded(types.compute, &state),
            rows: (0..rows)
                .map(|r| ((first + r) % SLOTS, random.below(12)))
                .collect(),
        }
    }

    pub fn step(&self, gpu: &Gpu) -> StepOnGpu {
        let mut step = Step::with_slots(&mut Random(5), SLOTS, 16, 4);
        for &(slot, position) in &self.rows {
            step.chunk(slot, position as u32, 1);
            // A greedy row's logits are not stored.
            step.slots[slot].sampling.temperature = 0.7_f32.to_bits();
        }
        for chunk in &mut step.chunks {
            chunk.sampled = true;
        }
        step.upload(gpu)
    }
}
