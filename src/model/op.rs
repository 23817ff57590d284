//! The operations a plan is made of: the same list is interpreted by the CPU reference, launched by the host
//! and captured into graphs.

/// One operation of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Op {
    /// The layer whose weights it uses; `None` before the first and after the last layer.
    pub layer: Option<usize>,
    #[serde(rename = "operation")]
    pub kind: OpKind,
}

/// Shapes: R rows of the step, S sampled rows, H hidden_size, V vocabulary, D head_dim, I intermediate_size,
/// M moe_intermediate_size, E experts, K experts per token, L conv_L_cache. The residual stream `h` is
/// f32 [R, H] throughout; `x` is the operand of the next matrix product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// `h = embed_tokens[token] -> [R, H]`
    Embed,
    /// x = rmsnorm(h, operator_norm) -> [R, H]
    OperatorNorm,
    /// (B, C, X) = in_proj(x) -> [R, 3H]
    ConvInProj,
    /// x = C * conv(B * X), reading and writing the slot's last L-1 columns of B * X -> [R, H]
    ShortConv,
    /// h += out_proj(x)
    ConvOutProj,
    /// q, k, v = q_proj(x), k_proj(x), v_proj(x) -> [R, (heads + 2 kv_heads) D]
    QkvProj,
    /// q, k = rope(rmsnorm_head(q, k)); k and v go to their pages
    QkNormRope,
    /// x = softmax(q k^T / sqrt(D), causal) v over the slot's pages -> [R, heads D]
    Attention,
    /// h += out_proj(x)
    AttentionOutProj,
    /// x = rmsnorm(h, ffn_norm) -> [R, H]
    FfnNorm,
    /// y = silu(w1 x) * w3 x -> [R, I]
    DenseGateUp,
    /// h += w2 y
    DenseDown,
    /// s = sigmoid(gate x); experts and weights of each row -> [R, K]
    Router,
    /// y = silu(w1_e x) * w3_e x for each chosen expert -> [R K, M]
    ExpertGateUp,
    /// h += sum_e w_e * w2_e y, experts in ascending index
    ExpertDown,
    /// x = rmsnorm(h, embedding_norm) of the rows that need logits -> [S, H] ([R, H] in a score step)
    FinalNorm,
    /// logits = lm_head(x) -> f32 [S, V] ([R, V] in a score step, tile by tile; where nobody else reads them, of those rows
    /// alone of which more is read than the best)
    LmHead,
    /// token (and logprobs) of each sampled row
    Sample,
}

impl OpKind {
    /// All kinds, in the order of a forward pass.
    pub const ALL: [Self; 18] = [
        Self::Embed,
        Self::OperatorNorm,
        Self::ConvInProj,
        Self::ShortConv,
        Self::ConvOutProj,
        Self::QkvProj,
        Self::QkNormRope,
        Self::Attention,
        Self::AttentionOutProj,
        Self::FfnNorm,
        Self::DenseGateUp,
        Self::DenseDown,
        Self::Router,
        Self::ExpertGateUp,
        Self::ExpertDown,
        Self::FinalNorm,
        Self::LmHead,
        Self::Sample,
    ];

    /// The name that tables, JSON and traces use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::OperatorNorm => "operator_norm",
            Self::ConvInProj => "conv_in_proj",
            Self::ShortConv => "short_conv",
            Self::ConvOutProj => "conv_out_proj",
            Self::QkvProj => "qkv_proj",
            Self::QkNormRope => "qk_norm_rope",
            Self::Attention => "attention",
            Self::AttentionOutProj => "attn_out_proj",
            Self::FfnNorm => "ffn_norm",
            Self::DenseGateUp => "dense_gate_up",
            Self::DenseDown => "dense_down",
            Self::Router => "router",
            Self::ExpertGateUp => "expert_gate_up",
            Self::ExpertDown => "expert_down",
            Self::FinalNorm => "final_norm",
            Self::LmHead => "lm_head",
            Self::Sample => "sample",
        }
    }
}

impl serde::Serialize for OpKind {
    fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(self.name())
    }
}
