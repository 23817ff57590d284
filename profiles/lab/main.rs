//! The laboratory: what CUDA has for launching a step, and for handing it from GPU to GPU, side by side and without a model
//! (README.md). It has kernels of its own (kernels/ways, kernels/cdp), which no other program here has.

pub mod handover;
pub mod limits;
mod load;
pub mod measure;
mod memory;
#[path = "../../tests/common/probe.rs"]
#[allow(dead_code, reason = "tests have use for all of it")]
mod probe;
mod queue;
mod reference;
pub mod scheduled;
mod table;
pub mod ways;

use clap::{Parser, Subcommand};
use cuda::{Module, OpenGpu, without_multicast};
use measure::Measured;
use std::process::ExitCode;
use table::Output;
use tailgraph::command::interrupt;
use tailgraph::error::{Error, Result};

/// What of the engine all ways are made of.
mod cuda {
    pub use tailgraph::backend::cuda::device::launched;
    pub use tailgraph::backend::cuda::driver::call::{KernelCall, ReadyCall};
    pub use tailgraph::backend::cuda::driver::errors::failed;
    pub use tailgraph::backend::cuda::driver::exec::{Exec, LaunchedBy};
    pub use tailgraph::backend::cuda::driver::gpu::OpenGpu;
    pub use tailgraph::backend::cuda::driver::graph::Captured;
    pub use tailgraph::backend::cuda::driver::launch::{Argument, Kernel, Launch};
    pub use tailgraph::backend::cuda::driver::module::Module;
    pub use tailgraph::backend::cuda::driver::nccl::{Nccl, without_multicast};
    pub use tailgraph::backend::cuda::driver::{Address, image, nccl, peer};
    pub use tailgraph::backend::cuda::engine::program::{StepProgram, buckets, capture_calls};
    pub use tailgraph::backend::cuda::engine::step_copy::{PLACES, StepCopy};
    pub use tailgraph::backend::cuda::engine::waiter::{Wait, Waiter, is_done};
    pub use tailgraph::backend::cuda::memory::buffer::Buffer;
    pub use tailgraph::backend::cuda::memory::pinned::Pinned;
    pub use tailgraph::backend::{Block, LaunchWay};
}

/// The driver reads an image in place and wants it aligned like a section of its own.
#[repr(C, align(64))]
struct Aligned<Bytes: ?Sized>(Bytes);

static ALIGNED: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/lab.fatbin")));
static ALIGNED_LAUNCHING: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(
    env!("OUT_DIR"),
    "/launching.fatbin"
)));

/// All kernels but those of [`LAUNCHING`].
static KERNELS: &[u8] = &ALIGNED.0;
/// The kernel that launches kernels, with these and the device runtime.
static LAUNCHING: &[u8] = &ALIGNED_LAUNCHING.0;

/// Ways to launch steps and to hand them on, side by side on GPUs, without a model
#[derive(Debug, Parser)]
#[command(name = "lab")]
pub struct Lab {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Every way that CUDA has of launching a step; and steps that a run's scheduler composes
    Launch(ways::Launch),
    /// Two GPUs that hand rows on, or add them up, in every way there is: NCCL, copies, stores and flags
    Handover(handover::Handover),
    /// Each limit of launching on the device at its edge: as many launches as are documented, and one more
    Limits(limits::Limits),
    /// An atomic queue by itself: what claiming items costs, and what it saves where items differ
    Queue(queue::QueueArgs),
    /// Keep a GPU busy, as other users' jobs do, while a command runs
    KeepBusy(load::KeepBusy),
}

fn main() -> ExitCode {
    // SAFETY: nothing has begun a thread so far.
    unsafe { without_multicast() };
    let command = Lab::parse().command;
    let ran = interrupt::install().and_then(|()| run(command));
    ran.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::from(error.exit_code())
    })
}

pub fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Launch(args) => ways::run(&args),
        Command::Handover(args) => handover::run(&args),
        Command::Limits(args) => limits::run(&args),
        Command::Queue(args) => queue::run(&args),
        Command::KeepBusy(args) => load::run(&args),
    }
}

/// The names of a list that has one at the start of each line.
pub fn names(list: &'static str) -> impl Iterator<Item = &'static str> + Clone {
    list.lines().filter_map(|line| line.split(' ').next())
}

/// Those of `names` that are asked for, or all where `all` is.
fn chosen(
    asked: &[String],
    all: &str,
    names: impl Iterator<Item = &'static str>,
) -> Vec<&'static str> {
    let is_asked = |name: &&str| asked.iter().any(|asked| asked == name || asked == all);
    names.filter(is_asked).collect()
}

/// Refuses a way that is none of `known`, among which are the names of lists.
fn all_known(asked: &[String], known: impl Iterator<Item = &'static str>) -> Result<()> {
    let known: Vec<_> = known.collect();
    let Some(way) = asked.iter().find(|way| !known.contains(&way.as_str())) else {
        return Ok(());
    };
    let known = known.join(", ");
    Err(Error::Usage(format!(
        "--ways {way}: expected some of {known}"
    )))
}

/// Writes what was measured, and gives the exit code: an interrupted run's is 130.
fn ended(output: &Output, measured: Measured, heading: &str, fields: &str) -> Result<ExitCode> {
    if !measured.rows.is_empty() {
        output.write(&measured.rows, heading, fields)?;
    }
    match measured.failed {
        _ if measured.interrupted => Ok(ExitCode::from(130)),
        Some(error) => Err(error),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// GPUs as `--device` names them.
#[derive(Debug, Clone)]
pub struct Gpus(Vec<u32>);

impl Gpus {
    fn parse(text: &str) -> std::result::Result<Self, String> {
        let list = if text == "cuda" {
            Some("0")
        } else {
            text.strip_prefix("cuda:")
        };
        let numbers =
            list.and_then(|list| list.split(',').map(|number| number.parse().ok()).collect());
        numbers
            .map(Self)
            .ok_or_else(|| "expected cuda, or certain GPUs such as cuda:0,1".to_owned())
    }

    fn ordinal(&self) -> Result<u32> {
        match self.0[..] {
            [ordinal] => Ok(ordinal),
            _ => Err(Error::Usage(format!(
                "--device: found {} GPUs, expected one",
                self.0.len()
            ))),
        }
    }

    fn one(&self) -> Result<OpenGpu> {
        open(self.ordinal()?)
    }

    fn two(&self) -> Result<[OpenGpu; 2]> {
        match self.0[..] {
            [a, b] if a != b => Ok([open(a)?, open(b)?]),
            _ => Err(Error::Usage(format!(
                "--device: found {:?}, expected two GPUs",
                self.0
            ))),
        }
    }
}

/// A GPU with the laboratory's kernels.
pub fn open(ordinal: u32) -> Result<OpenGpu> {
    let gpu = OpenGpu::new(ordinal)?;
    let module = Module::of_image(&gpu.context, "loading the laboratory's kernels", KERNELS)?;
    Ok(OpenGpu { module, ..gpu })
}
