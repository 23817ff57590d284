//! The laboratory: what CUDA has for launching a step, and for handing it from GPU to GPU, side by side and without a model
//! (README.md). It has kernels of its own (kernels/ways, kernels/cdp), which no other program here has.

pub mod handover;
pub mod limits;
mod load;
pub mod measure;
mod memory;
mod queue;
pub mod reference;
pub mod ways;

use clap::{Args, Parser, Subcommand};
use cuda::{OpenGpu, without_multicast};
use serde_json::Value;
use std::process::ExitCode;
use tailgraph::backend::DeviceSpec;
use tailgraph::bench::PrintArgs;
use tailgraph::bench::output::{Column, Format, text};
use tailgraph::command::interrupt;
use tailgraph::command::spec::named;
use tailgraph::error::{Error, Result};
use tailgraph::files::Out;

/// What of the engine all ways are made of.
mod cuda {
    pub use tailgraph::backend::SharedRegion;
    pub use tailgraph::backend::cuda::driver::call::{KernelCall, ReadyCall};
    pub use tailgraph::backend::cuda::driver::errors::failed;
    pub use tailgraph::backend::cuda::driver::exec::{Exec, LaunchedBy};
    pub use tailgraph::backend::cuda::driver::gpu::OpenGpu;
    pub use tailgraph::backend::cuda::driver::graph::Captured;
    pub use tailgraph::backend::cuda::driver::launch::{Argument, Kernel, Launch};
    pub use tailgraph::backend::cuda::driver::nccl::{Nccl, without_multicast};
    pub use tailgraph::backend::cuda::driver::timed::time_in_a_row;
    pub use tailgraph::backend::cuda::driver::{Address, image, nccl, peer};
    pub use tailgraph::backend::cuda::engine::program::capture_calls;
    pub use tailgraph::backend::cuda::engine::waiter::{Wait, Waiter, is_done};
    pub use tailgraph::backend::cuda::memory::buffer::Buffer;
    pub use tailgraph::backend::cuda::memory::pinned::Pinned;
}

/// Ways to launch steps and to hand them on, side by side on GPUs, without a model
#[derive(Debug, Parser)]
#[command(name = "lab")]
pub struct Lab {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Every way that CUDA has of launching a step
    Launch(ways::LaunchArgs),
    /// Two GPUs that hand rows on, or add them up, in every way there is: NCCL, copies, stores and flags
    Handover(handover::HandoverArgs),
    /// Each limit of launching on the device at its edge: as many launches as are documented, and one more
    Limits(On),
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
        ExitCode::from(match error {
            Error::Interrupted => interrupt::exit_code(),
            error => error.exit_code(),
        })
    })
}

pub fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Launch(args) => ways::run(&args)?,
        Command::Handover(args) => handover::run(&args)?,
        Command::Limits(on) => limits::run(&on)?,
        Command::Queue(args) => queue::run(&args)?,
        Command::KeepBusy(args) => return load::run(&args),
    }
    Ok(ExitCode::SUCCESS)
}

/// Where a command runs, and where its rows go.
#[derive(Debug, Clone, Args)]
pub struct On {
    /// Certain GPUs: cuda:1, or cuda:0,1 for handover, which takes two [default: the first]
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    #[command(flatten)]
    print: PrintArgs,
}

impl On {
    /// Writes rows to what was opened before anything was measured, so that nothing is lost to a wrong name. A table has these
    /// fields, which have spaces between, under `heading` and the GPUs' names, but for those that all rows lack or have as 0; other formats have all,
    /// and where the rows come from.
    fn write(
        &self,
        out: Out,
        gpus: &[OpenGpu],
        rows: Vec<Value>,
        heading: &str,
        fields: &'static str,
    ) -> Result<()> {
        let subject = measure::subject(gpus);
        // By what a row begins with `tailgraph report` knows it.
        let whole = rows.iter().map(|row| measure::merged([row, &subject]));
        let rows: Vec<_> = whole.collect();
        let says = |field: &&str| rows.iter().any(|row| row[*field] != 0);
        let columns = fields.split(' ').filter(says).zip(0..);
        let columns: Vec<_> = columns
            .map(|(field, rank)| Column::field(field, field).rank(rank))
            .collect();
        let (format, width) = (self.print.format(), self.print.width());
        let mut shown = text(&rows, format, &columns, width);
        if format == Format::Md {
            let names: Vec<_> = gpus.iter().map(|gpu| gpu.info.to_string()).collect();
            shown = format!("{heading}, on {}.\n\n{shown}", names.join(" and "));
        }
        out.finish_with(shown.as_bytes())
    }
}

/// The numbers of as many GPUs as a command takes, of which `--device` names others than the first.
fn gpus<const N: usize>(device: &Option<String>) -> Result<[u32; N]> {
    let device = device
        .as_deref()
        .unwrap_or(if N == 2 { "cuda:0,1" } else { "cuda" });
    let number = |spec| match spec {
        DeviceSpec::Gpu(gpu) => Some(gpu.ordinal),
        DeviceSpec::Cpu { .. } => None,
    };
    let numbers: Vec<u32> = named(device)?.into_iter().filter_map(number).collect();
    let found = numbers.len();
    numbers.try_into().map_err(|_| {
        Error::Usage(format!(
            "--device {device}: found {found} GPUs, expected {N}"
        ))
    })
}
