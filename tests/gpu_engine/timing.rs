//! What a step costs in each way, with next to nothing in it. Prints; checks only that there is something to print.

use crate::common::probe::ProbeOptions;
use crate::common::random::Random;
use crate::rig::*;
use std::time::Instant;
use tailgraph::backend::cuda::driver::exec::{Exec, LaunchedBy};
use tailgraph::backend::cuda::engine::program::{StepProgram, buckets, capture_calls};
use tailgraph::backend::cuda::engine::step_copy::{PLACES, StepCopy};
use tailgraph::plan::{EngineOptions, RingCapacities, StepKind};
use tailgraph::runtime::Engine as _;
use tailgraph::sys::abi;

/// At `q` of the sorted values.
fn quantile(sorted: &[u64], q: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * q) as usize] as f64 / 1e3
}

fn setup(batch: u32, layers: u32) -> Setup {
    Setup {
        options: EngineOptions {
            max_seqs: batch,
            max_context: 4096,
            page_tokens: 64,
            pages: batch * 34,
            step_tokens: batch + 64,
            chunk_tokens: batch + 64,
            chunk_align: 64,
            ..SETUP.options
        },
        capacities: RingCapacities {
            requests: 512,
            tokens: 1 << 16,
            events: 1 << 16,
            sampled: 1 << 16,
            trace: 1 << 14,
            ..SETUP.capacities
        },
        probe: ProbeOptions {
            layers,
            log_entries: 0,
            ..SETUP.probe
        },
        ..SETUP
    }
}

/// The decode graph alone, launched back to back by the host: us a step.
fn bare_us(rig: &Rig, setup: &Setup) -> f64 {
    let (programs, _) = rig.probe(setup);
    let copy = StepCopy::new(&rig.context, &rig.stream, &setup.options, PLACES).unwrap();
    let slots = setup.options.max_seqs;
    let bucket = buckets(&setup.bucket_sizes(), StepKind::Decode, slots)
        .last()
        .unwrap();
    let calls = programs[0].lower(bucket, copy.at()).unwrap();
    // SAFETY: copy and program outlive the launches below.
    let graph = unsafe { capture_calls(&rig.stream, "the bare step", &calls) }.unwrap();
    let exec = Exec::new(&graph, LaunchedBy::Host).unwrap();
    let rounds = 2000;
    let mut us = 0.0;
    for _warm in 0..2 {
        let start = Instant::now();
        for _ in 0..rounds {
            // SAFETY: as above; the copy holds a step without rows.
            unsafe { exec.launch() }.unwrap();
        }
        rig.stream.synchronize().unwrap();
        us = start.elapsed().as_secs_f64() * 1e6 / f64::from(rounds);
    }
    us
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_step_with_nothing_in_it() {
    let rig = Rig::new();
    for (batch, layers) in [(1, 1), (32, 1), (256, 1), (1, 120), (256, 120)] {
        let setup = setup(batch, layers);
        let bare = bare_us(&rig, &setup);
        for way in WAYS {
            let (mut engine, _) = rig.engine(way, &setup);
            let mut random = Random(9);
            for _ in 0..batch {
                let request = random_request(&mut random, 4, 2000);
                assert!(engine.try_submit(&request).unwrap().is_some());
            }
            engine.launch().unwrap();
            let mut trace = vec![];
            read_beside(&mut engine, batch as usize, |engine| {
                trace.extend(std::iter::from_fn(|| engine.next_turn()));
            });
            let steps: Vec<_> = trace
                .iter()
                .filter(|r| r.outcome.action == abi::TG_ACTION_STEP && r.outcome.rows == batch)
                .collect();
            let mut gaps: Vec<u64> = steps
                .windows(2)
                .filter(|pair| pair[1].outcome.step == pair[0].outcome.step + 1)
                .map(|pair| pair[1].inputs.now_ns - pair[0].inputs.now_ns)
                .skip(200)
                .collect();
            let mut turns: Vec<u64> = steps.iter().map(|r| r.end_ns - r.inputs.now_ns).collect();
            assert!(gaps.len() > 1000, "{} steps", gaps.len());
            gaps.sort_unstable();
            turns.sort_unstable();
            println!(
                "{{\"way\": \"{way:?}\", \"batch\": {batch}, \"kernels\": {}, \"bare_us\": {bare:.2}, \"step_us\": {{\"p50\": {:.2}, \
                 \"p99\": {:.2}, \"p999\": {:.2}}}, \"turn_us\": {{\"p50\": {:.2}, \"p99\": {:.2}}}}}",
                layers + 3,
                quantile(&gaps, 0.5),
                quantile(&gaps, 0.99),
                quantile(&gaps, 0.999),
                quantile(&turns, 0.5),
                quantile(&turns, 0.99),
            );
        }
    }
}
