//! Where everything lies in the copy.

use crate::plan::EngineOptions;
use crate::sys::abi;

/// Tables start on cache lines.
const ALIGN: usize = 64;

/// Bytes of one slot in the bias table.
pub(super) const BIAS_ROW_BYTES: usize = abi::TG_MAX_BIASES as usize * size_of::<abi::tg_bias>();

/// Steps that the copy of one GPU alone holds, whether its host runs ahead or not.
pub const PLACES: usize = 2;

/// Byte offsets of everything in the copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    pub slots: usize,
    pub max_pages: usize,
    /// `uint32_t[slots][max_pages]`
    pub page_table: usize,
    /// `tg_bias[slots][TG_MAX_BIASES]`
    pub bias_table: usize,
    /// How many steps there is room for.
    pub places: usize,
    /// `tg_sampled[slots]` of the first place.
    sampled: usize,
    /// From one place's to the next's.
    sampled_bytes: usize,
    /// `tg_slot[slots]`
    pub slot_table: usize,
    /// `tg_step` of the first place, and behind it the tables of the step, as long as the step needs them.
    steps: usize,
    /// From one place's to the next's.
    step_bytes: usize,
    pub bytes: usize,
}

/// Byte offsets of one step's tables, one right after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tables {
    pub rows: usize,
    pub sequences: usize,
    pub samples: usize,
    pub slot_sequences: usize,
    pub end: usize,
}

impl Layout {
    pub fn new(options: &EngineOptions, places: usize) -> Self {
        let slots = options.max_seqs as usize;
        let max_pages = options.max_context.div_ceil(options.page_tokens) as usize;
        let after = |offset: usize, bytes: usize| (offset + bytes).next_multiple_of(ALIGN);
        let page_table = after(0, size_of::<abi::tg_state>());
        let bias_table = after(page_table, slots * max_pages * size_of::<u32>());
        let sampled = after(bias_table, slots * BIAS_ROW_BYTES);
        let sampled_bytes = after(0, slots * size_of::<abi::tg_sampled>());
        let slot_table = sampled + places * sampled_bytes;
        let step = after(slot_table, slots * size_of::<abi::tg_slot>());
        let mut layout = Self {
            slots,
            max_pages,
            page_table,
            bias_table,
            places,
            sampled,
            sampled_bytes,
            slot_table,
            steps: step,
            step_bytes: 0,
            bytes: 0,
        };
        let rows = options.step_tokens as usize;
        layout.step_bytes = layout.tables(0, rows, slots, slots).end - step;
        layout.bytes = step + places * layout.step_bytes;
        layout
    }

    /// Where the samples of a place's step lie.
    pub fn sampled(&self, place: usize) -> usize {
        self.sampled + place * self.sampled_bytes
    }

    /// Where the step of a place lies.
    pub fn step(&self, place: usize) -> usize {
        self.steps + place * self.step_bytes
    }

    pub fn tables(&self, place: usize, rows: usize, sequences: usize, samples: usize) -> Tables {
        let after = |offset: usize, bytes: usize| (offset + bytes).next_multiple_of(ALIGN);
        let row_table = after(self.step(place), size_of::<abi::tg_step>());
        let sequence_table = after(row_table, rows * size_of::<abi::tg_row>());
        let sample_table = after(sequence_table, sequences * size_of::<abi::tg_sequence>());
        let slot_sequences = after(sample_table, samples * size_of::<u32>());
        Tables {
            rows: row_table,
            sequences: sequence_table,
            samples: sample_table,
            slot_sequences,
            end: after(slot_sequences, self.slots * size_of::<u32>()),
        }
    }
}

/// Bytes that a [`StepCopy`](super::StepCopy) of so many places takes in device memory, and as many in pinned memory.
pub fn step_copy_bytes(options: &EngineOptions, places: usize) -> usize {
    Layout::new(options, places).bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_neither_overlap_nor_outgrow_the_copy() {
        let options = EngineOptions {
            max_seqs: 5,
            max_context: 100,
            page_tokens: 16,
            pages: 11,
            step_tokens: 77,
            chunk_tokens: 77,
            chunk_share: 0,
            chunk_align: 8,
            steps_in_flight: 1,
            prefixes: 0,
            record: false,
        };
        for places in [2, 5] {
            check(&options, places);
        }
    }

    fn check(options: &EngineOptions, places: usize) {
        let layout = Layout::new(options, places);
        assert_eq!(layout.max_pages, 7);
        let samples_bytes = 5 * size_of::<abi::tg_sampled>();
        let mut fixed = vec![
            (0, size_of::<abi::tg_state>()),
            (layout.page_table, 5 * 7 * 4),
            (layout.bias_table, 5 * BIAS_ROW_BYTES),
        ];
        fixed.extend((0..places).map(|place| (layout.sampled(place), samples_bytes)));
        fixed.push((layout.slot_table, 5 * size_of::<abi::tg_slot>()));
        for (rows, sequences, samples) in [(1, 1, 0), (5, 5, 5), (77, 5, 5), (76, 1, 1)] {
            let mut parts = fixed.clone();
            for place in 0..places {
                let tables = layout.tables(place, rows, sequences, samples);
                parts.extend([
                    (layout.step(place), size_of::<abi::tg_step>()),
                    (tables.rows, rows * size_of::<abi::tg_row>()),
                    (tables.sequences, sequences * size_of::<abi::tg_sequence>()),
                    (tables.samples, samples * 4),
                    (tables.slot_sequences, 5 * 4),
                    (tables.end, 0),
                ]);
                assert!(tables.end <= layout.bytes);
            }
            for pair in parts.windows(2) {
                assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
                assert!(pair[1].0.is_multiple_of(ALIGN));
            }
        }
    }
}
