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

use super::cuda::{LaunchWay, Wait};
use super::measure::{self, Plan, Thing};
use super::scheduled::{self, Scheduled};
use super::table::Output;
use super::{Gpus, all_known, chosen, ended, names};
use clap::Args;
use serde_json::json;
use std::process::ExitCode;
use std::rc::Rc;
use tailgraph::command::interrupt;
use tailgraph::error::{Error, Result};

/// What launches the steps of one way, made ready.
pub trait Launching {
    /// Launches steps until `until` are done, which are at most [`super::memory::STAMPS`] more; gives how many launches the host made.
    fn run(&mut self, ground: &mut Ground, until: u64) -> Result<u64>;
}

/// The ways by their names, with what each does.
pub const WAYS: &str = "\
graph-queued      all graphs queued by a host that was told every step's shape beforehand: the floor
kernels-spin      each kernel launched by the host, which spins for the step's word in pinned memory
graph-spin        a graph a step, and the host spins for the step's word in pinned memory
graph-block       a graph a step, and the host sleeps until an event (CU_EVENT_BLOCKING_SYNC)
graph-event       a graph a step, and the host asks an event again and again
graph-params      one graph, each of its kernels given the step's shape (cuGraphExecKernelNodeSetParams)
graph-update      one graph, updated as a whole from the one of the step's shape (cuGraphExecUpdate)
graph-recapture   each step captured, instantiated and launched anew
device-sibling    the last node launches the next step's graph beside its own; a tail launch renews the chain
device-tail       the last node launches the next step's graph behind its own (tail launch)
device-scheduler  a graph that only schedules launches the step's graph and itself, both by tail launches
device-forget     a graph that only schedules launches the step's graph inside its own run, and itself behind
conditional       one graph: WHILE around a SWITCH over shapes and an IF for nothing to do
persistent        one cooperative kernel that stays, with a barrier of the grid where others begin a kernel
cdp               a kernel launches the step's kernels and its own next turn (dynamic parallelism)
cdp-stream        cdp in a stream that each turn makes";

/// Makes a way of that list ready.
fn open(way: &str, ground: &mut Ground) -> Result<Box<dyn Launching>> {
    match way {
        "graph-queued" => host::queued(ground),
        "kernels-spin" => host::kernels(ground),
        "graph-spin" => host::graphs(ground, None),
        "graph-block" => host::graphs(ground, Some(Wait::Block)),
        "graph-event" => host::graphs(ground, Some(Wait::Event)),
        "graph-params" => update::params(ground),
        "graph-update" => update::whole(ground),
        "graph-recapture" => Ok(update::recapture()),
        "device-sibling" => device::chain(ground, "sibling", true, step::COPIES),
        "device-tail" => device::chain(ground, "tail", true, 1),
        "device-scheduler" => device::chain(ground, "scheduler", false, 1),
        "device-forget" => device::chain(ground, "forget", false, 1),
        "conditional" => conditional::open(ground),
        "persistent" => resident::persistent(ground),
        "cdp" => resident::launching(ground, false),
        "cdp-stream" => resident::launching(ground, true),
        other => Err(Error::Usage(format!(
            "--ways {other}: no way of small steps"
        ))),
    }
}

fn help() -> String {
    let scheduled = scheduled::WAYS.map(LaunchWay::name).join("\n");
    format!("all:\n\n{WAYS}\n\nscheduled, with a run's scheduler in every step:\n\n{scheduled}")
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
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "all"
    )]
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

const FIELDS: &str = "technique kernels batch cpu_load gpu_load p50_step_us p99_step_us p99.9_step_us longest_step_us \
                      host_cpu_us_per_step host_launches_per_step device_mib startup_ms not_taken timed_steps";

/// Measures every way asked for. One that fails has no row, and its error ends the command once all others were measured.
pub fn run(args: &Launch) -> Result<ExitCode> {
    let small = chosen(&args.ways, "all", names(WAYS));
    let by_name: Vec<_> = scheduled::WAYS.map(LaunchWay::name).into();
    let composed = chosen(&args.ways, "scheduled", by_name.iter().copied());
    let lists = ["all", "scheduled"].into_iter();
    all_known(&args.ways, lists.chain(names(WAYS)).chain(by_name))?;
    let gpu = &args.device.one()?;
    interrupt::look();
    let mut things = vec![];
    for &kernels in &args.kernels {
        let named = |way: &str| json!({ "launch_schema": 1, "technique": way, "kernels": kernels });
        let reference = Rc::new(step::reference(kernels));
        for &way in &small {
            let reference = reference.clone();
            let open = {
                let reference = reference.clone();
                move || Run::new(gpu, way, kernels, &reference, args.renew)
            };
            things.push(Thing::new(named(way), Some(reference), open));
        }
        for (&way, &batch) in composed
            .iter()
            .flat_map(|way| args.batch.iter().map(move |n| (way, n)))
        {
            let mut named = named(way);
            named["batch"] = batch.into();
            let open = move || Scheduled::new(gpu.info.ordinal, way, kernels, batch);
            things.push(Thing::new(named, None, open));
        }
    }
    let measured = measure::all(&args.plan, &[gpu], &things, &interrupt::flag())?;
    let heading = format!(
        "Steps of small kernels on {}: from one step's end to the next.",
        gpu.info
    );
    ended(&args.output, measured, &heading, FIELDS)
}
