//! `lab limits`: what the limits of launching on the device do at their edge: as many launches as are documented, and one more.

use super::cuda::{Argument, Buffer, Captured, Exec, Kernel, Launch, LaunchedBy, OpenGpu, failed};
use super::ways::{Body, step::error_name};
use super::{On, gpus};
use cudarc::driver::sys::CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_IF;
use cudarc::driver::{CudaStream, sys};
use serde_json::{Value, json};
use std::sync::Arc;
use tailgraph::error::Result;

const FIELDS: &str = "limit documented accepted ran accepted_beyond ran_beyond holds answer";

pub fn run(on: &On) -> Result<()> {
    let (out, [ordinal]) = (on.print.open()?, gpus(&on.device)?);
    let gpu = OpenGpu::new(ordinal)?;
    let rows = edges(&gpu)?;
    let heading = "As many launches as documented, and one more";
    on.write(out, &[gpu], rows, heading, FIELDS)
}

use Tried::{InUse, Itself, Others};

/// A launch that stays so long is still there when the next one is tried.
const STAY_NS: u64 = 2_000_000;

/// What is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tried {
    /// Graphs of their own, each once.
    Others,
    /// The graph that launches.
    Itself,
    /// One graph, again while it runs.
    InUse,
}

/// What is launched, whether by tail launches, what that is called, and how many the documentation allows.
const LIMITS: [(Tried, bool, &str, u32); 5] = [
    (Others, false, "fire-and-forget launches in a run", 120),
    (Others, true, "pending tail launches of a graph", 255),
    (Itself, true, "tail launches of a graph by itself", 1),
    (Itself, false, "fire and forget of a graph by itself", 0),
    (InUse, false, "runs at once of one executable graph", 1),
];

/// Tries each limit on `gpu`, which takes some milliseconds each. An edge has `documented` launches and one beyond: how many were
/// accepted, how many ran, and what the first refused one was answered.
pub fn edges(gpu: &OpenGpu) -> Result<Vec<Value>> {
    let trial = Trial::new(gpu)?;
    let edge = |limit: &str, documented: u32, within: [u32; 2], beyond: [u32; 2], answer| {
        json!({
            "limit": limit,
            "documented": documented,
            "accepted": within[0],
            "ran": within[1],
            "accepted_beyond": beyond[0],
            "ran_beyond": beyond[1],
            "answer": answer,
            "holds": within[0] == documented && beyond[0] == documented,
        })
    };
    let mut edges = vec![];
    for (tried, behind, limit, documented) in LIMITS {
        let (within, _) = trial.launches(tried, behind, documented)?;
        let (beyond, refused) = trial.launches(tried, behind, documented + 1)?;
        let answer = refused.map(|error| {
            let number = beyond[0] + 1;
            format!("launch {number} of {limit}: {}", error_name(error))
        });
        edges.push(edge(limit, documented, within, beyond, answer));
    }
    for (nodes, graph) in [
        ("conditional nodes", trial.conditional()?),
        ("host nodes", trial.host_node()?),
    ] {
        let refused = Exec::instantiate_unaudited(&graph, LaunchedBy::Device).err();
        // The driver may not say which node it was; what is checked before does.
        let audited = Exec::instantiate(&graph, LaunchedBy::Device).err();
        let answers = refused.iter().chain(&audited).map(ToString::to_string);
        let limit = format!("{nodes} in a graph that the device launches");
        let answer = answers.reduce(|all, next| format!("{all}; {next}"));
        let beyond = [refused.is_none().into(), 0];
        edges.push(edge(&limit, 0, [0, 0], beyond, answer));
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
    fn launches(&self, tried: Tried, behind: bool, count: u32) -> Result<([u32; 2], Option<u32>)> {
        if count == 0 {
            return Ok(([0, 0], None));
        }
        let (graphs, stay_ns) = match tried {
            Others => (count, 0),
            InUse => (1, STAY_NS),
            Itself => (0, 0),
        };
        let counting = [Argument::Address(self.counts.at(0)), Argument::U64(stay_ns)];
        let small = self.capture("what is launched", &self.ran, &counting)?;
        let graphs = (0..graphs).map(|_| Exec::new(&small, LaunchedBy::Device));
        let graphs: Vec<Exec> = graphs.collect::<Result<_>>()?;
        // 0 is the graph that runs.
        let mut handles: Vec<u64> = graphs.iter().map(Exec::device_handle).collect();
        handles.resize(count as usize, *handles.last().unwrap_or(&0));
        let table = Buffer::new(&self.gpu.context, 8 * handles.len())?;
        table.write(&self.stream, 0, bytemuck::cast_slice(&handles))?;
        let answers = Buffer::new(&self.gpu.context, 4 * handles.len())?;
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
        let (mut found, mut counts) = (vec![0u32; handles.len()], [0u32; 2]);
        answers.read(&self.stream, 0, bytemuck::cast_slice_mut(&mut found))?;
        let bytes = bytemuck::cast_slice_mut(&mut counts);
        self.counts.read(&self.stream, 0, bytes)?;
        let accepted = found.iter().filter(|&&error| error == 0).count() as u32;
        let [others, heads] = counts;
        // The host has launched one head.
        let ran = others + heads.saturating_sub(1);
        Ok(([accepted, ran], found.into_iter().find(|&error| error != 0)))
    }

    /// A graph with a node that the device cannot launch.
    fn conditional(&self) -> Result<Captured> {
        let (graph, root) = Body::whole(&self.stream, "limits, a conditional node".to_owned())?;
        let value = root.value(1)?;
        let (_, bodies) = root.condition(CU_GRAPH_COND_TYPE_IF, 1, value, None)?;
        bodies[0].capture(|stream| {
            let counting = [Argument::Address(self.counts.at(0)), Argument::U64(0)];
            // SAFETY: the arguments are the kernel's; it never runs.
            unsafe { (self.ran).launch(stream, Launch::blocks(1, 1), &counting) }
        })?;
        Ok(graph)
    }

    /// Another one.
    fn host_node(&self) -> Result<Captured> {
        extern "C" fn nothing(_: *mut std::ffi::c_void) {}
        Captured::capture(&self.stream, "limits, a host node", |stream| {
            let (stream, none) = (stream.cu_stream(), std::ptr::null_mut());
            // SAFETY: the stream is alive, and the function takes nothing; it never runs.
            unsafe { sys::cuLaunchHostFunc(stream, Some(nothing), none) }
                .result()
                .map_err(|error| failed("capturing a host node", error))
        })
    }
}
