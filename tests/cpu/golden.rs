//! The golden checkpoints as models, and what transformers computes with them.

use safetensors::SafeTensors;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tailgraph::model::{
    DType, Expert, FeedForward, GenerationConfig, LayerType, LayerWeights, Mixer, Model,
    ModelConfig, ModelSource, Tensor, Weights,
};

const GOLDENS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/goldens");

/// One checkpoint and its arrays.
pub struct Golden {
    pub model: Arc<Model>,
    arrays: Vec<u8>,
}

/// `variant` is `a` or `b`.
pub fn load(variant: &str) -> Golden {
    let dir = PathBuf::from(format!("{GOLDENS}/lfm2moe-tiny-{variant}"));
    Golden {
        model: Arc::new(model(&dir)),
        arrays: read(&dir.join("golden.safetensors")),
    }
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

impl Golden {
    fn array<const N: usize, T>(&self, name: &str, value: impl Fn([u8; N]) -> T) -> Vec<T> {
        let arrays = SafeTensors::deserialize(&self.arrays).unwrap();
        let array = arrays.tensor(name).unwrap();
        let (values, rest) = array.data().as_chunks::<N>();
        assert!(rest.is_empty());
        values.iter().map(|&bytes| value(bytes)).collect()
    }

    pub fn f32s(&self, name: &str) -> Vec<f32> {
        self.array(name, f32::from_le_bytes)
    }

    pub fn ids(&self, name: &str) -> Vec<u32> {
        self.array(name, |bytes| i32::from_le_bytes(bytes) as u32)
    }

    /// All prompts.
    pub fn prompts(&self) -> Vec<Vec<u32>> {
        (0..11).map(|i| self.ids(&format!("prompt.{i}"))).collect()
    }
}

/// Reads a checkpoint whose layout is known, without the checks of the real loader.
fn model(dir: &Path) -> Model {
    let config = config(&read(&dir.join("config.json")));
    let storage = Arc::new(read(&dir.join("model.safetensors")));
    let file = SafeTensors::deserialize(&storage).unwrap();
    let find = |name: &str| {
        let view = file.tensor(name).unwrap();
        let start = view.data().as_ptr() as usize - storage.as_ptr() as usize;
        let dtype = match view.dtype() {
            safetensors::Dtype::F32 => DType::F32,
            safetensors::Dtype::BF16 => DType::BF16,
            other => panic!("{name}: {other:?}"),
        };
        let range = start..start + view.data().len();
        Tensor::new(name, dtype, view.shape().to_vec(), storage.clone(), range)
    };
    let expert = |base: String| Expert {
        w1: find(&format!("{base}.w1.weight")),
        w3: find(&format!("{base}.w3.weight")),
        w2: find(&format!("{base}.w2.weight")),
    };
    let layer = |index: usize| {
        let of = |name: &str| find(&format!("model.layers.{index}.{name}"));
        let feed_forward = format!("model.layers.{index}.feed_forward");
        LayerWeights {
            operator_norm: of("operator_norm.weight"),
            ffn_norm: of("ffn_norm.weight"),
            mixer: match config.layer_types[index] {
                LayerType::Conv => Mixer::Conv {
                    in_proj: of("conv.in_proj.weight"),
                    conv: of("conv.conv.weight"),
                    out_proj: of("conv.out_proj.weight"),
                    in_proj_bias: None,
                    conv_bias: None,
                    out_proj_bias: None,
                },
                LayerType::FullAttention => Mixer::Attention {
                    q_proj: of("self_attn.q_proj.weight"),
                    k_proj: of("self_attn.k_proj.weight"),
                    v_proj: of("self_attn.v_proj.weight"),
                    out_proj: of("self_attn.out_proj.weight"),
                    q_layernorm: of("self_attn.q_layernorm.weight"),
                    k_layernorm: of("self_attn.k_layernorm.weight"),
                },
            },
            feed_forward: if config.is_moe(index) {
                FeedForward::Moe {
                    gate: of("feed_forward.gate.weight"),
                    expert_bias: Some(of("feed_forward.expert_bias")),
                    experts: (0..config.num_experts)
                        .map(|e| expert(format!("{feed_forward}.experts.{e}")))
                        .collect(),
                }
            } else {
                FeedForward::Dense(expert(feed_forward))
            },
        }
    };
    let weights = Weights {
        embed_tokens: find("model.embed_tokens.weight"),
        embedding_norm: find("model.embedding_norm.weight"),
        lm_head: find("model.embed_tokens.weight"),
        layers: (0..config.num_hidden_layers).map(layer).collect(),
    };
    Model {
        source: ModelSource::Dir(dir.to_owned()),
        config,
        generation: GenerationConfig::default(),
        weights,
    }
}

fn config(json: &[u8]) -> ModelConfig {
    let json: Value = serde_json::from_slice(json).unwrap();
    let number = |name: &str| json[name].as_u64().unwrap_or_else(|| panic!("{name}")) as usize;
    let theta = json["rope_theta"].as_f64();
    let heads = number("num_attention_heads");
    ModelConfig {
        vocab_size: number("vocab_size"),
        hidden_size: number("hidden_size"),
        num_hidden_layers: number("num_hidden_layers"),
        intermediate_size: number("intermediate_size"),
        moe_intermediate_size: number("moe_intermediate_size"),
        num_attention_heads: heads,
        num_key_value_heads: number("num_key_value_heads"),
        head_dim: number("hidden_size") / heads,
        num_dense_layers: number("num_dense_layers"),
        num_experts: number("num_experts"),
        num_experts_per_tok: number("num_experts_per_tok"),
        use_expert_bias: json["use_expert_bias"].as_bool().unwrap(),
        norm_topk_prob: json["norm_topk_prob"].as_bool().unwrap(),
        routed_scaling_factor: json["routed_scaling_factor"].as_f64().unwrap() as f32,
        conv_l_cache: number("conv_L_cache"),
        conv_bias: json["conv_bias"].as_bool().unwrap(),
        norm_eps: json["norm_eps"].as_f64().unwrap() as f32,
        max_position_embeddings: number("max_position_embeddings"),
        rope_theta: theta
            .unwrap_or_else(|| json["rope_parameters"]["rope_theta"].as_f64().unwrap()),
        tie_word_embeddings: true,
        layer_types: json["layer_types"]
            .as_array()
            .unwrap()
            .iter()
            .map(|kind| match kind.as_str().unwrap() {
                "conv" => LayerType::Conv,
                _ => LayerType::FullAttention,
            })
            .collect(),
        bos_token_id: Some(1),
        eos_token_ids: vec![7],
        pad_token_id: Some(0),
    }
}
