//! Steps that are timed kernel by kernel: all kernels are there, in order, between the turns of their step, and one that
//! stands still is seen to.

use crate::common::probe::{Disturbance, ProbeOptions};
use crate::common::random::Random;
use crate::rig::*;
use tailgraph::backend::LaunchWay;
use tailgraph::backend::cuda::device::stamps::{StampClock, stamped};
use tailgraph::backend::cuda::engine::hosted::{HostLaunched, StagePlace};
use tailgraph::backend::cuda::engine::model::InOrder;
use tailgraph::backend::cuda::engine::program::StepProgram;
use tailgraph::backend::cuda::engine::scheduler::GpuScheduler;
use tailgraph::backend::device::Runs;
use tailgraph::backend::timing::{StepClock, StepTimes, is_timed};
use tailgraph::plan::EngineOptions;
use tailgraph::runtime::{Engine, Request, SingleEngine};
use tailgraph::sys::abi;

const WAIT_NS: u64 = 3_000_000;
/// A timed one.
const WAITS_IN: u64 = 23;

const TIMED: Setup = Setup {
    stages: 2,
    options: EngineOptions {
        record: true,
        ..SETUP.options
    },
    probe: ProbeOptions {
        layers: 20,
        ..SETUP.probe
    },
    disturbance: Some(Disturbance {
        step: WAITS_IN,
        wait_ns: WAIT_NS,
        fault: false,
    }),
    ..SETUP
};

/// An engine in this way whose steps are timed; the host's ways launch all stages together.
fn timed_engine(rig: &Rig, way: LaunchWay, setup: &Setup) -> (SingleEngine, StampClock) {
    let (bucket_sizes, options) = (setup.bucket_sizes(), &setup.options);
    let (programs, _) = rig.probe(setup);
    let programs = programs
        .into_iter()
        .map(|program| Box::new(program) as Box<dyn StepProgram>)
        .collect();
    let (context, module, pdl) = (&rig.context, &rig.module, setup.probe.pdl);
    let timed = stamped(
        context,
        module,
        pdl,
        programs,
        &bucket_sizes,
        options.max_seqs,
    );
    let (programs, clock) = timed.unwrap();
    if way.is_device() {
        let device = GpuScheduler::new(context, module, programs, pdl, way).unwrap();
        let engine = SingleEngine::of(
            Runs::Scheduler(Box::new(device)),
            &bucket_sizes,
            options,
            setup.capacities,
        );
        return (engine.unwrap(), clock);
    }
    let program = Box::new(InOrder(programs));
    let place = StagePlace { index: 0, count: 1 };
    let stage = HostLaunched::new(context, program, place, &bucket_sizes, options, way);
    let stages: Vec<Box<dyn tailgraph::backend::StageBackend>> = vec![Box::new(stage.unwrap())];
    let engine = SingleEngine::of(
        Runs::Stages(stages),
        &bucket_sizes,
        options,
        setup.capacities,
    );
    (engine.unwrap(), clock)
}

/// All of a run.
struct Ran {
    seen: Vec<Seen>,
    records: Vec<abi::tg_trace>,
    times: Vec<StepTimes>,
}

fn run(rig: &Rig, way: LaunchWay, setup: &Setup, requests: &[Request]) -> Ran {
    let (mut engine, mut clock) = timed_engine(rig, way, setup);
    for request in requests {
        assert!(engine.try_submit(request).unwrap().is_some());
    }
    engine.launch().unwrap();
    let (mut records, mut times) = (vec![], vec![]);
    let seen = read_beside(&mut engine, requests.len(), |engine| {
        while let Some(record) = engine.next_turn() {
            // A step's times are there before the record of the turn that collects it.
            while let Some(step) = clock.next().unwrap() {
                times.push(step);
            }
            if record.outcome.returned_step != abi::TG_NO_STEP {
                let last: &StepTimes = times.last().expect("the step's times");
                assert!(last.step >= record.outcome.returned_step, "{way:?}");
            }
            records.push(record);
        }
    });
    records.extend(drain_trace(&mut engine));
    while let Some(step) = clock.next().unwrap() {
        times.push(step);
    }
    assert_eq!(clock.lost(), 0);
    Ran {
        seen,
        records,
        times,
    }
}

/// From each part's readiness to the next one's, in ns.
fn lengths(times: &StepTimes) -> Vec<u64> {
    let ends = times.at[1..].iter().map(|at| at.ready_ns);
    let ends = ends.chain([times.end_ns]);
    let all = times.at.iter().zip(ends);
    all.map(|(at, end)| end - at.ready_ns).collect()
}

fn check_step(times: &StepTimes, way: LaunchWay) {
    let step = times.step;
    let names: Vec<&str> = times
        .parts
        .iter()
        .map(|part| part.kernel.as_ref().unwrap().name.as_str())
        .collect();
    assert_eq!(names[..2], ["tg_probe_write", "tg_probe_read"]);
    let mixes = names.iter().filter(|name| **name == "tg_probe_mix").count();
    assert_eq!(mixes, 20, "all stages' layers");
    assert_eq!(names.last(), Some(&"tg_probe_sample"));
    assert_eq!(times.at.is_empty(), !is_timed(step), "{way:?} {step}");
    if times.at.is_empty() {
        return;
    }
    assert_eq!(times.at.len(), names.len());
    for (at, pair) in times.at.windows(2).enumerate() {
        let (one, next) = (pair[0], pair[1]);
        assert!(one.ready_ns < next.ready_ns, "{way:?} {step}: part {at}");
        assert!(one.waits_ns <= next.waits_ns, "{way:?} {step}: part {at}");
        assert!(next.waits_ns >= times.at[0].waits_ns && next.waits_ns <= next.ready_ns);
    }
    let disturb = names.iter().position(|&name| name == "tg_probe_disturb");
    for (at, length_ns) in lengths(times).into_iter().enumerate() {
        let (name, waits) = (names[at], step == WAITS_IN && Some(at) == disturb);
        let off = (length_ns as f64 / WAIT_NS as f64 - 1.0).abs();
        if waits {
            assert!(
                off < 0.01,
                "{way:?}: {name} took {length_ns}, not {WAIT_NS}"
            );
        } else {
            assert!(
                length_ns < WAIT_NS / 3,
                "{way:?} {step}: {name} {length_ns}"
            );
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_kernel_of_every_step_is_timed_in_all_ways() {
    let rig = Rig::new();
    let requests = mixture(&mut Random(5), 60);
    // With one stage the device composes a decode step while the one before it runs.
    let one_stage = &Setup { stages: 1, ..TIMED };
    let ways = WAYS.map(|way| (way, &TIMED));
    for (way, setup) in ways
        .into_iter()
        .chain([(LaunchWay::DeviceGraph, one_stage)])
    {
        let Ran {
            seen,
            records,
            times,
        } = run(&rig, way, setup, &requests);
        let by_request = by_request(&seen, requests.len());
        for (request, (tokens, reason)) in requests.iter().zip(by_request) {
            assert_eq!(expected(&TIMED, request), (tokens, reason));
        }
        assert!(times.iter().any(|times| times.step == WAITS_IN));
        let composed = |step| {
            let mut turns = records.iter();
            let turn =
                turns.find(|r| r.outcome.action == abi::TG_ACTION_STEP && r.outcome.step == step);
            turn.unwrap_or_else(|| panic!("{way:?}: step {step} was not composed"))
        };
        let collected = |step| records.iter().find(|r| r.outcome.returned_step == step);
        for (number, times) in times.iter().enumerate() {
            assert_eq!(times.step, number as u64, "{way:?}: a step without times");
            check_step(times, way);
            let Some(first) = times.at.first() else {
                continue;
            };
            let from = composed(times.step).end_ns;
            let to = collected(times.step).expect("it came back").inputs.now_ns;
            assert!(times.end_ns - first.waits_ns <= to - from, "{way:?}");
            if way.is_device() {
                // One clock. The next graph may be launched before its turn's record is made.
                let turn = composed(times.step).inputs.now_ns;
                assert!(first.waits_ns > turn && times.end_ns <= to, "{way:?}");
            }
        }
        let sum: u64 = times.iter().map(lengths_or_none).sum();
        println!(
            "{way:?}, {} stages: {} steps, {sum} ns of kernels",
            setup.stages,
            times.len()
        );
    }
}

fn lengths_or_none(times: &StepTimes) -> u64 {
    if times.at.is_empty() {
        0
    } else {
        lengths(times).into_iter().sum()
    }
}

/// Once nobody asks any more, the same module's kernels run as before.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn kernels_leave_no_stamps_afterwards() {
    let rig = Rig::new();
    let requests = mixture(&mut Random(6), 20);
    run(&rig, LaunchWay::HostGraph, &TIMED, &requests);
    let (mut engine, _) = rig.engine(LaunchWay::HostGraph, &SETUP);
    engine.launch().unwrap();
    let found = by_request(&serve(&mut engine, &requests), requests.len());
    for (request, (tokens, reason)) in requests.iter().zip(found) {
        assert_eq!(expected(&SETUP, request), (tokens, reason));
    }
}
