//! What the scheduler core takes, by the structs of kernels/abi.h: its tables, its rings, the links between stages. Without
//! gaps and scratch, which are well under a MiB.

use super::{EngineOptions, RingCapacities};

/// Sizes of kernels/abi.h's structs in bytes (a test compares them with the bindings).
const REQUEST_BYTES: u64 = 144;
const BIAS_BYTES: u64 = 8;
const CONTROL_BYTES: u64 = 8;
const EVENT_BYTES: u64 = 64;
const SAMPLED_BYTES: u64 = 168;
const TRACE_BYTES: u64 = 272;
const SLOT_BYTES: u64 = 208;
const ROW_BYTES: u64 = 16;
const SEQUENCE_BYTES: u64 = 24;
pub(super) const WORD_BYTES: u64 = 4;
/// What a later stage knows of a slot (kernels/sched/handover.h).
const HANDED_SLOT_BYTES: u64 = 136;

/// The tables of one stage.
pub(super) fn scheduler_bytes(options: &EngineOptions, rings: &RingCapacities) -> u64 {
    let slots = u64::from(options.max_seqs);
    let step = u64::from(options.step_tokens) * ROW_BYTES
        + slots * (SEQUENCE_BYTES + WORD_BYTES + SAMPLED_BYTES);
    slots * (SLOT_BYTES + u64::from(rings.biases) * BIAS_BYTES)
        + options.kept_token_bytes()
        + slots * context_pages(options) * WORD_BYTES
        + u64::from(options.steps_in_flight) * step
        + u64::from(rings.requests) * 8
}

pub(super) fn ring_bytes(rings: &RingCapacities) -> u64 {
    u64::from(rings.requests) * (REQUEST_BYTES + u64::from(rings.biases) * BIAS_BYTES)
        + u64::from(rings.tokens) * WORD_BYTES
        + u64::from(rings.controls) * CONTROL_BYTES
        + u64::from(rings.events) * EVENT_BYTES
        + u64::from(rings.sampled) * SAMPLED_BYTES
        + u64::from(rings.trace) * TRACE_BYTES
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

/// Of several stages, which hand on `hidden` f32 a row.
pub(super) fn links(
    options: &EngineOptions,
    rings: &RingCapacities,
    stages: usize,
    hidden: usize,
) -> Links {
    let (slots, rows) = (u64::from(options.max_seqs), u64::from(options.step_tokens));
    let slot = SEQUENCE_BYTES
        + 2 * WORD_BYTES
        + HANDED_SLOT_BYTES
        + context_pages(options) * WORD_BYTES
        + u64::from(rings.biases) * BIAS_BYTES;
    let in_flight = u64::from(options.steps_in_flight);
    Links {
        steps: Places {
            count: (stages as u64 - 1) * in_flight,
            each: (hidden as u64)
                .saturating_mul(4)
                .saturating_add(ROW_BYTES)
                .saturating_mul(rows)
                .saturating_add(slots * slot),
        },
        results: Places {
            count: in_flight,
            each: slots * SAMPLED_BYTES,
        },
    }
}

fn context_pages(options: &EngineOptions) -> u64 {
    u64::from(options.max_context.div_ceil(options.page_tokens))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::abi;
    use std::mem::size_of;

    #[test]
    fn struct_sizes_are_those_of_the_bindings() {
        assert_eq!(size_of::<abi::tg_request>() as u64, REQUEST_BYTES);
        assert_eq!(size_of::<abi::tg_bias>() as u64, BIAS_BYTES);
        assert_eq!(size_of::<abi::tg_control>() as u64, CONTROL_BYTES);
        assert_eq!(size_of::<abi::tg_event>() as u64, EVENT_BYTES);
        assert_eq!(size_of::<abi::tg_sampled>() as u64, SAMPLED_BYTES);
        assert_eq!(size_of::<abi::tg_trace>() as u64, TRACE_BYTES);
        assert_eq!(size_of::<abi::tg_slot>() as u64, SLOT_BYTES);
        assert_eq!(size_of::<abi::tg_row>() as u64, ROW_BYTES);
        assert_eq!(size_of::<abi::tg_sequence>() as u64, SEQUENCE_BYTES);
        assert_eq!(abi::TG_MAX_SLOTS, super::super::MAX_SEQS);
        assert_eq!(abi::TG_MAX_STEPS, super::super::MAX_STEPS_IN_FLIGHT);
        assert_eq!(abi::TG_MAX_STAGES as usize, super::super::MAX_STAGES);
        assert_eq!(abi::TG_MAX_BUCKETS as usize, super::super::MAX_BUCKETS);
    }

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
