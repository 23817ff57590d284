//! A step that was composed on the host, as kernels read it: what they need of the state block, in device memory.
//!
//! Tables are found by offsets, so the copy has a layout of its own: what changes with every step lies together and
//! goes over in two copies (slots; the step and its tables), page-table rows go over when they have changed, and biases with a
//! sequence's first step.
//! There are several places for a step and its samples, so that a step can go over while others are still on the GPU.

mod layout;

pub use layout::{PLACES, step_copy_bytes};

use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::engine::waiter::Waiter;
use crate::backend::cuda::families::StepAt;
use crate::backend::cuda::memory::buffer::Buffer;
use crate::backend::cuda::memory::pinned::Pinned;
use crate::backend::{SharedRegion, StepView};
use crate::error::Result;
use crate::plan::EngineOptions;
use crate::sys::abi;
use cudarc::driver::result;
use cudarc::driver::{CudaContext, CudaStream};
use layout::{BIAS_ROW_BYTES, Layout, Tables};
use std::ops::Range;
use std::sync::Arc;

/// The copy and, in pinned memory at the same offsets, what is copied to and from it.
pub struct StepCopy {
    layout: Layout,
    device: Buffer,
    staging: Arc<Pinned>,
}

impl StepCopy {
    /// # Errors
    /// [`crate::Error::Memory`] where there is not enough.
    pub fn new(
        context: &Arc<CudaContext>,
        stream: &CudaStream,
        options: &EngineOptions,
        places: usize,
    ) -> Result<Self> {
        let layout = Layout::new(options, places);
        let copy = Self {
            layout,
            device: Buffer::named(context, "the step's tables", layout.bytes)?,
            staging: Pinned::new(context, layout.bytes)?,
        };
        let mut head = abi::tg_state {
            bytes: layout.bytes as u64,
            max_pages: layout.max_pages as u32,
            slot_table: layout.slot_table as u64,
            page_table: layout.page_table as u64,
            bias_table: layout.bias_table as u64,
            ..Default::default()
        };
        head.config = abi::tg_config {
            slots: options.max_seqs,
            pages: options.pages,
            page_tokens: options.page_tokens,
            max_context: options.max_context,
            step_tokens: options.step_tokens,
            steps_in_flight: 1,
            bias_capacity: abi::TG_MAX_BIASES,
            ..Default::default()
        };
        copy.put(0, &[head]);
        copy.send(stream, 0..layout.bytes)?;
        stream
            .synchronize()
            .map_err(|error| failed("copying to the GPU", error))?;
        Ok(copy)
    }

    /// Where kernels find the step of the first place.
    pub fn at(&self) -> StepAt {
        self.place(0)
    }

    /// Where kernels find the step of a place.
    pub fn place(&self, place: usize) -> StepAt {
        StepAt {
            state: self.device.at(0),
            step: self.device.at(self.layout.step(place)),
            h: None,
        }
    }

    /// How many places there are.
    pub fn places(&self) -> usize {
        self.layout.places
    }

    /// Queues the copies that make `step` the step of `place`. Steps in other places may still run: of other sequences, or of
    /// chunks of the same prompts, whose slots do not change between them. Until the copies have run, the next call must wait.
    ///
    /// # Errors
    /// The driver refuses a copy.
    pub fn send_step(
        &mut self,
        stream: &CudaStream,
        place: usize,
        step: &StepView<'_>,
    ) -> Result<()> {
        // With no step of the same sequences ahead of it, what they have sampled is known here.
        let row = |row: &abi::tg_row| abi::tg_row {
            token: match row.token {
                token if token < -1 => step.token(row),
                token => token,
            },
            ..*row
        };
        let rows: Vec<_> = step.rows().iter().map(row).collect();
        let tables = self.put_step(place, step, &rows);
        let mut slots_end = 0;
        for sequence in step.sequences() {
            let slot = sequence.slot as usize;
            slots_end = slots_end.max(slot + 1);
            let view = step.slot(sequence.slot);
            let mut entry = abi::tg_slot {
                request: view.request,
                flags: view.flags,
                last_token: view.last_token,
                prompt_tokens: view.prompt_tokens,
                sampling: view.sampling,
                ..Default::default()
            };
            let stop_ids = step.stop_ids(sequence.slot);
            entry.stop_count = stop_ids.len() as u32;
            entry.stop_ids[..stop_ids.len()].copy_from_slice(stop_ids);
            self.put(
                self.layout.slot_table + slot * size_of::<abi::tg_slot>(),
                &[entry],
            );
            let is_first = sequence.flags & abi::TG_SEQUENCE_FIRST != 0;
            if is_first || sequence.from != abi::TG_NONE {
                self.send_biases(stream, slot, step.biases(sequence.slot))?;
            }
        }
        self.send_pages(stream, step)?;
        let slots = slots_end * size_of::<abi::tg_slot>();
        self.send(
            stream,
            self.layout.slot_table..self.layout.slot_table + slots,
        )?;
        self.send(stream, self.layout.step(place)..tables.end)
    }

    /// Queues the copy that makes `step` the step of `place`, with the step ahead of it in the place before, where it
    /// may still run: one of the same sequences, whose slots have gone over before, and which samples what this one's rows
    /// start from. Until the copy has run, nobody sends to this place. The copies of the step ahead have run: they may
    /// have written the same page rows, as these were then.
    ///
    /// # Errors
    /// The driver refuses the copy.
    pub fn send_ahead(
        &mut self,
        stream: &CudaStream,
        place: usize,
        step: &StepView<'_>,
    ) -> Result<()> {
        let tables = self.put_step(place, step, step.rows());
        self.send_pages(stream, step)?;
        self.send(stream, self.layout.step(place)..tables.end)
    }

    /// Queues the copy of the page-table rows that are not what was sent before: of sequences that begin, or have grown.
    /// A step that still runs reads nothing that changes, since a row grows behind what it uses.
    fn send_pages(&self, stream: &CudaStream, step: &StepView<'_>) -> Result<()> {
        let mut changed: Option<Range<usize>> = None;
        for sequence in step.sequences() {
            let (slot, pages) = (sequence.slot as usize, step.pages(sequence));
            if self.sent_pages(slot, pages.len()) == pages {
                continue;
            }
            self.put(self.page_row(slot), pages);
            let so_far = changed.unwrap_or(slot..slot + 1);
            changed = Some(so_far.start.min(slot)..so_far.end.max(slot + 1));
        }
        match changed {
            // Rows of other slots in between go over as they were sent before.
            Some(slots) => self.send(stream, self.page_row(slots.start)..self.page_row(slots.end)),
            None => Ok(()),
        }
    }

    /// The first `count` entries of a slot's row of the page table, as they were sent last.
    fn sent_pages(&self, slot: usize, count: usize) -> &[u32] {
        assert!(slot < self.layout.slots && count <= self.layout.max_pages);
        // SAFETY: inside the allocation and aligned; only `put` writes there, and not while the slice is borrowed.
        unsafe {
            let at = self.staging.start().as_ptr().add(self.page_row(slot));
            std::slice::from_raw_parts(at.cast::<u32>(), count)
        }
    }

    /// Writes a step, with these rows, and its tables into the staging memory.
    fn put_step(&self, place: usize, step: &StepView<'_>, rows: &[abi::tg_row]) -> Tables {
        let (sequences, samples) = (step.sequences(), step.sample_rows());
        let before = (place + self.layout.places - 1) % self.layout.places;
        let tables = self
            .layout
            .tables(place, rows.len(), sequences.len(), samples.len());
        self.put(
            self.layout.step(place),
            &[abi::tg_step {
                row_table: tables.rows as u64,
                sequence_table: tables.sequences as u64,
                sample_table: tables.samples as u64,
                sampled_table: self.layout.sampled(place) as u64,
                slot_sequence_table: tables.slot_sequences as u64,
                earlier_table: self.layout.sampled(before) as u64,
                ..*step.header()
            }],
        );
        self.put(tables.rows, rows);
        self.put(tables.sequences, sequences);
        self.put(tables.samples, samples);
        let mut slot_sequences = vec![abi::TG_NONE; self.layout.slots];
        for (index, sequence) in sequences.iter().enumerate() {
            slot_sequences[sequence.slot as usize] = index as u32;
        }
        self.put(tables.slot_sequences, &slot_sequences);
        tables
    }

    /// Waits for everything on the stream, then hands the samples that the step of `place` has left to `step`.
    ///
    /// # Errors
    /// Something on the stream failed.
    pub fn take_samples(
        &mut self,
        (stream, waiter): (&CudaStream, &Waiter),
        place: usize,
        step: &StepView<'_>,
    ) -> Result<()> {
        self.bring_samples(stream, place, step)?;
        let waited = waiter.wait(stream);
        waited.map_err(|error| failed("copying from the GPU", error))?;
        self.leave_samples(place, step);
        Ok(())
    }

    /// The first `count` samples of the step of `place`: where they lie, and where they are staged, as bytes.
    pub fn samples(&self, place: usize, count: usize) -> (Address, &[u8]) {
        let at = self.layout.sampled(place);
        let bytes = count.min(self.layout.slots) * size_of::<abi::tg_sampled>();
        // SAFETY: the range lies in the allocation, whose bytes are initialised.
        let staged =
            unsafe { std::slice::from_raw_parts(self.staging.start().as_ptr().add(at), bytes) };
        (self.device.at(at), staged)
    }

    /// Queues the copy of the samples that the step of `place` leaves; where it has run, [`Self::leave_samples`] finds them.
    ///
    /// # Errors
    /// The driver refuses the copy.
    pub fn bring_samples(
        &mut self,
        stream: &CudaStream,
        place: usize,
        step: &StepView<'_>,
    ) -> Result<()> {
        let refused = |error| failed("copying from the GPU", error);
        let (from, staged) = self.samples(place, step.sample_rows().len());
        if staged.is_empty() {
            return Ok(());
        }
        stream.context().bind_to_thread().map_err(refused)?;
        // SAFETY: the ranges lie in both allocations, and nobody looks at the staged ones until the copy has run.
        unsafe {
            let to = std::slice::from_raw_parts_mut(staged.as_ptr().cast_mut(), staged.len());
            result::memcpy_dtoh_async(to, from, stream.cu_stream())
        }
        .map_err(refused)
    }

    /// Hands the samples of `place`, which have been brought, to `step`.
    pub fn leave_samples(&self, place: usize, step: &StepView<'_>) {
        let at = self.layout.sampled(place);
        for index in 0..step.sample_rows().len() {
            // SAFETY: inside the allocation, aligned, and written by the copy, which has run.
            let sampled = unsafe {
                let table = self.staging.start().as_ptr().add(at);
                table.cast::<abi::tg_sampled>().add(index).read()
            };
            step.set_sampled(index, sampled);
        }
    }

    fn send_biases(&self, stream: &CudaStream, slot: usize, biases: &[abi::tg_bias]) -> Result<()> {
        let at = self.layout.bias_table + slot * BIAS_ROW_BYTES;
        if biases.is_empty() {
            Ok(())
        } else {
            self.put(at, biases);
            self.send(stream, at..at + size_of_val(biases))
        }
    }

    fn page_row(&self, slot: usize) -> usize {
        self.layout.page_table + slot * self.layout.max_pages * size_of::<u32>()
    }

    /// Writes into the staging memory.
    fn put<T: Copy>(&self, offset: usize, values: &[T]) {
        assert!(
            offset + size_of_val(values) <= self.layout.bytes
                && offset.is_multiple_of(align_of::<T>())
        );
        // SAFETY: inside the allocation and aligned; the copies that read it have run (see `send_step`).
        unsafe {
            let to = self.staging.start().as_ptr().add(offset).cast::<T>();
            to.copy_from_nonoverlapping(values.as_ptr(), values.len());
        }
    }

    fn send(&self, stream: &CudaStream, range: Range<usize>) -> Result<()> {
        let refused = |error| failed("copying a step to the GPU", error);
        stream.context().bind_to_thread().map_err(refused)?;
        assert!(range.end <= self.layout.bytes);
        // SAFETY: the range lies in both allocations, whose bytes are initialised; they live until the copy has run,
        // since whoever drops `self` has waited for the stream or lost the device.
        unsafe {
            let from = std::slice::from_raw_parts(
                self.staging.start().as_ptr().add(range.start),
                range.len(),
            );
            result::memcpy_htod_async(self.device.at(range.start), from, stream.cu_stream())
        }
        .map_err(refused)
    }
}
