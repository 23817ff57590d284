//! A configuration as stages of operations.

use super::cost::op_cost;
use super::{BucketSizes, MAX_STAGES, Op, OpKind, Plan, Precision, Prompts, Stage, StepShape};
use crate::error::{Error, Result};
use crate::model::ModelConfig;
use crate::model::tensors::{Declared, declared, operations};
use std::sync::Arc;

impl Plan {
    /// `stages` contiguous layer ranges, cut where the slowest is as fast as it can be: in steps of `prompts` where a run is of
    /// such alone, else in decode steps.
    ///
    /// # Errors
    /// [`Error::Usage`] for fewer than one stage, more than the layers, or more than [`MAX_STAGES`].
    pub fn new(
        config: Arc<ModelConfig>,
        bucket_sizes: BucketSizes,
        stages: usize,
        prompts: Option<Prompts>,
    ) -> Result<Self> {
        let layers = config.layer_types.len();
        let most = layers.min(MAX_STAGES);
        if stages == 0 || stages > most {
            return Err(Error::Usage(format!(
                "`stages` {stages}: expected 1 to {most} (the model has {layers} layers, a plan at most {MAX_STAGES} stages)"
            )));
        }
        let weights = match prompts {
            Some(prompts) => {
                let largest = bucket_sizes.of(prompts.kind).last().copied().unwrap_or(1);
                layer_times(&config, &prompts.steps(largest))
            }
            None => layer_weights(&config),
        };
        let cuts = balanced_cuts(&weights, stages);
        Self::with_cuts(config, bucket_sizes, &cuts)
    }

    /// Stages that begin at layer 0 and at each of `cuts`.
    ///
    /// # Errors
    /// [`Error::Usage`] for cuts that are not ascending layers after the first, or too many of them.
    pub fn with_cuts(
        config: Arc<ModelConfig>,
        bucket_sizes: BucketSizes,
        cuts: &[usize],
    ) -> Result<Self> {
        let layers = config.layer_types.len();
        let ascending = cuts.windows(2).all(|pair| pair[0] < pair[1]);
        let inside = cuts.iter().all(|&cut| cut > 0 && cut < layers);
        if !ascending || !inside || cuts.len() >= MAX_STAGES {
            return Err(Error::Usage(format!(
                "stages that begin at layers {cuts:?}: expected at most {} ascending layers from 1 to {} (the model has {layers} layers)",
                MAX_STAGES - 1,
                layers.saturating_sub(1)
            )));
        }
        let mut starts = vec![0];
        starts.extend_from_slice(cuts);
        let stages = starts
            .iter()
            .enumerate()
            .map(|(index, &start)| {
                let end = starts.get(index + 1).copied().unwrap_or(layers);
                Stage {
                    index,
                    layers: start..end,
                    ops: operations(&config, start..end),
                }
            })
            .collect();
        Ok(Self {
            config,
            bucket_sizes,
            stages,
        })
    }
}

/// What each layer has of something that its operations have; the head counts with the last layer. The embedding does not
/// count: a step reads a few rows of it.
fn by_layer(config: &ModelConfig, of: impl Fn(&Op) -> f64) -> Vec<f64> {
    let layers = config.num_hidden_layers;
    let mut sums = vec![0.0; layers];
    for op in operations(config, 0..layers) {
        match (op.layer, op.kind) {
            (Some(layer), _) => sums[layer] += of(&op),
            (None, OpKind::Embed | OpKind::Sample) => {}
            (None, _) => sums[layers - 1] += of(&op),
        }
    }
    sums
}

/// Weights that a full decode step reads, in elements: they are its time.
fn layer_weights(config: &ModelConfig) -> Vec<f64> {
    by_layer(config, |op| {
        let tensors = declared(config, op.kind);
        tensors.iter().map(Declared::elements).sum()
    })
}

/// FLOPs that a GPU computes in bf16 while it reads a byte: 640 to 790 TFLOP/s beside 3.1 to 4.5 TB/s, as measured on H100
/// and H200 (profiles/README.md). Stages depend little on it, since prompts fill most steps.
const FLOPS_A_BYTE: f64 = 200.0;

/// Each layer's time in a step, as the FLOPs that a GPU could compute meanwhile: an operation takes as long as its arithmetic or its
/// bytes, whichever is more.
fn layer_times(config: &ModelConfig, step: &StepShape) -> Vec<f64> {
    by_layer(config, |op| {
        let cost = op_cost(config, op, step, Precision::BF16);
        cost.flops.max(cost.floor_bytes() * FLOPS_A_BYTE)
    })
}

/// Where to cut `weights` into `parts` contiguous, non-empty ranges so that the heaviest is as light as it can
/// be; of several such cuts the one whose later ranges begin earliest. Returns where ranges 1 .. begin.
///
/// Dynamic programming over (ranges, layers): O(parts * layers^2).
fn balanced_cuts(weights: &[f64], parts: usize) -> Vec<usize> {
    let layers = weights.len();
    let mut before = vec![0.0; layers + 1];
    for (i, weight) in weights.iter().enumerate() {
        before[i + 1] = before[i] + weight;
    }
    // heaviest[p][end]: the heaviest of p + 1 ranges over layers 0 .. end, at best; cut[p][end]: where the last begins.
    let mut heaviest = vec![before.clone()];
    let mut cut = vec![vec![0; layers + 1]];
    for part in 1..parts {
        let mut best = vec![f64::INFINITY; layers + 1];
        let mut at = vec![0; layers + 1];
        for end in part + 1..=layers {
            for start in part..end {
                let candidate = heaviest[part - 1][start].max(before[end] - before[start]);
                if candidate < best[end] {
                    best[end] = candidate;
                    at[end] = start;
                }
            }
        }
        heaviest.push(best);
        cut.push(at);
    }
    let mut cuts = vec![0; parts - 1];
    let mut end = layers;
    for part in (1..parts).rev() {
        end = cut[part][end];
        cuts[part - 1] = end;
    }
    cuts
}

#[cfg(test)]
mod tests {
    use super::balanced_cuts;

    #[test]
    fn cuts_are_the_best_of_all() {
        // Every way to cut, by brute force, on pseudo-random weights.
        let mut seed = 1u64;
        for layers in 1..9usize {
            for parts in 1..=layers {
                let weights: Vec<f64> = (0..layers)
                    .map(|_| {
                        seed = seed
                            .wrapping_mul(6364136223846793005)
                            .wrapping_add(1442695040888963407);
                        ((seed >> 33) % 20 + 1) as f64
                    })
                    .collect();
                let heaviest = |cuts: &[usize]| {
                    let mut edges = vec![0];
                    edges.extend_from_slice(cuts);
                    edges.push(layers);
                    edges
                        .windows(2)
                        .map(|e| weights[e[0]..e[1]].iter().sum::<f64>())
                        .fold(0.0, f64::max)
                };
                let best = (0u32..1 << (layers - 1))
                    .filter(|mask| mask.count_ones() as usize == parts - 1)
                    .map(|mask| {
                        let cuts: Vec<usize> =
                            (1..layers).filter(|i| mask >> (i - 1) & 1 == 1).collect();
                        heaviest(&cuts)
                    })
                    .fold(f64::INFINITY, f64::min);
                let cuts = balanced_cuts(&weights, parts);
                assert_eq!(cuts.len(), parts - 1);
                assert_eq!(heaviest(&cuts), best, "{weights:?} in {parts}: {cuts:?}");
            }
        }
    }
}
