//! Activations in a device's memory, as byte offsets: one arena for all steps, which never overlap on a device. Every
//! offset is a multiple of [`ALIGN_BYTES`], every array sized for the largest bucket.

use crate::backend::cuda::families::attention::KeySplit;
use crate::backend::cuda::families::persistent::e4m3_row_bytes;
use crate::backend::cuda::tuning::limits::{
    EXPERT_COUNTS_BYTES, FUSED_ROWS, HEAD_PARTS, HEAD_ROWS, MEETING_BYTES, SAMPLE_PARTS,
    SKINNY_OUTPUTS, SKINNY_ROWS, expert_words, skinny_experts, skinny_told,
};
use crate::model::{DType, ModelConfig};
use crate::plan::{Activations, NeededRows, Precision, SCORE_TILE_ROWS};
use crate::sys::abi;

/// A cache line, and the widest access of any kernel.
pub const ALIGN_BYTES: usize = 256;
/// A list of query tiles has never more entries than there are rows, one of expert tiles no more than pairs of a row and an expert.
pub const QUERY_TILE_BYTES: usize = abi::TG_QUERY_TILE_BYTES as usize;
pub const EXPERT_TILE_BYTES: usize = abi::TG_EXPERT_TILE_BYTES as usize;

/// What sizes an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArenaShape {
    /// Rows of the largest bucket.
    pub rows: usize,
    pub slots: usize,
    /// Prefixes that are shared at once, at most.
    pub prefixes: usize,
    /// Tokens of a sequence, at most.
    pub max_context: usize,
    /// Matrix inputs: `--dtype` and `--activations`.
    pub precision: Precision,
}

/// Offsets. R rows, K experts of a row, S slots; the rest as [`crate::plan::OpKind`] has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arena {
    /// f32 `[R, H]`: the residual stream.
    pub h: usize,
    /// `[R, max(H, heads D)]`, operand type.
    pub x: usize,
    /// `[R, 3H]`, `[R, (heads + 2 kv_heads) D]`, `[R, I]` or `[R K, M]`, operand type; the last two perhaps as bf16x3 or in 8 bits.
    pub wide: usize,
    /// `[R, max(H, heads D)]` as bf16x3, bf16 `[3, ...]`, of f32 operands; in 8 bits, and scales, where `--activations` says so.
    pub prepared: usize,
    /// f32 `[N, H]`: the residual stream of the rows that the last layers need, N at most ([`NeededRows::most`]).
    pub needed_h: usize,
    /// `[N, (heads + 2 kv_heads) D]`, operand type: their queries.
    pub needed_qkv: usize,
    /// `tg_step`: their list; the next four are its tables.
    pub needed_step: usize,
    /// `tg_row [N]`
    pub needed_rows: usize,
    /// u32 `[N]`: which of the step's rows each is.
    pub needed_from: usize,
    /// `tg_sequence [S]`
    pub needed_sequences: usize,
    /// u32 `[S]`: the sampled rows.
    pub needed_samples: usize,
    /// f32 `[R K, H]`: what each expert adds; of some buckets in the operand type.
    pub partial: usize,
    /// u32 `[R, K]`
    pub experts: usize,
    /// f32 `[R, K]`
    pub expert_weights: usize,
    /// For up to [`SKINNY_ROWS`] rows: u64 `[`[`skinny_told`]`]`, their experts, chosen and predicted; f32
    /// `[R, H / SKINNY_OUTPUTS, `[`skinny_experts`]` + 1]`, scores in parts, and squares.
    pub expert_score_parts: usize,
    /// `[FUSED_ROWS K, M]`, operand type: what the blocks of fused experts hand to each other.
    pub handed: usize,
    /// u32 `[R K]`
    pub expert_rows: usize,
    /// u32 `[R K]`
    pub expert_place: usize,
    pub expert_tiles: usize,
    /// u32 `[272]`
    pub expert_tile_count: usize,
    pub query_tiles: usize,
    /// u32 `[2]`
    pub query_tile_count: usize,
    /// f32 `[P, heads, D + 2]`, P being [`KeySplit::most_pieces`]: what chunks of keys leave for each other.
    pub attention_partials: usize,
    /// u32 `[S, heads]`: chunks that are done; 0 between steps.
    pub attention_done: usize,
    /// u64: tiles of logits that have been posted to the host.
    pub posted: usize,
    /// f32 `[logits_rows, V]`
    pub logits: usize,
    pub logits_rows: usize,
    /// u64 `[`[`best_words`]`(S)]`: the best logit of each part of a row.
    pub sample_best: usize,
    /// [`MEETING_BYTES`] `[S]`: where blocks of `tg_sample` that share a row meet; zero before and after.
    pub sample_meetings: usize,
    /// u32 `[S + prefixes, V / 32 rounded up]`: a bit for each token that penalties may change in a slot's sequence; for each token of
    /// a prefix.
    pub seen: usize,
    /// u16 `[S, `[`count_stride`]`(V)]`: how often each token stands in the answer of a slot's sequence.
    pub counts: usize,
    pub bytes: usize,
    /// All of `bytes` but logits, seen tokens and counts.
    pub activation_bytes: usize,
}

/// Rows that have logits at a time: a tile of a score step's, or one for each slot.
pub fn logits_rows(rows: usize, slots: usize) -> usize {
    rows.min(SCORE_TILE_ROWS).max(slots)
}

/// Words of the best of `rows` rows' parts.
pub fn best_words(rows: usize) -> usize {
    let of_head = rows.min(HEAD_ROWS as usize) * HEAD_PARTS;
    rows.saturating_mul(SAMPLE_PARTS).max(of_head)
}

/// Counts from one slot's to the next's: each begins on 16 bytes.
pub fn count_stride(vocab_size: usize) -> usize {
    vocab_size.checked_next_multiple_of(8).unwrap_or(vocab_size)
}

impl Arena {
    /// Sizes saturate, so that one that no machine has is refused as such.
    pub fn new(config: &ModelConfig, shape: ArenaShape) -> Self {
        let ArenaShape { rows, slots, .. } = shape;
        let Precision {
            compute,
            activations,
            ..
        } = shape.precision;
        let element = compute.bytes();
        let hidden = config.hidden_size;
        let mixtures = (0..config.num_hidden_layers).any(|layer| config.is_moe(layer));
        let per_row = if mixtures {
            config.num_experts_per_tok
        } else {
            0
        };
        let q = config.num_attention_heads * config.head_dim;
        let kv = config.num_key_value_heads * config.head_dim;
        // Bytes of so many columns as products of many rows take them.
        let prepared = |columns: usize| match (compute, activations) {
            (DType::F32, _) => columns * abi::TG_PARTS as usize * DType::BF16.bytes(),
            (_, Activations::FP8) => e4m3_row_bytes(columns),
            (_, Activations::Stored) => 0,
        };
        let of_inner = |columns: usize| prepared(columns).max(columns * element);
        let wide = [
            3 * hidden * element,
            (q + 2 * kv) * element,
            of_inner(config.intermediate_size),
            per_row * of_inner(config.moe_intermediate_size),
        ];
        let widest_bytes = wide.into_iter().max().unwrap_or(0);
        let pairs = rows.saturating_mul(per_row);
        let scored = if mixtures { rows.min(SKINNY_ROWS) } else { 0 };
        let words = expert_words(config.num_experts);
        let chosen = if mixtures { 8 * skinny_told(words) } else { 0 };
        let score_bytes = [
            scored,
            hidden.div_ceil(SKINNY_OUTPUTS),
            skinny_experts(words) + 1,
            4,
        ]
        .into_iter()
        .fold(1, usize::saturating_mul);
        let handed_rows = if mixtures { FUSED_ROWS } else { 0 };
        let heads = config.num_attention_heads;
        let pieces = KeySplit::most_pieces(slots as u32, shape.max_context as u32) as usize;
        let logits_rows = logits_rows(rows, slots);
        let needed = NeededRows::of(config);
        let needed = needed.map_or(0, |needed| needed.most(rows as u32, slots as u32) as usize);
        let mut bytes = 0usize;
        let mut take = |dimensions: &[usize]| {
            let at = bytes;
            let size = dimensions.iter().fold(1usize, |n, &d| n.saturating_mul(d));
            let end = at.saturating_add(size);
            bytes = end.checked_next_multiple_of(ALIGN_BYTES).unwrap_or(end);
            at
        };
        // In the order in which they lie.
        let arena = Self {
            h: take(&[rows, hidden, 4]),
            x: take(&[rows, hidden.max(q), element]),
            wide: take(&[rows, widest_bytes]),
            prepared: take(&[rows, prepared(hidden.max(q))]),
            needed_h: take(&[needed, hidden, 4]),
            needed_qkv: take(&[needed, q + 2 * kv, element]),
            needed_step: take(&[size_of::<abi::tg_step>()]),
            needed_rows: take(&[needed, size_of::<abi::tg_row>()]),
            needed_from: take(&[needed, 4]),
            needed_sequences: take(&[slots, size_of::<abi::tg_sequence>()]),
            needed_samples: take(&[slots, 4]),
            partial: take(&[pairs, hidden, 4]),
            experts: take(&[pairs, 4]),
            expert_weights: take(&[pairs, 4]),
            expert_score_parts: take(&[score_bytes.saturating_add(chosen)]),
            handed: take(&[handed_rows, per_row, config.moe_intermediate_size, element]),
            expert_rows: take(&[pairs, 4]),
            expert_place: take(&[pairs, 4]),
            expert_tiles: take(&[pairs, EXPERT_TILE_BYTES]),
            expert_tile_count: take(&[EXPERT_COUNTS_BYTES]),
            query_tiles: take(&[rows, QUERY_TILE_BYTES]),
            query_tile_count: take(&[2, 4]),
            attention_partials: take(&[pieces, heads, config.head_dim.saturating_add(2), 4]),
            attention_done: take(&[slots, heads, 4]),
            posted: take(&[8]),
            sample_best: take(&[best_words(slots), 8]),
            sample_meetings: take(&[slots, MEETING_BYTES]),
            logits: take(&[logits_rows, config.vocab_size, 4]),
            logits_rows,
            seen: take(&[
                slots.saturating_add(shape.prefixes),
                config.vocab_size.div_ceil(32),
                4,
            ]),
            counts: take(&[slots, count_stride(config.vocab_size), size_of::<u16>()]),
            bytes: 0,
            activation_bytes: 0,
        };
        Self {
            bytes,
            activation_bytes: arena.logits,
            ..arena
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelSource;

    #[test]
    fn arrays_follow_each_other_and_have_room() {
        let source = ModelSource::parse("random:lfm2-8b-a1b").unwrap();
        let (config, _) = source.config().unwrap();
        let shape = ArenaShape {
            rows: 512,
            slots: 16,
            prefixes: 9,
            max_context: 4096,
            precision: Precision::BF16,
        };
        let arena = Arena::new(&config, shape);
        let (hidden, pairs) = (2048, 512 * 4);
        let sizes = [
            (arena.h, 512 * hidden * 4),
            (arena.x, 512 * hidden * 2),
            (arena.wide, 512 * 7168 * 2),
            (arena.needed_h, 16 * 5 * hidden * 4),
            (arena.needed_qkv, 16 * 5 * 3072 * 2),
            (arena.needed_step, 88),
            (arena.needed_rows, 16 * 5 * 16),
            (arena.needed_from, 16 * 5 * 4),
            (arena.needed_sequences, 16 * 40),
            (arena.needed_samples, 16 * 4),
            (arena.partial, pairs * hidden * 4),
            (arena.experts, pairs * 4),
            (arena.expert_weights, pairs * 4),
            (arena.expert_score_parts, 16 * 8 + 8 * 128 * 33 * 4),
            (arena.handed, 4 * 1792 * 2),
            (arena.expert_rows, pairs * 4),
            (arena.expert_place, pairs * 4),
            (arena.expert_tiles, pairs * EXPERT_TILE_BYTES),
            (arena.expert_tile_count, EXPERT_COUNTS_BYTES),
            (arena.query_tiles, 512 * QUERY_TILE_BYTES),
            (arena.query_tile_count, 8),
            (arena.attention_partials, 16 * 32 * 32 * 66 * 4),
            (arena.attention_done, 16 * 32 * 4),
            (arena.posted, 8),
            (arena.sample_best, 16 * HEAD_PARTS * 8),
            (arena.sample_meetings, 16 * MEETING_BYTES),
            (arena.logits, 512 * 65536 * 4),
            (arena.seen, 25 * 65536 / 8),
            (arena.counts, 16 * 65536 * 2),
            (arena.bytes, 0),
        ];
        for pair in sizes.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
            assert_eq!(pair[1].0 % ALIGN_BYTES, 0);
        }
        assert_eq!(arena.activation_bytes, arena.logits);
        let many = ArenaShape {
            slots: 1024,
            ..shape
        };
        assert_eq!(Arena::new(&config, many).logits_rows, 1024);
    }
}
