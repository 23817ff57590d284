//! Weights by role. Tensors are views of mapped files or of generated memory; cloning one is cheap.

use super::philox::Stream;
use half::{bf16, f16};
use std::ops::Range;
use std::sync::Arc;

/// Element type of a tensor as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    F32,
    BF16,
    F16,
}

impl DType {
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::BF16 | Self::F16 => 2,
        }
    }

    /// As `--dtype` and files spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::BF16 => "bf16",
            Self::F16 => "f16",
        }
    }

    /// A number as a tensor of this type holds it.
    pub fn rounded(self, value: f32) -> f32 {
        match self {
            Self::F32 => value,
            Self::BF16 => bf16::from_f32(value).to_f32(),
            Self::F16 => f16::from_f32(value).to_f32(),
        }
    }

    /// The one of that [`DType::name`].
    pub fn by_name(name: &str) -> Option<Self> {
        [Self::F32, Self::BF16, Self::F16]
            .into_iter()
            .find(|dtype| dtype.name() == name)
    }
}

/// A row-major tensor; `shape` is the checkpoint's.
#[derive(Clone)]
pub struct Tensor {
    pub name: Arc<str>,
    pub dtype: DType,
    pub shape: Vec<usize>,
    storage: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
    made: Option<Made>,
}

/// How a random tensor's elements are made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Made {
    pub stream: Stream,
    /// The stream's element that is the tensor's first.
    pub first: u64,
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?} {:?}", self.name, self.dtype, self.shape)
    }
}

impl Tensor {
    /// A view of `range` of `storage`, which must hold exactly the shape's elements.
    pub fn new(
        name: impl Into<Arc<str>>,
        dtype: DType,
        shape: Vec<usize>,
        storage: Arc<dyn AsRef<[u8]> + Send + Sync>,
        range: Range<usize>,
    ) -> Self {
        let elements: usize = shape.iter().product();
        assert_eq!(range.len(), elements * dtype.bytes());
        Self {
            name: name.into(),
            dtype,
            shape,
            storage,
            range,
            made: None,
        }
    }

    /// Elements of `stream`, which `storage` need not hold before somebody asks for them.
    #[must_use]
    pub fn made_by(mut self, stream: Stream) -> Self {
        self.made = Some(Made { stream, first: 0 });
        self
    }

    /// How the elements are made, where whoever wants them can do so: of random presets.
    pub fn made(&self) -> Option<Made> {
        self.made
    }

    /// The elements as stored, little-endian. Not necessarily aligned. Those of a random preset are all made by the first
    /// call, for all tensors: see [`super::Model::make`].
    pub fn bytes(&self) -> &[u8] {
        &(*self.storage).as_ref()[self.range.clone()]
    }

    /// Rows of the matrix this is: the first dimension.
    pub fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Elements per row: the product of the other dimensions.
    pub fn cols(&self) -> usize {
        self.shape.iter().skip(1).product()
    }

    /// Widens the elements of one row into `out`, which has `cols()` elements.
    pub fn row_to_f32(&self, row: usize, out: &mut [f32]) {
        let row_bytes = self.cols() * self.dtype.bytes();
        widen(
            self.dtype,
            &self.bytes()[row * row_bytes..(row + 1) * row_bytes],
            out,
        );
    }

    /// Whether `other`, of the same shape, has the same elements, whatever the types of both.
    pub fn equals(&self, other: &Self) -> bool {
        if self.dtype == other.dtype {
            return self.bytes() == other.bytes();
        }
        let widened = |tensor: &Self, row| {
            let mut elements = vec![0.0; tensor.cols()];
            tensor.row_to_f32(row, &mut elements);
            elements
        };
        (0..self.rows()).all(|row| widened(self, row) == widened(other, row))
    }

    /// All elements, widened. Of a random preset's tensor no other one is made.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.shape.iter().product()];
        match self.made {
            None => widen(self.dtype, self.bytes(), &mut out),
            Some(Made { stream, first }) => {
                for (index, out) in (first..).zip(&mut out) {
                    *out = self.dtype.rounded(stream.element(index));
                }
            }
        }
        out
    }
}

/// Widens little-endian `bytes` of `dtype` into `out`: exact for every type here.
pub fn widen(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(bytes.len(), out.len() * dtype.bytes());
    match dtype {
        DType::F32 => {
            for (o, b) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                *o = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            }
        }
        DType::BF16 => {
            for (o, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *o = f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16);
            }
        }
        DType::F16 => {
            for (o, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *o = half::f16::from_le_bytes([b[0], b[1]]).to_f32();
            }
        }
    }
}

/// All weights of a model: tensors, or (see `layout`) whatever else there is one of for each tensor.
#[derive(Debug)]
pub struct Weights<T = Tensor> {
    /// `[V, H]`
    pub embed_tokens: T,
    /// `[H]`: the final norm.
    pub embedding_norm: T,
    /// `[V, H]`: the embedding itself where they are tied.
    pub lm_head: T,
    pub layers: Vec<LayerWeights<T>>,
}

impl Weights {
    /// The type of all matrices, the embedding among them; `None` where they have several.
    pub fn matrix_dtype(&self) -> Option<DType> {
        let first = self.embed_tokens.dtype;
        let same = |tensors: &[&Tensor]| tensors.iter().all(|tensor| tensor.dtype == first);
        let expert = |e: &Expert| same(&[&e.w1, &e.w3, &e.w2]);
        let layer = |layer: &LayerWeights| {
            let mixer = match &layer.mixer {
                Mixer::Conv {
                    in_proj, out_proj, ..
                } => same(&[in_proj, out_proj]),
                Mixer::Attention {
                    q_proj,
                    k_proj,
                    v_proj,
                    out_proj,
                    ..
                } => same(&[q_proj, k_proj, v_proj, out_proj]),
            };
            mixer
                && match &layer.feed_forward {
                    FeedForward::Dense(dense) => expert(dense),
                    FeedForward::Moe { experts, .. } => experts.iter().all(expert),
                }
        };
        (same(&[&self.lm_head]) && self.layers.iter().all(layer)).then_some(first)
    }
}

#[derive(Debug)]
pub struct LayerWeights<T = Tensor> {
    /// `[H]`
    pub operator_norm: T,
    /// `[H]`
    pub ffn_norm: T,
    pub mixer: Mixer<T>,
    pub feed_forward: FeedForward<T>,
}

#[derive(Debug)]
pub enum Mixer<T = Tensor> {
    Conv {
        /// `[3H, H]`: rows of B, then C, then X
        in_proj: T,
        /// `[H, 1, L]`
        conv: T,
        /// `[H, H]`
        out_proj: T,
        /// `[3H]`, with conv_bias
        in_proj_bias: Option<T>,
        /// `[H]`, with conv_bias
        conv_bias: Option<T>,
        /// `[H]`, with conv_bias
        out_proj_bias: Option<T>,
    },
    Attention {
        /// `[heads * head_dim, H]`
        q_proj: T,
        /// `[kv_heads * head_dim, H]`
        k_proj: T,
        /// `[kv_heads * head_dim, H]`
        v_proj: T,
        /// `[H, heads * head_dim]`
        out_proj: T,
        /// `[head_dim]`
        q_layernorm: T,
        /// `[head_dim]`
        k_layernorm: T,
    },
}

#[derive(Debug)]
pub enum FeedForward<T = Tensor> {
    Dense(Expert<T>),
    Moe {
        /// `[E, H]`
        gate: T,
        /// `[E]` f32, with use_expert_bias
        expert_bias: Option<T>,
        experts: Vec<Expert<T>>,
    },
}

/// w2(silu(w1 z) * w3 z): a dense feed-forward (inner size I) or one expert (inner size M).
#[derive(Debug)]
pub struct Expert<T = Tensor> {
    /// `[I, H]`
    pub w1: T,
    /// `[I, H]`
    pub w3: T,
    /// `[H, I]`
    pub w2: T,
}
