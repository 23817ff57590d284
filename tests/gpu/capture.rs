//! A whole layer and the head, launched one by one, launched with pdl, and captured: the same bits.

use crate::common::random::Random;
use crate::rig::{Rig, Step, config, encode, expert_matrix, operand};
use crate::support::Gpu;
use cudarc::driver::sys;
use std::cell::RefCell;
use tailgraph::backend::cuda::driver::Address;
use tailgraph::backend::cuda::families::Lowering;
use tailgraph::backend::cuda::families::attention::KeySplit;
use tailgraph::backend::cuda::families::attention::{Attention, PagePool, most_query_tiles};
use tailgraph::backend::cuda::families::experts::{
    EXPERT_COUNTS_BYTES, ExpertRows, ExpertWeights, Routing, most_expert_tiles,
};
use tailgraph::backend::cuda::families::head::{LogitsPart, Noted, seen_words};
use tailgraph::backend::cuda::families::packed;
use tailgraph::backend::cuda::families::router::RouterWeights;
use tailgraph::backend::cuda::families::tiled::{Epilogue, Prepared, Product, Rows};
use tailgraph::backend::cuda::matrix::Matrix;
use tailgraph::backend::cuda::memory::arena::{
    EXPERT_TILE_BYTES, QUERY_TILE_BYTES, best_words, count_stride,
};
use tailgraph::backend::cuda::memory::buffer::Buffer;
use tailgraph::backend::cuda::tuning::limits::MEETING_BYTES;
use tailgraph::model::DType;
use tailgraph::plan::StepKind;
use tailgraph::sys::abi;

const BUCKET: usize = 128;

/// Device arrays by what they hold; all stay until the end.
struct Arrays<'g> {
    gpu: &'g Gpu,
    random: RefCell<Random>,
    all: RefCell<Vec<Buffer>>,
}

impl Arrays<'_> {
    fn keep(&self, buffer: Buffer) -> Address {
        let address = buffer.at(0);
        self.all.borrow_mut().push(buffer);
        address
    }

    fn weights(&self, dtype: DType, count: usize, scale: f32) -> Address {
        let values = self.random.borrow_mut().values(count, scale);
        self.keep(self.gpu.put(&encode(dtype, &values)))
    }

    fn scratch(&self, bytes: usize) -> Address {
        self.keep(self.gpu.poisoned(bytes))
    }
}

/// Embedding, one attention layer with a mixture, and the head.
struct Layer {
    embedding: Matrix,
    norms: [Address; 3],
    qkv_proj: Matrix,
    out_proj: Matrix,
    attention: Attention,
    gate: Matrix,
    expert_weights: ExpertWeights,
    routing: Routing,
    h: Address,
    x: Address,
    y: Address,
    partial: Address,
    logits: Address,
    noted: Noted,
    best: Address,
    meetings: Address,
}

impl Layer {
    fn new(arrays: &Arrays, rig: &Rig, step: &Step, tile_rows: u32) -> Self {
        let c = &rig.config;
        let (hidden, inner, d) = (c.hidden_size, c.moe_intermediate_size, c.head_dim);
        let (heads, kv_heads) = (c.num_attention_heads, c.num_key_value_heads);
        let (experts, top_k) = (c.num_experts, c.num_experts_per_tok);
        let width = (heads + 2 * kv_heads) * d;
        let (t, f) = (DType::BF16, DType::F32);
        let pool = step.pages.len() * step.page_tokens as usize * kv_heads * d;
        let pairs = BUCKET * top_k;
        let rows = BUCKET as u32;
        let max_context = step.max_pages * step.page_tokens;
        let query_tiles = most_query_tiles(rows, rows, heads as u32, kv_heads as u32) as usize;
        let expert_tiles =
            most_expert_tiles(rows, experts as u32, top_k as u32, tile_rows) as usize;
        let norm = |count| arrays.weights(f, count, 1.5);
        let matrix = |dtype: DType, rows: usize, columns: usize, scale| {
            let at = arrays.weights(dtype, rows * columns, scale);
            Matrix::of_rows(at, dtype.into(), rows as u32, columns as u32)
        };
        let of_experts = |rows, columns| {
            let stride = packed::elements(rows, columns);
            let at = arrays.weights(t, experts * stride, 0.2);
            expert_matrix(at, t.into(), [rows, columns], stride)
        };
        Self {
            embedding: matrix(t, c.vocab_size, hidden, 1.0),
            norms: [norm(hidden), norm(hidden), norm(hidden)],
            qkv_proj: matrix(t, width, hidden, 0.2),
            out_proj: matrix(t, hidden, heads * d, 0.1),
            attention: Attention {
                x: arrays.scratch(BUCKET * heads * d * 2),
                qkv: arrays.scratch(BUCKET * width * 2),
                k_pages: arrays.scratch(pool * 2),
                v_pages: arrays.scratch(pool * 2),
                q_norm: norm(d),
                k_norm: norm(d),
                inverse_frequencies: arrays.weights(f, d / 2, 1.0),
                query_tiles: arrays.scratch(query_tiles * QUERY_TILE_BYTES),
                query_tile_count: arrays.scratch(8),
                partials: arrays.scratch(
                    KeySplit::most_pieces(rows, max_context) as usize * heads * (d + 2) * 4,
                ),
                done: arrays.keep(arrays.gpu.put(&vec![0; BUCKET * heads * 4])),
                max_context,
                pool: PagePool {
                    pages: step.pages.len() as u32,
                    page_tokens: step.page_tokens,
                },
            },
            gate: matrix(f, experts, hidden, 0.3),
            expert_weights: ExpertWeights {
                gate: of_experts(inner, hidden),
                up: of_experts(inner, hidden),
                down: of_experts(hidden, inner),
            },
            routing: Routing {
                experts: arrays.scratch(pairs * 4),
                weights: arrays.scratch(pairs * 4),
                score_parts: 0,
                rows: arrays.scratch(pairs * 4),
                place: arrays.scratch(pairs * 4),
                tiles: arrays.scratch(expert_tiles * EXPERT_TILE_BYTES),
                tile_count: arrays.scratch(EXPERT_COUNTS_BYTES),
            },
            h: arrays.scratch(BUCKET * hidden * 4),
            x: arrays.scratch(BUCKET * hidden * 2),
            y: arrays.scratch(pairs * inner * 2),
            partial: arrays.scratch(pairs * hidden * 4),
            logits: arrays.scratch(BUCKET * c.vocab_size * 4),
            noted: Noted {
                seen: arrays.scratch(step.slots.len() * seen_words(c.vocab_size) * 4),
                counts: arrays.scratch(step.slots.len() * count_stride(c.vocab_size) * 2),
            },
            best: arrays.scratch(best_words(BUCKET) * 8),
            meetings: arrays.keep(arrays.gpu.put(&[0; BUCKET * MEETING_BYTES])),
        }
    }

    /// All of it, for the rig and the step that this was made for.
    fn lower(&self, to: &mut Lowering<'_>) {
        let product = |y, x, w, epilogue| Product {
            y,
            x,
            w,
            w_pair: None,
            bias: 0,
            epilogue,
            prepared: Prepared::Scratch(0),
        };
        let a = &self.attention;
        let qkv = product(a.qkv, self.x, self.qkv_proj, Epilogue::Store);
        let out = product(self.h, a.x, self.out_proj, Epilogue::Add);
        to.embed(self.h, self.embedding);
        to.norm(self.x, self.h, self.norms[0]);
        to.product(&qkv, Rows::Step);
        to.qk_norm_rope(a);
        to.attention(a);
        to.product(&out, Rows::Step);
        let router = RouterWeights {
            norm: self.norms[1],
            gate: self.gate,
            bias: 0,
            // Nobody predicts here.
            predictor: 0,
        };
        to.router(&self.routing, self.x, self.h, &router);
        let rows = ExpertRows {
            x: self.x,
            prepared: 0,
            y: self.y,
            partial: self.partial,
        };
        to.expert_products(&self.routing, &self.expert_weights, &rows, &[]);
        to.combine_experts(&self.routing, self.h, &rows, None);
        to.final_norm(self.x, self.h, self.norms[2]);
        let part = LogitsPart::Sampled;
        let found = to.lm_head(
            part,
            false,
            self.logits,
            self.best,
            (self.x, 0),
            self.embedding,
        );
        to.mark_seen(self.noted);
        to.sample(
            part,
            self.logits,
            self.noted,
            self.best,
            found,
            self.meetings,
        );
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn eager_pdl_and_captured_launches_give_the_same_bits() {
    let gpu = Gpu::new();
    let rig = Rig::new(&gpu, config(), operand(DType::BF16));
    let mut random = Random(61);
    let mut step = Step::with_slots(&mut random, 4, 64, 16);
    for (slot, rows) in [(2, 1), (0, 33), (3, 50)] {
        step.chunk(slot, 0, rows);
    }
    for chunk in &mut step.chunks {
        let tokens = chunk.tokens.iter_mut();
        tokens.for_each(|token| *token = random.below(rig.config.vocab_size) as i32);
        chunk.sampled = true;
    }
    for slot in &mut step.slots {
        slot.sampling = abi::tg_sampling {
            key: random.next(),
            temperature: 1.0_f32.to_bits(),
            top_p: 0.9_f32.to_bits(),
            repetition_penalty: 1.1_f32.to_bits(),
            frequency_penalty: 0.3_f32.to_bits(),
            logprobs: 5,
            ..abi::tg_sampling::default()
        };
    }
    let on_gpu = step.upload(&gpu);
    let arrays = Arrays {
        gpu: &gpu,
        random: RefCell::new(random),
        all: RefCell::default(),
    };
    let mut queue = rig.enqueue(&on_gpu, StepKind::Mixed, BUCKET);
    let layer = Layer::new(&arrays, &rig, &step, queue.pairs().tile_rows);
    let logits_bytes = on_gpu.sampled * rig.config.vocab_size * 4;
    let outcome = || {
        let all = arrays.all.borrow();
        let logits = all.iter().find(|b| b.at(0) == layer.logits).unwrap();
        let mut bytes = vec![0; logits_bytes];
        logits.read(&gpu.stream, 0, &mut bytes).unwrap();
        logits.fill(&gpu.stream, 0xff).unwrap();
        (bytes, on_gpu.sampled(&gpu))
    };
    queue.pdl = false;
    // SAFETY: the layer was made for this rig and step.
    unsafe { queue.run(|to| layer.lower(to)) };
    let eager = outcome();
    assert!(eager.1.iter().all(|s| s.token >= 0), "{:?}", eager.1);

    queue.pdl = true;
    // SAFETY: as above.
    unsafe { queue.run(|to| layer.lower(to)) };
    assert!(outcome() == eager, "launched with pdl");

    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    gpu.stream.begin_capture(mode).unwrap();
    // SAFETY: as above.
    unsafe { queue.run(|to| layer.lower(to)) };
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = gpu.stream.end_capture(flags).unwrap().expect("a graph");
    for run in 0..3 {
        graph.launch().unwrap();
        assert!(outcome() == eager, "captured, run {run}");
    }
}
