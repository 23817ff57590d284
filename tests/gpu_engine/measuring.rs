//! What `bench` measures on a GPU: the same as the trace of the same run, and the same as where nobody measures.

use crate::common::probe::ProbeOptions;
use crate::common::traced::traced_step_ms;
use crate::rig::{PATIENCE, Rig, SETUP, Setup, WAYS};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use tailgraph::backend::LaunchWay;
use tailgraph::bench::drive::{self, Beside};
use tailgraph::bench::metrics::figures;
use tailgraph::bench::stats::summary;
use tailgraph::bench::workload::{self, Arrival, Random};
use tailgraph::bench::{Kind, Point};
use tailgraph::plan::{EngineOptions, RingCapacities};
use tailgraph::runtime::{Engine, Logits, SingleEngine};
use tailgraph::sys::abi;

const BATCH: u32 = 8;
const STEPS: u32 = 200;

/// Steps of about half a millisecond, as on a GPU that is quick for a model of this size.
fn setup(record: bool) -> Setup {
    Setup {
        options: EngineOptions {
            record,
            pages: BATCH * 16,
            max_seqs: BATCH,
            ..SETUP.options
        },
        capacities: RingCapacities {
            trace: 1 << 11,
            ..SETUP.capacities
        },
        probe: ProbeOptions {
            layers: 800,
            log_entries: 0,
            ..SETUP.probe
        },
        ..SETUP
    }
}

fn point() -> Point {
    Point::of(Kind::Decode, BATCH, 8, STEPS)
}

fn arrivals() -> Vec<Arrival> {
    workload::arrivals(&point(), Logits::None, 997, &mut Random::new(0, 0))
}

fn median(values: &[f64]) -> f64 {
    summary(values).unwrap().median
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn figures_agree_with_the_trace_of_the_same_run() {
    let rig = Rig::new();
    for way in WAYS {
        let (mut engine, _) = rig.engine(way, &setup(true));
        engine.launch().unwrap();
        let interrupt = AtomicBool::new(false);
        let beside = Beside::nothing(&interrupt);
        let (arrivals, mut records) = (arrivals(), vec![]);
        let mut heard = |record: &abi::tg_trace| records.push(*record);
        let run = drive::run(&mut engine, &arrivals, &beside, &mut heard).unwrap();
        let found = figures(&point(), &run).unwrap();
        let shape = engine.shape();
        let launch = Some(way.name());
        let traced_ms = traced_step_ms(shape, launch, &arrivals, &records, BATCH.into());
        let (bench, trace) = (median(&found.step_ms), median(&traced_ms));
        let itl = median(&found.itl_ms);
        println!("{way:?}: step {bench:.4} ms, by the trace {trace:.4}, between tokens {itl:.4}");
        assert_eq!(found.step_ms.len(), traced_ms.len(), "{way:?}");
        for found in [bench, itl] {
            assert!(
                (found / trace - 1.0).abs() < 0.01,
                "{way:?}: {found}, {trace}"
            );
        }
    }
}

/// Median of the steps' lengths in ms, by the scheduler's clock.
fn step_ms(records: &[abi::tg_trace]) -> f64 {
    let whole = |r: &abi::tg_trace| {
        r.outcome.action == abi::TG_ACTION_STEP
            && (r.outcome.kind, r.outcome.rows) == (abi::TG_KIND_DECODE, BATCH)
    };
    let pairs = records.windows(2).filter(|pair| pair.iter().all(whole));
    let lengths: Vec<f64> = pairs
        .map(|pair| (pair[1].inputs.now_ns - pair[0].inputs.now_ns) as f64 / 1e6)
        .collect();
    assert!(lengths.len() > STEPS as usize / 2, "{}", lengths.len());
    median(&lengths)
}

/// Milliseconds of a step, measured by what `bench` runs.
fn measured(engine: &mut SingleEngine) -> f64 {
    let interrupt = AtomicBool::new(false);
    let beside = Beside::nothing(&interrupt);
    while engine.next_turn().is_some() {}
    let mut records = vec![];
    let mut heard = |record: &abi::tg_trace| records.push(*record);
    drive::run(engine, &arrivals(), &beside, &mut heard).unwrap();
    step_ms(&records)
}

/// With a host that sleeps until all is over: the rings have room for it.
fn left_alone(engine: &mut SingleEngine) -> f64 {
    while engine.next_turn().is_some() {}
    let before = engine.status().steps;
    for arrival in arrivals() {
        assert!(engine.try_submit(&arrival.request).unwrap().is_some());
    }
    let start = Instant::now();
    while engine.status().steps < before + u64::from(STEPS) {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(Duration::from_millis(50));
    while engine.next_event(Duration::ZERO).unwrap().is_some() {}
    let records: Vec<_> = std::iter::from_fn(|| engine.next_turn()).collect();
    step_ms(&records)
}

/// By turns, and each measured run held to the one beside it: a GPU at its limit of power drifts by more than is looked for.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn measuring_adds_less_than_half_a_percent() {
    let rig = Rig::new();
    for way in [LaunchWay::HostGraph, LaunchWay::DeviceGraph] {
        let (mut engine, _) = rig.engine(way, &setup(false));
        engine.launch().unwrap();
        measured(&mut engine);
        let rounds: Vec<(f64, f64)> = (0..9)
            .map(|_| (measured(&mut engine), left_alone(&mut engine)))
            .collect();
        let shares: Vec<f64> = rounds
            .iter()
            .map(|(with, without)| with / without - 1.0)
            .collect();
        let share = median(&shares);
        println!(
            "{way:?}: measuring adds {:+.2}%, of {rounds:.4?} ms a step",
            share * 100.0
        );
        assert!(share < 0.005, "{way:?}: {shares:?} of {rounds:?}");
    }
}
