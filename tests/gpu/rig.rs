//! A model's kernels on one GPU, steps to run them for, and arrays by element type.

use crate::common::random::Random;
use crate::support::{Gpu, append, bytes};
use cudarc::driver::CudaStream;
use half::{bf16, f16};
use std::ops::Deref;
use tailgraph::backend::cuda::driver::Address;
use tailgraph::backend::cuda::driver::call::ReadyCall;
use tailgraph::backend::cuda::driver::machine;
use tailgraph::backend::cuda::families::limits::Library;
use tailgraph::backend::cuda::families::packed;
use tailgraph::backend::cuda::families::{Bucket, Kernels, Lowering, StepAt, Types};
use tailgraph::backend::cuda::memory::buffer::Buffer;
use tailgraph::backend::cuda::tuning::KernelChoice;
use tailgraph::backend::cuda::tuning::variants::{Experts, Grouped, Products, Variant};
use tailgraph::model::weights::widen;
use tailgraph::model::{DType, ModelConfig};
use tailgraph::plan::StepKind;
use tailgraph::sys::abi;

/// Every pair of types the kernels come in.
pub const TYPES: [Types; 5] = [
    types(DType::BF16, DType::BF16),
    types(DType::F16, DType::F16),
    types(DType::F32, DType::BF16),
    types(DType::F32, DType::F16),
    types(DType::F32, DType::F32),
];

pub const OPERANDS: [DType; 3] = [DType::BF16, DType::F16, DType::F32];

const fn types(operand: DType, weights: DType) -> Types {
    Types { operand, weights }
}

/// Types of a model whose matrices play no part.
pub fn operand(dtype: DType) -> Types {
    types(dtype, dtype)
}

/// A small model; tests change the fields they are about.
pub fn config() -> ModelConfig {
    ModelConfig {
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

pub fn encode(dtype: DType, values: &[f32]) -> Vec<u8> {
    match dtype {
        DType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::BF16 => values
            .iter()
            .flat_map(|&v| bf16::from_f32(v).to_le_bytes())
            .collect(),
        DType::F16 => values
            .iter()
            .flat_map(|&v| f16::from_f32(v).to_le_bytes())
            .collect(),
    }
}

pub fn decode(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; bytes.len() / dtype.bytes()];
    widen(dtype, bytes, &mut values);
    values
}

/// `values` as the type holds them.
pub fn rounded(dtype: DType, values: &[f32]) -> Vec<f32> {
    decode(dtype, &encode(dtype, values))
}

impl Gpu {
    pub fn put(&self, bytes: &[u8]) -> Buffer {
        let buffer = Buffer::new(self.stream.context(), bytes.len()).unwrap();
        buffer.write(&self.stream, 0, bytes).unwrap();
        buffer
    }

    pub fn values(&self, dtype: DType, values: &[f32]) -> Buffer {
        self.put(&encode(dtype, values))
    }

    /// Matrices of experts, `[rows, columns]` each, one after the other.
    pub fn packed(&self, dtype: DType, values: &[f32], [rows, columns]: [usize; 2]) -> Buffer {
        let (mut packed, mut all) = (Vec::new(), Vec::new());
        for matrix in values.chunks(rows * columns) {
            packed::pack(&encode(dtype, matrix), columns, dtype, &mut packed);
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

/// Consecutive rows of one slot.
#[derive(Debug, Clone)]
pub struct Chunk {
    pub slot: u32,
    pub first_position: u32,
    pub tokens: Vec<i32>,
    /// The last row is sampled.
    pub sampled: bool,
}

/// A step and the slots behind it.
#[derive(Debug, Clone, Default)]
pub struct Step {
    pub slots: Vec<abi::tg_slot>,
    pub page_tokens: u32,
    pub max_pages: u32,
    /// `[slots, max_pages]`
    pub pages: Vec<u32>,
    /// Of each slot; those of slots past the end are none.
    pub biases: Vec<Vec<abi::tg_bias>>,
    pub chunks: Vec<Chunk>,
}

/// A step in the GPU's memory.
pub struct StepOnGpu {
    pub block: Buffer,
    sampled_table: usize,
    pub rows: usize,
    pub sampled: usize,
}

impl Step {
    /// `slots` slots that hold up to `tokens` tokens each, in pages of `page_tokens` dealt at random.
    pub fn with_slots(random: &mut Random, slots: usize, tokens: u32, page_tokens: u32) -> Self {
        let max_pages = tokens.div_ceil(page_tokens);
        let mut pages: Vec<u32> = (0..slots as u32 * max_pages).collect();
        for i in (1..pages.len()).rev() {
            pages.swap(i, random.below(i + 1));
        }
        Self {
            slots: vec![abi::tg_slot::default(); slots],
            page_tokens,
            max_pages,
            pages,
            biases: Vec::new(),
            chunks: Vec::new(),
        }
    }

    pub fn chunk(&mut self, slot: usize, first_position: u32, rows: usize) {
        self.chunks.push(Chunk {
            slot: slot as u32,
            first_position,
            tokens: vec![0; rows],
            sampled: false,
        });
    }

    /// Rows of which nothing matters but that they are there.
    pub fn of_rows(rows: usize) -> Self {
        let mut step = Self::with_slots(&mut Random(0), 1, rows as u32, 1);
        step.chunk(0, 0, rows);
        step
    }

    /// (slot, position) of each row.
    pub fn rows(&self) -> Vec<(usize, usize)> {
        let rows = self.chunks.iter().flat_map(|chunk| {
            let first = chunk.first_position as usize;
            (0..chunk.tokens.len()).map(move |i| (chunk.slot as usize, first + i))
        });
        rows.collect()
    }

    /// Which vector of the pool, of one kv head of so many, a slot's position has.
    pub fn vector(&self, slot: usize, position: usize, kv_head: usize, kv_heads: usize) -> usize {
        let page_tokens = self.page_tokens as usize;
        let page = self.pages[slot * self.max_pages as usize + position / page_tokens];
        (page as usize * kv_heads + kv_head) * page_tokens + position % page_tokens
    }

    pub fn upload(&self, gpu: &Gpu) -> StepOnGpu {
        let mut rows = Vec::new();
        let mut sequences = Vec::new();
        let mut samples: Vec<u32> = Vec::new();
        for (index, chunk) in self.chunks.iter().enumerate() {
            let first_row = rows.len() as u32;
            for (i, &token) in chunk.tokens.iter().enumerate() {
                rows.push(abi::tg_row {
                    slot: chunk.slot,
                    position: chunk.first_position + i as u32,
                    token,
                    sequence: index as u32,
                });
            }
            let first = match (chunk.first_position, chunk.tokens.len()) {
                (0, _) => abi::TG_SEQUENCE_FIRST,
                (_, 1) => abi::TG_SEQUENCE_DECODE,
                _ => 0,
            };
            sequences.push(abi::tg_sequence {
                slot: chunk.slot,
                first_row,
                rows: chunk.tokens.len() as u32,
                first_position: chunk.first_position,
                sample: match chunk.sampled {
                    true => samples.len() as u32,
                    false => u32::MAX,
                },
                flags: first | (u32::from(chunk.sampled) * abi::TG_SEQUENCE_LAST),
            });
            if chunk.sampled {
                samples.push(rows.len() as u32 - 1);
            }
        }
        let mut block = vec![0; size_of::<abi::tg_state>()];
        let bias_capacity = self.biases.iter().map(Vec::len).max().unwrap_or(0);
        let mut biases = vec![abi::tg_bias::default(); self.slots.len() * bias_capacity];
        for (slot, own) in self.biases.iter().enumerate() {
            biases[slot * bias_capacity..][..own.len()].copy_from_slice(own);
        }
        let mut state = abi::tg_state {
            slot_table: append(&mut block, &self.slots),
            bias_table: append(&mut block, &biases),
            page_table: append(&mut block, &self.pages),
            max_pages: self.max_pages,
            ..abi::tg_state::default()
        };
        state.config.slots = self.slots.len() as u32;
        state.config.bias_capacity = bias_capacity as u32;
        state.config.page_tokens = self.page_tokens;
        state.config.steps_in_flight = 1;
        let sampled = vec![abi::tg_sampled::default(); samples.len()];
        let sampled_table = append(&mut block, &sampled);
        state.steps[0] = abi::tg_step {
            rows: rows.len() as u32,
            sequences: sequences.len() as u32,
            sample_rows: samples.len() as u32,
            row_table: append(&mut block, &rows),
            sequence_table: append(&mut block, &sequences),
            sample_table: append(&mut block, &samples),
            sampled_table,
            ..abi::tg_step::default()
        };
        block[..size_of::<abi::tg_state>()].copy_from_slice(bytes(&[state]));
        StepOnGpu {
            block: gpu.put(&block),
            sampled_table: sampled_table as usize,
            rows: rows.len(),
            sampled: samples.len(),
        }
    }
}

impl StepOnGpu {
    /// What sampling left behind.
    pub fn sampled(&self, gpu: &Gpu) -> Vec<abi::tg_sampled> {
        let mut sampled = vec![abi::tg_sampled::default(); self.sampled];
        let bytes = size_of_val(&sampled[..]);
        // SAFETY: plain integers throughout: any bytes are valid, and all are written.
        let view =
            unsafe { std::slice::from_raw_parts_mut(sampled.as_mut_ptr().cast::<u8>(), bytes) };
        self.block
            .read(&gpu.stream, self.sampled_table, view)
            .unwrap();
        sampled
    }

    fn step(&self) -> Address {
        self.block.at(std::mem::offset_of!(abi::tg_state, steps))
    }
}

/// A model's kernels.
pub struct Rig<'g> {
    pub gpu: &'g Gpu,
    pub config: ModelConfig,
    pub kernels: Kernels,
}

impl<'g> Rig<'g> {
    pub fn new(gpu: &'g Gpu, config: ModelConfig, types: Types) -> Self {
        let choice = KernelChoice::default();
        let kernels = Kernels::load(
            &Library::loaded(&gpu.module).unwrap(),
            &config,
            types,
            &choice,
        )
        .unwrap();
        Self {
            gpu,
            config,
            kernels,
        }
    }

    /// Whether kernels that stream weights serve this rig's types, of which `found` says whether they are there: on a GPU of
    /// such a compute capability they must be, but for f32 rows with other weights than bf16, and elsewhere not.
    pub fn serves(&self, found: bool, capable: impl Fn((u32, u32)) -> bool) -> bool {
        let Types { operand, weights } = self.kernels.types;
        let types = operand == weights && operand != DType::F32 || weights == DType::BF16;
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
    pub early: bool,
    empty: Lowering<'a>,
}

impl<'a> Enqueue<'a> {
    fn new(rig: &'a Rig, step: &StepOnGpu, bucket: Bucket, variant: Variant) -> Self {
        let at = StepAt {
            state: step.block.at(0),
            step: step.step(),
        };
        Self {
            stream: &rig.gpu.stream,
            at,
            early: true,
            empty: Lowering::new(&rig.config, &rig.kernels, bucket, variant, at, true),
        }
    }

    /// Launches the calls that `make` makes.
    ///
    /// # Safety
    /// The arrays that it names have the shapes that its operations ask for, and live until the calls have run.
    pub unsafe fn run<T>(&self, make: impl FnOnce(&mut Lowering<'a>) -> T) -> T {
        let Lowering {
            config,
            kernels,
            bucket,
            variant,
            ..
        } = self.empty;
        let mut to = Lowering::new(config, kernels, bucket, variant, self.at, self.early);
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
pub const SKINNY: Products = Products::Skinny { stages: 4 };

/// Wide experts in tiles of up to `tile_rows` rows.
pub fn grouped(tile_rows: u32) -> Experts {
    Experts::Grouped(Grouped {
        tile_rows,
        stages: 6,
        guess: false,
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
        let bucket = self.enqueue(step, StepKind::Decode, rows).bucket;
        Ok(Enqueue::new(self, step, bucket, variant))
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
