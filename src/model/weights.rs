//! Weights by role. Tensors are views of mapped files or of generated memory; cloning one is cheap.

use super::e4m3::{self, Scales};
use super::op::{Op, OpKind};
use super::philox::Stream;
use half::{bf16, f16};
use rayon::prelude::*;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// How the elements of a tensor are stored: apart from [`super::DType`], which is what activations have, and told of each tensor by
/// itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightFormat {
    F32,
    BF16,
    F16,
    /// Numbers of [`e4m3`], which a matrix has [`Scales`] for.
    E4M3,
}

impl WeightFormat {
    pub const ALL: [Self; 4] = [Self::F32, Self::BF16, Self::F16, Self::E4M3];
    /// Those that need no scales.
    pub const PLAIN: [Self; 3] = [Self::F32, Self::BF16, Self::F16];

    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::BF16 | Self::F16 => 2,
            Self::E4M3 => 1,
        }
    }

    /// Its name, as files and kernels spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::BF16 => "bf16",
            Self::F16 => "f16",
            Self::E4M3 => "e4m3",
        }
    }

    /// A number as a tensor of this format holds it, without a scale.
    pub fn rounded(self, value: f32) -> f32 {
        match self {
            Self::F32 => value,
            Self::BF16 => bf16::from_f32(value).to_f32(),
            Self::F16 => f16::from_f32(value).to_f32(),
            Self::E4M3 => e4m3::to_f32(e4m3::from_f32(value)),
        }
    }
}

/// A row-major tensor; `shape` is the checkpoint's.
#[derive(Clone)]
pub struct Tensor {
    pub name: Arc<str>,
    pub format: WeightFormat,
    pub shape: Vec<usize>,
    storage: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
    scales: Option<Arc<Scales>>,
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
        write!(f, "{} {:?} {:?}", self.name, self.format, self.shape)
    }
}

impl Tensor {
    /// A view of `range` of `storage`, which must hold exactly the shape's elements.
    pub fn new(
        name: impl Into<Arc<str>>,
        format: WeightFormat,
        shape: Vec<usize>,
        storage: Arc<dyn AsRef<[u8]> + Send + Sync>,
        range: Range<usize>,
    ) -> Self {
        let elements: usize = shape.iter().product();
        assert_eq!(range.len(), elements * format.bytes());
        Self {
            name: name.into(),
            format,
            shape,
            storage,
            range,
            scales: None,
            made: None,
        }
    }

    /// With scales that its elements are multiplied by.
    #[must_use]
    pub fn scaled(mut self, scales: Scales) -> Self {
        self.scales = Some(Arc::new(scales));
        self
    }

    /// What its elements are multiplied by, of a format that has scales.
    pub fn scales(&self) -> Option<&Scales> {
        self.scales.as_deref()
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

    /// Widens the elements of these rows into `out`, which has `cols()` elements for each.
    pub fn rows_to_f32(&self, rows: Range<usize>, out: &mut [f32]) {
        let row_bytes = self.cols() * self.format.bytes();
        let bytes = &self.bytes()[rows.start * row_bytes..rows.end * row_bytes];
        widen(self.format, bytes, out);
        if let Some(scales) = &self.scales {
            scales.apply(rows, self.cols(), out);
        }
    }

    /// Whether `other`, of the same shape, has the same elements, whatever the types of both.
    pub fn equals(&self, other: &Self) -> bool {
        if self.format == other.format && self.scales == other.scales {
            return self.bytes() == other.bytes();
        }
        let widened = |tensor: &Self, row| {
            let mut elements = vec![0.0; tensor.cols()];
            tensor.rows_to_f32(row..row + 1, &mut elements);
            elements
        };
        (0..self.rows()).all(|row| widened(self, row) == widened(other, row))
    }

    /// All elements, widened. Of a random preset's tensor no other one is made.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.shape.iter().product()];
        match self.made {
            None => self.rows_to_f32(0..self.rows(), &mut out),
            Some(Made { stream, first }) => {
                out.par_iter_mut().enumerate().for_each(|(index, out)| {
                    *out = self.format.rounded(stream.element(first + index as u64));
                });
            }
        }
        out
    }
}

/// Widens little-endian `bytes` of `format` into `out`, without scales: exact for every one here.
pub fn widen(format: WeightFormat, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(bytes.len(), out.len() * format.bytes());
    match format {
        WeightFormat::F32 => {
            for (o, b) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                *o = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            }
        }
        WeightFormat::BF16 => {
            for (o, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *o = f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16);
            }
        }
        WeightFormat::F16 => {
            for (o, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *o = f16::from_le_bytes([b[0], b[1]]).to_f32();
            }
        }
        WeightFormat::E4M3 => {
            for (o, b) in out.iter_mut().zip(bytes) {
                *o = e4m3::to_f32(*b);
            }
        }
    }
}

/// All weights of a model by the operation that reads them: tensors, or whatever else there is one of for each tensor.
#[derive(Debug, Clone)]
pub struct Weights<T = Tensor>(HashMap<Op, Vec<T>>);

impl<T> Default for Weights<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T> Weights<T> {
    /// What an operation reads, in the order of its declaration, expert by expert; of a tied LM head the embedding's.
    pub fn of(&self, layer: Option<usize>, kind: OpKind) -> &[T] {
        self.0.get(&Op { layer, kind }).map_or(&[], Vec::as_slice)
    }

    /// All of them, in no order; a tied LM head's too.
    pub fn all(&self) -> impl Iterator<Item = &T> {
        self.0.values().flatten()
    }

    pub fn put(&mut self, op: Op, tensors: Vec<T>) {
        self.0.insert(op, tensors);
    }
}

impl Weights {
    /// The format of the matrices: of all but routers, the embedding among them; `None` where they have several. Where one is in 8
    /// bits, it is that, whatever stands beside it.
    pub fn matrix_format(&self) -> Option<WeightFormat> {
        let first = self.of(None, OpKind::Embed).first()?.format;
        let ops = self.0.iter().filter(|(op, _)| op.kind != OpKind::Router);
        let matrices = ops.flat_map(|(_, tensors)| tensors.iter().filter(|t| t.shape.len() == 2));
        let mut formats = matrices.map(|tensor| tensor.format);
        if formats.clone().any(|format| format == WeightFormat::E4M3) {
            return Some(WeightFormat::E4M3);
        }
        formats.all(|format| format == first).then_some(first)
    }
}
