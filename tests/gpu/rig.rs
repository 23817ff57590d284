//! A model's kernels on one GPU, steps to run them for, and arrays by element type.

mod step;

pub use step::{Chunk, Step, StepOnGpu};

use crate::support::Gpu;
use cudarc::driver::CudaStream;
use half::{bf16, f16};
use std::ops::Deref;
use tailgraph::backend::cuda::driver::call::ReadyCall;
use tailgraph::backend::cuda::driver::machine;
use tailgraph::backend::cuda::families::limits::Library;
use tailgraph::backend::cuda::families::{Bucket, Kernels, Lowering, StepAt, packed};
use tailgraph::backend::cuda::matrix::Matrix;
use tailgraph::backend::cuda::memory::buffer::Buffer;
use tailgraph::backend::cuda::tuning::KernelChoice;
use tailgraph::backend::cuda::tuning::variants::{Experts, Grouped, Linear, Variant};
use tailgraph::model::e4m3::{self, Quantized, quantize, to_f32};
use tailgraph::model::weights::widen;
use tailgraph::model::{DType, ModelConfig, WeightFormat};
use tailgraph::plan::{Activations, Precision, StepKind};
use tailgraph::sys::abi;

/// Every pair of types that the kernels come in.
pub const TYPES: [Precision; 7] = [
    types(DType::BF16, WeightFormat::BF16),
    types(DType::F16, WeightFormat::F16),
    types(DType::F32, WeightFormat::BF16),
    types(DType::F32, WeightFormat::F16),
    types(DType::F32, WeightFormat::F32),
    types(DType::BF16, WeightFormat::E4M3),
    types(DType::F32, WeightFormat::E4M3),
];

pub const OPERANDS: [DType; 3] = [DType::BF16, DType::F16, DType::F32];

/// bf16 rows that are made 8 bits, and weights in 8 bits.
pub const E4M3_ROWS: Precision = Precision {
    activations: Activations::FP8,
    ..types(DType::BF16, WeightFormat::E4M3)
};

const fn types(compute: DType, weights: WeightFormat) -> Precision {
    let activations = Activations::Stored;
    Precision {
        compute,
        weights,
        activations,
    }
}

/// Types of a model whose matrices play no part.
pub fn operand(dtype: DType) -> Precision {
    types(dtype, dtype.into())
}

/// A small model; tests change the fields they are about.
pub fn config() -> ModelConfig {
    ModelConfig {
        family: &tailgraph::model::lfm2_moe::LFM2_MOE,
        vocab_size: 301,
        hidden_size: 128,
        num_hidden_layers: 1,
        intermediate_size: 96,
        moe_intermediate_size: 64,
        num_attention_heads: 8,
        num_key_value_heads: 2,
        head_dim: 64,
        num_dense_layers: 0,
        num_experts: 8,
        num_experts_per_tok: 2,
        use_expert_bias: true,
        norm_topk_prob: true,
        routed_scaling_factor: 1.0,
        conv_l_cache: 3,
        conv_bias: false,
        norm_eps: 1e-5,
        max_position_embeddings: 128_000,
        rope_theta: 1e6,
        tie_word_embeddings: true,
        layer_types: Vec::new(),
        bos_token_id: None,
        eos_token_ids: Vec::new(),
        pad_token_id: None,
        quantization: None,
    }
}

/// Relative distance between neighbours of a type, halved.
pub fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => 1.0 / 256.0,
        DType::F16 => 1.0 / 2048.0,
        DType::F32 => 1.0 / 16_777_216.0,
    }
}

pub fn encode(format: impl Into<WeightFormat>, values: &[f32]) -> Vec<u8> {
    match format.into() {
        WeightFormat::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        WeightFormat::BF16 => values
            .iter()
            .flat_map(|&v| bf16::from_f32(v).to_le_bytes())
            .collect(),
        WeightFormat::F16 => values
            .iter()
            .flat_map(|&v| f16::from_f32(v).to_le_bytes())
            .collect(),
        WeightFormat::E4M3 => unreachable!("it needs scales"),
    }
}

pub fn decode(format: impl Into<WeightFormat>, bytes: &[u8]) -> Vec<f32> {
    let format = format.into();
    let mut values = vec![0.0; bytes.len() / format.bytes()];
    widen(format, bytes, &mut values);
    values
}

/// Weights, rows of `columns` each, as the format holds them: in 8 bits by the scale of each row.
pub fn held(format: WeightFormat, values: &[f32], columns: usize) -> Vec<f32> {
    if format != WeightFormat::E4M3 {
        return rounded(format, values);
    }
    let Quantized { bits, scales } = quantize(values, columns);
    let rows = bits.chunks(columns).zip(scales);
    rows.flat_map(|(row, scale)| row.iter().map(move |&bits| to_f32(bits) * scale))
        .collect()
}

/// Rows of `columns` each, as products take them: in 8 bits, with a scale for each 128 columns, or as the type holds them.
pub fn held_rows(types: Precision, values: &[f32], columns: usize) -> Vec<f32> {
    if types.activations != Activations::FP8 {
        return rounded(types.compute, values);
    }
    let rows = values.chunks(columns);
    let blocks = rows.flat_map(|row| row.chunks(abi::TG_E4M3_ROWS_SCALED as usize));
    blocks
        .flat_map(|block| held(WeightFormat::E4M3, block, block.len()))
        .collect()
}

/// Rows that [`held_rows`] leaves as they are, near `values`, in the operand type: in 8 bits the scales are powers of two.
pub fn exact_rows(types: Precision, values: &[f32], columns: usize) -> Vec<f32> {
    if types.activations != Activations::FP8 {
        return rounded(types.compute, values);
    }
    let mut values = values.to_vec();
    for row in values.chunks_mut(columns) {
        for block in row.chunks_mut(abi::TG_E4M3_ROWS_SCALED as usize) {
            block[0] = e4m3::MAX / 64.0;
        }
    }
    held_rows(types, &values, columns)
}

/// Rows in 8 bits as they lie in a GPU's memory, `[rows, columns]` and their scales.
pub fn decode_rows(bytes: &[u8], rows: usize, columns: usize) -> Vec<f32> {
    let (pitch, scaled) = (packed::columns(columns), abi::TG_E4M3_ROWS_SCALED as usize);
    let scales = decode(DType::F32, &bytes[rows * pitch..]);
    let of_row = columns.div_ceil(scaled);
    let places = (0..rows * columns).map(|i| (i / columns, i % columns));
    let value = |(row, column): (usize, usize)| {
        let at =
            column / packed::COLUMNS * packed::COLUMNS + packed::e4m3_at(column % packed::COLUMNS);
        to_f32(bytes[row * pitch + at]) * scales[row * of_row + column / scaled]
    };
    places.map(value).collect()
}

/// So many outputs, or of weights in 8 bits whole blocks of them.
pub fn whole(types: Precision, outputs: usize) -> usize {
    match types.weights {
        WeightFormat::E4M3 => outputs.next_multiple_of(packed::ROWS),
        _ => outputs,
    }
}

/// `values` as the format holds them.
pub fn rounded(format: impl Into<WeightFormat>, values: &[f32]) -> Vec<f32> {
    let format = format.into();
    decode(format, &encode(format, values))
}

impl Gpu {
    pub fn put(&self, bytes: &[u8]) -> Buffer {
        let buffer = Buffer::new(self.stream.context(), bytes.len()).unwrap();
        buffer.write(&self.stream, 0, bytes).unwrap();
        buffer
    }

    pub fn values(&self, format: impl Into<WeightFormat>, values: &[f32]) -> Buffer {
        self.put(&encode(format, values))
    }

    /// A matrix that stands alone, `[rows, columns]`.
    pub fn weights(&self, format: WeightFormat, values: &[f32], shape: [usize; 2]) -> Weights {
        match format {
            WeightFormat::E4M3 => self.expert_weights(format, values, shape),
            _ => {
                let elements = self.values(format, values);
                Weights {
                    matrix: matrix(&elements, format, shape),
                    _memory: [elements, self.scales(format, values, shape[1])],
                }
            }
        }
    }

    /// A matrix of each expert, `[rows, columns]`.
    pub fn expert_weights(
        &self,
        format: WeightFormat,
        values: &[f32],
        [rows, columns]: [usize; 2],
    ) -> Weights {
        let elements = self.packed(format, values, [rows, columns]);
        let scales = self.scales(format, values, columns);
        let stride = packed::elements(rows, columns);
        let matrix = Matrix {
            scale: (format == WeightFormat::E4M3).then(|| scales.at(0)),
            ..expert_matrix(elements.at(0), format, [rows, columns], stride)
        };
        Weights {
            matrix,
            _memory: [elements, scales],
        }
    }

    /// The scales of weights in 8 bits, one for each row of `columns`; something for others.
    pub fn scales(&self, format: WeightFormat, values: &[f32], columns: usize) -> Buffer {
        let scales = match format {
            WeightFormat::E4M3 => quantize(values, columns).scales,
            _ => vec![0.0],
        };
        self.values(DType::F32, &scales)
    }

    /// Matrices of experts, `[rows, columns]` each, one after the other.
    pub fn packed(
        &self,
        format: WeightFormat,
        values: &[f32],
        [rows, columns]: [usize; 2],
    ) -> Buffer {
        let mut packed = vec![0; packed::elements(rows, columns) * format.bytes()];
        let mut all = Vec::new();
        for matrix in values.chunks(rows * columns) {
            let elements = match format {
                WeightFormat::E4M3 => quantize(matrix, columns).bits,
                _ => encode(format, matrix),
            };
            packed::pack(&elements, columns, format, &mut packed);
            all.extend_from_slice(&packed);
        }
        self.put(&all)
    }

    /// All bits set: not a number in every type, and no index.
    pub fn poisoned(&self, bytes: usize) -> Buffer {
        let buffer = Buffer::new(self.stream.context(), bytes).unwrap();
        buffer.fill(&self.stream, 0xff).unwrap();
        buffer
    }

    pub fn get(&self, buffer: &Buffer) -> Vec<u8> {
        let mut bytes = vec![0; buffer.bytes()];
        buffer.read(&self.stream, 0, &mut bytes).unwrap();
        bytes
    }

    pub fn get_values(&self, dtype: DType, buffer: &Buffer) -> Vec<f32> {
        decode(dtype, &self.get(buffer))
    }

    pub fn get_u32(&self, buffer: &Buffer) -> Vec<u32> {
        let bytes = self.get(buffer);
        let words = bytes.chunks_exact(4);
        words
            .map(|b| u32::from_le_bytes(b.try_into().unwrap()))
            .collect()
    }
}

/// A matrix, or one of each expert, and the memory that it and its scales are in.
pub struct Weights {
    pub matrix: Matrix,
    _memory: [Buffer; 2],
}

/// A matrix that stands alone at the start of a buffer.
pub fn matrix(at: &Buffer, format: WeightFormat, [rows, columns]: [usize; 2]) -> Matrix {
    Matrix::of_rows(at.at(0), format, rows as u32, columns as u32)
}

/// An expert's packed matrix, so many elements before the next expert's.
pub fn expert_matrix(
    address: u64,
    format: WeightFormat,
    [rows, columns]: [usize; 2],
    stride: usize,
) -> Matrix {
    Matrix {
        stride: stride as u64,
        ..Matrix::of_rows(address, format, rows as u32, columns as u32)
    }
}

/// A model's kernels.
pub struct Rig<'g> {
    pub gpu: &'g Gpu,
    pub config: ModelConfig,
    pub kernels: Kernels,
}

impl<'g> Rig<'g> {
    pub fn new(gpu: &'g Gpu, config: ModelConfig, types: Precision) -> Self {
        let choice = KernelChoice::default();
        let library = Library::loaded(&gpu.module).unwrap();
        let kernels = Kernels::load(&library, &config, types, &choice).unwrap();
        Self {
            gpu,
            config,
            kernels,
        }
    }

    /// Whether kernels that stream weights serve this rig's types, of which `found` says whether they are there: on a GPU of
    /// such a compute capability they must be, but for f32 rows with other weights than bf16, and elsewhere not.
    pub fn serves(&self, found: bool, capable: impl Fn((u32, u32)) -> bool) -> bool {
        let Precision {
            compute, weights, ..
        } = self.kernels.precision;
        let same = compute != DType::F32 && weights == compute.into();
        let types = same || matches!(weights, WeightFormat::BF16 | WeightFormat::E4M3);
        let capability = machine::probe().unwrap().gpu(0).unwrap().compute_capability;
        assert_eq!(found, types && capable(capability), "{capability:?}");
        found
    }

    /// Operations of `step` in a bucket of `rows` rows, by the kernels that serve it in a run.
    pub fn enqueue(&self, step: &StepOnGpu, kind: StepKind, rows: usize) -> Enqueue<'_> {
        assert!(rows >= step.rows);
        let bucket = Bucket {
            kind,
            rows: rows as u32,
            sequences: rows as u32,
        };
        let variant = self.kernels.variant(&self.config, bucket).unwrap();
        Enqueue::new(self, step, bucket, variant)
    }
}

/// Launches operations of one step at once. What it says of the step's kernels it says as a [`Lowering`].
pub struct Enqueue<'a> {
    stream: &'a CudaStream,
    at: StepAt,
    pub pdl: bool,
    empty: Lowering<'a>,
}

impl<'a> Enqueue<'a> {
    fn new(rig: &'a Rig, step: &StepOnGpu, bucket: Bucket, variant: Variant) -> Self {
        let at = StepAt {
            state: step.block.at(0),
            step: step.step(),
            h: None,
        };
        Self {
            stream: &rig.gpu.stream,
            at,
            pdl: true,
            empty: Lowering::new(&rig.config, &rig.kernels, bucket, variant, at, true),
        }
    }

    /// Before any call is made.
    fn lowering(&self) -> Lowering<'a> {
        let Lowering {
            config,
            kernels,
            bucket,
            variant,
            ..
        } = self.empty;
        Lowering::new(config, kernels, bucket, variant, self.at, self.pdl)
    }

    /// The kernels of the calls that `make` makes, which are not launched.
    pub fn kernels_of(&self, make: impl FnOnce(&mut Lowering<'a>)) -> Vec<String> {
        let mut to = self.lowering();
        make(&mut to);
        let calls = to.into_calls();
        calls
            .iter()
            .map(|call| call.kernel.name().to_owned())
            .collect()
    }

    /// Launches the calls that `make` makes.
    ///
    /// # Safety
    /// The arrays that it names have the shapes that its operations ask for, and live until the calls have run.
    pub unsafe fn run<T>(&self, make: impl FnOnce(&mut Lowering<'a>) -> T) -> T {
        let mut to = self.lowering();
        let made = make(&mut to);
        for call in to.into_calls() {
            // SAFETY: the caller's promise.
            unsafe { ReadyCall::new(&call).unwrap().launch(self.stream) }.unwrap();
        }
        made
    }
}

impl<'a> Deref for Enqueue<'a> {
    type Target = Lowering<'a>;

    fn deref(&self) -> &Self::Target {
        &self.empty
    }
}

/// Rings of more stages than are on their way at once (SKINNY_AHEAD of kernels/skinny/skinny.cuh).
pub const SKINNY: Linear = Linear::Skinny { stages: 4 };

/// Wide experts in tiles of up to `tile_rows` rows.
pub fn grouped(tile_rows: u32) -> Experts {
    Experts::Grouped(Grouped {
        tile_rows,
        stages: 6,
        predict: false,
        prefetch_mib: 0,
    })
}

impl<'g> Rig<'g> {
    /// Calls of a decode step, by these kernels, as far as they can serve it.
    pub fn enqueue_by(
        &self,
        step: &StepOnGpu,
        rows: usize,
        variant: Variant,
    ) -> Result<Enqueue<'_>, String> {
        self.kernels.can(&self.config, variant, rows as u32)?;
        // Rows in 8 bits are prompts' alone.
        let in_8_bits = self.kernels.precision.activations == Activations::FP8;
        let kind = if in_8_bits {
            StepKind::Mixed
        } else {
            StepKind::Decode
        };
        let bucket = self.enqueue(step, kind, rows).bucket;
        let enqueue = Enqueue::new(self, step, bucket, variant);
        assert_eq!(enqueue.multiplies_e4m3_rows(), in_8_bits, "{variant:?}");
        Ok(enqueue)
    }
}

/// Fails at the first element that is further off than `allowed(index)`, or is not a number.
pub fn assert_close(
    what: &str,
    found: &[f32],
    expected: &[f64],
    allowed: impl Fn(usize, f64) -> f64,
) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let off = (f64::from(found) - expected).abs();
        assert!(
            off <= allowed(index, expected),
            "{what}: element {index} is {found}, expected {expected} give or take {}",
            allowed(index, expected)
        );
    }
}

/// Norm of the difference over the norm.
fn relative(found: &[f32], expected: &[f32]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let differences = found.iter().zip(expected);
    let off = norm(&mut differences.map(|(&f, &e)| f64::from(f) - f64::from(e)));
    off / norm(&mut expected.iter().map(|&e| f64::from(e))).max(1e-6)
}

/// Fails at the first of `rows` rows of `width` that is further off than `limit`, by [`relative`], and at any behind them
/// that is not as it was before: poison.
pub fn assert_rows_close(
    what: &str,
    [found, expected]: [&[f32]; 2],
    width: usize,
    rows: usize,
    limit: f64,
) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (r, (a, b)) in found.chunks(width).zip(expected.chunks(width)).enumerate() {
        if r >= rows {
            let untouched = a.iter().all(|v| v.is_nan());
            assert!(untouched, "{what}: padding was written");
            continue;
        }
        let off = relative(a, b);
        assert!(off <= limit, "{what}: row {r} is off by {off:e}");
    }
}

/// Fails at the first element whose bits differ.
pub fn assert_same_bits(what: &str, a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), b.len(), "{what}");
    let differs = a
        .iter()
        .zip(b)
        .position(|(a, b)| a.to_bits() != b.to_bits());
    assert_eq!(differs, None, "{what}: the first element whose bits differ");
}
