//! `bench limits` and `bench queue`: what launching on the device is bounded by, and an atomic queue by itself.

use super::{gpu, now, with};
use crate::backend::cuda::driver::gpu::OpenGpu;
use crate::backend::cuda::tools::limits;
use crate::backend::cuda::tools::queue::{Claim, Ends, Queue, Work, expected};
use crate::bench::output::{Format, LIMITS, QUEUE, text};
use crate::bench::stats::{quantile, sorted};
use crate::cli::args::bench::{LimitsArgs, PrintArgs, QueueArgs};
use crate::cli::{Exit, command_line};
use crate::error::{Error, Result};
use serde_json::{Value, json};

/// Results of one GPU under a line that says which.
fn print(args: &PrintArgs, gpu: &OpenGpu, about: &str, table: String) -> Result<Exit> {
    let out = args.open()?;
    let shown = match args.format() {
        Format::Md => format!("{about} {}.\n\n{table}", gpu.info),
        _ => table,
    };
    out.finish_with(shown.as_bytes())?;
    Ok(Exit::Done)
}

/// What each row says of where it comes from.
fn subject(gpu: &OpenGpu) -> Value {
    json!({
        "command": command_line(),
        "test_time": now(),
        "build_version": env!("CARGO_PKG_VERSION"),
        "gpu_info": gpu.info.to_string(),
    })
}

pub fn limits(args: &LimitsArgs) -> Result<Exit> {
    let gpu = gpu::open("bench limits", &args.device)?;
    let edges = limits::edges(&gpu)?;
    let rows: Vec<Value> = edges
        .iter()
        .map(|edge| with(subject(&gpu), json!(edge)))
        .collect();
    let mut table = text(&rows, args.print.format(), LIMITS, usize::MAX);
    if args.print.format() == Format::Md {
        for row in &rows {
            let [limit, answer] = ["limit", "answer"].map(|field| row[field].as_str());
            table += &format!(
                "\n- {}: {}",
                limit.unwrap_or_default(),
                answer.unwrap_or_default()
            );
        }
        table.push('\n');
    }
    let about = "As many launches as are documented, and one more, on";
    print(&args.print, &gpu, about, table)
}

pub fn queue(args: &QueueArgs) -> Result<Exit> {
    let gpu = gpu::open("bench queue", &args.device)?;
    let queue = Queue::new(&gpu)?;
    let mut rows = vec![];
    for &rounds in &args.rounds.0 {
        for skewed in [false, true] {
            if rounds < 4 && skewed {
                continue; // a quarter of a round is none
            }
            let work = Work {
                items: args.items,
                rounds,
                skewed,
            };
            let expected = expected(work);
            for claim in Claim::ALL {
                let mut found = vec![];
                for repeat in 0..=args.repeats {
                    let (sum, ends) = queue.run(work, claim)?;
                    if sum != expected {
                        return Err(Error::Runtime(format!(
                            "bench queue: {}: the items come to {sum:016x}, expected {expected:016x}: one was done twice, or not at all",
                            claim.name()
                        )));
                    }
                    if repeat > 0 {
                        found.push(ends);
                    }
                }
                rows.push(with(subject(&gpu), queue_row(work, claim, &found)));
            }
        }
    }
    let table = text(&rows, args.print.format(), QUEUE, args.print.width());
    let about = "Items claimed from one counter, each worker a warp, on";
    print(&args.print, &gpu, about, table)
}

fn queue_row(work: Work, claim: Claim, found: &[Ends]) -> Value {
    let median = |of: fn(&Ends) -> f64| {
        let values: Vec<f64> = found.iter().map(of).collect();
        quantile(&sorted(&values), 0.5)
    };
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
