//! A picture of one stage's graph: a line for each operation, layers as groups. Each kind of layer is drawn once, with
//! the first of its layers' figures; later runs of the same kind are one line.

mod marks;

use super::dot::{alike, layer_name, runs};
use super::graphs::ms_text;
use super::{Picture, View, Written, layers_text, shape_text, us_text};
use crate::backend::cuda::listed::captured::{CapturedGraph, CapturedNode};
use crate::plan::bytes::Si;
use crate::plan::cost::op_cost;
use crate::plan::params::params;
use crate::plan::{Cost, Op, Stage, StepShape};
use marks::{MARGIN, STYLE, WIDTH, bytes_text, frame, node_line, text};
use std::io::Write;
use std::ops::Range;

const LINE: u32 = 22;
/// Between two boxes, with the arrow in it.
const GAP: u32 = 14;
/// Where the columns begin, or end where their text is to the right: name, weights, bytes, FLOPs, time, bar, kernels.
const NAME: u32 = 44;
const WEIGHTS: u32 = 190;
const BYTES: u32 = 420;
const FLOPS: u32 = 510;
const TIME: u32 = 580;
const BAR: u32 = 592;
const BAR_WIDTH: u32 = 110;
const KERNELS: u32 = 716;

/// One box of the picture.
enum Part {
    /// Kernels of the scheduler's own, by their lines.
    Scheduler(Vec<String>),
    /// Operations of no layer.
    Ops(Vec<Op>),
    /// A run of alike layers, with the operations of its first.
    Layers(Range<usize>, Vec<Op>),
    /// A run like one that was drawn, by that one's layers.
    Folded(Range<usize>, Range<usize>),
}

pub(super) fn write(view: &View<'_>, picture: Picture, out: &mut dyn Write) -> Written {
    let drawing = Drawing::new(view, picture);
    let (body, height) = drawing.body();
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\">"
    )?;
    writeln!(out, "<style>{STYLE}</style>")?;
    writeln!(
        out,
        "<rect class=\"page\" width=\"{WIDTH}\" height=\"{height}\"/>"
    )?;
    out.write_all(body.as_bytes())?;
    writeln!(out, "</svg>")
}

struct Drawing<'a> {
    view: &'a View<'a>,
    stage: &'a Stage,
    picture: Picture,
    graph: Option<&'a CapturedGraph>,
    /// The longest time of an operation: a full bar.
    longest_us: f64,
}

impl<'a> Drawing<'a> {
    fn new(view: &'a View<'a>, picture: Picture) -> Self {
        let stage = &view.plan.stages[picture.stage];
        let graph = view.on_gpu.and_then(|on_gpu| on_gpu.graph(picture));
        let mut drawing = Self {
            view,
            stage,
            picture,
            graph,
            longest_us: 0.0,
        };
        let times = stage.ops.iter().map(|op| drawing.us(*op));
        drawing.longest_us = times.fold(f64::MIN_POSITIVE, f64::max);
        drawing
    }

    fn shape(&self) -> StepShape {
        StepShape {
            kind: self.picture.kind,
            rows: self.picture.rows,
            context: self.view.context,
        }
    }

    fn cost(&self, op: Op) -> Cost {
        let view = self.view;
        op_cost(&view.plan.config, op.kind, &self.shape(), view.precision)
    }

    fn us(&self, op: Op) -> f64 {
        let view = self.view;
        let (us, _) = view.gpu.roofline_us(&self.cost(op), view.precision);
        us
    }

    /// The boxes, in order.
    fn parts(&self) -> Vec<Part> {
        let config = &self.view.plan.config;
        let ops_of = |layer| {
            let ops = self.stage.ops.iter().filter(|op| op.layer == Some(layer));
            ops.copied().collect::<Vec<Op>>()
        };
        let outer = |before: bool| {
            let first = self.stage.ops.iter().position(|op| op.layer.is_some());
            let end = first.unwrap_or(self.stage.ops.len());
            let ops = self.stage.ops.iter().enumerate();
            let ops = ops.filter(|(at, op)| op.layer.is_none() && (*at < end) == before);
            ops.map(|(_, op)| *op).collect::<Vec<Op>>()
        };
        let (begin, end) = self.scheduler();
        let mut parts = vec![Part::Scheduler(begin), Part::Ops(outer(true))];
        let mut drawn: Vec<Range<usize>> = vec![];
        for run in runs(config, self.stage.layers.clone(), false) {
            match drawn.iter().find(|d| alike(config, d.start, run.start)) {
                Some(like) => parts.push(Part::Folded(run, like.clone())),
                None => {
                    drawn.push(run.clone());
                    parts.push(Part::Layers(run.clone(), ops_of(run.start)));
                }
            }
        }
        parts.push(Part::Ops(outer(false)));
        parts.push(Part::Scheduler(end));
        parts.retain(|part| match part {
            Part::Ops(ops) => !ops.is_empty(),
            Part::Scheduler(lines) => !lines.is_empty(),
            _ => true,
        });
        parts
    }

    /// Lines of the scheduler's kernels before the first operation's and after the last one's.
    fn scheduler(&self) -> (Vec<String>, Vec<String>) {
        let Some(graph) = self.graph else {
            return (vec![], vec![]);
        };
        let first = graph.nodes.iter().position(|node| !node.ops.is_empty());
        let (mut begin, mut end) = (vec![], vec![]);
        for (place, node) in graph.nodes.iter().enumerate() {
            if node.ops.is_empty() {
                let lines = if Some(place) < first {
                    &mut begin
                } else {
                    &mut end
                };
                lines.push(node_line(graph, place));
            }
        }
        (begin, end)
    }

    /// Everything inside the page, and its height.
    fn body(&self) -> (String, u32) {
        let mut svg = String::new();
        let mut y = self.title(&mut svg);
        for (index, part) in self.parts().iter().enumerate() {
            if index > 0 {
                svg.push_str(&format!(
                    "<line class=\"wait\" x1=\"{NAME}\" y1=\"{y}\" x2=\"{NAME}\" y2=\"{}\"/>\n",
                    y + GAP
                ));
                y += GAP;
            }
            y = self.part(part, y, &mut svg);
        }
        (svg, y + MARGIN)
    }

    fn title(&self, svg: &mut String) -> u32 {
        let Picture { stage, kind, rows } = self.picture;
        let view = self.view;
        let mut y = MARGIN + 14;
        let mut line = |class: &str, content: &str, step: u32| {
            text(svg, MARGIN, y, class, content);
            y += step;
        };
        line(
            "title",
            &format!(
                "stage {stage} (of {}): {} step of {rows} rows, {}",
                view.plan.stages.len(),
                kind.name(),
                layers_text(&self.stage.layers)
            ),
            LINE,
        );
        let config = &view.plan.config;
        let cost = self.stage.cost(config, &self.shape(), view.precision);
        line(
            "",
            &format!(
                "{}B of weights and state, {} FLOPs; at least {} us on {}",
                Si(cost.floor_bytes()),
                Si(cost.flops),
                us_text(
                    view.gpu
                        .stage_us(config, self.stage, &self.shape(), view.precision)
                ),
                view.gpu.title
            ),
            LINE,
        );
        let source = match (self.graph, view.on_gpu) {
            (Some(graph), Some(on_gpu)) => format!(
                "{}, {}: {} nodes, {} edges ({} early), captured in {} ms{}",
                on_gpu.device,
                on_gpu.launch,
                graph.nodes.len(),
                graph.edges.len(),
                graph.early_edges(),
                ms_text(graph.capture),
                if graph.stages.len() > 1 {
                    ", with all stages"
                } else {
                    ""
                }
            ),
            _ => "from the plan alone: operations, not kernels".to_owned(),
        };
        line("dim", &source, LINE);
        line(
            "dim",
            "figures of each group's first layer; bars: least times, blue by memory, orange by arithmetic; » and dashes: may start \
             before the kernel ahead has ended",
            LINE + 4,
        );
        let head = y;
        for (x, class, name) in [
            (NAME + 12, "head", "operation"),
            (WEIGHTS, "head", "largest weight"),
            (BYTES, "head end", "bytes"),
            (FLOPS, "head end", "FLOPs"),
            (TIME, "head end", "us"),
            (
                KERNELS,
                "head",
                if self.graph.is_some() {
                    "kernels: blocks x threads, registers, shared bytes"
                } else {
                    ""
                },
            ),
        ] {
            text(svg, x, head, class, name);
        }
        head + 10
    }

    /// Draws one box from `y` on; where it ends.
    fn part(&self, part: &Part, y: u32, svg: &mut String) -> u32 {
        match part {
            Part::Scheduler(lines) => {
                let height = lines.len() as u32 * LINE + 8;
                frame(svg, "fold", y, height);
                text(svg, NAME - 16, y + 19, "head", "scheduler");
                for (line, number) in lines.iter().zip(0..) {
                    text(svg, KERNELS, y + 19 + number * LINE, "", line);
                }
                y + height
            }
            Part::Ops(ops) => self.group(None, ops, y, svg),
            Part::Layers(layers, ops) => {
                let head = self.layers_head(layers, "");
                self.group(Some(&head), ops, y, svg)
            }
            Part::Folded(layers, like) => {
                let like = format!("; as {}", layers_text(like));
                let head = self.layers_head(layers, &like);
                frame(svg, "fold", y, LINE + 4);
                text(svg, NAME - 16, y + 17, "", &head);
                y + LINE + 4
            }
        }
    }

    fn layers_head(&self, layers: &Range<usize>, more: &str) -> String {
        let ops = self.stage.ops.iter();
        let ops = ops.filter(|op| op.layer.is_some_and(|layer| layers.contains(&layer)));
        let (bytes, us) = ops.fold((0.0, 0.0), |(bytes, us), &op| {
            (bytes + self.cost(op).floor_bytes(), us + self.us(op))
        });
        let times = match layers.len() {
            1 => String::new(),
            n => format!(" x{n}"),
        };
        format!(
            "{}{times}: {}{more}; {}B, {} us in all",
            layers_text(layers),
            layer_name(&self.view.plan.config, layers.start),
            Si(bytes),
            us_text(us)
        )
    }

    fn group(&self, head: Option<&str>, ops: &[Op], y: u32, svg: &mut String) -> u32 {
        let lines: Vec<(Op, Vec<String>)> = ops.iter().map(|&op| (op, self.kernels(op))).collect();
        let count: usize = lines.iter().map(|(_, kernels)| kernels.len().max(1)).sum();
        let height = (count as u32 + u32::from(head.is_some())) * LINE + 8;
        frame(svg, "box", y, height);
        let mut at = y + 4;
        if let Some(head) = head {
            text(svg, NAME - 16, at + 15, "head", head);
            at += LINE;
        }
        let mut class = "wait";
        for (op, kernels) in &lines {
            class = self.edge(*op).unwrap_or(class);
            self.line(*op, kernels, class, at, svg);
            at += LINE * kernels.len().max(1) as u32;
        }
        y + height
    }

    /// How the first of an operation's kernels follows what is ahead; `None` where it has none.
    fn edge(&self, op: Op) -> Option<&'static str> {
        let graph = self.graph?;
        let first = *self.drawn_at(graph, op).first()?;
        Some(match graph.starts_early(first) {
            true => "early",
            false => "wait",
        })
    }

    fn line(&self, op: Op, kernels: &[String], class: &str, y: u32, svg: &mut String) {
        let view = self.view;
        let (cost, base) = (self.cost(op), y + 15);
        svg.push_str(&format!(
            "<line class=\"{class}\" x1=\"{NAME}\" y1=\"{y}\" x2=\"{NAME}\" y2=\"{}\"/>\n",
            y + LINE * kernels.len().max(1) as u32
        ));
        text(svg, NAME + 12, base, "", op.kind.name());
        let weights = params(&view.plan.config, op.kind);
        if let Some(weight) = weights.first() {
            text(svg, WEIGHTS, base, "dim", &shape_text(&weight.shape));
        }
        text(svg, BYTES, base, "end", &bytes_text(cost.floor_bytes()));
        text(svg, FLOPS, base, "end", &Si(cost.flops.round()).to_string());
        let (us, bound) = view.gpu.roofline_us(&cost, view.precision);
        text(svg, TIME, base, "end", &us_text(us));
        let width = (us / self.longest_us * f64::from(BAR_WIDTH)).max(1.0);
        svg.push_str(&format!(
            "<rect class=\"{}\" x=\"{BAR}\" y=\"{}\" width=\"{width:.1}\" height=\"12\"/>\n",
            bound.name(),
            y + 5
        ));
        for (kernel, number) in kernels.iter().zip(0..) {
            text(svg, KERNELS, base + number * LINE, "", kernel);
        }
    }

    /// The nodes that are drawn beside an operation: a kernel that does several stands beside the one that reads most.
    fn drawn_at(&self, graph: &CapturedGraph, op: Op) -> Vec<usize> {
        let bytes = |op: &Op| self.cost(*op).floor_bytes();
        let drawn = |node: &CapturedNode| {
            let most = node.ops.iter().max_by(|a, b| bytes(a).total_cmp(&bytes(b)));
            most == Some(&op)
        };
        let nodes = graph.nodes.iter().enumerate();
        let drawn = nodes.filter(|(_, node)| drawn(node));
        drawn.map(|(place, _)| place).collect()
    }

    /// An operation's kernels as captured, those that follow each other alike on one line.
    fn kernels(&self, op: Op) -> Vec<String> {
        let Some(graph) = self.graph else {
            return vec![];
        };
        let mut lines: Vec<(String, usize)> = vec![];
        for place in self.drawn_at(graph, op) {
            let line = node_line(graph, place);
            match lines.last_mut() {
                Some((last, count)) if *last == line => *count += 1,
                _ => lines.push((line, 1)),
            }
        }
        if lines.is_empty() {
            return vec!["in a neighbour's kernel".to_owned()];
        }
        let line = |(line, count)| match count {
            1 => line,
            count => format!("{line}  x{count}"),
        };
        lines.into_iter().map(line).collect()
    }
}
