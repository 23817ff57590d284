//! The short convolution and its state against f64, over several steps.

use crate::common::random::Random;
use crate::rig::{
    OPERANDS, Rig, Step, assert_close, assert_same_bits, config, operand, rounded, rounding,
};
use crate::support::Gpu;
use tailgraph::backend::cuda::families::conv::ShortConv;
use tailgraph::backend::cuda::memory::buffer::Buffer;
use tailgraph::model::{DType, ModelConfig};
use tailgraph::plan::StepKind;

const SLOTS: usize = 5;
const TOKENS: usize = 40;

/// One conv layer and a sequence of [`TOKENS`] columns for each slot.
struct Layer<'g> {
    rig: Rig<'g>,
    hidden: usize,
    taps: usize,
    /// `[slots, tokens, 3H]`: B, C, X as the operand type holds them
    bcx: Vec<f32>,
    /// `[H, L]`
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    state: Buffer,
}

impl<'g> Layer<'g> {
    fn new(gpu: &'g Gpu, random: &mut Random, dtype: DType, hidden: usize, taps: usize) -> Self {
        let config = ModelConfig {
            hidden_size: hidden,
            conv_l_cache: taps,
            ..config()
        };
        let state_bytes = SLOTS * (taps - 1) * hidden * dtype.bytes();
        Self {
            rig: Rig::new(gpu, config, operand(dtype)),
            hidden,
            taps,
            bcx: rounded(dtype, &random.values(SLOTS * TOKENS * 3 * hidden, 1.5)),
            weight: random.values(hidden * taps, 1.0),
            bias: (random.below(2) == 0).then(|| random.values(hidden, 1.0)),
            state: gpu.poisoned(state_bytes),
        }
    }

    fn dtype(&self) -> DType {
        self.rig.kernels.precision.compute
    }

    fn row(&self, slot: usize, position: usize) -> &[f32] {
        &self.bcx[(slot * TOKENS + position) * 3 * self.hidden..][..3 * self.hidden]
    }

    /// x of the step's rows; the bucket's last row is always padding.
    fn run(&self, step: &Step, kind: StepKind) -> Vec<f32> {
        let gpu = self.rig.gpu;
        let rows = step.rows();
        let bucket = rows.len() + 1;
        let bcx: Vec<f32> = rows
            .iter()
            .flat_map(|&(slot, position)| self.row(slot, position).to_vec())
            .collect();
        let bcx = gpu.values(
            self.dtype(),
            &[bcx, vec![f32::NAN; 3 * self.hidden]].concat(),
        );
        let x = gpu.poisoned(bucket * self.hidden * self.dtype().bytes());
        let taps = gpu.values(DType::F32, &self.weight);
        let bias = self.bias.as_ref().map(|b| gpu.values(DType::F32, b));
        let on_gpu = step.upload(gpu);
        let conv = ShortConv {
            x: x.at(0),
            bcx: bcx.at(0),
            state: self.state.at(0),
            taps: taps.at(0),
            bias: bias.as_ref().map_or(0, |b| b.at(0)),
        };
        // SAFETY: the arrays have the shapes that `ShortConv` asks for.
        unsafe {
            let enqueue = self.rig.enqueue(&on_gpu, kind, bucket);
            enqueue.run(|to| to.short_conv(&conv));
        }
        let mut x = gpu.get_values(self.dtype(), &x);
        let padding = x.split_off(rows.len() * self.hidden);
        assert!(padding.iter().all(|v| v.is_nan()), "padding was written");
        x
    }

    fn expected(&self, slot: usize, position: usize) -> Vec<f64> {
        let h = self.hidden;
        let column = |c: usize| {
            let taps = (0..self.taps).map(|j| {
                let back = self.taps - 1 - j;
                if back > position {
                    return 0.0;
                }
                let row = self.row(slot, position - back);
                let u = rounded(self.dtype(), &[row[c] * row[2 * h + c]])[0];
                f64::from(self.weight[c * self.taps + j]) * f64::from(u)
            });
            let sum: f64 = taps.sum();
            let bias = self.bias.as_ref().map_or(0.0, |b| f64::from(b[c]));
            f64::from(self.row(slot, position)[h + c]) * (sum + bias)
        };
        (0..h).map(column).collect()
    }

    fn check(&self, step: &Step, x: &[f32]) {
        for (r, (slot, position)) in step.rows().into_iter().enumerate() {
            let what = format!(
                "{:?} hidden {} taps {} slot {slot} position {position}",
                self.dtype(),
                self.hidden,
                self.taps
            );
            let row = &x[r * self.hidden..][..self.hidden];
            let allowed = |_, v: f64| rounding(self.dtype()) * v.abs() + 5e-6;
            assert_close(&what, row, &self.expected(slot, position), allowed);
        }
    }
}

/// Every slot's sequence in chunks of random lengths, slots in random order and not all in every step.
fn in_chunks(layer: &Layer, random: &mut Random, longest: usize) -> Vec<f32> {
    let mut at = [0; SLOTS];
    let mut outputs = vec![f32::NAN; SLOTS * TOKENS * layer.hidden];
    while at.iter().any(|&position| position < TOKENS) {
        let mut step = Step::with_slots(random, SLOTS, TOKENS as u32, 16);
        let first = random.below(SLOTS);
        for slot in (0..SLOTS).map(|i| (first + i) % SLOTS) {
            let rows = random.below(longest + 1).min(TOKENS - at[slot]);
            if rows > 0 {
                step.chunk(slot, at[slot] as u32, rows);
                at[slot] += rows;
            }
        }
        if step.chunks.is_empty() {
            continue;
        }
        let decode = longest == 1;
        let kind = if decode {
            StepKind::Decode
        } else {
            StepKind::Mixed
        };
        let x = layer.run(&step, kind);
        layer.check(&step, &x);
        for (row, (slot, position)) in x.chunks(layer.hidden).zip(step.rows()) {
            outputs[(slot * TOKENS + position) * layer.hidden..][..layer.hidden]
                .copy_from_slice(row);
        }
    }
    outputs
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn convolutions_carry_their_state_over_steps() {
    let gpu = Gpu::new();
    let mut random = Random(21);
    for dtype in OPERANDS {
        for taps in 1..=8 {
            let hidden = [32, 544, 2048][random.below(3)];
            let layer = Layer::new(&gpu, &mut random, dtype, hidden, taps);
            let whole = in_chunks(&layer, &mut random, TOKENS);
            for longest in [2, 7, 16] {
                let chunked = in_chunks(&layer, &mut random, longest);
                let what = format!("{dtype:?} taps {taps} chunks of up to {longest}");
                assert_same_bits(&what, &chunked, &whole);
            }
            in_chunks(&layer, &mut random, 1);
        }
    }
}
