//! Attention of prompts near the tensor cores' limit.

use super::{Attention, PagePool, most_tiles, tile_rows};
use crate::backend::cuda::driver::launch::{Argument, Kernel};
use crate::backend::cuda::driver::tensor_map::{BOX_COLUMNS, Boxes};
use crate::backend::cuda::families::Lowering;
use crate::backend::cuda::families::limits::Library;
use crate::backend::cuda::tuning::variants::Architecture;
use crate::error::Result;
use crate::plan::Precision;
use crate::sys::abi;

/// Work tiles of [`abi::TG_PROMPT_MOST_PAIRS`] that a multiprocessor must have at least for a step to be cut into these: its last one, which
/// others may wait for, takes as much longer as they are larger (profiles/log/prompts.md).
const LARGE_TILES: u32 = 8;

/// Keys of a box there are a multiple of so many, whose rows the matrix units take together.
const SWIZZLED_ROWS: u32 = 8;

/// The kernel of kernels/attention/prompt.cu for a type and heads of a size.
#[derive(Debug)]
pub struct Prompt {
    kernel: Kernel,
    /// At a time.
    keys: u32,
    shared_bytes: u32,
    pub multiprocessors: u32,
}

impl Prompt {
    /// Finds the kernel; `None` where the GPU is not of 9.0 or the type is f32.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn load(library: &Library, precision: Precision, head_dim: usize) -> Result<Option<Self>> {
        if !library.gpu.is(Architecture::has_warpgroups) || !precision.compute.is_half() {
            return Ok(None);
        }
        let operand = precision.compute.name();
        let name = format!("tg_attention_prompt_{operand}_d{head_dim}");
        let ([keys, shared_bytes], kernel) = library.with_constants::<[u32; 2]>(&name)?;
        kernel.allow_shared(shared_bytes)?;
        Ok(Some(Self {
            kernel,
            keys,
            shared_bytes,
            multiprocessors: library.gpu.class.multiprocessors,
        }))
    }

    /// Keys of a box, which lies in one page.
    fn box_keys(&self, page_tokens: u32) -> u32 {
        greatest_common_divisor(page_tokens, self.keys)
    }

    /// Whether it does these: whole boxes of what the matrix units take together, and whole rows in a warpgroup.
    pub(super) fn serves(&self, group: u32, page_tokens: u32) -> bool {
        abi::TG_GMMA_ROWS.is_multiple_of(group)
            && self.box_keys(page_tokens).is_multiple_of(SWIZZLED_ROWS)
    }
}

fn greatest_common_divisor(a: u32, b: u32) -> u32 {
    match b {
        0 => a,
        _ => greatest_common_divisor(b, a % b),
    }
}

impl Lowering<'_> {
    /// [`Lowering::attention`] by the kernel for many rows.
    pub(super) fn attention_prompt(&mut self, prompt: &Prompt, attention: &Attention) {
        let [heads, kv_heads] = self.heads();
        let (group, head_dim) = (heads / kv_heads, self.config.head_dim as u32);
        let pairs = [abi::TG_PROMPT_PAIRS, abi::TG_PROMPT_MOST_PAIRS];
        let rows = pairs.map(|pairs| tile_rows(pairs, group));
        let large_tiles = (LARGE_TILES * prompt.multiprocessors).div_ceil(kv_heads);
        self.list_query_tiles(attention, rows, large_tiles);
        let PagePool { pages, page_tokens } = attention.pool;
        let compute = self.kernels.precision.compute;
        let (all, format) = (heads + 2 * kv_heads, compute.into());
        let head = u64::from(head_dim) * compute.bytes() as u64;
        let row = u64::from(all) * head;
        let sizes = [head_dim, all, self.bucket.rows, 1, 1].map(u64::from);
        let queries = Boxes {
            at: attention.qkv,
            format,
            sizes: sizes.to_vec(),
            strides: vec![0, head, row, row, row],
            each: vec![BOX_COLUMNS, group, abi::TG_GMMA_ROWS / group, 1, 1],
        };
        let box_keys = prompt.box_keys(page_tokens);
        let vectors = |at| {
            let shape = [pages * kv_heads * page_tokens, head_dim];
            Argument::Boxes(Boxes::of_rows(at, format, shape, box_keys))
        };
        let args = abi::tg_attention_chunks_args {
            out: attention.x,
            tiles: attention.query_tiles,
            tile_count: attention.query_tile_count,
            state: self.state,
            heads,
            kv_heads,
            box_keys,
            scale: self.attention_scale(),
            ..Default::default()
        };
        let (k, v) = (vectors(attention.k_pages), vectors(attention.v_pages));
        let arguments = vec![Argument::Boxes(queries), k, v, Argument::of(&args)];
        let units = kv_heads * most_tiles(self.bucket.rows, self.bucket.sequences, rows[0]);
        let grid = (prompt.multiprocessors.min(units), 1, 1);
        let (kernel, bytes) = (&prompt.kernel, prompt.shared_bytes);
        self.call(kernel, grid, abi::TG_PROMPT_THREADS, bytes, arguments)
    }
}
