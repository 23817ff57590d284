//! The rows of a mixed step that the last layers compute, as a step of their own (kernels/step/needed.cu).

use super::Lowering;
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::arguments::arguments;
use crate::error::Result;
use crate::plan::NeededRows;
use crate::sys::abi;

/// Where the list lies: N rows of S sequences, at most.
#[derive(Debug, Clone, Copy)]
pub struct Listed {
    /// `tg_step`
    pub step: Address,
    /// `tg_row [N]`
    pub rows: Address,
    /// u32 `[N]`: which of the step's rows each is.
    pub from: Address,
    /// `tg_sequence [S]`
    pub sequences: Address,
    /// u32 `[S]`
    pub samples: Address,
}

/// What is gathered: where to, and from where.
#[derive(Debug, Clone, Copy)]
pub struct Gathered {
    /// [`Listed::from`]; without it row r is row r.
    pub from: Option<Address>,
    /// f32 `[N, H]` and `[R, H]`.
    pub h: (Address, Address),
    /// `[N, (heads + 2 kv_heads) D]` and `[R, ...]`, operand type, of which q is gathered.
    pub qkv: Option<(Address, Address)>,
}

impl Lowering<'_> {
    /// Lists the rows that are needed. All calls from here on are of these: the next one starts when the list is there, and the bucket
    /// is as large as the list may be.
    ///
    /// # Errors
    /// The plan asks for what cannot be served.
    pub fn list_needed_rows(&mut self, listed: &Listed, needed: NeededRows) -> Result<()> {
        let args = abi::tg_needed_args {
            state: self.state,
            step: self.step,
            needed: listed.step,
            rows: listed.rows,
            from: listed.from,
            sequences: listed.sequences,
            samples: listed.samples,
            last_rows: needed.rows,
            pad: 0,
        };
        let kernel = &self.kernels.needed_rows;
        let threads = abi::TG_NEEDED_THREADS;
        self.call_plain(kernel, (1, 1, 1), threads, arguments![&args]);
        self.starts_behind = true;
        self.bucket.rows = needed.most(self.bucket.rows, self.bucket.sequences);
        self.variant = self.kernels.variant(self.config, self.bucket)?;
        self.step = listed.step;
        self.query_tiles = None;
        Ok(())
    }

    /// Copies the rows that are needed.
    pub fn gather_rows(&mut self, gathered: &Gathered) {
        let element = self.kernels.precision.compute.bytes() as u32;
        let [heads, kv_heads] = self.heads();
        let of_heads = |heads: u32| heads * self.config.head_dim as u32 * element;
        let (qkv_to, qkv) = gathered.qkv.unwrap_or_default();
        let args = abi::tg_gather_args {
            needed: self.step,
            from: gathered.from.unwrap_or_default(),
            h_to: gathered.h.0,
            h: gathered.h.1,
            qkv_to,
            qkv,
            h_bytes: self.hidden() * size_of::<f32>() as u32,
            q_bytes: gathered.qkv.map_or(0, |_| of_heads(heads)),
            qkv_bytes: of_heads(heads + 2 * kv_heads),
            pad: 0,
        };
        let (kernel, grid) = (&self.kernels.gather_rows, (self.bucket.rows, 1, 1));
        self.call_plain(kernel, grid, abi::TG_GATHER_THREADS, arguments![&args]);
    }
}
