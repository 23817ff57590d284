//! `lab launch`: every way that CUDA has of launching a step, over the same small kernels (kernels/ways). [`WAYS`] is the table; the
//! files beside have a way each, or a few that differ in a line.

mod conditional;
mod device;
mod ground;
mod host;
mod resident;
pub mod step;
mod update;

pub use conditional::Body;
pub use ground::{Ground, Run};

use super::measure::{self, Plan, Steps, Thing};
use super::reference::Reference;
use super::scheduled::{self, Scheduled};
use super::table::{Column, Output};
use super::{Gpus, ended};
use clap::Args;
use serde_json::json;
use std::process::ExitCode;
use std::rc::Rc;
use tailgraph::backend::cuda::engine::waiter::Wait;
use tailgraph::cli::interrupt;
use tailgraph::error::Result;

/// What launches the steps of one way, made ready.
pub trait Launching {
    /// Launches steps until `until` are done, which are at most [`step::STAMPS`] more; gives how many launches the host made.
    ///
    /// # Errors
    /// What the driver or the GPU refused, or that a step did not end in time.
    fn run(&mut self, ground: &mut Ground, until: u64) -> Result<u64>;
}

type Open = fn(&mut Ground) -> Result<Box<dyn Launching>>;

/// A way to launch steps of small kernels, of which each decides the next one's shape.
pub struct Way {
    pub name: &'static str,
    pub does: &'static str,
    pub open: Open,
}

const fn way(name: &'static str, does: &'static str, open: Open) -> Way {
    Way { name, does, open }
}

pub const WAYS: [Way; 16] = [
    way("graph-queued", "all graphs queued by a host that was told every step's shape beforehand: the floor", host::queued),
    way("kernels-spin", "each kernel launched by the host, which spins for the step's word in pinned memory", host::kernels),
    way("graph-spin", "a graph a step, and the host spins for the step's word in pinned memory", |ground| host::graphs(ground, None)),
    way("graph-block", "a graph a step, and the host sleeps until an event (CU_EVENT_BLOCKING_SYNC)", |ground| {
        host::graphs(ground, Some(Wait::Block))
    }),
    way("graph-event", "a graph a step, and the host asks an event again and again", |ground| host::graphs(ground, Some(Wait::Event))),
    way(
        "graph-params",
        "one graph, each of its kernels given the step's shape before each launch (cuGraphExecKernelNodeSetParams)",
        update::params,
    ),
    way(
        "graph-update",
        "one graph, updated as a whole from the captured one of the step's shape (cuGraphExecUpdate)",
        update::whole,
    ),
    way("graph-recapture", "each step captured, instantiated and launched anew", update::recapture),
    way(
        "device-sibling",
        "the last node launches the next step's graph beside its own; a tail launch renews the chain",
        |ground| device::chain(ground, "tg_ways_head_sibling", Some("tg_ways_decide_sibling"), step::COPIES),
    ),
    way("device-tail", "the last node launches the next step's graph behind its own (tail launch)", |ground| {
        device::chain(ground, "tg_ways_head_tail", Some("tg_ways_decide_tail"), 1)
    }),
    way(
        "device-scheduler",
        "a graph that only schedules launches the step's graph and itself, both by tail launches",
        |ground| device::chain(ground, "tg_ways_head_scheduler", None, 1),
    ),
    way(
        "device-forget",
        "a graph that only schedules launches the step's graph inside its own run (fire and forget), and itself behind",
        |ground| device::chain(ground, "tg_ways_head_forget", None, 1),
    ),
    way(
        "conditional",
        "one graph launched by the host: WHILE around a SWITCH over shapes and an IF for nothing to do",
        conditional::open,
    ),
    way(
        "persistent",
        "one cooperative kernel that stays, with a barrier of the grid where others begin a kernel",
        resident::persistent,
    ),
    way(
        "cdp",
        "a kernel launches the step's kernels and its own next turn (dynamic parallelism), in the block's own stream",
        |ground| resident::launching(ground, false),
    ),
    way("cdp-stream", "cdp in a stream that each turn makes", |ground| resident::launching(ground, true)),
];

/// The names of all ways, with what each does.
fn help() -> String {
    let line = |(name, does): (&str, &str)| format!("  {name:<20} {does}\n");
    let small = WAYS.iter().map(|way| line((way.name, way.does)));
    let scheduled = scheduled::WAYS.iter().map(|way| line((way.name(), "")));
    format!(
        "Ways of small steps (all):\n{}\nWays with a run's scheduler in every step (scheduled):\n{}",
        small.collect::<String>(),
        scheduled.collect::<String>()
    )
}

#[derive(Debug, Clone, Args)]
#[command(after_help = help())]
pub struct Launch {
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    plan: Plan,
    /// cuda, or cuda:N for a certain GPU
    #[arg(long, value_name = "DEVICE", default_value = "cuda", value_parser = Gpus::parse)]
    device: Gpus,
    /// Ways by their names; all and scheduled are those of the lists below
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "all", value_parser = named)]
    ways: Vec<String>,
    /// Kernels of a step
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "4,123", value_parser = clap::value_parser!(u32).range(2..))]
    kernels: Vec<u32>,
    /// Launches in a chain of siblings before a tail launch renews it
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    renew: u32,
    /// Sequences of the ways with a scheduler
    #[arg(long, short, value_name = "LIST", value_delimiter = ',', default_value = "1,32,256", value_parser = clap::value_parser!(u32).range(1..=1024))]
    batch: Vec<u32>,
}

fn named(name: &str) -> std::result::Result<String, String> {
    let known = WAYS.iter().map(|way| way.name).chain(scheduled::WAYS.map(|way| way.name()));
    let known: Vec<_> = known.chain(["all", "scheduled"]).collect();
    if known.contains(&name) {
        return Ok(name.to_owned());
    }
    Err(format!("expected some of {}", known.join(", ")))
}

const COLUMNS: [Column; 15] = [
    ("way", "technique"),
    ("kernels", "kernels"),
    ("sequences", "batch"),
    ("cpu load", "cpu_load"),
    ("gpu load", "gpu_load"),
    ("us p50", "p50_step_us"),
    ("p99", "p99_step_us"),
    ("p99.9", "p99.9_step_us"),
    ("longest", "longest_step_us"),
    ("CPU us/step", "host_cpu_us_per_step"),
    ("launches/step", "host_launches_per_step"),
    ("MiB", "device_mib"),
    ("start ms", "startup_ms"),
    ("not taken", "not_taken"),
    ("steps", "timed_steps"),
];

/// Measures every way asked for. One that fails has no row, and its error ends the command once all others were measured.
///
/// # Errors
/// The GPU cannot be opened, or a way failed.
pub fn run(args: &Launch) -> Result<ExitCode> {
    let gpu = args.device.one()?;
    interrupt::look();
    let asked = |name: &str, list: &str| args.ways.iter().any(|way| way == name || way == list);
    let gpu_ref = &gpu;
    let mut things = vec![];
    for &kernels in &args.kernels {
        let reference = Rc::new(step::reference(kernels));
        for way in WAYS.iter().filter(|way| asked(way.name, "all")) {
            let (foreseen, reference) = (reference.clone(), reference.clone());
            things.push(Thing {
                named: json!({ "launch_schema": 1, "technique": way.name, "kernels": kernels }),
                bytes_per_step: None,
                foresee: Box::new(move |steps| drop(foreseen.value(steps))),
                open: Box::new(move || {
                    let run = Run::new(gpu_ref, way, kernels, &reference, args.renew)?;
                    Ok(Box::new(run) as Box<dyn Steps>)
                }),
            });
        }
        for way in scheduled::WAYS.into_iter().filter(|way| asked(way.name(), "scheduled")) {
            for &batch in &args.batch {
                things.push(Thing {
                    named: json!({ "launch_schema": 1, "technique": way.name(), "kernels": kernels, "batch": batch }),
                    bytes_per_step: None,
                    foresee: Box::new(|_| {}),
                    open: Box::new(move || {
                        let steps = Scheduled::new(gpu_ref.info.ordinal, way, kernels, batch)?;
                        Ok(Box::new(steps) as Box<dyn Steps>)
                    }),
                });
            }
        }
    }
    let measured = measure::all(&args.plan, &[&gpu], &things, &interrupt::flag())?;
    let heading = format!(
        "Steps of small kernels on {}: us from one step's end to the next, by the GPU's clock. Every way gave the same bits.",
        gpu.info
    );
    ended(&args.output, measured, &heading, &COLUMNS)
}
