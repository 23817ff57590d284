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
    use crate::backend::cpu::check::{Numbers, assert_close};
    use crate::backend::cpu::lanes::Isa;
    use crate::model::ModelConfig;

    fn config(num_experts: usize, top_k: usize) -> ModelConfig {
        ModelConfig {
            family: &crate::model::lfm2_moe::LFM2_MOE,
            vocab_size: 8,
            hidden_size: 24,
            num_hidden_layers: 1,
            intermediate_size: 40,
            moe_intermediate_size: 20,
            num_attention_heads: 1,
            num_key_value_heads: 1,
            head_dim: 24,
            num_dense_layers: 0,
            num_experts,
            num_experts_per_tok: top_k,
            use_expert_bias: true,
            norm_topk_prob: true,
            routed_scaling_factor: 1.0,
            conv_l_cache: 3,
            conv_bias: false,
            norm_eps: 1e-5,
            max_position_embeddings: 128,
            rope_theta: 1e6,
            tie_word_embeddings: true,
            layer_types: vec![crate::model::LayerType::Conv],
            bos_token_id: None,
            eos_token_ids: vec![],
            pad_token_id: None,
        }
    }

    fn choose_with(
        config: &ModelConfig,
        logits: &[f32],
        bias: Option<&[f32]>,
    ) -> (Vec<u32>, Vec<f32>) {
        let k = config.num_experts_per_tok;
        let (mut experts, mut weights) = (vec![0; k], vec![0.0; k]);
        choose(config, logits, bias, &mut experts, &mut weights);
        (experts, weights)
    }

    #[test]
    fn ties_go_to_the_lower_index() {
        let config = config(6, 3);
        assert_eq!(choose_with(&config, &[0.0; 6], None).0, [0, 1, 2]);
        let logits = [0.0, 2.0, 1.0, 1.0, 1.0, -1.0];
        assert_eq!(choose_with(&config, &logits, None).0, [1, 2, 3]);
    }

    #[test]
    fn the_bias_chooses_and_does_not_weigh() {
        let mut config = config(4, 2);
        let logits = [1.0f32, 0.0, -1.0, -2.0];
        let bias = [0.0, 0.0, 0.0, 5.0];
        let s = |x: f32| 1.0 / (1.0 + f64::from(-x).exp());
        let (raw, sum) = ([s(1.0), s(-2.0)], s(1.0) + s(-2.0) + 1e-6);
        for (norm, scale, expected) in [
            (true, 1.0, [raw[0] / sum, raw[1] / sum]),
            (false, 1.0, raw),
            (true, 2.5, [raw[0] / sum * 2.5, raw[1] / sum * 2.5]),
        ] {
            config.norm_topk_prob = norm;
            config.routed_scaling_factor = scale;
            let (experts, weights) = choose_with(&config, &logits, Some(&bias));
            assert_eq!(experts, [0, 3]);
            assert_close(&weights, &expected, 1e-6);
        }
        assert_eq!(choose_with(&config, &logits, None).0, [0, 1]);
    }

    type Matrices = [Vec<f32>; 3];

    fn expert(numbers: &mut Numbers, hidden: usize, inner: usize) -> ([Tensor; 3], Matrices) {
        let (w1, a) = numbers.bf16_matrix(inner, hidden);
        let (w3, b) = numbers.bf16_matrix(inner, hidden);
        let (w2, c) = numbers.bf16_matrix(hidden, inner);
        ([w1, w3, w2], [a, b, c])
    }

    fn naive(x: &[f32], [w1, w3, w2]: &Matrices) -> Vec<f64> {
        let dot =
            |w: &[f32], x: &[f64]| -> f64 { w.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum() };
        let x: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
        let y: Vec<f64> = w1
            .chunks(x.len())
            .zip(w3.chunks(x.len()))
            .map(|(w1, w3)| {
                let gate = dot(w1, &x);
                gate / (1.0 + (-gate).exp()) * dot(w3, &x)
            })
            .collect();
        w2.chunks(y.len()).map(|w2| dot(w2, &y)).collect()
    }

    #[test]
    fn a_dense_feed_forward_is_the_formula_in_f64() {
        let mut numbers = Numbers::new(9);
        let (rows, hidden, inner) = (5, 24, 43);
        let ([w1, w3, w2], values) = expert(&mut numbers, hidden, inner);
        let x = numbers.normal(rows * hidden);
        let mut linear = Linear::new(Isa::detect(), rows * 64);
        let (mut y, mut up) = (vec![0.0; rows * inner], vec![0.0; rows * inner]);
        dense_gate_up(&mut linear, [&w1, &w3], &x, rows, &mut y, &mut up);
        let mut out = vec![0.0; rows * hidden];
        linear.run(&y, &w2, rows, &mut out, Columns::all(hidden));
        let expected: Vec<f64> = x.chunks(hidden).flat_map(|x| naive(x, &values)).collect();
        assert_close(&out, &expected, 1e-6);
    }

    #[test]
    fn experts_add_up_to_the_formula_in_f64() {
        let mut numbers = Numbers::new(10);
        for (num_experts, top_k, rows) in [(8, 4, 13), (5, 1, 3), (3, 3, 6), (40, 2, 1)] {
            let config = config(num_experts, top_k);
            let (hidden, inner) = (config.hidden_size, config.moe_intermediate_size);
            let (experts, values): (Vec<_>, Vec<_>) = (0..num_experts)
                .map(|_| expert(&mut numbers, hidden, inner))
                .unzip();
            let of = |parts: &[usize]| -> Vec<Tensor> {
                let each = experts
                    .iter()
                    .flat_map(|e| parts.iter().map(|&part| e[part].clone()));
                each.collect()
            };
            let (gate_up, down) = (of(&[0, 1]), of(&[2]));
            let x = numbers.normal(rows * hidden);
            let logits = numbers.normal(rows * num_experts);
            let bias = numbers.normal(num_experts);
            let h = numbers.normal(rows * hidden);

            // Room for more rows than there are: what lies beyond must not matter.
            let mut routing = Routing::new(&config, rows + 5);
            routing.route(&config, &logits, Some(&bias));
            let pairs = rows * top_k;
            let mut linear = Linear::new(Isa::detect(), pairs * 16);
            let mut packed = vec![0.0; pairs * hidden];
            routing.pack(&x, hidden, &mut packed);
            let (mut y, mut up) = (vec![0.0; pairs * inner], vec![0.0; pairs * inner]);
            expert_gate_up(&mut linear, &gate_up, &routing, &packed, &mut y, &mut up);
            let downs = routing.products(down.iter());
            let mut down = vec![0.0; pairs * hidden];
            linear.run_grouped(&y, &downs, &mut down, Columns::all(hidden));
            let mut found = h.clone();
            routing.combine(&down, hidden, &mut found);

            let mut expected = Vec::new();
            for row in 0..rows {
                let logits = &logits[row * num_experts..][..num_experts];
                let (chosen, weights) = choose_with(&config, logits, Some(&bias));
                assert_eq!(routing.experts()[row * top_k..][..top_k], chosen);
                let mut sum: Vec<f64> = h[row * hidden..][..hidden]
                    .iter()
                    .map(|&v| f64::from(v))
                    .collect();
                for (&expert, &weight) in chosen.iter().zip(&weights) {
                    let f = naive(&x[row * hidden..][..hidden], &values[expert as usize]);
                    for (sum, f) in sum.iter_mut().zip(f) {
                        *sum += f64::from(weight) * f;
                    }
                }
                expected.extend(sum);
            }
            assert_close(&found, &expected, 1e-6);
        }
    }
}
