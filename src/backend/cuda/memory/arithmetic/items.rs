//! The parts of a run's memory on one GPU, as `doctor` shows them.

use super::{Overheads, arena};
use crate::backend::cuda::memory::state::StateLayout;
use crate::bytes::Bytes;
use crate::plan::memory::{MemoryItem, Place, WEIGHTS, plural};
use crate::plan::{EngineOptions, LayerRange, Plan, Precision};

/// The one item that the rest of the budget goes to.
pub(super) const POOL: &str = "keys and values";

/// What a run keeps in a GPU's memory and beside it, with the sizes of what is allocated. `range`: of the model, on this GPU, where its
/// weights take `weight_bytes`.
pub(super) fn items(
    (plan, range, weight_bytes): (&Plan, &LayerRange, u64),
    precision: Precision,
    options: &EngineOptions,
    overheads: &Overheads,
    why_step: &str,
) -> Vec<MemoryItem> {
    let config = &plan.config;
    let (rows, slots) = (
        plan.bucket_sizes.reachable(options).largest(),
        options.max_seqs,
    );
    let arena = arena(plan, precision, options);
    let state = StateLayout::new(config, range, options, precision.compute);
    let on = |place, name, bytes, arithmetic| MemoryItem {
        name,
        bytes,
        arithmetic,
        place,
    };
    let item = |name, bytes: usize, arithmetic| on(Place::Budget, name, bytes as u64, arithmetic);
    let sequences = format!("{slots} {}", plural(slots as usize, "sequence"));
    let and_prefixes = match options.prefixes {
        0 => sequences.clone(),
        1 => format!("{sequences} and a shared prefix"),
        prefixes => format!("{sequences} and {prefixes} shared prefixes"),
    };
    let weights = format!(
        "copied to the device: matrices in {:?}, norms, taps, biases and routers in F32",
        precision.weights
    );
    let pinned = |what: &str| format!("pinned memory of the host: {what}");
    let mut items = vec![
        on(Place::Budget, WEIGHTS, weight_bytes, weights),
        item(
            "activations",
            arena.activation_bytes,
            format!(
                "one arena for {rows} tokens, in {:?} and F32; {why_step}",
                precision.compute
            ),
        ),
        item(
            "logits",
            arena.seen - arena.logits,
            format!(
                "a tile of {} tokens' logits, {} each, in f32",
                arena.logits_rows, config.vocab_size
            ),
        ),
        item(
            "seen tokens",
            arena.counts - arena.seen,
            format!(
                "a bit for each of {} tokens, {and_prefixes}",
                config.vocab_size
            ),
        ),
        item(
            "answer counts",
            arena.bytes - arena.counts,
            format!(
                "16 bits for each of {} tokens, {sequences}",
                config.vocab_size
            ),
        ),
        item(
            "conv state",
            state.bytes - state.page_bytes,
            and_prefixes.clone(),
        ),
        on(
            Place::Budget,
            "scheduler",
            overheads.scheduler_bytes,
            format!(
                "{slots} slots, {} of tokens so far, one step of {} tokens, with prompts of {} beside running sequences",
                Bytes(overheads.kept_token_bytes),
                options.step_tokens,
                options.chunk_tokens
            ),
        ),
        item(
            POOL,
            state.page_bytes,
            format!("{} pages of {} tokens", options.pages, options.page_tokens),
        ),
        on(
            Place::Pinned,
            "rings",
            overheads.pinned_bytes,
            pinned(&overheads.pinned_arithmetic),
        ),
    ];
    if overheads.logits_bytes > 0 {
        items.push(on(
            Place::Pinned,
            "logits ring",
            overheads.logits_bytes,
            pinned(&overheads.logits_arithmetic),
        ));
    }
    items
}
