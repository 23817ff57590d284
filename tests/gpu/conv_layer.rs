//! A conv layer's in-projection and convolution, for tests of kernels that do both.

use crate::common::random::Random;
use crate::rig::{Rig, Step, StepOnGpu, assert_rows_close, config, encode, held, rounded};
use crate::support::Gpu;
use tailgraph::backend::cuda::families::conv::ShortConv;
use tailgraph::backend::cuda::families::experts::ExpertWeights;
use tailgraph::backend::cuda::families::tiled::{Epilogue, Prepared, Product, Rows};
use tailgraph::backend::cuda::tuning::variants::Variant;
use tailgraph::model::{DType, ModelConfig};
use tailgraph::plan::Precision;

/// A conv layer's input: normed rows, every slot's state, weights.
pub struct ConvCase {
    hidden: usize,
    slots: usize,
    x: Vec<f32>,
    state: Vec<f32>,
    w: Vec<f32>,
    of_taps: Vec<f32>,
    biases: Option<[Vec<f32>; 2]>,
    /// Slot and position of each row.
    rows: Vec<(usize, usize)>,
}

impl ConvCase {
    pub fn new(
        random: &mut Random,
        types: Precision,
        rows: usize,
        hidden: usize,
        taps: usize,
    ) -> Self {
        let slots = rows + 4;
        let first = random.below(slots);
        let values =
            |random: &mut Random, n, scale| rounded(types.compute, &random.values(n, scale));
        let scale = 1.7 / (hidden as f32).sqrt();
        Self {
            hidden,
            slots,
            x: values(random, rows * hidden, 2.0),
            state: values(random, slots * (taps - 1) * hidden, 1.0),
            w: held(
                types.weights,
                &random.values(3 * hidden * hidden, scale),
                hidden,
            ),
            of_taps: random.values(hidden * taps, 1.0),
            biases: (random.below(2) == 0)
                .then(|| [3 * hidden, hidden].map(|n| random.values(n, 1.0))),
            rows: (0..rows)
                .map(|r| ((first + r) % slots, random.below(12)))
                .collect(),
        }
    }

    fn step(&self, gpu: &Gpu) -> StepOnGpu {
        let mut step = Step::with_slots(&mut Random(5), self.slots, 16, 4);
        for &(slot, position) in &self.rows {
            step.chunk(slot, position as u32, 1);
        }
        step.upload(gpu)
    }

    /// y `[bucket, H]` and the state after it, in one kernel of `variant`'s, before a layer's `experts`; or in two, of which the first
    /// is a tiled one.
    pub fn run(
        &self,
        rig: &Rig,
        bucket: usize,
        by: Option<(Variant, Option<&ExpertWeights>)>,
    ) -> [Vec<f32>; 2] {
        let (gpu, types, hidden) = (rig.gpu, rig.kernels.precision, self.hidden);
        let step = self.step(gpu);
        let operand = |n: usize| gpu.poisoned(bucket * n * types.compute.bytes());
        let (x, grouped) = (operand(hidden), operand(3 * hidden));
        x.write(&gpu.stream, 0, &encode(types.compute, &self.x))
            .unwrap();
        let weights = gpu.weights(types.weights, &self.w, [3 * hidden, hidden]);
        let w = weights.matrix;
        let state = gpu.values(types.compute, &self.state);
        let taps = gpu.values(DType::F32, &self.of_taps);
        let biases = self.biases.as_ref();
        let biases = biases.map(|biases| [0, 1].map(|i| gpu.values(DType::F32, &biases[i])));
        let [bias, taps_bias] = biases
            .as_ref()
            .map_or([0; 2], |biases| [0, 1].map(|i| biases[i].at(0)));
        let conv = ShortConv {
            x: x.at(0),
            bcx: grouped.at(0),
            state: state.at(0),
            taps: taps.at(0),
            bias: taps_bias,
        };
        let out = if let Some((variant, experts)) = by {
            let queue = rig.enqueue_by(&step, bucket, variant).unwrap();
            let persistent = queue.persistent_convolves();
            // SAFETY: the arrays have the shapes that the operation asks for.
            unsafe {
                queue.run(|to| match (persistent, queue.swap_ab_convolves()) {
                    (Some(persistent), _) => to.persistent_conv(persistent, &conv, &w, bias),
                    (None, Some(swap_ab)) => {
                        to.swap_ab_conv(swap_ab, &conv, &w, bias, experts);
                    }
                    (None, None) => panic!("no kernel of {variant:?} for H {hidden}"),
                })
            };
            grouped
        } else {
            let product = Product {
                y: grouped.at(0),
                x: x.at(0),
                w,
                w_pair: None,
                bias,
                epilogue: Epilogue::Store,
                prepared: Prepared::Scratch(0),
            };
            let tiled = rig.enqueue_by(&step, bucket, Variant::TILED).unwrap();
            // SAFETY: as above.
            unsafe {
                tiled.run(|to| to.product(&product, Rows::Step));
                tiled.run(|to| to.short_conv(&conv));
            }
            x
        };
        let mut y = gpu.get_values(types.compute, &out);
        y.truncate(bucket * hidden);
        [y, gpu.get_values(types.compute, &state)]
    }

    /// y `[rows, H]` and the state after it, in f64 but for what is rounded.
    pub fn expected(&self, types: Precision) -> [Vec<f32>; 2] {
        let (h, taps) = (self.hidden, self.of_taps.len() / self.hidden);
        let held = |v: f64| f64::from(rounded(types.compute, &[v as f32])[0]);
        let mut state = self.state.clone();
        let mut y = vec![];
        for (r, &(slot, position)) in self.rows.iter().enumerate() {
            let x = &self.x[r * h..][..h];
            for c in 0..h {
                let [b, gate, value] = [0, 1, 2].map(|g| {
                    let w = &self.w[(g * h + c) * h..][..h];
                    let products = x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w));
                    let bias = self.biases.as_ref().map_or(0.0, |[b, _]| b[g * h + c]);
                    held(products.sum::<f64>() + f64::from(bias))
                });
                let column = |j: usize| (slot * (taps - 1) + j) * h + c;
                let mut u: Vec<f64> = (0..taps - 1)
                    .map(|j| {
                        if taps - 1 - j <= position {
                            f64::from(state[column(j)])
                        } else {
                            0.0
                        }
                    })
                    .collect();
                u.push(held(b * value));
                for j in 1..taps {
                    state[column(j - 1)] = u[j] as f32;
                }
                let of_taps = &self.of_taps[c * taps..][..taps];
                let terms = of_taps.iter().zip(&u).map(|(&w, u)| f64::from(w) * u);
                let bias = self.biases.as_ref().map_or(0.0, |[_, b]| b[c]);
                y.push(held(gate * (terms.sum::<f64>() + f64::from(bias))) as f32);
            }
        }
        [y, state]
    }

    /// Fails where what was found is not what was expected, to `limit` of each row's size.
    pub fn check(&self, what: &str, found: &[Vec<f32>; 2], expected: &[Vec<f32>; 2], limit: f64) {
        let rows = self.rows.len();
        let y = [&found[0][..], &expected[0][..]];
        assert_rows_close(what, y, self.hidden, rows, limit);
        let width = self.state.len() / self.slots;
        if width > 0 {
            let what = format!("{what}: state");
            let state = [&found[1][..], &expected[1][..]];
            assert_rows_close(&what, state, width, self.slots, limit);
        }
    }

    /// Row `row` of this layer at `place`, behind rows of its own; and which row it is there.
    pub fn moved(&self, random: &mut Random, types: Precision, row: usize, place: usize) -> Self {
        let (hidden, taps) = (self.hidden, self.of_taps.len() / self.hidden);
        let slot = self.rows[row].0;
        let mut moved = Self::new(random, types, place + 1, hidden, taps);
        moved.slots = self.slots;
        moved.x[place * hidden..].copy_from_slice(&self.x[row * hidden..][..hidden]);
        moved.w.clone_from(&self.w);
        moved.state.clone_from(&self.state);
        moved.of_taps.clone_from(&self.of_taps);
        moved.biases.clone_from(&self.biases);
        for (r, other) in moved.rows.iter_mut().enumerate() {
            other.0 = (slot + self.slots + r - place) % self.slots;
        }
        moved.rows[place] = self.rows[row];
        moved
    }
}

pub fn conv_config(hidden: usize, taps: usize) -> ModelConfig {
    ModelConfig {
        hidden_size: hidden,
        conv_l_cache: taps,
        ..config()
    }
}
