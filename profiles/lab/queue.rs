//! `lab queue`: an atomic queue by itself (kernels/ways/queue.cu): items that the GPU's threads claim from one counter, in each way to
//! claim them, and the same items split beforehand.

use super::measure::{Measured, merged, subject};
use super::reference::{mix, mix64};
use super::table::{Column, Output};
use super::{Gpus, ended};
use clap::Args;
use cudarc::driver::CudaStream;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::sync::Arc;
use tailgraph::backend::cuda::driver::errors::failed;
use tailgraph::backend::cuda::driver::gpu::OpenGpu;
use tailgraph::backend::cuda::driver::launch::{Argument, Kernel, Launch};
use tailgraph::backend::cuda::memory::buffer::Buffer;
use tailgraph::bench::stats::{quantile, sorted};
use tailgraph::error::{Error, Result};

#[derive(Debug, Clone, Args)]
pub struct QueueArgs {
    #[command(flatten)]
    output: Output,
    /// cuda, or cuda:N for a certain GPU
    #[arg(long, value_name = "DEVICE", default_value = "cuda", value_parser = Gpus::parse)]
    device: Gpus,
    /// Items that are claimed
    #[arg(long, default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(1..=1 << 28))]
    items: u32,
    /// Dependent steps of arithmetic of an item, in the mean; 0 is nothing but claiming
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "0,64,512")]
    rounds: Vec<u32>,
    /// Runs of each combination, after one that does not count; the median is shown
    #[arg(long, short, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
}

const COLUMNS: [Column; 10] = [
    ("items are", "claim"),
    ("work", "work"),
    ("rounds", "rounds"),
    ("items/us", "items_per_us"),
    ("first end us", "first_end_us"),
    ("median", "median_end_us"),
    ("last", "last_end_us"),
    ("tail us", "tail_us"),
    ("idle share", "idle_share"),
    ("claims", "claims"),
];

/// # Errors
/// The GPU cannot be opened, or an item was done twice or not at all.
pub fn run(args: &QueueArgs) -> Result<ExitCode> {
    let gpu = args.device.one()?;
    let queue = Queue::new(&gpu)?;
    let mut rows = vec![];
    for &rounds in &args.rounds {
        // A quarter of a round is none.
        for skewed in [false, true].into_iter().filter(|skewed| !skewed || rounds >= 4) {
            let work = Work { items: args.items, rounds, skewed };
            let expected = expected(work);
            for claim in Claim::ALL {
                let mut found = vec![];
                for repeat in 0..=args.repeats {
                    let (sum, ends) = queue.run(work, claim)?;
                    if sum != expected {
                        return Err(Error::Runtime(format!(
                            "{}: the items come to {sum:016x}, expected {expected:016x}: one was done twice, or not at all",
                            claim.name()
                        )));
                    }
                    found.extend((repeat > 0).then_some(ends));
                }
                rows.push(merged([&subject(&[&gpu]), &row(work, claim, &found)]));
            }
        }
    }
    let heading = format!("Items claimed from one counter, each worker a warp, on {}.", gpu.info);
    ended(&args.output, Measured { rows, ..Measured::default() }, &heading, &COLUMNS)
}

fn row(work: Work, claim: Claim, found: &[Ends]) -> Value {
    let median = |of: fn(&Ends) -> f64| quantile(&sorted(&found.iter().map(of).collect::<Vec<_>>()), 0.5);
    let last = median(|ends| ends.last_us);
    json!({
        "claim": claim.name(),
        "work": if work.skewed { "skewed" } else { "even" },
        "rounds": work.rounds,
        "items": work.items,
        "claims": claim.claims(work.items),
        "repeats": found.len(),
        "items_per_us": f64::from(work.items) / last,
        "first_end_us": median(|ends| ends.first_us),
        "median_end_us": median(|ends| ends.median_us),
        "last_end_us": last,
        "tail_us": median(|ends| ends.last_us - ends.median_us),
        "idle_share": median(|ends| ends.idle_share),
    })
}

/// QUEUE_THREADS of kernels/ways/queue.cu.
const THREADS: u32 = 128;
/// Four an SM of 132: all are on the GPU at once, so none begins when another has ended.
const BLOCKS: u32 = 528;
const WARPS: usize = (BLOCKS * THREADS / 32) as usize;

/// How a thread comes by its items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    One,
    Many,
    ByWarp,
    Split,
}

impl Claim {
    pub const ALL: [Self; 4] = [Self::One, Self::Many, Self::ByWarp, Self::Split];

    pub fn name(self) -> &'static str {
        match self {
            Self::One => "one item a claim",
            Self::Many => "32 items a claim",
            Self::ByWarp => "32 for a warp, by one lane",
            Self::Split => "split evenly beforehand",
        }
    }

    /// Atomic operations that `items` take at least.
    pub fn claims(self, items: u32) -> u64 {
        match self {
            Self::One => items.into(),
            Self::Many | Self::ByWarp => items.div_ceil(32).into(),
            Self::Split => 0,
        }
    }
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    pub items: u32,
    /// Dependent steps of arithmetic of an item, in the mean; 0: nothing but claiming.
    pub rounds: u32,
    /// Items differ.
    pub skewed: bool,
}

/// When the workers, which are warps, ended, in us from the first one's beginning.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ends {
    pub first_us: f64,
    pub median_us: f64,
    pub last_us: f64,
    /// The share of the workers' time that they had nothing to do in.
    pub idle_share: f64,
}

/// The kernel and its memory.
pub struct Queue {
    stream: Arc<CudaStream>,
    kernel: Kernel,
    next: Buffer,
    sum: Buffer,
    times: Buffer,
}

impl Queue {
    /// # Errors
    /// What the driver refuses.
    pub fn new(gpu: &OpenGpu) -> Result<Self> {
        let stream = gpu.context.new_stream().map_err(|error| failed("making a stream", error))?;
        Ok(Self {
            stream,
            kernel: gpu.module.kernel("tg_queue")?,
            next: Buffer::new(&gpu.context, 4)?,
            sum: Buffer::new(&gpu.context, 8)?,
            times: Buffer::new(&gpu.context, 16 * WARPS)?,
        })
    }

    /// Does `work` once; what all items came to, which every way to claim them must give, and when the workers ended.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn run(&self, work: Work, claim: Claim) -> Result<(u64, Ends)> {
        let stream = &self.stream;
        self.next.fill(stream, 0)?;
        self.sum.fill(stream, 0)?;
        let address = |buffer: &Buffer| Argument::Address(buffer.at(0));
        let arguments = [
            address(&self.next),
            address(&self.sum),
            address(&self.times),
            Argument::U32(work.items),
            Argument::U32(work.rounds),
            Argument::U32(work.skewed.into()),
            Argument::U32(claim as u32),
        ];
        let launch = Launch::blocks(BLOCKS, THREADS);
        // SAFETY: the arguments are the kernel's; the reads below wait for it.
        unsafe { self.kernel.launch(stream, launch, &arguments) }?;
        let mut sum = [0u64];
        self.sum
            .read(stream, 0, bytemuck::cast_slice_mut(&mut sum))?;
        let mut times = vec![[0u64; 2]; WARPS];
        self.times
            .read(stream, 0, bytemuck::cast_slice_mut(&mut times))?;
        Ok((sum[0], ends(&times)))
    }
}

fn ends(times: &[[u64; 2]]) -> Ends {
    let start = times.iter().map(|time| time[0]).min().unwrap_or(0);
    let mut ends: Vec<u64> = times.iter().map(|time| time[1] - start).collect();
    ends.sort_unstable();
    let us = |at: usize| ends[at] as f64 / 1e3;
    let (last, all) = (us(ends.len() - 1), ends.iter().sum::<u64>() as f64 / 1e3);
    Ends {
        first_us: us(0),
        median_us: us(ends.len() / 2),
        last_us: last,
        idle_share: 1.0 - all / (last * ends.len() as f64).max(1e-9),
    }
}

/// What [`Queue::run`] must come to, worked out on the host.
pub fn expected(work: Work) -> u64 {
    let value_of = |item: u32| {
        let mut value = mix64(u64::from(item) + 1);
        for round in 0..rounds(work, item) {
            value = mix64(value.wrapping_add(round.into()));
        }
        value
    };
    (0..work.items).map(value_of).fold(0, u64::wrapping_add)
}

fn rounds(work: Work, item: u32) -> u32 {
    if work.skewed { (work.rounds / 4) << mix(item).trailing_zeros().min(6) } else { work.rounds }
}
