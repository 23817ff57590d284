//! Every tensor of a model with its published name, shape and role, in the order `synth` writes them.
//! One walk serves all: whoever makes tensors (checkpoint, random preset) and whoever only lists them.

use super::config::ModelConfig;
use super::layer_types::LayerType;
use super::weights::{DType, Expert, FeedForward, LayerWeights, Mixer, Weights};
use crate::error::Result;
use std::ops::Range;

/// One tensor of the published layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// As published, experts separate.
    pub name: String,
    pub shape: Vec<usize>,
    pub role: Role,
    /// Where newer exports keep it instead.
    pub fused: Option<FusedSpec>,
}

/// A part of a tensor that holds all experts of a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FusedSpec {
    pub name: String,
    /// Of the whole tensor: `[E, 2M, H]` or `[E, H, M]`.
    pub shape: [usize; 3],
    pub expert: usize,
    /// Of the expert's matrix: w1 comes before w3.
    pub rows: Range<usize>,
}

/// What a tensor is for; decides how random presets fill it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Embedding,
    Norm,
    /// A projection, the router or an untied head: rows are outputs.
    Matrix,
    ConvTaps,
    /// With conv_bias.
    Bias,
    /// Added to the router's scores to choose experts, not to weigh them.
    ExpertBias,
}

impl Role {
    /// The type that the published layout stores.
    pub fn published_dtype(self) -> DType {
        match self {
            Self::ExpertBias => DType::F32,
            _ => DType::BF16,
        }
    }
}

impl TensorSpec {
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Size in the published layout.
    pub fn published_bytes(&self) -> usize {
        self.elements() * self.role.published_dtype().bytes()
    }
}

/// All tensors of the model in published order.
pub fn published(config: &ModelConfig) -> Vec<TensorSpec> {
    let mut specs = Vec::new();
    let collected = build(config, |spec| {
        specs.push(spec);
        Ok(())
    });
    // `build` fails only where its closure does, and this one cannot.
    debug_assert!(collected.is_ok());
    specs
}

/// Walks the model and asks `get` for each of its tensors.
///
/// # Errors
/// The first error of `get`.
pub fn build<T: Clone>(
    config: &ModelConfig,
    mut get: impl FnMut(TensorSpec) -> Result<T>,
) -> Result<Weights<T>> {
    let mut walk = Walk {
        config,
        get: &mut get,
    };
    let (vocab, hidden) = (config.vocab_size, config.hidden_size);
    let embed_tokens = walk.get(
        "model.embed_tokens.weight".into(),
        &[vocab, hidden],
        Role::Embedding,
    )?;
    let layers = (0..config.num_hidden_layers)
        .map(|layer| walk.layer(layer))
        .collect::<Result<_>>()?;
    let embedding_norm = walk.get("model.embedding_norm.weight".into(), &[hidden], Role::Norm)?;
    let lm_head = if config.tie_word_embeddings {
        embed_tokens.clone()
    } else {
        walk.get("lm_head.weight".into(), &[vocab, hidden], Role::Matrix)?
    };
    Ok(Weights {
        embed_tokens,
        embedding_norm,
        lm_head,
        layers,
    })
}

struct Walk<'a, T> {
    config: &'a ModelConfig,
    get: &'a mut dyn FnMut(TensorSpec) -> Result<T>,
}

impl<T> Walk<'_, T> {
    fn get(&mut self, name: String, shape: &[usize], role: Role) -> Result<T> {
        (self.get)(TensorSpec {
            name,
            shape: shape.to_vec(),
            role,
            fused: None,
        })
    }

    fn layer(&mut self, layer: usize) -> Result<LayerWeights<T>> {
        let hidden = self.config.hidden_size;
        let prefix = format!("model.layers.{layer}.");
        Ok(LayerWeights {
            operator_norm: self.get(
                format!("{prefix}operator_norm.weight"),
                &[hidden],
                Role::Norm,
            )?,
            mixer: match self.config.layer_types[layer] {
                LayerType::Conv => self.conv(&prefix)?,
                LayerType::FullAttention => self.attention(&prefix)?,
            },
            ffn_norm: self.get(format!("{prefix}ffn_norm.weight"), &[hidden], Role::Norm)?,
            feed_forward: if self.config.is_moe(layer) {
                self.moe(&prefix)?
            } else {
                let inner = self.config.intermediate_size;
                FeedForward::Dense(self.expert(&format!("{prefix}feed_forward."), inner, None)?)
            },
        })
    }

    fn conv(&mut self, prefix: &str) -> Result<Mixer<T>> {
        let hidden = self.config.hidden_size;
        let taps = self.config.conv_l_cache;
        let biased = self.config.conv_bias;
        let mut part = |name: &str, shape: &[usize], role: Role| {
            self.get(format!("{prefix}conv.{name}"), shape, role)
        };
        let in_proj = part("in_proj.weight", &[3 * hidden, hidden], Role::Matrix)?;
        let conv = part("conv.weight", &[hidden, 1, taps], Role::ConvTaps)?;
        let out_proj = part("out_proj.weight", &[hidden, hidden], Role::Matrix)?;
        let mut bias = |name: &str, size: usize| {
            biased
                .then(|| part(&format!("{name}.bias"), &[size], Role::Bias))
                .transpose()
        };
        Ok(Mixer::Conv {
            in_proj,
            conv,
            out_proj,
            in_proj_bias: bias("in_proj", 3 * hidden)?,
            conv_bias: bias("conv", hidden)?,
            out_proj_bias: bias("out_proj", hidden)?,
        })
    }

    fn attention(&mut self, prefix: &str) -> Result<Mixer<T>> {
        let (hidden, head_dim) = (self.config.hidden_size, self.config.head_dim);
        let query = self.config.num_attention_heads * head_dim;
        let key_value = self.config.num_key_value_heads * head_dim;
        let mut part = |name: &str, shape: &[usize], role: Role| {
            self.get(format!("{prefix}self_attn.{name}.weight"), shape, role)
        };
        Ok(Mixer::Attention {
            q_proj: part("q_proj", &[query, hidden], Role::Matrix)?,
            k_proj: part("k_proj", &[key_value, hidden], Role::Matrix)?,
            v_proj: part("v_proj", &[key_value, hidden], Role::Matrix)?,
            out_proj: part("out_proj", &[hidden, query], Role::Matrix)?,
            q_layernorm: part("q_layernorm", &[head_dim], Role::Norm)?,
            k_layernorm: part("k_layernorm", &[head_dim], Role::Norm)?,
        })
    }

    fn moe(&mut self, prefix: &str) -> Result<FeedForward<T>> {
        let (experts, hidden) = (self.config.num_experts, self.config.hidden_size);
        let inner = self.config.moe_intermediate_size;
        let prefix = format!("{prefix}feed_forward.");
        let gate = self.get(
            format!("{prefix}gate.weight"),
            &[experts, hidden],
            Role::Matrix,
        )?;
        let expert_bias = match self.config.use_expert_bias {
            true => Some(self.get(format!("{prefix}expert_bias"), &[experts], Role::ExpertBias)?),
            false => None,
        };
        let experts = (0..experts)
            .map(|expert| {
                let part = format!("{prefix}experts.{expert}.");
                self.expert(&part, inner, Some((&format!("{prefix}experts."), expert)))
            })
            .collect::<Result<_>>()?;
        Ok(FeedForward::Moe {
            gate,
            expert_bias,
            experts,
        })
    }

    /// One gated feed-forward of inner size `inner`; `fused` is the prefix of its layer's fused tensors and its
    /// index in them.
    fn expert(
        &mut self,
        prefix: &str,
        inner: usize,
        fused: Option<(&str, usize)>,
    ) -> Result<Expert<T>> {
        let (hidden, experts) = (self.config.hidden_size, self.config.num_experts);
        let mut part = |name: &str, shape: [usize; 2], whole: (&str, [usize; 3]), start: usize| {
            (self.get)(TensorSpec {
                name: format!("{prefix}{name}.weight"),
                shape: shape.to_vec(),
                role: Role::Matrix,
                fused: fused.map(|(prefix, expert)| FusedSpec {
                    name: format!("{prefix}{}", whole.0),
                    shape: whole.1,
                    expert,
                    rows: start..start + shape[0],
                }),
            })
        };
        let gate_up = ("gate_up_proj", [experts, 2 * inner, hidden]);
        let down = ("down_proj", [experts, hidden, inner]);
        Ok(Expert {
            w1: part("w1", [inner, hidden], gate_up, 0)?,
            w3: part("w3", [inner, hidden], gate_up, inner)?,
            w2: part("w2", [hidden, inner], down, 0)?,
        })
    }
}
