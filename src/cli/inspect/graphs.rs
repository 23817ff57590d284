//! A plan's graphs: of each stage, bucket and kind, as a GPU was given it, or what the plan says of it.

use super::{Picture, View, Written, us_text};
use crate::backend::cuda::listed::captured::{AlikeNodes, CapturedGraph};
use crate::backend::cuda::tuning::Origin;
use crate::backend::cuda::tuning::gpu::Gpu;
use crate::cli::table::Table;
use crate::plan::bytes::{Bytes, Si};
use crate::plan::memory::MemoryItem;
use crate::plan::{Cost, OpKind, StepKind, StepShape};
use std::io::Write;
use std::ops::Range;
use std::time::Duration;

/// What a GPU was given for a plan.
#[derive(Debug)]
pub struct OnGpu {
    /// Its name and ordinal.
    pub device: String,
    /// Where its roofline is known.
    pub known: Option<&'static Gpu>,
    /// As in `--launch`.
    pub launch: String,
    /// What chose the kernels: its architecture and digest.
    pub kernel_variants: String,
    /// Whose entries chose the kernels of decode steps; `None`: there are none.
    pub entries: Option<Origin>,
    /// Until the weights were in the host's memory, or mapped into it.
    pub load: Duration,
    /// What a run of these sizes takes, by `doctor`'s arithmetic.
    pub memory: Vec<MemoryItem>,
    pub graphs: Vec<CapturedGraph>,
}

impl OnGpu {
    /// The graph that a picture is of.
    pub fn graph(&self, picture: Picture) -> Option<&CapturedGraph> {
        self.graphs.iter().find(|graph| {
            graph.stages.contains(&picture.stage)
                && (graph.kind, graph.rows) == (picture.kind, picture.rows)
        })
    }
}

/// One graph of the list.
pub(super) struct Entry<'a> {
    pub stages: Range<usize>,
    pub kind: StepKind,
    pub rows: u32,
    /// Of the plan.
    pub operations: usize,
    pub cost: Cost,
    pub roofline_us: f64,
    pub captured: Option<&'a CapturedGraph>,
}

/// The captured graphs, or those that the plan has.
pub(super) fn entries<'a>(view: &View<'a>) -> Vec<Entry<'a>> {
    if let Some(on_gpu) = view.on_gpu {
        let graphs = on_gpu.graphs.iter();
        return graphs
            .map(|g| entry(view, g.stages.clone(), g.kind, g.rows, Some(g)))
            .collect();
    }
    let stages = 0..view.plan.stages.len();
    stages
        .flat_map(|stage| StepKind::ALL.map(|kind| (stage, kind)))
        .flat_map(|(stage, kind)| {
            let ladder = view.plan.ladders.of(kind).iter();
            ladder.map(move |&rows| entry(view, stage..stage + 1, kind, rows, None))
        })
        .collect()
}

fn entry<'a>(
    view: &View<'a>,
    stages: Range<usize>,
    kind: StepKind,
    rows: u32,
    captured: Option<&'a CapturedGraph>,
) -> Entry<'a> {
    let shape = StepShape {
        kind,
        rows,
        context: view.context,
    };
    let config = &view.plan.config;
    let chosen = &view.plan.stages[stages.clone()];
    let costs = chosen
        .iter()
        .map(|s| s.cost(config, &shape, view.precision));
    let times = chosen
        .iter()
        .map(|s| view.gpu.stage_us(config, s, &shape, view.precision));
    Entry {
        operations: chosen.iter().map(|stage| stage.ops.len()).sum(),
        cost: costs.sum(),
        roofline_us: times.sum(),
        stages,
        kind,
        rows,
        captured,
    }
}

/// The list of graphs, and the kernels of those that the view's rows choose.
pub(super) fn text(view: &View<'_>, out: &mut dyn Write) -> Written {
    let entries = entries(view);
    match view.on_gpu {
        None => writeln!(
            out,
            "graphs, as the plan has them; --device cuda captures them and shows their kernels"
        )?,
        Some(on_gpu) => {
            writeln!(
                out,
                "graphs as captured for {} on {}; weights loaded in {} ms; variants {}",
                on_gpu.launch,
                on_gpu.device,
                ms_text(on_gpu.load),
                on_gpu.kernel_variants
            )?;
            match on_gpu.entries {
                Some(entries) => writeln!(out, "decode steps by entries {entries}")?,
                None => writeln!(
                    out,
                    "decode steps by no entries: by the kernels for any step"
                )?,
            }
        }
    }
    list(&entries, view.on_gpu.is_some(), out)?;
    let Some(on_gpu) = view.on_gpu else {
        return Ok(());
    };
    let buckets: Vec<Option<u32>> = view
        .rows
        .iter()
        .map(|&rows| view.plan.ladders.bucket(view.kind, rows))
        .collect();
    for entry in &entries {
        let (Some(graph), true) = (entry.captured, entry.kind == view.kind) else {
            continue;
        };
        if buckets.contains(&Some(entry.rows)) {
            writeln!(out)?;
            kernels(entry, graph, out)?;
        }
    }
    writeln!(out, "\nmemory of a run with these sizes")?;
    let mut table = Table::new(&[0, 2]);
    for item in &on_gpu.memory {
        table.row([
            item.name.to_owned(),
            Bytes(item.bytes).to_string(),
            item.place.name().to_owned(),
        ]);
    }
    table.write("  ", out)
}

fn list(entries: &[Entry<'_>], captured: bool, out: &mut dyn Write) -> Written {
    let mut table = Table::new(&[0, 1]);
    let mut head = vec![
        "stage",
        "kind",
        "rows",
        "operations",
        "bytes",
        "FLOPs",
        "floor us",
    ];
    if captured {
        head.extend([
            "nodes",
            "edges",
            "early",
            "dispatcher",
            "copies",
            "capture ms",
            "inst. ms",
            "upload ms",
            "memory",
        ]);
    }
    table.row(head);
    for entry in entries {
        let mut cells = vec![
            stages_text(&entry.stages),
            entry.kind.name().to_owned(),
            entry.rows.to_string(),
            entry.operations.to_string(),
            format!("{}B", Si(entry.cost.floor_bytes())),
            Si(entry.cost.flops).to_string(),
            us_text(entry.roofline_us),
        ];
        if let Some(graph) = entry.captured {
            cells.extend([
                graph.nodes.len().to_string(),
                graph.edges.len().to_string(),
                graph.early_edges().to_string(),
                if graph.dispatcher { "in it" } else { "-" }.to_owned(),
                graph.copies.to_string(),
                ms_text(graph.capture),
                ms_text(graph.instantiate),
                ms_text(graph.upload),
                Bytes(graph.device_bytes).to_string(),
            ]);
        }
        table.row(cells);
    }
    table.write("  ", out)
}

fn kernels(entry: &Entry<'_>, graph: &CapturedGraph, out: &mut dyn Write) -> Written {
    writeln!(
        out,
        "stage {} {} {}{}: nodes by kernel; shared memory static + dynamic, early: may start before the one ahead ends",
        stages_text(&entry.stages),
        entry.kind.name(),
        entry.rows,
        if graph.dispatcher {
            ", dispatcher in it"
        } else {
            ""
        }
    )?;
    if let Some(variant) = graph.variant {
        writeln!(out, "  {variant}")?;
    }
    let mut table = Table::new(&[0, 8]);
    table.row([
        "kernel",
        "count",
        "grid",
        "block",
        "registers",
        "shared",
        "local",
        "early",
        "operations",
    ]);
    for alike in graph.alike() {
        table.row(kernel_cells(&alike));
    }
    table.write("  ", out)
}

fn kernel_cells(alike: &AlikeNodes<'_>) -> Vec<String> {
    let mut cells = vec![alike.node.name.clone(), alike.count.to_string()];
    match alike.node.kernel {
        Some(kernel) => cells.extend([
            extent(kernel.grid),
            extent(kernel.block),
            kernel.registers.to_string(),
            format!(
                "{}+{}",
                kernel.static_shared_bytes, kernel.dynamic_shared_bytes
            ),
            kernel.local_bytes.to_string(),
        ]),
        None => cells.extend(std::iter::repeat_n(String::new(), 5)),
    }
    cells.push(alike.early.to_string());
    // A line has room for two.
    let names: Vec<&str> = alike.kinds.iter().map(|&kind| operation(kind)).collect();
    cells.push(match names.as_slice() {
        [first, second, _, ..] => format!("{first}, {second}, ..."),
        names => names.join(", "),
    });
    cells
}

/// An operation's name, or the scheduler's.
pub(super) fn operation(kind: Option<OpKind>) -> &'static str {
    kind.map_or("scheduler", OpKind::name)
}

/// `132x2`, without the ones at its end.
pub(super) fn extent((x, y, z): (u32, u32, u32)) -> String {
    match (y, z) {
        (1, 1) => x.to_string(),
        (_, 1) => format!("{x}x{y}"),
        _ => format!("{x}x{y}x{z}"),
    }
}

fn stages_text(stages: &Range<usize>) -> String {
    match stages.len() {
        1 => stages.start.to_string(),
        _ => format!("{}-{}", stages.start, stages.end.saturating_sub(1)),
    }
}

/// Milliseconds.
pub(super) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

pub(super) fn ms_text(time: Duration) -> String {
    match ms(time) {
        ms if ms < 9.995 => format!("{ms:.2}"),
        ms => format!("{ms:.1}"),
    }
}
