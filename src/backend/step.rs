//! A step descriptor as a backend reads it.

use crate::error::{Error, Result};
use crate::plan::StepKind;
use crate::sys::abi;
use std::marker::PhantomData;
use std::ptr::NonNull;

/// One composed step inside the scheduler's memory. While the step is in flight the core leaves its tables
/// alone, and of its slots' entries only fields that no backend reads change; so rows and sequences are
/// handed out as slices and slot fields are copied out one by one.
#[derive(Clone, Copy)]
pub struct StepView<'a> {
    state: *mut abi::tg_state,
    step: *mut abi::tg_step,
    input: Option<NonNull<[f32]>>,
    output: Option<NonNull<[f32]>>,
    _memory: PhantomData<&'a abi::tg_state>,
}

// SAFETY: a view only reads tables that nobody writes while the step is in flight, and writes only the
// sampled table, which only the last stage does, and activations into a place that is its stage's alone.
unsafe impl Send for StepView<'_> {}

/// What sampling reads of a slot.
#[derive(Debug, Clone, Copy)]
pub struct SlotView {
    pub request: u64,
    /// `TG_REQUEST_*`
    pub flags: u32,
    /// The newest collected token; -1 before the first.
    pub last_token: i32,
    /// Rows from this position on are of the answer.
    pub prompt_tokens: u32,
    pub sampling: abi::tg_sampling,
}

impl<'a> StepView<'a> {
    /// # Safety
    /// `state` is an initialised state block that outlives `'a`, and step `number` is in flight: composed and
    /// not yet collected.
    pub unsafe fn new(state: *mut abi::tg_state, number: u64) -> Self {
        // SAFETY: the caller's promise; `steps` lies inside the block and the index is in range.
        unsafe {
            let place = number % u64::from((*state).config.steps_in_flight);
            let step = (&raw mut (*state).steps)
                .cast::<abi::tg_step>()
                .add(place as usize);
            Self {
                state,
                step,
                input: None,
                output: None,
                _memory: PhantomData,
            }
        }
    }

    /// The same step with where the residual stream comes from, in a stage behind another, and where it goes, in one before
    /// another.
    ///
    /// # Safety
    /// Both outlive `'a`; while there is a view of the step nobody writes `input`, and nobody else touches `output`.
    pub unsafe fn with_activations(
        self,
        input: Option<NonNull<[f32]>>,
        output: Option<NonNull<[f32]>>,
    ) -> Self {
        Self {
            input,
            output,
            ..self
        }
    }

    /// What the stage before has left, `[step_tokens, H]`, of which the step's rows mean something.
    ///
    /// # Errors
    /// There is no stage before.
    pub fn activations(&self) -> Result<&'a [f32]> {
        let input = self.input.ok_or_else(|| {
            Error::Runtime(format!(
                "step {} has no activations of an earlier stage, which a stage that does not embed reads",
                self.header().number
            ))
        })?;
        // SAFETY: the promise of `with_activations`.
        Ok(unsafe { input.as_ref() })
    }

    /// Leaves the rows' residual stream for the next stage, if there is one.
    ///
    /// # Panics
    /// It is longer than the place for it.
    pub fn leave_activations(&self, rows: &[f32]) {
        if let Some(output) = self.output {
            assert!(rows.len() <= output.len(), "the place holds a whole step");
            // SAFETY: the promise of `with_activations`; there is room for as many.
            unsafe {
                output
                    .cast::<f32>()
                    .copy_from_nonoverlapping(NonNull::from(rows).cast(), rows.len());
            }
        }
    }

    fn table<T>(&self, offset: u64) -> *mut T {
        // SAFETY: offsets written by tg_state_init lie inside the block.
        unsafe { self.state.cast::<u8>().add(offset as usize).cast() }
    }

    pub fn kind(&self) -> StepKind {
        StepKind::ALL[self.header().kind as usize]
    }

    /// The descriptor's head.
    pub fn header(&self) -> &'a abi::tg_step {
        // SAFETY: nobody writes the descriptor while it is in flight.
        unsafe { &*self.step }
    }

    /// `[rows]`
    pub fn rows(&self) -> &'a [abi::tg_row] {
        let header = self.header();
        // SAFETY: the table holds step_tokens >= rows entries, unwritten while in flight.
        unsafe { std::slice::from_raw_parts(self.table(header.row_table), header.rows as usize) }
    }

    /// `[sequences]`
    pub fn sequences(&self) -> &'a [abi::tg_sequence] {
        let header = self.header();
        // SAFETY: the table holds slots >= sequences entries, unwritten while in flight.
        unsafe {
            std::slice::from_raw_parts(self.table(header.sequence_table), header.sequences as usize)
        }
    }

    /// Row of each sampled row, ascending: `[sample_rows]`
    pub fn sample_rows(&self) -> &'a [u32] {
        let header = self.header();
        // SAFETY: the table holds slots >= sample_rows entries, unwritten while in flight.
        unsafe {
            std::slice::from_raw_parts(self.table(header.sample_table), header.sample_rows as usize)
        }
    }

    /// A row's token, which may be one that the step before has sampled. Where that found none, the row's sequence has
    /// ended and nobody reads what becomes of the row: it is 0 then.
    pub fn token(&self, row: &abi::tg_row) -> i32 {
        match row.token {
            -1 => self.slot(row.slot).last_token,
            token if token >= 0 => token,
            abi::TG_TOKEN_KEPT => self.kept(row),
            token => {
                let index = (-2 - token) as usize;
                // SAFETY: config never changes after tg_state_init.
                assert!(index < unsafe { (*self.state).config.slots } as usize);
                // SAFETY: in range; the step before has left its results, and its place is not used again while this
                // step is in flight.
                unsafe {
                    let earlier = self.table::<abi::tg_sampled>(self.header().earlier_table);
                    (*earlier.add(index)).token.max(0)
                }
            }
        }
    }

    /// What is kept of a sequence that is recomputed.
    fn kept(&self, row: &abi::tg_row) -> i32 {
        // SAFETY: config and offsets never change after tg_state_init. The index is in range, and what is kept of a
        // sequence grows only behind the rows that it has in this step.
        unsafe {
            let config = &raw const (*self.state).config;
            let (slots, columns) = ((*config).slots, (*config).max_context);
            assert!(row.slot < slots && row.position < columns);
            let table = self.table::<i32>((*self.state).kept_table);
            *table.add(row.slot as usize * columns as usize + row.position as usize)
        }
    }

    /// Leaves the result of sampled row `index`.
    pub fn set_sampled(&self, index: usize, sampled: abi::tg_sampled) {
        let header = self.header();
        assert!(index < header.sample_rows as usize);
        // SAFETY: in range, and only the last stage writes results, before the step is posted back.
        unsafe {
            self.table::<abi::tg_sampled>(header.sampled_table)
                .add(index)
                .write(sampled);
        }
    }

    /// What a backend may know of a slot that has rows in this step.
    pub fn slot(&self, slot: u32) -> SlotView {
        // SAFETY: slot ids in a descriptor are below config.slots; these fields do not change while a step of
        // the slot is in flight.
        unsafe {
            assert!(slot < (*self.state).config.slots);
            let entry = self
                .table::<abi::tg_slot>((*self.state).slot_table)
                .add(slot as usize);
            SlotView {
                request: (*entry).request,
                flags: (*entry).flags,
                last_token: (*entry).last_token,
                prompt_tokens: (*entry).prompt_tokens,
                sampling: (*entry).sampling,
            }
        }
    }

    /// What is added to the slot's logits.
    pub fn biases(&self, slot: u32) -> &'a [abi::tg_bias] {
        let count = self.slot(slot).sampling.bias_count as usize;
        // SAFETY: a slot's row of the bias table is written at admission only, before any of its steps, and has room for
        // as many as were admitted.
        unsafe {
            let columns = (*self.state).config.bias_capacity as usize;
            assert!(count <= columns);
            let table = self.table::<abi::tg_bias>((*self.state).bias_table);
            std::slice::from_raw_parts(table.add(slot as usize * columns), count)
        }
    }

    /// The token ids that end the slot's sequence.
    pub fn stop_ids(&self, slot: u32) -> &'a [i32] {
        // SAFETY: as in `slot`; these are written at admission only.
        unsafe {
            assert!(slot < (*self.state).config.slots);
            let entry = self.table::<abi::tg_slot>((*self.state).slot_table);
            let entry = entry.add(slot as usize);
            let ids = (&raw const (*entry).stop_ids).cast();
            std::slice::from_raw_parts(ids, (*entry).stop_count as usize)
        }
    }

    /// The pages that a sequence's rows and all before them lie in: entry p holds positions `p * page_tokens ..`. Fewer
    /// where the descriptor has rows past the context.
    pub fn pages(&self, sequence: &abi::tg_sequence) -> &'a [u32] {
        // SAFETY: while steps of a slot are in flight, its row of the page table is written only behind what they use.
        unsafe {
            let config = &raw const (*self.state).config;
            assert!(sequence.slot < (*config).slots);
            let columns = (*self.state).max_pages as usize;
            let tokens = u64::from(sequence.first_position) + u64::from(sequence.rows);
            let used = tokens.div_ceil(u64::from((*config).page_tokens)) as usize;
            let table = self
                .table::<u32>((*self.state).page_table)
                .add(sequence.slot as usize * columns);
            std::slice::from_raw_parts(table, used.min(columns))
        }
    }
}
