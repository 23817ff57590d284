//! The one measuring loop: steps in several ways, beside each load, again and again in an order that turns by one from repeat to
//! repeat, so that whatever drifts meets all ways alike.

use super::load::Processes;
use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tailgraph::backend::cuda::driver::gpu::OpenGpu;
use tailgraph::bench::host::{Busy, process_time, processor, processors};
use tailgraph::bench::stats::{quantile, sorted};
use tailgraph::error::{Error, Result};

/// Steps between two looks of the host at all that they left.
const CHUNK: u64 = 250;
const WARM_UP: u64 = 128;
/// Steps from which on the slowest thousandth is at least one.
const ENOUGH_FOR_P999: usize = 1000;
/// Between two looks of a host that only waits for a run's end.
pub const LOOK: Duration = Duration::from_micros(200);
/// No run of a chunk takes so long.
const RUN_TIMEOUT: Duration = Duration::from_secs(60);

/// How ways are measured.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// Steps of each repeat
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(2..))]
    pub steps: u64,
    /// A repeat of a way ends sooner where it has taken so long
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    pub most_seconds: f64,
    /// Runs of each combination; each makes the way ready anew
    #[arg(long, short, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeats: u32,
    /// Threads that spin meanwhile
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "0")]
    pub cpu_load: Vec<u32>,
    /// Processes that keep each GPU busy meanwhile, with kernels of some 2 ms
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "0")]
    pub gpu_load: Vec<u32>,
    /// No progress on standard error
    #[arg(long, short)]
    pub quiet: bool,
}

/// Steps in a row, and what they took.
#[derive(Debug, Clone, Default)]
pub struct Chunk {
    /// When each step ended, by one clock.
    pub ends_ns: Vec<u64>,
    /// Launches that the host made.
    pub launches: u64,
}

/// Steps that are made ready in one way.
pub trait Steps {
    /// Runs so many steps more, and compares what they computed with the reference.
    ///
    /// # Errors
    /// What they failed by, or that their bits are not right. They run no more then.
    fn run(&mut self, count: u64) -> Result<Chunk>;

    /// What all steps so far have left.
    fn digest(&self) -> u64;

    /// Siblings that a GPU did not take in time, so that the head went on; `None` of ways without siblings.
    fn not_taken(&self) -> Option<u32> {
        None
    }
}

/// One way over steps of one size.
pub struct Thing<'a> {
    /// What rows say of it first.
    pub named: Value,
    /// Bytes that a GPU sends in each step, where steps go from GPU to GPU.
    pub bytes_per_step: Option<u64>,
    /// Works out what so many steps leave, before anything is timed.
    pub foresee: Box<dyn Fn(u64) + 'a>,
    pub open: Box<dyn Fn() -> Result<Box<dyn Steps>> + 'a>,
}

/// What the repeats of a thing under a load gave.
#[derive(Default)]
struct Found {
    repeats: u32,
    steps_us: Vec<f64>,
    steps: u64,
    launches: u64,
    processor: Duration,
    startup_ms: Vec<f64>,
    device_bytes: Vec<f64>,
    not_taken: Option<u64>,
    digest: u64,
    failed: bool,
}

/// What a row says of all repeats together.
#[derive(Serialize)]
struct Figures {
    /// All steps but the first of each chunk, which is timed from no other.
    timed_steps: usize,
    mean_step_us: f64,
    p50_step_us: f64,
    p99_step_us: f64,
    /// `None` of fewer than 1,000 steps.
    #[serde(rename = "p99.9_step_us")]
    p999_step_us: Option<f64>,
    longest_step_us: f64,
    /// Processor time of this process, busy threads left out.
    host_cpu_us_per_step: f64,
    host_launches_per_step: f64,
    /// The median of the repeats, by what the driver says is free: other processes change it too.
    device_mib: f64,
    /// From nothing to the end of the first step: the median of the repeats.
    startup_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_taken: Option<u64>,
    /// After the steps of the last repeat, as the reference has it.
    digest: String,
}

/// What was measured, as far as there was time for it.
#[derive(Default)]
pub struct Measured {
    pub rows: Vec<Value>,
    pub interrupted: bool,
    /// The first failure; the others were said.
    pub failed: Option<Error>,
}

/// Measures all `things` beside each load. One that fails is not tried again under that load; all others are.
///
/// # Errors
/// Processes on the GPUs, or busy threads, do not start.
pub fn all(plan: &Plan, gpus: &[&OpenGpu], things: &[Thing<'_>], stop: &AtomicBool) -> Result<Measured> {
    let mut measured = Measured::default();
    for &gpu_load in &plan.gpu_load {
        let beside = gpus.iter().map(|gpu| Processes::new(gpu_load, gpu.info.ordinal));
        let _beside = beside.collect::<Result<Vec<_>>>()?;
        for &cpu_load in &plan.cpu_load {
            let mut found: Vec<Found> = things.iter().map(|_| Found::default()).collect();
            'repeats: for repeat in 0..plan.repeats as usize {
                if !plan.quiet {
                    eprintln!(
                        "repeat {} of {}, beside {cpu_load} busy threads and {gpu_load} processes on each GPU",
                        repeat + 1,
                        plan.repeats
                    );
                }
                for turn in 0..things.len() {
                    let index = (turn + repeat) % things.len();
                    let (thing, found) = (&things[index], &mut found[index]);
                    if found.failed {
                        continue;
                    }
                    (thing.foresee)(plan.steps + WARM_UP + 1);
                    let busy = Busy::new(cpu_load, stop)?;
                    match found.repeat(plan, gpus, thing, &busy, stop) {
                        Ok(true) => {}
                        Ok(false) => {
                            measured.interrupted = true;
                            break 'repeats;
                        }
                        Err(error) => {
                            found.failed = true;
                            match &measured.failed {
                                None => measured.failed = Some(error),
                                Some(_) => eprintln!("warning: {error}"),
                            }
                        }
                    }
                }
            }
            let load = json!({ "cpu_load": cpu_load, "gpu_load": gpu_load });
            let rows = things.iter().zip(&found);
            measured.rows.extend(rows.filter_map(|(thing, found)| found.row(thing, gpus, &load)));
            if measured.interrupted {
                return Ok(measured);
            }
        }
    }
    Ok(measured)
}

impl Found {
    /// Runs `thing` once more. False: interrupted, and this is as before.
    fn repeat(&mut self, plan: &Plan, gpus: &[&OpenGpu], thing: &Thing<'_>, busy: &Busy, stop: &AtomicBool) -> Result<bool> {
        let free = || gpus.iter().map(|gpu| gpu.free_bytes()).sum::<Result<u64>>();
        let (before, start) = (free()?, Instant::now());
        let mut steps = (thing.open)()?;
        // Where steps fail, the GPU may still be at them: they are never dropped then.
        let mut run = |count| match steps.run(count) {
            Ok(chunk) => Ok((chunk, steps.not_taken(), steps.digest())),
            Err(error) => Err(error),
        };
        let mut timed = || {
            run(1)?;
            let (startup, taken) = (start.elapsed(), before.saturating_sub(free()?));
            let (_, not_taken_before, _) = run(WARM_UP)?;
            let (used, spun, start) = (process_time(), busy.time(), Instant::now());
            let (mut new, mut left) = (Self::default(), plan.steps);
            while left > 0 && (left == plan.steps || start.elapsed().as_secs_f64() < plan.most_seconds) {
                if stop.load(Ordering::Relaxed) {
                    return Ok(None);
                }
                let count = CHUNK.min(left);
                let (chunk, not_taken, digest) = run(count)?;
                let pairs = chunk.ends_ns.windows(2);
                new.steps_us.extend(pairs.map(|pair| pair[1].saturating_sub(pair[0]) as f64 / 1e3));
                new.launches += chunk.launches;
                new.steps += count;
                left -= count;
                new.not_taken = not_taken.zip(not_taken_before).map(|(now, before)| u64::from(now - before));
                new.digest = digest;
            }
            new.processor = (process_time() - used).saturating_sub(busy.time() - spun);
            new.startup_ms.push(startup.as_secs_f64() * 1e3);
            new.device_bytes.push(taken as f64);
            Ok(Some(new))
        };
        match timed() {
            Ok(None) => Ok(false),
            Ok(Some(new)) => {
                self.add(new);
                Ok(true)
            }
            Err(error) => {
                std::mem::forget(steps);
                Err(error)
            }
        }
    }

    fn add(&mut self, new: Self) {
        self.repeats += 1;
        self.steps_us.extend(new.steps_us);
        self.startup_ms.extend(new.startup_ms);
        self.device_bytes.extend(new.device_bytes);
        self.steps += new.steps;
        self.launches += new.launches;
        self.processor += new.processor;
        self.not_taken = new.not_taken.map(|count| count + self.not_taken.unwrap_or(0));
        self.digest = new.digest;
    }

    fn figures(&self) -> Option<Figures> {
        let steps = sorted(&self.steps_us);
        let longest_step_us = *steps.last()?;
        let median = |values: &[f64]| quantile(&sorted(values), 0.5);
        let per_step = |value: f64| value / self.steps as f64;
        Some(Figures {
            timed_steps: steps.len(),
            mean_step_us: steps.iter().sum::<f64>() / steps.len() as f64,
            p50_step_us: quantile(&steps, 0.5),
            p99_step_us: quantile(&steps, 0.99),
            p999_step_us: (steps.len() >= ENOUGH_FOR_P999).then(|| quantile(&steps, 0.999)),
            longest_step_us,
            host_cpu_us_per_step: per_step(self.processor.as_nanos() as f64 / 1e3),
            host_launches_per_step: per_step(self.launches as f64),
            device_mib: median(&self.device_bytes) / f64::from(1 << 20),
            startup_ms: median(&self.startup_ms),
            not_taken: self.not_taken,
            digest: format!("{:016x}", self.digest),
        })
    }

    /// `None` where it failed, or no repeat was whole.
    fn row(&self, thing: &Thing<'_>, gpus: &[&OpenGpu], load: &Value) -> Option<Value> {
        let figures = self.figures().filter(|_| !self.failed)?;
        let rate = thing.bytes_per_step.map_or_else(
            || json!({}),
            |bytes| json!({ "bytes_per_step": bytes, "gbytes_per_s": bytes as f64 / (figures.p50_step_us * 1e3) }),
        );
        let repeats = json!({ "repeats": self.repeats });
        Some(merged([&thing.named, &subject(gpus), load, &repeats, &rate, &json!(figures)]))
    }
}

/// What each row says of where it comes from.
pub fn subject(gpus: &[&OpenGpu]) -> Value {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(|argument| argument.to_string_lossy()).collect();
    let names = ["gpu_info", "other_gpu_info"].into_iter().zip(gpus);
    let names: Map<_, _> = names.map(|(name, gpu)| (name.to_owned(), json!(gpu.info.to_string()))).collect();
    let subject = json!({
        "build_version": env!("CARGO_PKG_VERSION"),
        "build_profile": if cfg!(debug_assertions) { "debug" } else { "release" },
        "command": format!("lab {}", arguments.join(" ")),
        "test_time": chrono::Utc::now().format("%Y-%m-%dT%H:%M:%SZ").to_string(),
        "cpu_info": processor(),
        "host_cores": processors(),
    });
    merged([&subject, &Value::Object(names)])
}

/// One object of all fields.
pub fn merged<const N: usize>(parts: [&Value; N]) -> Value {
    let fields = parts.iter().filter_map(|part| part.as_object()).flatten();
    Value::Object(fields.map(|(name, value)| (name.clone(), value.clone())).collect())
}

/// Steps that run, as the host follows them.
pub trait Progress {
    /// No step takes so long.
    const STEP_TIMEOUT: Duration;

    /// Whether all that was queued has run.
    ///
    /// # Errors
    /// The GPU failed.
    fn is_done(&self) -> Result<bool>;

    /// Steps that have told the host of their end.
    fn steps_told(&self) -> u64;

    /// They did not end within `limit`.
    fn late(&self, limit: Duration) -> Error;

    /// Nothing runs any more, and `until` steps are not done.
    fn ended_early(&self, until: u64) -> Error;

    /// Sleeps until all that was queued has run.
    ///
    /// # Errors
    /// That it takes too long; the GPU failed.
    fn wait_for_all(&self) -> Result<()> {
        let start = Instant::now();
        while !self.is_done()? {
            if start.elapsed() > RUN_TIMEOUT {
                return Err(self.late(RUN_TIMEOUT));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Spins until `steps` steps have told.
    ///
    /// # Errors
    /// That it takes too long, or that nothing runs any more; the GPU failed.
    fn spin_for(&self, steps: u64) -> Result<()> {
        let start = Instant::now();
        let mut spins = 0u32;
        while self.steps_told() < steps {
            spins = spins.wrapping_add(1);
            // A kernel that failed tells nothing.
            if spins.is_multiple_of(1 << 16) {
                if start.elapsed() > Self::STEP_TIMEOUT {
                    return Err(self.late(Self::STEP_TIMEOUT));
                }
                if self.is_done()? && self.steps_told() < steps {
                    return Err(self.ended_early(steps));
                }
            }
            std::hint::spin_loop();
        }
        Ok(())
    }
}
