//! The timing of `bench` is itself timed: steps of a known length, and what measuring adds to them.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tailgraph::backend::{StageBackend, StepView};
use tailgraph::bench::drive::{self, Beside};
use tailgraph::bench::host::Busy;
use tailgraph::bench::metrics::{Figures, figures};
use tailgraph::bench::stats::summary;
use tailgraph::bench::workload::{self, Random};
use tailgraph::bench::{Kind, Point};
use tailgraph::error::Result;
use tailgraph::plan::{EngineOptions, Ladders};
use tailgraph::runtime::{Engine, Logits};
use tailgraph::sys::abi;

const OPTIONS: EngineOptions = EngineOptions {
    max_seqs: 8,
    max_context: 256,
    page_tokens: 64,
    pages: 64,
    step_tokens: 512,
    chunk_align: 64,
    steps_in_flight: 1,
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

/// Runs `batch` sequences of steps that take `takes`: the figures, what steps really took, and the cost of measuring.
fn measured(batch: u32, takes: Duration) -> (Figures, Vec<f64>) {
    let took_ms = Arc::new(Mutex::new(Vec::new()));
    let sleeper = Sleeper {
        takes,
        took_ms: took_ms.clone(),
    };
    let ladders = Ladders {
        decode: vec![1, 8],
        mixed: vec![512],
        score: vec![512],
    };
    let mut engine = Engine::start(vec![Box::new(sleeper)], &ladders, &OPTIONS).unwrap();
    let point = Point {
        kind: Kind::Decode,
        batch,
        prompt_tokens: 16,
        new_tokens: 60,
        rate: None,
        cpu_load: 0,
    };
    let arrivals = workload::at_once(&point, batch, Logits::None, 100, &mut Random::new(0, 0));
    let beside = Beside {
        busy: &Busy::default(),
        joules: &|| None,
        interrupt: &AtomicBool::new(false),
    };
    let run = drive::run(&mut engine, &arrivals, &beside)
        .unwrap()
        .unwrap();
    let found = figures(&point, &run).unwrap();
    let took_ms = std::mem::take(&mut *took_ms.lock().unwrap());
    (found, took_ms)
}

fn median(values: &[f64]) -> f64 {
    summary(values).unwrap().median
}

#[test]
fn steps_of_a_known_length_are_timed_right() {
    for takes_ms in [2, 8] {
        let (figures, took_ms) = measured(4, Duration::from_millis(takes_ms));
        let (found, really) = (median(&figures.step_ms), median(&took_ms));
        assert!(really >= takes_ms as f64, "{really}");
        assert!(
            (found / really - 1.0).abs() < 0.01,
            "{found} ms, expected {really} ms"
        );
        // A token comes with every step, so the two ways to look at it agree.
        let between = median(&figures.itl_ms);
        assert!(
            (between / found - 1.0).abs() < 0.01,
            "{between} ms, {found} ms"
        );
        let each = median(&figures.tpot_ms);
        let mean_ms = summary(&took_ms).unwrap().mean;
        assert!(
            (each / mean_ms - 1.0).abs() < 0.02,
            "{each} ms, expected {mean_ms} ms"
        );
        // Sleeping takes no processor time, and nothing is launched on a GPU.
        assert!(
            figures.processor_s < 0.2 * figures.duration_s,
            "{figures:?}"
        );
        assert_eq!(figures.launches, 0);
    }
}

/// All requests' times by the host's clock lie inside the run.
#[test]
fn times_by_the_two_clocks_fit_together() {
    let (figures, took_ms) = measured(4, Duration::from_millis(4));
    let slack_ms = figures.clock_uncertainty_us / 1e3 + 0.1;
    let whole_ms = figures.duration_s * 1e3;
    for &end_ms in &figures.e2el_ms {
        assert!(end_ms > took_ms.iter().sum::<f64>() * 0.9, "{end_ms} ms");
        assert!(end_ms <= whole_ms + slack_ms, "{end_ms} of {whole_ms} ms");
    }
    for &first_ms in &figures.ttft_ms {
        assert!(
            first_ms + slack_ms >= 4.0,
            "a prompt takes a step: {first_ms} ms"
        );
    }
}

/// What `bench` does for each token is a small part of the shortest step that there is on a GPU (1.5 ms at full size).
#[test]
fn measuring_costs_little() {
    let costs_ns: Vec<f64> = (0..9).map(|_| drive::cost_ns()).collect();
    let cost_ns = median(&costs_ns);
    assert!(cost_ns < 0.005 * 1.5e6, "{cost_ns} ns a token");
}
