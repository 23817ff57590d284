//! `inspect`: a plan with each operation's shapes, bytes, FLOPs and roofline time, as a table, JSON or a graph.

mod dot;
mod json;
mod text;

use super::profile::kind_parser;
use crate::error::{Error, Result};
use crate::model::DType;
use crate::plan::cost::op_cost;
use crate::plan::gpu::{Bound, GPUS};
use crate::plan::{Cost, Gpu, OpKind, Plan, Precision, Stage, StepKind, StepShape};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use std::io::{self, Write};

/// The flags of `inspect` alone; model, type and bucket file are shared ones.
#[derive(Debug, Clone, Args)]
pub struct InspectArgs {
    /// The GPU whose roofline times are shown
    #[arg(long, value_name = "NAME", default_value = "h200", value_parser = gpu_parser())]
    pub gpu: &'static Gpu,
    /// The kind of step
    #[arg(long, value_name = "KIND", default_value = "decode", value_parser = kind_parser())]
    pub kind: StepKind,
    /// Rows of the steps, such as 1,8,32 [default: 1,8,32,128,256 for decode, else the buckets]
    #[arg(long, value_name = "ROWS", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    pub rows: Vec<u32>,
    /// Positions of each sequence once the step is done
    #[arg(long, value_name = "TOKENS", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    pub context: u32,
    /// Each layer by itself
    #[arg(long)]
    pub layers: bool,
    /// How to print it
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table for people
    Text,
    /// For programs
    Json,
    /// For Graphviz
    Dot,
}

fn gpu_parser() -> impl TypedValueParser<Value = &'static Gpu> {
    PossibleValuesParser::new(GPUS.map(|gpu| gpu.name)).try_map(|name| Gpu::by_name(&name))
}

impl InspectArgs {
    /// Prints `plan` to `out`.
    ///
    /// # Errors
    /// [`Error::Usage`] for rows that no bucket holds, [`Error::Io`] where `out` cannot be written.
    pub fn run(&self, plan: &Plan, precision: Precision, out: &mut dyn Write) -> Result<()> {
        let view = View {
            plan,
            precision,
            gpu: self.gpu,
            kind: self.kind,
            context: self.context,
            rows: self.rows(plan)?,
            each_layer: self.layers,
        };
        match self.format {
            Format::Text => text::write(&view, out),
            Format::Json => json::write(&view, out),
            Format::Dot => dot::write(&view, out),
        }
        .and_then(|()| out.flush())
        .map_err(|source| Error::io("standard output", source))
    }

    /// The rows asked for, or the default ones.
    fn rows(&self, plan: &Plan) -> Result<Vec<u32>> {
        let ladder = plan.ladders.of(self.kind);
        let largest = ladder.last().copied().unwrap_or(0);
        if let Some(rows) = self.rows.iter().find(|&&rows| rows > largest) {
            return Err(Error::Usage(format!(
                "--rows {rows}: expected at most {largest}, the largest {} bucket",
                self.kind.name()
            )));
        }
        Ok(match self.kind {
            _ if !self.rows.is_empty() => self.rows.clone(),
            StepKind::Decode => [1, 8, 32, 128, 256]
                .into_iter()
                .filter(|&rows| rows <= largest)
                .collect(),
            StepKind::Mixed | StepKind::Score => ladder.to_vec(),
        })
    }
}

/// What is shown.
struct View<'a> {
    plan: &'a Plan,
    precision: Precision,
    gpu: &'static Gpu,
    kind: StepKind,
    context: u32,
    rows: Vec<u32>,
    each_layer: bool,
}

/// Operations of one kind in a stage, all with the same shapes.
struct Group {
    kind: OpKind,
    /// Empty before the first and after the last layer.
    layers: Vec<usize>,
}

impl Group {
    /// How many operations these are.
    fn count(&self) -> f64 {
        self.layers.len().max(1) as f64
    }
}

impl View<'_> {
    fn shape(&self, rows: u32) -> StepShape {
        StepShape {
            kind: self.kind,
            rows,
            context: self.context,
        }
    }

    /// A stage's operations: those of a kind together, in the order of a forward pass, or layer by layer.
    fn groups(&self, stage: &Stage) -> Vec<Group> {
        if self.each_layer {
            return stage
                .ops
                .iter()
                .map(|op| Group {
                    kind: op.kind,
                    layers: op.layer.into_iter().collect(),
                })
                .collect();
        }
        OpKind::ALL
            .into_iter()
            .filter(|&kind| stage.ops.iter().any(|op| op.kind == kind))
            .map(|kind| Group {
                kind,
                layers: stage
                    .ops
                    .iter()
                    .filter(|op| op.kind == kind)
                    .filter_map(|op| op.layer)
                    .collect(),
            })
            .collect()
    }

    /// The cost of all operations of a group together.
    fn cost(&self, group: &Group, rows: u32) -> Cost {
        let each = op_cost(
            &self.plan.config,
            group.kind,
            &self.shape(rows),
            self.precision,
        );
        each * group.count()
    }

    /// The roofline of all operations of a group together, in microseconds.
    fn roofline_us(&self, group: &Group, rows: u32) -> (f64, Bound) {
        let each = op_cost(
            &self.plan.config,
            group.kind,
            &self.shape(rows),
            self.precision,
        );
        let (us, bound) = self.gpu.roofline_us(&each, self.precision.compute);
        (us * group.count(), bound)
    }

    fn stage_us(&self, stage: &Stage, rows: u32) -> f64 {
        self.gpu
            .stage_us(&self.plan.config, stage, &self.shape(rows), self.precision)
    }

    fn step_us(&self, rows: u32) -> f64 {
        self.gpu
            .step_us(self.plan, &self.shape(rows), self.precision)
    }

    /// The time from one step's end to the next with every stage busy: the slowest stage's.
    fn slowest_stage_us(&self, rows: u32) -> f64 {
        self.plan
            .stages
            .iter()
            .map(|stage| self.stage_us(stage, rows))
            .fold(0.0, f64::max)
    }
}

/// A type as `--dtype` spells it.
fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "f32",
        DType::BF16 => "bf16",
        DType::F16 => "f16",
    }
}

/// Text of a shape: `6144 x 2048`.
fn shape_text(shape: &[usize]) -> String {
    let sizes: Vec<String> = shape.iter().map(usize::to_string).collect();
    sizes.join(" x ")
}

/// Microseconds with three or four digits.
fn us_text(us: f64) -> String {
    match us {
        us if us < 9.995 => format!("{us:.2}"),
        us if us < 999.95 => format!("{us:.1}"),
        us => format!("{us:.0}"),
    }
}

/// Layers `first` to `last` in words.
fn layers_text(layers: &std::ops::Range<usize>) -> String {
    match layers.len() {
        1 => format!("layer {}", layers.start),
        _ => format!(
            "layers {} to {}",
            layers.start,
            layers.end.saturating_sub(1)
        ),
    }
}

/// Fails only as the writer does.
type Written = io::Result<()>;
