//! `lab launch`: every way that CUDA has of launching a step, over the same small kernels (kernels/ways). [`WAYS`] is the table; the
//! files beside have what launches them.

mod conditional;
mod device;
mod ground;
mod host;
pub mod step;

pub use conditional::Body;
pub use ground::{Ground, Run};

use super::cuda::{OpenGpu, Wait};
use super::gpus;
use super::measure::{self, Plan};
use clap::Args;
use serde_json::json;
use std::rc::Rc;
use tailgraph::error::{Error, Result};

/// What launches the steps of one way, made ready: it launches until so many steps are done, which are at most
/// [`super::memory::STAMPS`] more, and gives how many launches the host made.
pub type Launching = Box<dyn FnMut(&Ground, u64) -> Result<u64>>;

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
fn open(way: &str, ground: &mut Ground) -> Result<Launching> {
    match way {
        "graph-queued" => host::queued(ground),
        "kernels-spin" => host::kernels(ground),
        "graph-spin" => host::graphs(ground, None),
        "graph-block" => host::graphs(ground, Some(Wait::Block)),
        "graph-event" => host::graphs(ground, Some(Wait::Event)),
        "graph-params" => host::params(ground),
        "graph-update" => host::updated(ground),
        "graph-recapture" => Ok(host::recaptured()),
        "device-sibling" => device::chain(ground, "sibling", true, step::COPIES),
        "device-tail" => device::chain(ground, "tail", true, 1),
        "device-scheduler" => device::chain(ground, "scheduler", false, 1),
        "device-forget" => device::chain(ground, "forget", false, 1),
        "conditional" => conditional::open(ground),
        "persistent" => device::persistent(ground),
        "cdp" => device::launching(ground, false),
        "cdp-stream" => device::launching(ground, true),
        other => Err(Error::Usage(format!("--ways {other}: no way of the list"))),
    }
}

#[derive(Debug, Clone, Args)]
#[command(after_help = WAYS)]
pub struct LaunchArgs {
    #[command(flatten)]
    plan: Plan,
    /// Kernels of a step
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "4,123", value_parser = clap::value_parser!(u32).range(2..))]
    kernels: Vec<u32>,
    /// Launches in a chain of siblings before a tail launch renews it
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    renew: u32,
}

const FIELDS: &str = "technique kernels cpu_load gpu_load p50_step_us p99_step_us p99.9_step_us longest_step_us \
                      host_cpu_us_per_step host_launches_per_step device_mib startup_ms not_taken timed_steps";

/// Measures every way asked for.
pub fn run(args: &LaunchArgs) -> Result<()> {
    let plan = &args.plan;
    let (ways, out) = (plan.ways(WAYS)?, plan.on.print.open()?);
    let [ordinal] = gpus(&plan.on.device)?;
    let gpus = [OpenGpu::new(ordinal)?];
    let mut things = vec![];
    for &kernels in &args.kernels {
        let reference = Rc::new(step::reference(kernels, plan.most_steps()));
        for &way in &ways {
            let (gpu, reference) = (&gpus[0], reference.clone());
            let open = move || Run::new(gpu, way, kernels, &reference, args.renew);
            let named = json!({ "launch_schema": 1, "technique": way, "kernels": kernels });
            things.push((named, open));
        }
    }
    let heading = "Steps of small kernels, from one step's end to the next";
    measure::run(plan, out, &gpus, &things, heading, FIELDS)
}
