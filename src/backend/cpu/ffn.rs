//! Feed-forward layers: dense, and mixtures of experts with their router.

use super::linear::{Columns, Linear, Product};
use crate::model::{ModelConfig, Tensor};
use rayon::prelude::*;

/// x / (1 + exp(-x))
pub fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

/// 1 / (1 + exp(-x))
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// gate = silu(gate) * up, element by element.
fn silu_mul(gate: &mut [f32], up: &[f32]) {
    gate.par_chunks_mut(2048)
        .zip(up.par_chunks(2048))
        .for_each(|(gate, up)| {
            for (gate, up) in gate.iter_mut().zip(up) {
                *gate = silu(*gate) * up;
            }
        });
}

/// y = silu(w1 x) * w3 x: x is `[rows, H]`, `y` and the scratch `up` are `[rows, I]`.
pub fn dense_gate_up(
    linear: &mut Linear,
    [w1, w3]: [&Tensor; 2],
    x: &[f32],
    rows: usize,
    y: &mut [f32],
    up: &mut [f32],
) {
    let inner = w1.rows();
    let (y, up) = (&mut y[..rows * inner], &mut up[..rows * inner]);
    linear.run(x, w1, rows, y, Columns::all(inner));
    linear.run(x, w3, rows, up, Columns::all(inner));
    silu_mul(y, up);
}

/// Which experts each row of a step goes to. A *pair* is a (row, expert); pairs are numbered expert by
/// expert, rows ascending, so that an expert's rows lie together.
pub struct Routing {
    top_k: usize,
    /// `[rows, K]`, ascending
    experts: Vec<u32>,
    /// `[rows, K]`, beside `experts`
    weights: Vec<f32>,
    /// `[rows, K]`: the pair's number
    pairs: Vec<u32>,
    /// `[E + 1]`: expert e has pairs `starts[e] .. starts[e + 1]`
    starts: Vec<u32>,
    rows: usize,
}

impl Routing {
    /// For at most `rows` rows.
    pub fn new(config: &ModelConfig, rows: usize) -> Self {
        let top_k = config.num_experts_per_tok;
        Self {
            top_k,
            experts: vec![0; rows * top_k],
            weights: vec![0.0; rows * top_k],
            pairs: vec![0; rows * top_k],
            starts: vec![0; config.num_experts + 1],
            rows: 0,
        }
    }

    /// Experts `[rows, K]`, ascending in each row.
    pub fn experts(&self) -> &[u32] {
        &self.experts[..self.rows * self.top_k]
    }

    /// Their weights `[rows, K]`.
    pub fn weights(&self) -> &[f32] {
        &self.weights[..self.rows * self.top_k]
    }

    /// Chooses from the gate's outputs `[rows, E]`; `bias` is `[E]`.
    pub fn route(&mut self, config: &ModelConfig, logits: &[f32], bias: Option<&[f32]>) {
        let (experts, k) = (config.num_experts, self.top_k);
        self.rows = logits.len() / experts;
        for (row, logits) in logits.chunks(experts).enumerate() {
            choose(
                config,
                logits,
                bias,
                &mut self.experts[row * k..][..k],
                &mut self.weights[row * k..][..k],
            );
        }
        self.starts.fill(0);
        let chosen = &self.experts[..self.rows * k];
        for &expert in chosen {
            self.starts[expert as usize + 1] += 1;
        }
        for expert in 0..experts {
            self.starts[expert + 1] += self.starts[expert];
        }
        // `starts` counts up as pairs are numbered and is then moved back by one expert.
        for (&expert, pair) in chosen.iter().zip(&mut self.pairs) {
            *pair = self.starts[expert as usize];
            self.starts[expert as usize] += 1;
        }
        self.starts.copy_within(..experts, 1);
        self.starts[0] = 0;
    }

    /// Copies each pair's row of x `[rows, H]` to its place in `packed` `[pairs, H]`.
    pub fn pack(&self, x: &[f32], hidden: usize, packed: &mut [f32]) {
        for (index, &pair) in self.pairs[..self.rows * self.top_k].iter().enumerate() {
            let row = index / self.top_k;
            packed[pair as usize * hidden..][..hidden]
                .copy_from_slice(&x[row * hidden..][..hidden]);
        }
    }

    /// One product per expert: its pairs against its matrix.
    pub fn products<'a>(&self, matrices: impl Iterator<Item = &'a Tensor>) -> Vec<Product<'a>> {
        matrices
            .enumerate()
            .map(|(index, weight)| Product {
                weight,
                rows: self.starts[index] as usize..self.starts[index + 1] as usize,
            })
            .collect()
    }

    /// h += sum over a row's experts, ascending, of weight times its pair's row of `down` `[pairs, H]`.
    pub fn combine(&self, down: &[f32], hidden: usize, h: &mut [f32]) {
        h[..self.rows * hidden]
            .par_chunks_mut(hidden)
            .with_min_len(4)
            .enumerate()
            .for_each_init(
                || vec![0.0; hidden],
                |sum, (row, h)| {
                    sum.fill(0.0);
                    let own = row * self.top_k..(row + 1) * self.top_k;
                    for (&pair, &weight) in self.pairs[own.clone()].iter().zip(&self.weights[own]) {
                        let down = &down[pair as usize * hidden..][..hidden];
                        for (sum, down) in sum.iter_mut().zip(down) {
                            *sum += weight * down;
                        }
                    }
                    super::linear::add(h, sum);
                },
            );
    }
}

/// One row: s = sigmoid(logits); the K largest of s + bias, ties to the lower index; their weights are s
/// (the bias chooses, it does not weigh), over their sum + 1e-6 with norm_topk_prob, times
/// routed_scaling_factor. Sums run over experts in ascending index.
fn choose(
    config: &ModelConfig,
    logits: &[f32],
    bias: Option<&[f32]>,
    experts: &mut [u32],
    weights: &mut [f32],
) {
    let choice = |expert: usize| {
        let score = sigmoid(logits[expert]);
        bias.map_or(score, |bias| score + bias[expert])
    };
    for taken in 0..experts.len() {
        let mut best: Option<(usize, f32)> = None;
        for expert in 0..logits.len() {
            if experts[..taken].contains(&(expert as u32)) {
                continue;
            }
            let value = choice(expert);
            if best.is_none_or(|(_, best)| value > best) {
                best = Some((expert, value));
            }
        }
        let (expert, _) = best.expect("num_experts_per_tok is at most num_experts");
        experts[taken] = expert as u32;
    }
    experts.sort_unstable();
    for (weight, &expert) in weights.iter_mut().zip(experts.iter()) {
        *weight = sigmoid(logits[expert as usize]);
    }
    if config.norm_topk_prob {
        let sum = weights.iter().sum::<f32>() + 1e-6;
        weights.iter_mut().for_each(|weight| *weight /= sum);
    }
    weights
        .iter_mut()
        .for_each(|weight| *weight *= config.routed_scaling_factor);
}

/// y = silu(w1_e x) * w3_e x for every pair, of w1 and w3 expert by expert: `packed` is `[pairs, H]`, `y` and the scratch `up` `[pairs, M]`.
pub fn expert_gate_up(
    linear: &mut Linear,
    experts: &[Tensor],
    routing: &Routing,
    packed: &[f32],
    y: &mut [f32],
    up: &mut [f32],
) {
    let inner = experts[0].rows();
    let pairs = routing.experts().len();
    let (y, up) = (&mut y[..pairs * inner], &mut up[..pairs * inner]);
    let [gates, ups] = [0, 1].map(|part| routing.products(experts[part..].iter().step_by(2)));
    linear.run_grouped(packed, &gates, y, Columns::all(inner));
    linear.run_grouped(packed, &ups, up, Columns::all(inner));
    silu_mul(y, up);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelSource;

    #[test]
    fn ties_go_to_the_lower_index() {
        let (config, _) = ModelSource::parse("random:tiny").unwrap().config().unwrap();
        let config = ModelConfig {
            num_experts: 6,
            num_experts_per_tok: 3,
            ..config
        };
        for (logits, expected) in [
            ([0.0; 6], [0, 1, 2]),
            ([0.0, 2.0, 1.0, 1.0, 1.0, -1.0], [1, 2, 3]),
        ] {
            let (mut experts, mut weights) = ([0; 3], [0.0; 3]);
            choose(&config, &logits, None, &mut experts, &mut weights);
            assert_eq!(experts, expected);
        }
    }
}
