//! `lab queue`: an atomic queue by itself (kernels/ways/queue.cu): items that the GPU's threads claim from one counter, in each way to
//! claim them, and the same items split beforehand.

use super::cuda::{Argument, Buffer, Launch, OpenGpu, failed};
use super::reference::{mix, mix64};
use super::{On, gpus};
use clap::Args;
use serde_json::json;
use tailgraph::bench::stats::{quantile, sorted};
use tailgraph::error::{Error, Result};

/// QUEUE_THREADS of kernels/ways/queue.cu.
const THREADS: u32 = 128;
/// Four an SM of 132: all are on the GPU at once, so none begins when another has ended.
const BLOCKS: u32 = 528;
const WARPS: usize = (BLOCKS * THREADS / 32) as usize;
/// How a thread comes by its items, by the kernel's numbers, and how many it claims at once.
const CLAIMS: [(&str, Option<u32>); 4] = [
    ("one item a claim", Some(1)),
    ("32 items a claim", Some(32)),
    ("32 for a warp, by one lane", Some(32)),
    ("split evenly beforehand", None),
];

#[derive(Debug, Clone, Args)]
pub struct QueueArgs {
    #[command(flatten)]
    on: On,
    /// Items that are claimed
    #[arg(long, default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(1..))]
    items: u32,
    /// Dependent steps of arithmetic of an item, in the mean; 0 is nothing but claiming
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "0,64,512"
    )]
    rounds: Vec<u32>,
    /// Runs of each combination, after one that does not count; the median is shown
    #[arg(long, short, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
}

const FIELDS: &str = "claim work rounds items_per_us last_end_us idle_share claims";

pub fn run(args: &QueueArgs) -> Result<()> {
    let (out, [ordinal]) = (args.on.print.open()?, gpus(&args.on.device)?);
    let gpu = OpenGpu::new(ordinal)?;
    let stream = gpu.context.new_stream();
    let stream = stream.map_err(|error| failed("making a stream", error))?;
    let kernel = gpu.module.kernel("tg_ways_queue")?;
    let [next, sum, times] = [4, 8, 16 * WARPS].map(|bytes| Buffer::new(&gpu.context, bytes));
    let (next, sum, times) = (next?, sum?, times?);
    // What all items come to, and when each warp began and ended.
    let once = |rounds: u32, skewed: bool, how: u32| {
        next.fill(&stream, 0)?;
        sum.fill(&stream, 0)?;
        let [next, sum_at, times_at] = [&next, &sum, &times].map(|at| Argument::Address(at.at(0)));
        let numbers = [args.items, rounds, skewed.into(), how].map(Argument::U32);
        let arguments = [&[next, sum_at, times_at][..], &numbers].concat();
        // SAFETY: the arguments are the kernel's; the reads below wait for it.
        unsafe { kernel.launch(&stream, Launch::blocks(BLOCKS, THREADS), &arguments) }?;
        let (mut all, mut ends) = ([0u64], vec![[0u64; 2]; WARPS]);
        sum.read(&stream, 0, bytemuck::cast_slice_mut(&mut all))?;
        times.read(&stream, 0, bytemuck::cast_slice_mut(&mut ends))?;
        Ok::<_, Error>((all[0], ends))
    };
    let mut rows = vec![];
    let works = args.rounds.iter().flat_map(|&n| [(n, false), (n, true)]);
    for (rounds, skewed) in works {
        // A quarter of a round is none.
        if skewed && rounds < 4 {
            continue;
        }
        let expected = expected(args.items, rounds, skewed);
        for (how, (claim, at_once)) in CLAIMS.into_iter().enumerate() {
            let mut found = vec![];
            for repeat in 0..=args.repeats {
                let (sum, times) = once(rounds, skewed, how as u32)?;
                if sum != expected {
                    return Err(Error::Runtime(format!(
                        "{claim}: the items come to {sum:016x}, expected {expected:016x}: one was done twice, or not at all"
                    )));
                }
                found.extend((repeat > 0).then(|| ends(&times)));
            }
            let median = |of: fn(&[f64; 2]) -> f64| {
                let values: Vec<_> = found.iter().map(of).collect();
                quantile(&sorted(&values), 0.5)
            };
            let last = median(|ends| ends[0]);
            rows.push(json!({
                "claim": claim,
                "work": if skewed { "skewed" } else { "even" },
                "rounds": rounds,
                "items": args.items,
                "claims": at_once.map_or(0, |at_once| args.items.div_ceil(at_once)),
                "repeats": found.len(),
                "items_per_us": f64::from(args.items) / last,
                "last_end_us": last,
                "idle_share": median(|ends| ends[1]),
            }));
        }
    }
    let heading = "Items claimed from one counter, each worker a warp";
    args.on.write(out, &[gpu], rows, heading, FIELDS)
}

/// When the last worker ended, in us from the first one's beginning, and the share of all their time that they had nothing to do in.
/// `times`: when each began and ended, in ns.
fn ends(times: &[[u64; 2]]) -> [f64; 2] {
    let start = times.iter().map(|time| time[0]).min().unwrap_or(0);
    let ends = times.iter().map(|time| (time[1] - start) as f64 / 1e3);
    let (all, last_us) = (ends.clone().sum::<f64>(), ends.fold(0.0, f64::max));
    let idle = 1.0 - all / (last_us * times.len() as f64).max(1e-9);
    [last_us, idle]
}

/// What all items must come to.
fn expected(items: u32, rounds: u32, skewed: bool) -> u64 {
    let value_of = |item: u32| {
        let doubled = mix(item).trailing_zeros().min(6);
        let rounds = if skewed {
            (rounds / 4) << doubled
        } else {
            rounds
        };
        let first = mix64(u64::from(item) + 1);
        (0..rounds).fold(first, |value, round| {
            mix64(value.wrapping_add(round.into()))
        })
    };
    (0..items).map(value_of).fold(0, u64::wrapping_add)
}
