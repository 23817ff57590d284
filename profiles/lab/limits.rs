//! `lab limits`: what the limits of launching on the device do at their edge: as many launches as are documented, and one more.

use super::measure::{Measured, merged, subject};
use super::table::{Column, Output};
use super::ways::{Body, step::error_name};
use super::{Gpus, ended};
use clap::Args;
use cudarc::driver::sys::CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_IF;
use cudarc::driver::{CudaStream, sys};
use serde::Serialize;
use serde_json::json;
use std::ffi::c_void;
use std::process::ExitCode;
use std::sync::Arc;
use tailgraph::backend::cuda::driver::errors::failed;
use tailgraph::backend::cuda::driver::exec::{Exec, LaunchedBy};
use tailgraph::backend::cuda::driver::gpu::OpenGpu;
use tailgraph::backend::cuda::driver::graph::Captured;
use tailgraph::backend::cuda::driver::launch::{Argument, Kernel, Launch};
use tailgraph::backend::cuda::memory::buffer::Buffer;
use tailgraph::error::Result;

#[derive(Debug, Clone, Args)]
pub struct Limits {
    #[command(flatten)]
    output: Output,
    /// cuda, or cuda:N for a certain GPU
    #[arg(long, value_name = "DEVICE", default_value = "cuda", value_parser = Gpus::parse)]
    device: Gpus,
}

const COLUMNS: [Column; 8] = [
    ("limit", "limit"),
    ("documented", "documented"),
    ("accepted", "accepted"),
    ("ran", "ran"),
    ("of one more", "accepted_beyond"),
    ("ran", "ran_beyond"),
    ("holds", "holds"),
    ("the first refused one", "answer"),
];

/// # Errors
/// The GPU cannot be opened, or refuses something beside what is tried.
pub fn run(args: &Limits) -> Result<ExitCode> {
    let gpu = args.device.one()?;
    let edges = edges(&gpu)?;
    let rows = edges.iter().map(|edge| merged([&subject(&[&gpu]), &json!(edge)]));
    let measured = Measured { rows: rows.collect(), ..Measured::default() };
    let heading = format!("As many launches as are documented, and one more, on {}.", gpu.info);
    ended(&args.output, measured, &heading, &COLUMNS)
}

/// A launch that stays so long is still there when the next one is tried.
const STAY_NS: u64 = 2_000_000;

/// One limit, and what was found at its edge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Edge {
    pub limit: &'static str,
    /// By NVIDIA's documentation.
    pub documented: u32,
    /// Those of `documented` launches that were accepted, and those that ran.
    pub accepted: u32,
    pub ran: u32,
    /// The same of one launch more.
    pub accepted_beyond: u32,
    pub ran_beyond: u32,
    /// What the first refused one was answered; none where all were accepted.
    pub answer: Option<String>,
    /// As many are accepted as are documented, and no more.
    pub holds: bool,
}

/// What is launched, and where it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tried {
    /// Graphs of their own, inside the run of the one that launches them.
    Forget,
    /// Graphs of their own, behind the one that launches them.
    Tail,
    /// The graph that launches, behind its own run.
    ItselfBehind,
    /// ... inside its own run.
    ItselfInside,
    /// One graph, again while it runs.
    InUse,
}

const COUNTED: [(Tried, &str, u32); 5] = [
    (
        Tried::Forget,
        "fire-and-forget launches in a run of a graph",
        120,
    ),
    (Tried::Tail, "pending tail launches of a graph", 255),
    (
        Tried::ItselfBehind,
        "pending tail launches of a graph by itself",
        1,
    ),
    (
        Tried::ItselfInside,
        "fire-and-forget launches of a graph by itself",
        0,
    ),
    (Tried::InUse, "runs at once of one executable graph", 1),
];

/// Tries all of them on `gpu`, which takes some milliseconds each.
///
/// # Errors
/// What the driver refuses beside what is tried.
pub fn edges(gpu: &OpenGpu) -> Result<Vec<Edge>> {
    let trial = Trial::new(gpu)?;
    let mut edges = vec![];
    for (tried, limit, documented) in COUNTED {
        let (accepted, ran, _) = trial.launches(tried, documented)?;
        let (accepted_beyond, ran_beyond, answer) = trial.launches(tried, documented + 1)?;
        edges.push(Edge {
            limit,
            documented,
            accepted,
            ran,
            accepted_beyond,
            ran_beyond,
            answer: answer.map(|error| {
                format!(
                    "launch {} of {limit}: {}",
                    accepted_beyond + 1,
                    error_name(error)
                )
            }),
            holds: accepted == documented && accepted_beyond == documented,
        });
    }
    for (limit, graph) in [
        (
            "conditional nodes in a graph that the device launches",
            trial.conditional()?,
        ),
        (
            "host nodes in a graph that the device launches",
            trial.host_node()?,
        ),
    ] {
        let refused = Exec::instantiate_unaudited(&graph, LaunchedBy::Device).err();
        // The driver may not say which node it was; what is checked before does.
        let audited = Exec::instantiate(&graph, LaunchedBy::Device).err();
        edges.push(Edge {
            limit,
            documented: 0,
            accepted: 0,
            ran: 0,
            accepted_beyond: refused.is_none().into(),
            ran_beyond: 0,
            holds: refused.is_some(),
            answer: refused
                .into_iter()
                .chain(audited)
                .map(|error| error.to_string())
                .reduce(|all, next| format!("{all}; {next}")),
        });
    }
    Ok(edges)
}

struct Trial<'a> {
    gpu: &'a OpenGpu,
    stream: Arc<CudaStream>,
    launch: Kernel,
    ran: Kernel,
    /// Runs of what is launched, then runs of what launches: u32 each.
    counts: Buffer,
}

impl<'a> Trial<'a> {
    fn new(gpu: &'a OpenGpu) -> Result<Self> {
        let stream = gpu.context.new_stream();
        Ok(Self {
            gpu,
            stream: stream.map_err(|error| failed("making a stream", error))?,
            launch: gpu.module.kernel("tg_limits_launch")?,
            ran: gpu.module.kernel("tg_limits_ran")?,
            counts: Buffer::new(&gpu.context, 8)?,
        })
    }

    /// One kernel as a graph.
    fn capture(&self, name: &str, kernel: &Kernel, arguments: &[Argument]) -> Result<Captured> {
        Captured::capture(&self.stream, format!("limits, {name}"), |stream| {
            // SAFETY: the arguments are the kernel's; what they point to outlives the graph's runs, which are waited for.
            unsafe { kernel.launch(stream, Launch::blocks(1, 1), arguments) }
        })
    }

    /// Launches that were accepted, those that ran, and what the first refused one was answered.
    fn launches(&self, tried: Tried, count: u32) -> Result<(u32, u32, Option<u32>)> {
        let stay = if tried == Tried::InUse { STAY_NS } else { 0 };
        let arguments = [Argument::Address(self.counts.at(0)), Argument::U64(stay)];
        let small = self.capture("what is launched", &self.ran, &arguments)?;
        let small = |_| Exec::new(&small, LaunchedBy::Device);
        let graphs: Vec<Exec> = match tried {
            Tried::Forget | Tried::Tail => (0..count).map(small).collect::<Result<_>>()?,
            Tried::InUse => vec![small(0)?],
            Tried::ItselfBehind | Tried::ItselfInside => vec![],
        };
        let handles: Vec<u64> = match tried {
            Tried::Forget | Tried::Tail => graphs.iter().map(Exec::device_handle).collect(),
            Tried::InUse => vec![graphs[0].device_handle(); count as usize],
            // The graph that runs.
            Tried::ItselfBehind | Tried::ItselfInside => vec![0; count as usize],
        };
        if handles.is_empty() {
            return Ok((0, 0, None));
        }
        let table = Buffer::new(&self.gpu.context, 8 * handles.len())?;
        table.write(&self.stream, 0, bytemuck::cast_slice(&handles))?;
        let answers = Buffer::new(&self.gpu.context, 4 * handles.len())?;
        let behind = matches!(tried, Tried::Tail | Tried::ItselfBehind);
        let arguments = [
            Argument::Address(table.at(0)),
            Argument::U32(count),
            Argument::U32(behind.into()),
            Argument::Address(answers.at(0)),
            Argument::Address(self.counts.at(4)),
        ];
        let head = self.capture("what launches", &self.launch, &arguments)?;
        let head = Exec::new(&head, LaunchedBy::Device)?;
        self.counts.fill(&self.stream, 0)?;
        // SAFETY: as in `capture`; the reads below wait.
        unsafe { head.launch() }?;
        let mut found = vec![0u32; handles.len()];
        let bytes = bytemuck::cast_slice_mut(&mut found);
        answers.read(&self.stream, 0, bytes)?;
        let mut counts = [0u32; 2];
        let bytes = bytemuck::cast_slice_mut(&mut counts);
        self.counts.read(&self.stream, 0, bytes)?;
        let accepted = found.iter().filter(|&&error| error == 0).count() as u32;
        let ran = match tried {
            Tried::ItselfBehind | Tried::ItselfInside => counts[1].saturating_sub(1),
            _ => counts[0],
        };
        Ok((accepted, ran, found.into_iter().find(|&error| error != 0)))
    }

    /// A graph with a node that the device cannot launch.
    fn conditional(&self) -> Result<Captured> {
        let (graph, root) = Body::whole(&self.stream, "limits, a conditional node".to_owned())?;
        let value = root.value(1)?;
        let (_, bodies) = root.condition(CU_GRAPH_COND_TYPE_IF, 1, value, None)?;
        bodies[0].capture(|stream| {
            let arguments = [Argument::Address(self.counts.at(0)), Argument::U64(0)];
            // SAFETY: the arguments are the kernel's; it never runs.
            unsafe { self.ran.launch(stream, Launch::blocks(1, 1), &arguments) }
        })?;
        Ok(graph)
    }

    fn host_node(&self) -> Result<Captured> {
        extern "C" fn nothing(_: *mut c_void) {}
        Captured::capture(&self.stream, "limits, a host node", |stream| {
            // SAFETY: the stream is alive, and the function takes nothing; it never runs.
            unsafe {
                sys::cuLaunchHostFunc(stream.cu_stream(), Some(nothing), std::ptr::null_mut())
            }
            .result()
            .map_err(|error| failed("capturing a host node", error))
        })
    }
}
