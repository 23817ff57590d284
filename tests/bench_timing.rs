//! The timing of `bench` is itself timed: steps of a known length, and what measuring adds to them.

mod common;

use common::traced::traced_step_ms;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tailgraph::backend::{StageBackend, StepView};
use tailgraph::bench::drive::{self, Beside};
use tailgraph::bench::metrics::{Figures, figures};
use tailgraph::bench::stats::summary;
use tailgraph::bench::workload::{self, Random};
use tailgraph::bench::{Kind, Point};
use tailgraph::error::Result;
use tailgraph::plan::{BucketSizes, EngineOptions};
use tailgraph::runtime::{Engine, Logits, SingleEngine};
use tailgraph::sys::abi;

const OPTIONS: EngineOptions = EngineOptions {
    max_seqs: 8,
    max_context: 256,
    page_tokens: 64,
    pages: 64,
    step_tokens: 512,
    chunk_tokens: 512,
    chunk_share: 0,
    chunk_align: 64,
    steps_in_flight: 1,
    prefixes: 0,
    record: false,
};

/// Sleeps in every step, notes how long that really took, and samples token 1.
struct Sleeper {
    takes: Duration,
    /// Milliseconds of each decode step.
    took_ms: Arc<Mutex<Vec<f64>>>,
}

impl StageBackend for Sleeper {
    fn run(&mut self, step: &StepView<'_>) -> Result<()> {
        let start = Instant::now();
        std::thread::sleep(self.takes);
        let sampled = abi::tg_sampled {
            token: 1,
            ..Default::default()
        };
        for index in 0..step.sample_rows().len() {
            step.set_sampled(index, sampled);
        }
        if step.header().kind == abi::TG_KIND_DECODE {
            let took_ms = start.elapsed().as_secs_f64() * 1e3;
            self.took_ms.lock().unwrap().push(took_ms);
        }
        Ok(())
    }
}

/// A run.
struct Measured {
    figures: Figures,
    /// Times of steps by their own clock.
    took_ms: Vec<f64>,
    /// Times of the same steps by the trace.
    traced_ms: Vec<f64>,
}

/// An engine of steps that take `takes`, and what they really took.
fn engine(takes: Duration) -> (SingleEngine, Arc<Mutex<Vec<f64>>>) {
    let took_ms = Arc::new(Mutex::new(Vec::new()));
    let sleeper = Sleeper {
        takes,
        took_ms: took_ms.clone(),
    };
    let bucket_sizes = BucketSizes {
        decode: vec![1, 8],
        mixed: vec![512],
        score: vec![512],
    };
    let options = EngineOptions {
        record: true,
        ..OPTIONS
    };
    let engine = SingleEngine::start(vec![Box::new(sleeper)], &bucket_sizes, &options).unwrap();
    (engine, took_ms)
}

/// Requests that end at once tell more of the clocks than those of a run, behind whose steps the host looks seldom.
#[test]
fn clocks_are_compared_by_requests_that_end_at_once() {
    let (mut engine, took_ms) = engine(Duration::from_millis(20));
    let offset = drive::compare_clocks(&mut engine, &AtomicBool::new(false)).unwrap();
    let (_, uncertainty_ns) = offset.estimate_ns().unwrap();
    assert!(uncertainty_ns < 5_000_000, "{uncertainty_ns} ns");
    assert!(
        took_ms.lock().unwrap().is_empty(),
        "no step was taken for it"
    );
    let next = workload::request(vec![1], 1, Logits::None);
    assert_eq!(engine.try_submit(&next).unwrap(), Some(drive::EXCHANGES));
}

/// Runs `batch` sequences of steps that take `takes`.
fn measured(batch: u32, takes: Duration) -> Measured {
    let (mut engine, took_ms) = engine(takes);
    let point = Point::of(Kind::Decode, batch, 16, 60);
    let arrivals = workload::arrivals(&point, Logits::None, 100, &mut Random::new(0, 0));
    let interrupt = AtomicBool::new(false);
    let beside = Beside::nothing(&interrupt);
    let mut records = vec![];
    let mut heard = |record: &abi::tg_trace| records.push(*record);
    let run = drive::run(&mut engine, &arrivals, &beside, &mut heard).unwrap();
    let took_ms = std::mem::take(&mut *took_ms.lock().unwrap());
    let shape = engine.shape();
    Measured {
        figures: figures(&point, &run).unwrap(),
        took_ms,
        traced_ms: traced_step_ms(shape, None, &arrivals, &records, batch.into()),
    }
}

/// One test at a time: some look at the processor time of the whole process.
static ALONE: Mutex<()> = Mutex::new(());

/// On a machine that is busy with other things a run may be disturbed; one of three must not be.
fn undisturbed(mut holds: impl FnMut() -> std::result::Result<(), String>) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let failures: Vec<String> = (0..3).map_while(|_| holds().err()).collect();
    assert!(failures.len() < 3, "{failures:#?}");
}

/// `Err` with what was found unless `holds`.
fn ensure(holds: bool, found: impl FnOnce() -> String) -> std::result::Result<(), String> {
    holds.then_some(()).ok_or_else(found)
}

/// `value` is within `share` of `expected`.
fn close(value: f64, expected: f64, share: f64) -> std::result::Result<(), String> {
    ensure((value / expected - 1.0).abs() < share, || {
        format!("{value}, expected {expected} within {share}")
    })
}

fn median(values: &[f64]) -> f64 {
    summary(values).unwrap().median
}

#[test]
fn steps_of_a_known_length_are_timed_right() {
    // What a turn takes is a step's too: tens of microseconds on a slow machine, far below a hundredth of these.
    for takes_ms in [6, 15] {
        undisturbed(|| {
            let takes = Duration::from_millis(takes_ms);
            let Measured {
                figures, took_ms, ..
            } = measured(4, takes);
            let (found, really) = (median(&figures.step_ms), median(&took_ms));
            assert!(really >= takes_ms as f64, "{really}");
            assert_eq!(figures.launches, 0, "nothing is launched on a GPU");
            close(found, really, 0.01)?;
            // A token comes with every step, so the two ways to look at it agree.
            close(median(&figures.itl_ms), found, 0.01)?;
            let mean_ms = summary(&took_ms).unwrap().mean;
            close(median(&figures.tpot_ms), mean_ms, 0.02)?;
            // Sleeping takes no processor time.
            ensure(figures.processor_s < 0.2 * figures.duration_s, || {
                format!("{} s of {}", figures.processor_s, figures.duration_s)
            })
        });
    }
}

/// All requests' times by the host's clock lie inside the run.
#[test]
fn times_by_the_two_clocks_fit_together() {
    undisturbed(|| {
        let Measured {
            figures, took_ms, ..
        } = measured(4, Duration::from_millis(4));
        let slack_ms = figures.clock_uncertainty_us / 1e3 + 0.1;
        let (steps_ms, whole_ms) = (took_ms.iter().sum::<f64>(), figures.duration_s * 1e3);
        for &end_ms in &figures.e2el_ms {
            ensure(
                end_ms > steps_ms * 0.9 && end_ms <= whole_ms + slack_ms,
                || format!("{end_ms} ms, expected {steps_ms} to {whole_ms}"),
            )?;
        }
        for &first_ms in &figures.ttft_ms {
            ensure(first_ms + slack_ms >= 4.0, || {
                format!("a prompt takes a step: {first_ms} ms")
            })?;
        }
        Ok(())
    });
}

/// `bench` and `trace` read the same records, each in its own way.
#[test]
fn the_figures_agree_with_the_trace_of_the_same_run() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Measured {
        figures, traced_ms, ..
    } = measured(4, Duration::from_millis(2));
    assert_eq!(traced_ms.len(), figures.step_ms.len());
    close(median(&figures.step_ms), median(&traced_ms), 0.01).unwrap();
    let (bench, trace): (f64, f64) = (figures.step_ms.iter().sum(), traced_ms.iter().sum());
    close(bench, trace, 0.01).unwrap();
}

/// What `bench` does for each token is a small part of the shortest step that there is on a GPU (1.5 ms at full size).
#[test]
fn measuring_costs_little() {
    undisturbed(|| {
        let costs_ns: Vec<f64> = (0..9).map(|_| drive::cost_ns()).collect();
        let cost_ns = median(&costs_ns);
        ensure(cost_ns < 0.005 * 1.5e6, || format!("{cost_ns} ns a token"))
    });
}

/// The next request is sent when one has ended, and its times begin there.
#[test]
fn a_closed_loop_has_no_more_in_flight_than_it_may() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for most in [1, 3] {
        let (mut engine, _) = engine(Duration::from_millis(2));
        let point = Point {
            rate: Some(f64::INFINITY),
            most_in_flight: Some(most),
            requests: 12,
            ..Point::of(Kind::Serve, 8, 16, 4)
        };
        let arrivals = workload::arrivals(&point, Logits::None, 100, &mut Random::new(0, 0));
        let interrupt = AtomicBool::new(false);
        let beside = Beside {
            most_in_flight: point.most_in_flight,
            ..Beside::nothing(&interrupt)
        };
        let run = drive::run(&mut engine, &arrivals, &beside, &mut |_| {}).unwrap();
        let in_flight = |at_ns| {
            let there = |served: &&drive::Served| (served.seen_ns..served.end_ns).contains(&at_ns);
            run.served.iter().filter(there).count()
        };
        let counts = run.served.iter().map(|served| in_flight(served.seen_ns));
        assert_eq!(counts.max(), Some(most as usize));
        let figures = figures(&point, &run).unwrap();
        let times_ms = figures.e2el_ms.iter().sum::<f64>();
        let slack_ms = 12.0 * (figures.clock_uncertainty_us / 1e3 + 0.1);
        let room_ms = f64::from(most) * figures.duration_s * 1e3 + slack_ms;
        assert!(times_ms <= room_ms, "{times_ms} ms in {room_ms}");
    }
}
