//! Every way that CUDA has of launching a step, side by side: the same small kernels in each, timed by the GPU's clock.

use super::host::{Busy, process_time};
use super::stats::{quantile, sorted};
use crate::backend::cuda::driver::gpu::OpenGpu;
use crate::backend::cuda::listed::techniques::Technique;
pub use crate::backend::cuda::tools::techniques::Foreseen;
use crate::backend::cuda::tools::techniques::{Chunk, Run, open};
use crate::error::{Error, Result};
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Steps between two looks of the host at all that they left.
pub const CHUNK: u64 = 250;
/// ... before those that count.
const WARM_UP: u64 = 128;
/// Steps of a repeat that do not count.
pub const BEFORE: u64 = 1 + WARM_UP;
/// Steps of which the slowest thousandth is one.
const ENOUGH_FOR_P999: usize = 1000;

/// How a way is measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    /// Of each repeat.
    pub steps: u64,
    /// A repeat ends sooner where it has taken so long.
    pub most: Duration,
    /// Launches in a chain of siblings.
    pub renew: u32,
}

/// What the repeats of one way gave.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// From one step's end to the next one's.
    steps_us: Vec<f64>,
    steps: u64,
    launches: u64,
    processor: Duration,
    startup_ms: Vec<f64>,
    device_bytes: Vec<f64>,
    not_taken: Option<u64>,
    digest: u64,
}

/// Of all repeats together.
#[derive(Debug, Clone, Serialize)]
pub struct Figures {
    /// Steps that were timed: all but the first of 250.
    pub timed_steps: usize,
    pub mean_step_us: f64,
    pub p50_step_us: f64,
    pub p99_step_us: f64,
    /// `None` of fewer than 1,000 steps.
    #[serde(rename = "p99.9_step_us")]
    pub p999_step_us: Option<f64>,
    pub longest_step_us: f64,
    /// Processor time of this process, busy threads left out.
    pub host_cpu_us_per_step: f64,
    pub host_launches_per_step: f64,
    /// Median of the repeats, by what the driver says is free: other processes change it too.
    pub device_mib: f64,
    /// From nothing to the end of the first step: median of the repeats.
    pub startup_ms: f64,
    /// Siblings that the GPU did not take in time, so that the head went on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_taken: Option<u64>,
    /// After the steps of the last repeat, as the reference has it.
    pub digest: String,
}

/// Steps that are measured, made ready.
pub trait Steps {
    /// So many more.
    ///
    /// # Errors
    /// What they failed by, or that their bits are not right.
    fn run(&mut self, count: u64) -> Result<Chunk>;

    /// Of all steps so far.
    fn digest(&self) -> u64;

    /// Siblings that a GPU did not take in time; `None`: there are none.
    fn not_taken(&self) -> Option<u32>;
}

impl Steps for Run {
    fn run(&mut self, count: u64) -> Result<Chunk> {
        Self::run(self, count)
    }

    fn digest(&self) -> u64 {
        Self::digest(self)
    }

    fn not_taken(&self) -> Option<u32> {
        Some(Self::not_taken(self))
    }
}

/// Runs one repeat of `technique` over `steps`, whose answers are worked out already; false: interrupted, and `found` is as before.
///
/// # Errors
/// What the way failed by, or that its bits are not the reference's.
pub fn measure(
    gpu: &OpenGpu,
    technique: Technique,
    plan: &Plan,
    steps: &Foreseen,
    busy: &Busy,
    found: &mut Found,
    interrupt: &AtomicBool,
) -> Result<bool> {
    let open = || open(gpu, technique, steps, plan.renew);
    repeat(|| gpu.free_bytes(), open, plan, busy, found, interrupt)
}

/// Runs one repeat of what `open` makes ready; false: interrupted, and `found` is as before. `free`: bytes of device memory.
///
/// # Errors
/// What the steps failed by.
pub fn repeat<S: Steps>(
    free: impl Fn() -> Result<u64>,
    open: impl FnOnce() -> Result<S>,
    plan: &Plan,
    busy: &Busy,
    found: &mut Found,
    interrupt: &AtomicBool,
) -> Result<bool> {
    let before = free()?;
    let start = Instant::now();
    let mut run = open()?;
    run.run(1)?;
    let startup = start.elapsed();
    let taken = before.saturating_sub(free()?);
    run.run(WARM_UP)?;
    let warm = run.not_taken();
    let mut new = found.clone();
    let (used, spun) = (process_time(), busy.time());
    let start = Instant::now();
    let mut done = 0;
    while done < plan.steps && (done == 0 || start.elapsed() < plan.most) {
        if interrupt.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let count = CHUNK.min(plan.steps - done);
        let chunk = run.run(count)?;
        let ends = chunk.ends_ns.windows(2);
        new.steps_us
            .extend(ends.map(|pair| pair[1].saturating_sub(pair[0]) as f64 / 1e3));
        new.launches += chunk.launches;
        done += count;
    }
    let used = (process_time() - used).saturating_sub(busy.time() - spun);
    new.processor += used;
    new.steps += done;
    new.startup_ms.push(startup.as_secs_f64() * 1e3);
    new.device_bytes.push(taken as f64);
    if let (Some(now), Some(warm)) = (run.not_taken(), warm) {
        *new.not_taken.get_or_insert(0) += u64::from(now - warm);
    }
    new.digest = run.digest();
    *found = new;
    Ok(true)
}

impl Found {
    /// `None` of no whole repeat.
    pub fn figures(&self) -> Option<Figures> {
        let steps = sorted(&self.steps_us);
        let longest = *steps.last()?;
        let median = |values: &[f64]| quantile(&sorted(values), 0.5);
        let per_step = |value: f64| value / self.steps as f64;
        Some(Figures {
            timed_steps: steps.len(),
            mean_step_us: steps.iter().sum::<f64>() / steps.len() as f64,
            p50_step_us: quantile(&steps, 0.5),
            p99_step_us: quantile(&steps, 0.99),
            p999_step_us: (steps.len() >= ENOUGH_FOR_P999).then(|| quantile(&steps, 0.999)),
            longest_step_us: longest,
            host_cpu_us_per_step: per_step(self.processor.as_nanos() as f64 / 1e3),
            host_launches_per_step: per_step(self.launches as f64),
            device_mib: median(&self.device_bytes) / f64::from(1 << 20),
            startup_ms: median(&self.startup_ms),
            not_taken: self.not_taken,
            digest: format!("{:016x}", self.digest),
        })
    }
}

/// Refuses sizes that no way has.
///
/// # Errors
/// [`Error::Usage`], naming the option.
pub fn check(kernels: &[u32], steps: u64) -> Result<()> {
    if let Some(found) = kernels.iter().find(|&&kernels| kernels < 2) {
        return Err(Error::Usage(format!(
            "--kernels {found}: expected at least 2, one and that which ends a step"
        )));
    }
    match steps {
        0 | 1 => Err(Error::Usage(format!(
            "--steps {steps}: expected at least 2, since a step is timed from the end of the one before"
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_of_all_repeats() {
        let mut found = Found {
            steps_us: (1..=500).map(f64::from).collect(),
            steps: 502,
            launches: 502,
            processor: Duration::from_micros(1004),
            startup_ms: vec![3.0, 1.0, 2.0],
            device_bytes: vec![1048576.0],
            ..Found::default()
        };
        let figures = found.figures().unwrap();
        assert_eq!(figures.p50_step_us, 250.5);
        assert_eq!(figures.p999_step_us, None, "half a step is no thousandth");
        assert_eq!(
            (figures.host_cpu_us_per_step, figures.host_launches_per_step),
            (2.0, 1.0)
        );
        assert_eq!((figures.startup_ms, figures.device_mib), (2.0, 1.0));
        found.steps_us.extend((1..=500).map(f64::from));
        assert!(found.figures().unwrap().p999_step_us.is_some());
        assert!(Found::default().figures().is_none());
    }

    #[test]
    fn sizes_that_no_way_has_are_refused() {
        check(&[2, 123], 2).unwrap();
        for (kernels, steps, word) in [(1, 10, "--kernels 1"), (4, 1, "--steps 1")] {
            let message = check(&[kernels], steps).unwrap_err().to_string();
            assert!(
                message.contains(word) && message.contains("expected"),
                "{message}"
            );
        }
    }
}
