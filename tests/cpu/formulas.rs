//! The forward pass in f64, written for reading: no cache, no chunks, one sequence.

use tailgraph::model::op::OpKind;
use tailgraph::model::{LayerType, Model, ModelConfig, Tensor};

/// One hidden vector per token.
type Rows = Vec<Vec<f64>>;

fn wide(tensor: &Tensor) -> Vec<f64> {
    tensor.to_f32().iter().map(|&v| f64::from(v)).collect()
}

fn matvec(tensor: &Tensor, x: &[f64]) -> Vec<f64> {
    let dot = |row: &[f64]| row.iter().zip(x).map(|(w, x)| w * x).sum();
    wide(tensor).chunks(x.len()).map(dot).collect()
}

fn rmsnorm(x: &[f64], weight: &[f64], eps: f32) -> Vec<f64> {
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    let rms = (mean + f64::from(eps)).sqrt();
    x.iter().zip(weight).map(|(v, w)| v / rms * w).collect()
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn add_optional(y: &mut [f64], bias: Option<&Tensor>) {
    if let Some(bias) = bias {
        y.iter_mut().zip(wide(bias)).for_each(|(y, b)| *y += b);
    }
}

fn mix(model: &Model, layer: usize, x: &Rows) -> Rows {
    let config = &model.config;
    let hidden = config.hidden_size;
    let of = |kind| model.weights.of(Some(layer), kind);
    match config.layer_types[layer] {
        LayerType::Conv => {
            let [in_proj, conv, out_proj] =
                [OpKind::ConvInProj, OpKind::ShortConv, OpKind::ConvOutProj].map(of);
            let bcx: Rows = x
                .iter()
                .map(|x| {
                    let mut row = matvec(&in_proj[0], x);
                    add_optional(&mut row, in_proj.get(1));
                    row
                })
                .collect();
            let taps = wide(&conv[0]);
            let count = config.conv_l_cache;
            (0..x.len())
                .map(|t| {
                    let mut y = vec![0.0; hidden];
                    for (c, y) in y.iter_mut().enumerate() {
                        for k in 0..count {
                            if t + k + 1 >= count {
                                let u = &bcx[t + k + 1 - count];
                                *y += taps[c * count + k] * u[c] * u[2 * hidden + c];
                            }
                        }
                    }
                    add_optional(&mut y, conv.get(1));
                    for (c, y) in y.iter_mut().enumerate() {
                        *y *= bcx[t][hidden + c];
                    }
                    let mut out = matvec(&out_proj[0], &y);
                    add_optional(&mut out, out_proj.get(1));
                    out
                })
                .collect()
        }
        LayerType::FullAttention => {
            let ([q_proj, k_proj, v_proj], [q_norm, k_norm], [out_proj]) = (
                of(OpKind::QkvProj),
                of(OpKind::QkNormRope),
                of(OpKind::AttentionOutProj),
            ) else {
                panic!("attention has other tensors")
            };
            let size = config.head_dim;
            let heads = |proj: &Tensor, norm: &Tensor| -> Vec<Rows> {
                let norm = wide(norm);
                x.iter()
                    .enumerate()
                    .map(|(t, x)| {
                        matvec(proj, x)
                            .chunks(size)
                            .map(|head| rotate(config, &rmsnorm(head, &norm, config.norm_eps), t))
                            .collect()
                    })
                    .collect()
            };
            let (q, k) = (heads(q_proj, q_norm), heads(k_proj, k_norm));
            let v: Rows = x.iter().map(|x| matvec(v_proj, x)).collect();
            let group = config.num_attention_heads / config.num_key_value_heads;
            (0..x.len())
                .map(|t| {
                    let mut mixed = Vec::new();
                    for head in 0..config.num_attention_heads {
                        let weights: Vec<f64> = (0..=t)
                            .map(|p| {
                                let pairs = q[t][head].iter().zip(&k[p][head / group]);
                                let dot: f64 = pairs.map(|(a, b)| a * b).sum();
                                (dot / (size as f64).sqrt()).exp()
                            })
                            .collect();
                        let sum: f64 = weights.iter().sum();
                        mixed.extend((0..size).map(|d| {
                            let value = |p: usize| v[p][head / group * size + d];
                            (0..=t).map(|p| weights[p] / sum * value(p)).sum::<f64>()
                        }));
                    }
                    matvec(out_proj, &mixed)
                })
                .collect()
        }
    }
}

fn rotate(config: &ModelConfig, head: &[f64], position: usize) -> Vec<f64> {
    let half = head.len() / 2;
    (0..head.len())
        .map(|i| {
            let exponent = 2.0 * (i % half) as f64 / head.len() as f64;
            let angle = position as f64 / config.rope_theta.powf(exponent);
            let other = if i < half {
                -head[i + half]
            } else {
                head[i - half]
            };
            head[i] * angle.cos() + other * angle.sin()
        })
        .collect()
}

fn expert([w1, w3, w2]: [&Tensor; 3], z: &[f64]) -> Vec<f64> {
    let gate = matvec(w1, z);
    let up = matvec(w3, z);
    let y: Vec<f64> = gate.iter().zip(up).map(|(g, u)| silu(*g) * u).collect();
    matvec(w2, &y)
}

fn feed(model: &Model, layer: usize, z: &[f64]) -> Vec<f64> {
    let config = &model.config;
    let of = |kind| model.weights.of(Some(layer), kind);
    if !config.is_moe(layer) {
        let (gate_up, down) = (of(OpKind::DenseGateUp), of(OpKind::DenseDown));
        return expert([&gate_up[0], &gate_up[1], &down[0]], z);
    }
    let router = of(OpKind::Router);
    let (gate_up, down) = (of(OpKind::ExpertGateUp), of(OpKind::ExpertDown));
    let scores: Vec<f64> = matvec(&router[0], z)
        .iter()
        .map(|s| 1.0 / (1.0 + (-s).exp()))
        .collect();
    let mut choice = scores.clone();
    add_optional(&mut choice, router.get(1));
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| choice[b].total_cmp(&choice[a]));
    order.truncate(config.num_experts_per_tok);
    let sum: f64 = order.iter().map(|&e| scores[e]).sum();
    let scale = f64::from(config.routed_scaling_factor)
        / if config.norm_topk_prob {
            sum + 1e-6
        } else {
            1.0
        };
    let mut f = vec![0.0; z.len()];
    for e in order {
        let weights = [&gate_up[2 * e], &gate_up[2 * e + 1], &down[e]];
        for (f, y) in f.iter_mut().zip(expert(weights, z)) {
            *f += scores[e] * scale * y;
        }
    }
    f
}

/// Logits of every position.
pub fn forward(model: &Model, ids: &[u32]) -> Vec<f64> {
    let config = &model.config;
    let outside = |kind| &model.weights.of(None, kind)[0];
    let table = wide(outside(OpKind::Embed));
    let hidden = config.hidden_size;
    let mut h: Rows = ids
        .iter()
        .map(|&id| table[id as usize * hidden..][..hidden].to_vec())
        .collect();
    let norm = |h: &Rows, weight: &Tensor| -> Rows {
        let weight = wide(weight);
        h.iter()
            .map(|h| rmsnorm(h, &weight, config.norm_eps))
            .collect()
    };
    let add = |h: &mut Rows, y: Rows| {
        for (h, y) in h.iter_mut().flatten().zip(y.into_iter().flatten()) {
            *h += y;
        }
    };
    for layer in 0..config.num_hidden_layers {
        let of = |kind| &model.weights.of(Some(layer), kind)[0];
        let o = mix(model, layer, &norm(&h, of(OpKind::OperatorNorm)));
        add(&mut h, o);
        let f = norm(&h, of(OpKind::FfnNorm))
            .iter()
            .map(|z| feed(model, layer, z))
            .collect();
        add(&mut h, f);
    }
    norm(&h, outside(OpKind::FinalNorm))
        .iter()
        .flat_map(|x| matvec(outside(OpKind::LmHead), x))
        .collect()
}
