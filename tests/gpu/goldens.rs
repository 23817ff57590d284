//! The model on the GPU against what transformers computes.

use crate::common::fixtures;
use crate::common::golden::{self, Golden};
use crate::engine::{Outcome, Setup, greedy, run, score};
use safetensors::SafeTensors;
use std::sync::Arc;
use tailgraph::backend::LaunchWay;
use tailgraph::backend::cuda::driver::gpu::OpenGpu;
use tailgraph::model::{DType, Model, WeightsAs};
use tailgraph::runtime::{Logits, Request};

pub const VARIANTS: [&str; 4] = ["a", "b", "c", "d"];
const GREEDY_TOKENS: u32 = 32;

/// A score and a greedy request for each prompt.
fn requests(golden: &Golden) -> Vec<Request> {
    let prompts = golden.prompts();
    let pair = |prompt: &Vec<u32>| [score(prompt, Logits::All), greedy(prompt, GREEDY_TOKENS)];
    prompts.iter().flat_map(pair).collect()
}

/// How far logits are off.
struct Errors {
    /// Norms of the difference and of what is expected, by position over all prompts.
    positions: Vec<(f64, f64)>,
    /// Largest difference in the last position of each prompt, where the first new token comes from.
    at_last: Vec<f64>,
    /// Largest difference of all.
    largest: f64,
}

impl Errors {
    fn new(golden: &Golden, outcomes: &[Outcome]) -> Self {
        let vocab = golden.model.config.vocab_size;
        let mut errors = Self {
            positions: Vec::new(),
            at_last: Vec::new(),
            largest: 0.0,
        };
        for (i, outcome) in outcomes.iter().step_by(2).enumerate() {
            let expected = golden.f32s(&format!("logits.{i}"));
            assert_eq!(outcome.logits.len(), expected.len(), "prompt {i}");
            let mut here = 0.0f64;
            for (found, expected) in outcome.logits.chunks(vocab).zip(expected.chunks(vocab)) {
                let (mut difference, mut norm) = (0.0, 0.0);
                here = 0.0;
                for (&f, &e) in found.iter().zip(expected) {
                    let off = f64::from(f) - f64::from(e);
                    difference += off * off;
                    norm += f64::from(e).powi(2);
                    here = here.max(off.abs());
                }
                errors.positions.push((difference.sqrt(), norm.sqrt()));
                errors.largest = errors.largest.max(here);
            }
            errors.at_last.push(here);
        }
        errors
    }

    fn pooled(&self) -> f64 {
        pooled(self.positions.iter().copied())
    }

    fn relative(&self) -> Vec<f64> {
        self.positions.iter().map(|(d, n)| d / n).collect()
    }
}

fn pooled(positions: impl Iterator<Item = (f64, f64)>) -> f64 {
    let sums = positions.fold((0.0, 0.0), |(d, n), (difference, norm)| {
        (d + difference * difference, n + norm * norm)
    });
    (sums.0 / sums.1).sqrt()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Greedy tokens are those of transformers up to the first place where its two best are closer than the logits are
/// known: for the first token by the error in its own position, for the others by the largest of all. A position that no
/// prompt has may have a routing tie, which 16 bits decide otherwise; then `as_prompt` of the same tokens says so too, which
/// other kernels compute.
fn assert_greedy(
    golden: &Golden,
    outcomes: &[Outcome],
    errors: &Errors,
    what: &str,
    as_prompt: impl Fn(&[u32]) -> u32,
) {
    let (mut compared, mut ties) = (0, 0);
    let prompts = golden.prompts();
    for (i, outcome) in outcomes.iter().skip(1).step_by(2).enumerate() {
        let expected = golden.ids(&format!("greedy.{i}"));
        let margins = golden.f32s(&format!("margin.{i}"));
        assert_eq!(outcome.tokens.len(), expected.len());
        for (step, (found, expected)) in outcome.tokens.iter().zip(&expected).enumerate() {
            let error = if step == 0 {
                errors.at_last[i]
            } else {
                errors.largest
            };
            // Either of two logits may be off by this.
            if f64::from(margins[step]) <= 2.0 * error {
                break;
            }
            if found != expected {
                let tokens = [&prompts[i], &outcome.tokens[..step]].concat();
                let other = as_prompt(&tokens);
                assert_eq!(*found, other, "{what}, prompt {i}, token {step}");
                ties += 1;
                break;
            }
            compared += 1;
        }
    }
    println!("{what}: {compared} greedy tokens compared, {ties} routing ties");
    assert!(compared > 0, "{what}: no token could be compared");
    assert!(ties <= 1, "{what}: {ties} prompts with routing ties");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn f32_is_what_transformers_computes() {
    let gpu = OpenGpu::new(0).unwrap();
    f32_on(&gpu, "as built in", &VARIANTS);
}

/// Holds f32 of these goldens to transformers.
pub fn f32_on(gpu: &OpenGpu, what: &str, variants: &[&str]) {
    for &variant in variants {
        let golden = golden::load(variant);
        let setup = Setup {
            dtype: DType::F32,
            launch: LaunchWay::DeviceGraph,
            stages: 1,
        };
        let what = format!("golden {variant} f32, kernels {what}");
        let outcomes = run(gpu, &golden.model, setup, &requests(&golden));
        let errors = Errors::new(&golden, &outcomes);
        let pooled = errors.pooled();
        println!("{what}: relative error of all logits {pooled:.2e}");
        assert!(pooled <= 1e-5, "{what}: {pooled:e}");
        let none = |_: &[u32]| panic!("{what}: a token differs, and f32 has no routing ties here");
        assert_greedy(&golden, &outcomes, &errors, &what, none);
    }
}

/// Weights in 8 bits as they are: with a scale for each row, and one for all.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn weights_in_8_bits_are_what_transformers_computes() {
    let gpu = OpenGpu::new(0).unwrap();
    f32_on(&gpu, "as built in", &["e", "f"]);
    let bf16 = Setup {
        dtype: DType::BF16,
        launch: LaunchWay::DeviceGraph,
        stages: 1,
    };
    for variant in ["e", "f"] {
        let golden = golden::load(variant);
        let outcomes = run(&gpu, &golden.model, bf16, &requests(&golden));
        let pooled = Errors::new(&golden, &outcomes).pooled();
        println!("golden {variant} in bf16: relative error of all logits {pooled:.2e}");
        assert!(pooled <= 1e-1, "{variant}: {pooled:e}");
    }
}

/// Weights in 8 bits come to the GPU as bf16: those that the host makes, to the bit, and not far from what transformers
/// computes with all of their bits.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn weights_in_8_bits_are_dequantized_on_their_way() {
    let gpu = OpenGpu::new(0).unwrap();
    let setup = Setup {
        dtype: DType::F32,
        launch: LaunchWay::DeviceGraph,
        stages: 1,
    };
    for variant in ["e", "f", "g"] {
        let golden = golden::load(variant);
        let of_run = || Model {
            weights_as: WeightsAs::BF16,
            ..Model::load(&golden.model.source).unwrap()
        };
        let on_the_way = run(&gpu, &Arc::new(of_run()), setup, &requests(&golden));
        let by_host = Arc::new(of_run().converted().unwrap());
        let by_host = run(&gpu, &by_host, setup, &requests(&golden));
        for (found, expected) in on_the_way.iter().zip(&by_host) {
            assert_eq!(found.tokens, expected.tokens, "golden {variant}");
            assert!(found.logits == expected.logits, "golden {variant}");
        }
        let pooled = Errors::new(&golden, &on_the_way).pooled();
        println!("golden {variant} as bf16: relative error of all logits {pooled:.2e}");
        // 5.5e-2 with a scale for a tensor, as much as activations in bf16 cost.
        assert!((1e-5..1e-1).contains(&pooled), "{variant}: {pooled:e}");
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn half_precision_is_closer_than_transformers_bf16() {
    let gpu = OpenGpu::new(0).unwrap();
    for variant in VARIANTS {
        let golden = golden::load(variant);
        for dtype in [DType::BF16, DType::F16] {
            let setup = Setup {
                dtype,
                launch: LaunchWay::DeviceGraph,
                stages: 1,
            };
            let outcomes = run(&gpu, &golden.model, setup, &requests(&golden));
            let errors = Errors::new(&golden, &outcomes);
            let theirs = bf16_errors(variant, golden.prompts().len());
            assert_eq!(theirs.len(), errors.positions.len());
            let norms = errors.positions.iter().map(|&(_, norm)| norm);
            let their_pooled = pooled(theirs.iter().zip(norms).map(|(e, n)| (e * n, n)));
            let ratio = errors.pooled() / their_pooled;
            let medians = median(errors.relative()) / median(theirs);
            let what = format!("golden {variant} {dtype:?}");
            println!(
                "{what}: pooled error {:.3e}, {ratio:.3} of transformers' bf16; in the median position {medians:.3}",
                errors.pooled()
            );
            assert!(ratio <= 1.0 && medians <= 0.8, "{what}: {ratio} {medians}");
            let as_prompt =
                |tokens: &[u32]| run(&gpu, &golden.model, setup, &[greedy(tokens, 1)])[0].tokens[0];
            assert_greedy(&golden, &outcomes, &errors, &what, as_prompt);
        }
    }
}

/// The relative errors of transformers' bf16, by position over all prompts.
fn bf16_errors(variant: &str, prompts: usize) -> Vec<f64> {
    let path = format!("{}/golden.safetensors", fixtures::golden(variant));
    let bytes = std::fs::read(&path).unwrap();
    let arrays = SafeTensors::deserialize(&bytes).unwrap();
    let errors = (0..prompts).flat_map(|i| {
        let array = arrays.tensor(&format!("bf16_error.{i}")).unwrap();
        let (values, rest) = array.data().as_chunks::<8>();
        assert!(rest.is_empty());
        values
            .iter()
            .map(|&b| f64::from_le_bytes(b))
            .collect::<Vec<_>>()
    });
    errors.collect()
}
