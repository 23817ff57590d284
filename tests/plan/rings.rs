//! Rings between host and scheduler: how many entries they get, and what these take.

use tailgraph::plan::{BucketSizes, EngineOptions, RingCapacities};
use tailgraph::runtime::core_bytes;
use tailgraph::sys::abi;

fn options(max_seqs: u32, max_context: u32) -> EngineOptions {
    EngineOptions {
        max_seqs,
        max_context,
        page_tokens: 64,
        pages: 1,
        step_tokens: 2048,
        chunk_tokens: 512,
        chunk_share: 0,
        chunk_align: 64,
        steps_in_flight: 1,
        prefixes: 0,
        record: false,
    }
}

#[test]
fn ring_capacities_are_powers_of_two() {
    for (max_seqs, max_context) in [(1, 1), (16, 4096), (1000, 128_000), (1024, u32::MAX)] {
        let rings = RingCapacities::new(&options(max_seqs, max_context));
        for capacity in [
            rings.requests,
            rings.tokens,
            rings.controls,
            rings.events,
            rings.sampled,
            rings.trace,
        ] {
            assert!(capacity.is_power_of_two());
        }
        assert!(rings.tokens >= max_context.min(1 << 30));
        assert!(rings.requests >= max_seqs);
        assert!(rings.sampled <= rings.events);
    }
}

/// The host of a GPU may stand still for 6 s at the rates that were measured, and what that takes is what is pinned.
#[test]
fn events_of_six_seconds_have_room() {
    let bucket_sizes = BucketSizes {
        decode: vec![1024],
        mixed: vec![2048],
        score: vec![2048],
    };
    // Sequences, tokens a second of all, events, log-probabilities.
    for (max_seqs, rate, events, sampled) in [
        (1, 1_200, 8_192, 1_024),
        (16, 19_200, 131_072, 1_024),
        (128, 120_000, 1_048_576, 8_192),
        (1024, 120_000, 1_048_576, 65_536),
    ] {
        let options = options(max_seqs, 4096);
        let rings = RingCapacities::new(&options);
        assert_eq!((rings.events, rings.sampled), (events, sampled));
        assert!(
            f64::from(events) / f64::from(rate) > 6.5,
            "ends have no room"
        );
        assert!(sampled >= 64 * max_seqs, "log-probabilities of 64 steps");

        let whole = core_bytes(&bucket_sizes, &options, 1).unwrap().rings as u64;
        let entries = u64::from(rings.requests)
            * (size_of::<abi::tg_request>() + rings.biases as usize * size_of::<abi::tg_bias>())
                as u64
            + u64::from(rings.tokens) * 4
            + u64::from(rings.controls) * size_of::<abi::tg_control>() as u64
            + u64::from(events) * 64
            + u64::from(sampled) * 168
            + u64::from(rings.trace) * size_of::<abi::tg_trace>() as u64;
        let rest = whole - entries;
        assert!(rest < 8192, "{rest} bytes beside the entries");
    }
}
