//! The one measuring loop: steps in several ways, beside each load, again and again in an order that turns by one from repeat to
//! repeat, so that whatever drifts meets all ways alike.

use super::On;
use super::cuda::OpenGpu;
use super::load::Process;
use clap::Args;
use serde_json::{Value, json};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tailgraph::bench::host::{Busy, process_time, processor};
use tailgraph::bench::stats::{quantile, sorted};
use tailgraph::command::{command_line, interrupt};
use tailgraph::error::{Error, Result};
use tailgraph::files::Out;

/// Steps between two looks of the host at all that they left.
const CHUNK: u64 = 250;
const WARM_UP: u64 = 128;
/// Steps from which on the slowest thousandth is at least one.
const ENOUGH_FOR_P999: usize = 1000;

/// Which ways are measured, and how.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    #[command(flatten)]
    pub on: On,
    /// Ways by their names; all are those of the list below that the machine has all for
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "all"
    )]
    pub ways: Vec<String>,
    /// Steps of each repeat
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(2..))]
    steps: u64,
    /// A repeat of a way ends sooner where it has taken so long
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    most_seconds: f64,
    /// Runs of each combination; each makes the way ready anew
    #[arg(long, short, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// Threads that spin meanwhile
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "0")]
    cpu_load: Vec<u32>,
    /// Processes that keep each GPU busy meanwhile, with kernels of some 2 ms
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "0")]
    gpu_load: Vec<u32>,
    /// No progress on standard error
    #[arg(long, short)]
    quiet: bool,
}

impl Plan {
    /// The ways that are asked for, of a list that has a name at the start of each line.
    pub fn ways(&self, list: &'static str) -> Result<Vec<&'static str>> {
        let asked = |name: &str| self.ways.iter().any(|way| way == name || way == "all");
        let known = |way: &&String| *way == "all" || names(list).any(|name| name == *way);
        match self.ways.iter().find(|way| !known(way)) {
            None => Ok(names(list).filter(|name| asked(name)).collect()),
            Some(way) => Err(Error::Usage(format!(
                "--ways {way}: expected all, or some of {}",
                names(list).collect::<Vec<_>>().join(", ")
            ))),
        }
    }

    /// Steps that a repeat has at most, those that are not timed included.
    pub fn most_steps(&self) -> u64 {
        1 + WARM_UP + self.steps
    }
}

/// The names of a list that has one at the start of each line.
pub fn names(list: &'static str) -> impl Iterator<Item = &'static str> + Clone {
    list.lines().filter_map(|line| line.split(' ').next())
}

/// Steps in a row, and what they took.
pub struct Chunk {
    /// When each step ended, by one clock.
    pub ends_ns: Vec<u64>,
    /// Launches that the host made.
    pub launches: u64,
}

/// Steps that are made ready in one way.
pub trait Steps {
    /// Runs so many steps more, and compares what they computed with the reference.
    fn run(&mut self, count: u64) -> Result<Chunk>;

    /// What all steps so far have left.
    fn digest(&self) -> u64;

    /// Siblings that a GPU did not take in time, so that the head went on; `None` of ways without.
    fn not_taken(&self) -> Option<u32> {
        None
    }
}

/// What the repeats of a thing under a load gave.
#[derive(Default)]
struct Found {
    repeats: u32,
    /// All steps but the first of each chunk, which is timed from no other.
    steps_us: Vec<f64>,
    steps: u64,
    launches: u64,
    /// Processor time of this process, busy threads left out.
    processor: Duration,
    startup_ms: Vec<f64>,
    /// By what the driver says is free: other processes change it too.
    device_bytes: Vec<f64>,
    not_taken: Option<u32>,
    digest: u64,
    failed: bool,
}

/// Measures all `things` beside each load, and writes a row of each to `out`. A thing is one way over steps of one size: what its rows
/// say of it, and what makes it ready. One that fails has no row and is not tried again under that load; its error ends the command
/// once all others were measured.
pub fn run<S: Steps>(
    plan: &Plan,
    out: Out,
    gpus: &[OpenGpu],
    things: &[(Value, impl Fn() -> Result<S>)],
    heading: &str,
    fields: &'static str,
) -> Result<()> {
    let stop = interrupt::flag();
    interrupt::look();
    let (mut rows, mut failed) = (vec![], None);
    for &gpu_load in &plan.gpu_load {
        let ordinals = gpus.iter().map(|gpu| gpu.info.ordinal);
        let beside = ordinals.map(|ordinal| Process::start(gpu_load, ordinal));
        let _beside = beside.collect::<Result<Vec<_>>>()?;
        for &cpu_load in &plan.cpu_load {
            let mut found: Vec<Found> = things.iter().map(|_| Found::default()).collect();
            for repeat in 0..plan.repeats as usize {
                if !plan.quiet {
                    let (this, all) = (repeat + 1, plan.repeats);
                    eprintln!(
                        "repeat {this} of {all}, beside {cpu_load} busy threads and {gpu_load} processes a GPU"
                    );
                }
                for turn in 0..things.len() {
                    let at = (turn + repeat) % things.len();
                    if found[at].failed || stop.load(Ordering::Relaxed) {
                        continue;
                    }
                    let busy = Busy::new(cpu_load)?;
                    if let Err(error) = found[at].repeat(plan, gpus, &things[at].1, &busy, &stop) {
                        found[at].failed = true;
                        match &failed {
                            None => failed = Some(error),
                            Some(_) => eprintln!("warning: {error}"),
                        }
                    }
                }
            }
            let load = json!({ "cpu_load": cpu_load, "gpu_load": gpu_load });
            let measured = things.iter().zip(&found);
            rows.extend(measured.filter_map(|((named, _), found)| found.row(named, &load)));
        }
    }
    if !rows.is_empty() {
        plan.on.write(out, gpus, rows, heading, fields)?;
    }
    if stop.load(Ordering::Relaxed) {
        return Err(Error::Interrupted);
    }
    failed.map_or(Ok(()), Err)
}

impl Found {
    /// Runs what `open` makes ready, or as far as it comes before `stop`.
    fn repeat<S: Steps>(
        &mut self,
        plan: &Plan,
        gpus: &[OpenGpu],
        open: impl Fn() -> Result<S>,
        busy: &Busy,
        stop: &AtomicBool,
    ) -> Result<()> {
        let free = || gpus.iter().map(|gpu| gpu.free_bytes()).sum::<Result<u64>>();
        let (before, start) = (free()?, Instant::now());
        // Where a run fails, the GPU may still be at them: then they stay.
        let mut steps = ManuallyDrop::new(open()?);
        steps.run(1)?;
        self.startup_ms.push(start.elapsed().as_secs_f64() * 1e3);
        let taken = before.saturating_sub(free()?);
        self.device_bytes.push(taken as f64);
        steps.run(WARM_UP)?;
        let not_taken = steps.not_taken();
        let (used, spun, start) = (process_time(), busy.time(), Instant::now());
        let mut left = plan.steps;
        let late = || start.elapsed().as_secs_f64() >= plan.most_seconds;
        while left == plan.steps || left > 0 && !late() && !stop.load(Ordering::Relaxed) {
            let count = CHUNK.min(left);
            let chunk = steps.run(count)?;
            let pairs = chunk.ends_ns.windows(2);
            let us = pairs.map(|pair| pair[1].saturating_sub(pair[0]) as f64 / 1e3);
            self.steps_us.extend(us);
            self.launches += chunk.launches;
            self.steps += count;
            left -= count;
        }
        self.processor += (process_time() - used).saturating_sub(busy.time() - spun);
        if let (Some(now), Some(before)) = (steps.not_taken(), not_taken) {
            self.not_taken = Some(self.not_taken.unwrap_or(0) + now - before);
        }
        self.digest = steps.digest();
        self.repeats += 1;
        drop(ManuallyDrop::into_inner(steps));
        Ok(())
    }

    /// `None` where it failed, or nothing was timed.
    fn row(&self, named: &Value, load: &Value) -> Option<Value> {
        let steps = sorted(&self.steps_us);
        let longest = steps.last().filter(|_| !self.failed)?;
        let median = |values: &[f64]| quantile(&sorted(values), 0.5);
        let per_step = |value: f64| value / self.steps as f64;
        let p50 = quantile(&steps, 0.5);
        let bytes = named["bytes_per_step"].as_f64();
        let mut figures = json!({
            "repeats": self.repeats,
            "gbytes_per_s": bytes.map(|bytes| bytes / (p50 * 1e3)),
            "timed_steps": steps.len(),
            "mean_step_us": steps.iter().sum::<f64>() / steps.len() as f64,
            "p50_step_us": p50,
            "p99_step_us": quantile(&steps, 0.99),
            "p99.9_step_us": (steps.len() >= ENOUGH_FOR_P999).then(|| quantile(&steps, 0.999)),
            "longest_step_us": longest,
            "host_cpu_us_per_step": per_step(self.processor.as_nanos() as f64 / 1e3),
            "host_launches_per_step": per_step(self.launches as f64),
            "device_mib": median(&self.device_bytes) / f64::from(1 << 20),
            "startup_ms": median(&self.startup_ms),
            "not_taken": self.not_taken,
            "digest": format!("{:016x}", self.digest),
        });
        // A way has none of these where the percentile of too few steps is null.
        let fields = figures.as_object_mut()?;
        fields.retain(|name, value| name == "p99.9_step_us" || !value.is_null());
        Some(merged([named, load, &figures]))
    }
}

/// What each row says of where it comes from.
pub fn subject(gpus: &[OpenGpu]) -> Value {
    let mut subject = json!({
        "build_version": env!("CARGO_PKG_VERSION"),
        "build_profile": if cfg!(debug_assertions) { "debug" } else { "release" },
        "command": command_line().replacen("tailgraph", "lab", 1),
        "test_time": chrono::Utc::now().format("%Y-%m-%dT%H:%M:%SZ").to_string(),
        "cpu_info": processor(),
        "host_cores": std::thread::available_parallelism().map_or(1, usize::from),
    });
    for (name, gpu) in ["gpu_info", "other_gpu_info"].into_iter().zip(gpus) {
        subject[name] = json!(gpu.info.to_string());
    }
    subject
}

/// One object of all fields.
pub fn merged<const N: usize>(parts: [&Value; N]) -> Value {
    let fields = parts.iter().filter_map(|part| part.as_object()).flatten();
    let fields = fields.map(|(name, value)| (name.clone(), value.clone()));
    Value::Object(fields.collect())
}
