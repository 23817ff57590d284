//! A step as the operations read it: checked once, tokens resolved.

use crate::backend::StepView;
use crate::backend::step::SlotView;
use crate::error::{Error, Result};
use crate::sys::abi;

/// What a descriptor may refer to.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub vocab_size: usize,
    pub step_tokens: usize,
    pub slots: usize,
    pub pages: usize,
    pub page_tokens: usize,
    pub prefixes: usize,
}

/// The rows and sequences of one step.
pub struct Batch<'a> {
    /// Whether this is a score step.
    pub is_score: bool,
    pub rows: &'a [abi::tg_row],
    pub sequences: &'a [abi::tg_sequence],
    /// Input token of each row: the prompt's, or the slot's newest.
    pub tokens: Vec<u32>,
    /// The page table's row of each sequence's slot.
    pub pages: Vec<&'a [u32]>,
    /// The slot of each sequence.
    pub slots: Vec<SlotView>,
    /// Row of each sampled row, ascending.
    pub sample_rows: &'a [u32],
}

/// The last rows of each sequence of a batch.
pub struct LastRows {
    rows: Vec<abi::tg_row>,
    sequences: Vec<abi::tg_sequence>,
    sample_rows: Vec<u32>,
    /// Which row of the batch each is, ascending.
    pub from: Vec<usize>,
}

impl LastRows {
    /// Up to `most` rows of each sequence.
    pub fn of(batch: &Batch<'_>, most: u32) -> Self {
        let mut last = Self {
            rows: vec![],
            sequences: batch.sequences.to_vec(),
            sample_rows: vec![],
            from: vec![],
        };
        for sequence in &mut last.sequences {
            let skipped = sequence.rows - sequence.rows.min(most);
            let first = sequence.first_row + skipped;
            last.from
                .extend((first..sequence.first_row + sequence.rows).map(|row| row as usize));
            sequence.first_row = last.rows.len() as u32;
            sequence.rows -= skipped;
            sequence.first_position += skipped;
            let own = &batch.rows[first as usize..][..sequence.rows as usize];
            last.rows.extend_from_slice(own);
            if sequence.sample != abi::TG_NONE {
                last.sample_rows.push(last.rows.len() as u32 - 1);
            }
        }
        last
    }

    /// They as a batch of their own.
    pub fn batch<'b>(&'b self, whole: &Batch<'b>) -> Batch<'b> {
        Batch {
            is_score: whole.is_score,
            rows: &self.rows,
            sequences: &self.sequences,
            tokens: self.from.iter().map(|&row| whole.tokens[row]).collect(),
            pages: whole.pages.clone(),
            slots: whole.slots.clone(),
            sample_rows: &self.sample_rows,
        }
    }
}

impl<'a> Batch<'a> {
    /// Checks every index the operations will use, so that they need not.
    ///
    /// # Errors
    /// The first row or sequence that is out of bounds.
    pub fn new(view: &StepView<'a>, bounds: &Bounds) -> Result<Self> {
        let header = view.header();
        let fail = |what: String| Err(Error::Runtime(format!("step {}: {what}", header.number)));
        if header.rows as usize > bounds.step_tokens {
            return fail(format!(
                "{} rows, expected at most {}",
                header.rows, bounds.step_tokens
            ));
        }
        let (rows, sequences) = (view.rows(), view.sequences());
        let mut tokens = Vec::with_capacity(rows.len());
        let mut pages = Vec::with_capacity(sequences.len());
        let mut slots = Vec::with_capacity(sequences.len());
        for (index, sequence) in sequences.iter().enumerate() {
            if sequence.slot as usize >= bounds.slots {
                return fail(format!(
                    "sequence {index} is in slot {}, expected one below {}",
                    sequence.slot, bounds.slots
                ));
            }
            let own = sequence.first_row as usize..(sequence.first_row + sequence.rows) as usize;
            if sequence.rows == 0 || own.start != tokens.len() || own.end > rows.len() {
                return fail(format!(
                    "sequence {index} has rows {own:?}, expected some from {} on, below {}",
                    tokens.len(),
                    rows.len()
                ));
            }
            let slot = view.slot(sequence.slot);
            for (row, position) in own.zip(sequence.first_position..) {
                let found = rows[row];
                let token = view.token(&found);
                if (found.slot, found.position, found.sequence as usize)
                    != (sequence.slot, position, index)
                {
                    return fail(format!(
                        "row {row} is position {} of slot {} in sequence {}, expected position {position} of slot {} in {index}",
                        found.position, found.slot, found.sequence, sequence.slot
                    ));
                }
                match usize::try_from(token) {
                    Ok(id) if id < bounds.vocab_size => tokens.push(id as u32),
                    _ => {
                        return fail(format!(
                            "row {row} has token {token}, expected one below {}",
                            bounds.vocab_size
                        ));
                    }
                }
            }
            let table = view.pages(sequence);
            let used = (sequence.first_position + sequence.rows) as usize;
            let used = used.div_ceil(bounds.page_tokens);
            match table.get(..used) {
                Some(table) if table.iter().all(|&page| (page as usize) < bounds.pages) => {}
                _ => {
                    return fail(format!(
                        "slot {} lacks pages: {used} of its {} expected below {}",
                        sequence.slot,
                        table.len(),
                        bounds.pages
                    ));
                }
            }
            let is_below =
                |index: u32, count: usize| index == abi::TG_NONE || (index as usize) < count;
            let border = sequence.flags & abi::TG_SEQUENCE_BORDER != 0;
            if !is_below(sequence.from, bounds.prefixes)
                || !is_below(sequence.computes, bounds.prefixes)
                || !is_below(sequence.from_page, bounds.pages)
                || !is_below(sequence.border_page, bounds.pages)
                || border && sequence.computes == abi::TG_NONE
            {
                return fail(format!(
                    "sequence {index} shares {sequence:?}, expected prefixes below {} and pages below {}",
                    bounds.prefixes, bounds.pages
                ));
            }
            pages.push(table);
            slots.push(slot);
        }
        if tokens.len() != rows.len() {
            return fail(format!(
                "sequences hold {} rows, expected {}",
                tokens.len(),
                rows.len()
            ));
        }
        if view
            .sample_rows()
            .iter()
            .any(|&row| row as usize >= rows.len())
        {
            return fail(format!("a sampled row is not below {}", rows.len()));
        }
        Ok(Self {
            is_score: header.kind == abi::TG_KIND_SCORE,
            rows,
            sequences,
            tokens,
            pages,
            slots,
            sample_rows: view.sample_rows(),
        })
    }
}
