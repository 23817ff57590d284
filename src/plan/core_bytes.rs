//! What the scheduler core takes, by the structs of kernels/abi.h: its tables, its rings, the links between stages. Without
//! gaps and scratch, which are well under a MiB.

use super::{EngineOptions, RingCapacities};
use crate::sys::abi;

pub(super) const WORD_BYTES: u64 = 4;

const fn bytes<T>() -> u64 {
    size_of::<T>() as u64
}

/// The tables of one stage.
pub(super) fn scheduler_bytes(options: &EngineOptions, rings: &RingCapacities) -> u64 {
    let slots = u64::from(options.max_seqs);
    let step = u64::from(options.step_tokens) * bytes::<abi::tg_row>()
        + slots * (bytes::<abi::tg_sequence>() + WORD_BYTES + bytes::<abi::tg_sampled>());
    slots * (bytes::<abi::tg_slot>() + u64::from(rings.biases) * bytes::<abi::tg_bias>())
        + options.kept_token_bytes()
        + slots * context_pages(options) * WORD_BYTES
        + u64::from(options.prefixes)
            * (bytes::<abi::tg_prefix>() + (2 + context_pages(options)) * WORD_BYTES)
        + u64::from(options.steps_in_flight) * step
        + u64::from(rings.requests) * 8
}

pub(super) fn ring_bytes(rings: &RingCapacities) -> u64 {
    u64::from(rings.requests)
        * (bytes::<abi::tg_request>() + u64::from(rings.biases) * bytes::<abi::tg_bias>())
        + u64::from(rings.tokens) * WORD_BYTES
        + u64::from(rings.controls) * bytes::<abi::tg_control>()
        + u64::from(rings.events) * bytes::<abi::tg_event>()
        + u64::from(rings.sampled) * bytes::<abi::tg_sampled>()
        + u64::from(rings.trace) * bytes::<abi::tg_trace>()
}

/// Places of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Places {
    pub count: u64,
    pub each: u64,
}

/// The places of all links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Links {
    /// Between stages: descriptors with activations.
    pub steps: Places,
    /// From the last stage to the first.
    pub results: Places,
}

impl Links {
    pub fn bytes(&self) -> u64 {
        let of = |places: Places| places.count.saturating_mul(places.each);
        of(self.steps).saturating_add(of(self.results))
    }
}

/// Bytes of the links between several stages, which send `hidden` f32 a row.
pub(super) fn links(
    options: &EngineOptions,
    rings: &RingCapacities,
    stages: usize,
    hidden: usize,
) -> Links {
    let (slots, rows) = (u64::from(options.max_seqs), u64::from(options.step_tokens));
    let slot = bytes::<abi::tg_sequence>()
        + 2 * WORD_BYTES
        + bytes::<abi::tg_slot>()
        + context_pages(options) * WORD_BYTES
        + u64::from(rings.biases) * bytes::<abi::tg_bias>();
    let in_flight = u64::from(options.steps_in_flight);
    Links {
        steps: Places {
            count: (stages as u64 - 1) * in_flight,
            each: (hidden as u64)
                .saturating_mul(4)
                .saturating_add(bytes::<abi::tg_row>())
                .saturating_mul(rows)
                .saturating_add(slots * slot),
        },
        results: Places {
            count: in_flight,
            each: slots * bytes::<abi::tg_sampled>(),
        },
    }
}

fn context_pages(options: &EngineOptions) -> u64 {
    u64::from(options.max_context.div_ceil(options.page_tokens))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The core lays places out itself, each table on a line of its own.
    #[test]
    fn places_of_links_have_the_sizes_that_the_core_gives_them() {
        let options = EngineOptions {
            max_seqs: 48,
            max_context: 1000,
            page_tokens: 64,
            pages: 100,
            step_tokens: 512,
            chunk_tokens: 256,
            chunk_share: 1,
            chunk_align: 64,
            steps_in_flight: 3,
            prefixes: 0,
            record: false,
        };
        let rings = RingCapacities::new(&options);
        let config = abi::tg_config {
            slots: options.max_seqs,
            max_context: options.max_context,
            page_tokens: options.page_tokens,
            step_tokens: options.step_tokens,
            bias_capacity: rings.biases,
            ..Default::default()
        };
        let found = links(&options, &rings, 3, 96);
        // SAFETY: both only read the configuration.
        let (step, result) = unsafe {
            (
                abi::tg_step_place_words(&config, 48) * 8,
                abi::tg_result_place_words(&config) * 8,
            )
        };
        let gaps = |places: Places, whole: u64| whole.checked_sub(places.each);
        assert!(gaps(found.steps, step).is_some_and(|gaps| gaps < 2048));
        assert!(gaps(found.results, result).is_some_and(|gaps| gaps < 512));
        assert_eq!((found.steps.count, found.results.count), (6, 3));
    }
}
