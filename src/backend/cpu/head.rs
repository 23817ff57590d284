//! The end of the last stage: final norm, logits, sampling.

use super::batch::{Batch, Bounds};
use super::lanes::Isa;
use super::linear::{Columns, Linear};
use super::norm::{rmsnorm, rmsnorm_row};
use super::sample::{AnswerCounts, History, Sampler, SeenTokens, counts_answer};
use crate::backend::{LogitsSink, SharedSink, StepView};
use crate::error::{Error, Result};
use crate::model::{ModelConfig, Tensor};
use crate::plan::SCORE_TILE_ROWS;
use crate::sys::abi;
use rayon::prelude::*;

/// What the last stage keeps beside its layers.
pub struct Head {
    /// `[H]`
    norm: Vec<f32>,
    eps: f32,
    /// `[slots, V]`: logits of the sampled rows
    sampled: Vec<f32>,
    /// `[tile_rows, V]`: logits on their way to the sink
    tile: Vec<f32>,
    tile_rows: usize,
    vocab_size: usize,
    slots: usize,
    seen: SeenTokens,
    counts: AnswerCounts,
    /// One per worker thread.
    samplers: Vec<Sampler>,
    sink: SharedSink,
}

impl Head {
    pub fn new(
        config: &ModelConfig,
        norm: &Tensor,
        Bounds {
            slots,
            prefixes,
            step_tokens,
            ..
        }: Bounds,
        sink: SharedSink,
    ) -> Self {
        let vocab_size = config.vocab_size;
        let tile_rows = step_tokens.min(SCORE_TILE_ROWS);
        Self {
            norm: norm.to_f32(),
            eps: config.norm_eps,
            sampled: vec![0.0; slots * vocab_size],
            tile: vec![0.0; tile_rows * vocab_size],
            tile_rows,
            vocab_size,
            slots,
            seen: SeenTokens::new(slots + prefixes, vocab_size),
            counts: AnswerCounts::new(slots, vocab_size),
            samplers: (0..rayon::current_num_threads())
                .map(|_| Sampler::new(vocab_size))
                .collect(),
            sink,
        }
    }

    /// x = rmsnorm(h, embedding_norm): all rows `[R, H]` of a score step, else the sampled rows `[S, H]`.
    pub fn final_norm(&self, isa: Isa, batch: &Batch<'_>, h: &[f32], x: &mut [f32]) {
        let hidden = self.norm.len();
        if batch.is_score {
            let elements = batch.rows.len() * hidden;
            rmsnorm(
                isa,
                &h[..elements],
                &self.norm,
                self.eps,
                &mut x[..elements],
            );
        } else {
            for (x, &row) in x.chunks_mut(hidden).zip(batch.sample_rows) {
                let h = &h[row as usize * hidden..][..hidden];
                rmsnorm_row(isa, h, &self.norm, self.eps, x);
            }
        }
    }

    /// Logits of the sampled rows, kept for [`Self::sample`]; and of every row that a request wants
    /// delivered, tile by tile, to the sink. `x` is what [`Self::final_norm`] left, `packed` scratch of at
    /// least `[max(step_tokens, slots), H]`.
    ///
    /// # Errors
    /// What the sink says; logits asked for where there is no sink.
    pub fn lm_head(
        &mut self,
        batch: &Batch<'_>,
        linear: &mut Linear,
        weight: &Tensor,
        x: &[f32],
        packed: &mut [f32],
    ) -> Result<()> {
        let (hidden, vocab) = (self.norm.len(), self.vocab_size);
        let samples = batch.sample_rows;
        let to = Columns::all(vocab);
        if batch.is_score {
            pack_rows(x, hidden, samples, packed);
            linear.run(packed, weight, samples.len(), &mut self.sampled, to);
            let wanted = scored_rows(batch);
            for rows in wanted.chunks(self.tile_rows) {
                pack_rows(x, hidden, rows, packed);
                linear.run(packed, weight, rows.len(), &mut self.tile, to);
                self.deliver_tile(batch, rows)?;
            }
        } else {
            linear.run(x, weight, samples.len(), &mut self.sampled, to);
        }
        for (&row, logits) in samples.iter().zip(self.sampled.chunks(vocab)) {
            let row = &batch.rows[row as usize];
            let slot = &batch.slots[row.sequence as usize];
            if slot.flags & abi::TG_REQUEST_LOGITS_LAST != 0 {
                self.sink()?.rows(slot.request, row.position, logits)?;
            }
        }
        Ok(())
    }

    /// Hands the tile's rows over, sequence by sequence.
    fn deliver_tile(&self, batch: &Batch<'_>, rows: &[u32]) -> Result<()> {
        let mut logits = self.tile.as_slice();
        for run in rows
            .chunk_by(|&a, &b| batch.rows[a as usize].sequence == batch.rows[b as usize].sequence)
        {
            let first = &batch.rows[run[0] as usize];
            let (here, rest) = logits.split_at(run.len() * self.vocab_size);
            logits = rest;
            let request = batch.slots[first.sequence as usize].request;
            self.sink()?.rows(request, first.position, here)?;
        }
        Ok(())
    }

    fn sink(&self) -> Result<&dyn LogitsSink> {
        self.sink.as_deref().ok_or_else(|| {
            Error::Runtime(
                "a request asks for its logits, but the engine was started without a place for them"
                    .into(),
            )
        })
    }

    /// Notes the step's tokens. Those past the prompt are of the answer, which a sequence that is recomputed has before its
    /// decode rows.
    pub fn note(&mut self, batch: &Batch<'_>) {
        for (sequence, slot) in batch.sequences.iter().zip(&batch.slots) {
            let (is, id) = (|flag| sequence.flags & flag != 0, sequence.slot);
            let counted = counts_answer(&slot.sampling);
            let starts = sequence.from != abi::TG_NONE;
            if is(abi::TG_SEQUENCE_FIRST) {
                self.seen.clear(id);
            } else if starts {
                let from = self.slots + sequence.from as usize;
                self.seen.copy(from, id as usize);
            }
            if counted && (is(abi::TG_SEQUENCE_FIRST) || starts) {
                self.counts.clear(id);
            }
            let first = sequence.first_row as usize;
            let tokens = &batch.tokens[first..first + sequence.rows as usize];
            for (position, &token) in (sequence.first_position..).zip(tokens) {
                self.seen.insert(id, token);
                if counted && position >= slot.prompt_tokens {
                    self.counts.add(id, token);
                }
            }
            if is(abi::TG_SEQUENCE_BORDER) {
                let prefix = self.slots + sequence.computes as usize;
                self.seen.copy(id as usize, prefix);
            }
        }
    }

    /// Leaves a token (and logprobs) for every sampled row in `step`, whose tokens are noted.
    pub fn sample(&mut self, batch: &Batch<'_>, step: &StepView<'_>) {
        let work: Vec<_> = batch
            .sample_rows
            .iter()
            .zip(self.sampled.chunks(self.vocab_size))
            .map(|(&row, logits)| {
                let row = &batch.rows[row as usize];
                let history = History {
                    seen: self.seen.of(row.slot),
                    counts: self.counts.of(row.slot),
                    biases: step.biases(row.slot),
                    stop_ids: step.stop_ids(row.slot),
                };
                let sampling = batch.slots[row.sequence as usize].sampling;
                (row.position, logits, history, sampling)
            })
            .collect();
        let share = work.len().div_ceil(self.samplers.len()).max(1);
        let results: Vec<Vec<abi::tg_sampled>> = work
            .par_chunks(share)
            .zip(&mut self.samplers)
            .map(|(share, sampler)| {
                share
                    .iter()
                    .map(|(position, logits, history, sampling)| {
                        sampler.run(logits, *history, sampling, position + 1)
                    })
                    .collect()
            })
            .collect();
        for (index, sampled) in results.into_iter().flatten().enumerate() {
            step.set_sampled(index, sampled);
        }
    }
}

/// Rows of the sequences whose every position is to be delivered, ascending.
fn scored_rows(batch: &Batch<'_>) -> Vec<u32> {
    batch
        .sequences
        .iter()
        .zip(&batch.slots)
        .filter(|(_, slot)| slot.flags & abi::TG_REQUEST_LOGITS_ALL != 0)
        .flat_map(|(sequence, _)| sequence.first_row..sequence.first_row + sequence.rows)
        .collect()
}

/// Copies some rows of x `[.., cols]` to the front of `packed`.
fn pack_rows(x: &[f32], cols: usize, rows: &[u32], packed: &mut [f32]) {
    for (packed, &row) in packed.chunks_mut(cols).zip(rows) {
        packed.copy_from_slice(&x[row as usize * cols..][..cols]);
    }
}
