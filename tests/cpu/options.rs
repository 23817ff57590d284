//! Whole models with unusual shapes and options, the CPU reference against the formulas in f64.

use crate::formulas::forward;
use crate::machine::{Job, Setup, run};
use std::sync::Arc;
use tailgraph::model::lfm2_moe::LFM2_MOE;
use tailgraph::model::philox::philox4x32_10;
use tailgraph::model::tensors::{Role, build};
use tailgraph::model::{
    GenerationConfig, LayerType, Model, ModelConfig, ModelSource, Tensor, WeightFormat, WeightsAs,
};

use LayerType::{Conv, FullAttention};

/// Tensors that a seed decides, in every type in turn.
pub struct Make {
    pub seed: u32,
    pub tensors: u32,
}

impl Make {
    /// N(0, scale^2), about.
    fn tensor(&mut self, shape: &[usize], mean: f32, scale: f32) -> Tensor {
        self.tensors += 1;
        let format =
            [WeightFormat::BF16, WeightFormat::F32, WeightFormat::F16][self.tensors as usize % 3];
        let elements: usize = shape.iter().product();
        let bytes: Vec<u8> = (0..elements)
            .flat_map(|element| {
                let words = philox4x32_10([element as u32, self.tensors, 0, 0], [self.seed, 0]);
                let sum: f64 = words.iter().map(|&w| f64::from(w) / 2f64.powi(32)).sum();
                let value = mean + scale * ((sum - 2.0) * 3f64.sqrt()) as f32;
                match format {
                    WeightFormat::F32 => value.to_le_bytes().to_vec(),
                    WeightFormat::F16 => half::f16::from_f32(value).to_le_bytes().to_vec(),
                    WeightFormat::BF16 => half::bf16::from_f32(value).to_le_bytes().to_vec(),
                    WeightFormat::E4M3 => unreachable!("it needs scales"),
                }
            })
            .collect();
        let length = bytes.len();
        Tensor::new("t", format, shape.to_vec(), Arc::new(bytes), 0..length)
    }

    pub fn model(&mut self, config: ModelConfig) -> Arc<Model> {
        let weights = build(&config, |spec| {
            let columns = spec.shape.last().copied().unwrap_or(1) as f32;
            let (mean, scale) = match spec.role {
                Role::Embedding => (0.0, 0.1),
                Role::Norm => (1.0, 0.1),
                Role::Matrix | Role::Head | Role::Router => (0.0, 1.0 / columns.sqrt()),
                Role::ConvTaps | Role::Bias => (0.0, 0.5),
                Role::ExpertBias => (0.0, 0.3),
            };
            Ok(self.tensor(&spec.shape, mean, scale))
        });
        Arc::new(Model {
            source: ModelSource::Random {
                preset: "options".into(),
                seed: u64::from(self.seed),
            },
            config,
            generation: GenerationConfig::default(),
            weights: weights.unwrap(),
            weights_as: WeightsAs::Stored,
            warnings: vec![],
            arena: None,
        })
    }
}

pub fn base() -> ModelConfig {
    ModelConfig {
        family: &LFM2_MOE,
        vocab_size: 70,
        hidden_size: 48,
        num_hidden_layers: 3,
        intermediate_size: 50,
        moe_intermediate_size: 22,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 12,
        num_dense_layers: 1,
        num_experts: 5,
        num_experts_per_tok: 2,
        use_expert_bias: true,
        norm_topk_prob: true,
        routed_scaling_factor: 1.0,
        conv_l_cache: 3,
        conv_bias: false,
        norm_eps: 1e-5,
        max_position_embeddings: 320,
        rope_theta: 1e6,
        tie_word_embeddings: true,
        layer_types: vec![Conv, FullAttention, Conv],
        bos_token_id: None,
        eos_token_ids: vec![],
        pad_token_id: None,
        quantization: None,
    }
}

/// Logits of two interleaved prompts, in chunks, against the formulas.
fn check(name: &str, config: ModelConfig) {
    assert_eq!(config.layer_types.len(), config.num_hidden_layers);
    let model = Make {
        seed: 5,
        tensors: 0,
    }
    .model(config);
    let layers = model.config.num_hidden_layers;
    let prompts: Vec<Vec<u32>> = [23, 9]
        .iter()
        .map(|&tokens| {
            let id = |t| philox4x32_10([t, 0, 0, 0], [tokens, 9])[0];
            (0..tokens)
                .map(|t| id(t) % model.config.vocab_size as u32)
                .collect()
        })
        .collect();
    let setup = Setup {
        slots: 2,
        page_tokens: 5,
        step_tokens: 11,
        chunk: 4,
        stages: vec![0..1, 1..layers],
    };
    let jobs: Vec<_> = prompts.iter().map(|p| Job::score(p)).collect();
    for (prompt, output) in prompts.iter().zip(run(&model, &setup, &jobs)) {
        let expected = forward(&model, prompt);
        assert_eq!(output.logits.len(), expected.len());
        let (mut difference, mut norm) = (0.0, 0.0);
        for (&found, &expected) in output.logits.iter().zip(&expected) {
            difference += (f64::from(found) - expected).powi(2);
            norm += expected * expected;
        }
        let error = (difference / norm).sqrt();
        assert!(error <= 3e-6, "{name}, {} tokens: {error:e}", prompt.len());
    }
}

#[test]
fn routing_options() {
    for use_expert_bias in [false, true] {
        for norm_topk_prob in [false, true] {
            let config = ModelConfig {
                use_expert_bias,
                norm_topk_prob,
                routed_scaling_factor: if norm_topk_prob { 2.5 } else { 1.0 },
                ..base()
            };
            check(
                &format!("bias {use_expert_bias} norm {norm_topk_prob}"),
                config,
            );
        }
    }
}

#[test]
fn every_number_of_taps_with_and_without_bias() {
    for conv_l_cache in 1..=8 {
        for conv_bias in [false, true] {
            let config = ModelConfig {
                conv_l_cache,
                conv_bias,
                ..base()
            };
            check(&format!("L {conv_l_cache} bias {conv_bias}"), config);
        }
    }
}

#[test]
fn heads_of_their_own_size() {
    for (num_attention_heads, num_key_value_heads, head_dim) in
        [(2, 1, 128), (6, 3, 64), (3, 3, 2), (8, 1, 10)]
    {
        let config = ModelConfig {
            num_attention_heads,
            num_key_value_heads,
            head_dim,
            rope_theta: 5e6,
            ..base()
        };
        check(
            &format!("{num_attention_heads} heads of {head_dim}"),
            config,
        );
    }
}

#[test]
fn dense_and_expert_layers_in_any_number() {
    for (num_dense_layers, num_experts, num_experts_per_tok) in
        [(0, 5, 1), (3, 5, 2), (0, 4, 4), (1, 130, 9), (1, 1, 1)]
    {
        let config = ModelConfig {
            num_dense_layers,
            num_experts,
            num_experts_per_tok,
            ..base()
        };
        check(
            &format!("{num_dense_layers} dense, {num_experts} experts"),
            config,
        );
    }
}

#[test]
fn an_untied_head_and_odd_sizes() {
    let config = ModelConfig {
        vocab_size: 33,
        hidden_size: 37,
        intermediate_size: 19,
        moe_intermediate_size: 3,
        norm_eps: 0.01,
        tie_word_embeddings: false,
        ..base()
    };
    check("untied and odd", config);
    for layer_types in [vec![Conv; 3], vec![FullAttention; 3]] {
        let name = format!("{layer_types:?}");
        let config = ModelConfig {
            layer_types,
            ..base()
        };
        check(&name, config);
    }
}
