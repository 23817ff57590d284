//! `inspect`: a plan with each operation's shapes, bytes, FLOPs and roofline time, and its graphs as a GPU was given
//! them, as tables, JSON or pictures.

mod calls;
mod command;
mod dot;
pub mod graphs;
mod json;
mod roofline;
mod svg;
mod text;

pub(super) use self::command::run;
use super::args::inspect::{Format, InspectArgs};
use super::paths::open_asked;
use crate::backend::cuda::listed::calls::StepCalls;
use crate::backend::cuda::tuning::gpu::{Bound, Gpu, H200};
use crate::error::{Error, Result};
use crate::files::Out;
use crate::plan::cost::op_cost;
use crate::plan::{Cost, OpKind, Plan, Precision, Stage, StepKind, StepShape};
use crate::trace::About;
use graphs::OnGpu;
use std::io::{self, Write};
use std::ops::Range;

impl InspectArgs {
    /// The files that were asked for.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn open(&self) -> Result<Pictures> {
        Ok(Pictures {
            dot: open_asked(self.dot.as_deref())?,
            svg: open_asked(self.svg.as_deref())?,
        })
    }

    /// Prints `plan` to `out`, with what else is `known` of it, and writes the `pictures` that are still to be made.
    ///
    /// # Errors
    /// [`Error::Usage`] for rows that no bucket holds or a stage that there is not, [`Error::Io`] where `out` or a file
    /// cannot be written.
    pub fn run(
        &self,
        plan: &Plan,
        precision: Precision,
        known: Known<'_>,
        pictures: Pictures,
        out: &mut dyn Write,
    ) -> Result<()> {
        let Known {
            on_gpu,
            measured,
            shares,
        } = known;
        let known = on_gpu.and_then(|on_gpu| on_gpu.known);
        let view = View {
            plan,
            precision,
            gpu: self.gpu.or(known).unwrap_or(&H200),
            kind: self.kind,
            context: self.context,
            rows: self.rows(plan)?,
            each_layer: self.layers,
            on_gpu,
            measured,
            shares,
        };
        let picture = self.picture(plan)?;
        // Both are made before one is written.
        let mut made = vec![];
        if let Some(file) = pictures.dot {
            made.push((file, text_of(|text| dot::write(&view, text))?));
        }
        if let Some(file) = pictures.svg {
            made.push((file, text_of(|text| svg::write(&view, picture, text))?));
        }
        for (file, text) in made {
            file.finish_with(&text)?;
        }
        match self.format() {
            Format::Text if self.shows_roofline() => roofline::text(&view, out),
            Format::Text => text::write(&view, out),
            Format::Json => json::write(&view, out),
            Format::Dot => dot::write(&view, out),
        }
        .and_then(|()| out.flush())
        .map_err(|source| Error::io("standard output", source))
    }

    /// What --dot and --svg show.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn picture(&self, plan: &Plan) -> Result<Picture> {
        let (stage, stages) = (self.stage, plan.stages.len());
        if stage >= stages {
            return Err(Error::Usage(format!(
                "--stage {stage}: expected 0 to {}, the stages of this plan",
                stages - 1
            )));
        }
        let rows = self.rows(plan)?.first().copied().unwrap_or(1);
        Ok(Picture {
            stage,
            kind: self.kind,
            rows: plan.ladders.bucket(self.kind, rows).unwrap_or(rows),
        })
    }

    fn shows_roofline(&self) -> bool {
        self.roofline || self.measured.is_some()
    }

    fn format(&self) -> Format {
        match self.json {
            true => Format::Json,
            false => self.format,
        }
    }

    /// The buckets of the rows asked for, each once.
    ///
    /// # Errors
    /// [`Error::Usage`] for rows that no bucket holds.
    pub fn buckets(&self, plan: &Plan) -> Result<Vec<u32>> {
        let rows = self.rows(plan)?.into_iter();
        let mut buckets: Vec<u32> = rows
            .filter_map(|rows| plan.ladders.bucket(self.kind, rows))
            .collect();
        buckets.dedup();
        Ok(buckets)
    }

    /// Prints kernel calls to `out`.
    ///
    /// # Errors
    /// [`Error::Usage`] for a format that lists none; [`Error::Io`] where `out` cannot be written.
    pub fn list_calls(&self, plan: &Plan, steps: &[StepCalls], out: &mut dyn Write) -> Result<()> {
        match self.format() {
            Format::Json => calls::json(steps, out),
            Format::Text => calls::text(plan, steps, out),
            Format::Dot => {
                return Err(Error::Usage(
                    "--calls: a list, and no graph; expected --format text or json".into(),
                ));
            }
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
            _ if self.shows_roofline() => ladder.to_vec(),
            StepKind::Decode => [1, 8, 32, 128, 256]
                .into_iter()
                .filter(|&rows| rows <= largest)
                .collect(),
            StepKind::Mixed | StepKind::Score => ladder.to_vec(),
        })
    }
}

/// One graph: a stage's step of one bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Picture {
    pub stage: usize,
    pub kind: StepKind,
    /// Of the bucket.
    pub rows: u32,
}

/// The files of --dot and --svg, where they are asked for and not written yet.
pub struct Pictures {
    pub dot: Option<Out>,
    pub svg: Option<Out>,
}

fn text_of(write: impl FnOnce(&mut dyn Write) -> Written) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    write(&mut text).map_err(|source| Error::io("a picture", source))?;
    Ok(text)
}

/// What is known of a plan beside it.
#[derive(Clone, Copy, Default)]
pub struct Known<'a> {
    /// What a GPU was given for it, where one was asked.
    pub on_gpu: Option<&'a OnGpu>,
    /// A run whose kernels were timed.
    pub measured: Option<&'a About>,
    /// Of several devices, what each does.
    pub shares: &'a [Share],
}

/// What one of several devices does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    pub device: String,
    pub stages: Range<usize>,
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
    on_gpu: Option<&'a OnGpu>,
    /// A run whose kernels were timed.
    measured: Option<&'a About>,
    shares: &'a [Share],
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

    /// The cost of one operation of a group.
    fn each(&self, group: &Group, rows: u32) -> Cost {
        let shape = self.shape(rows);
        op_cost(&self.plan.config, group.kind, &shape, self.precision)
    }

    /// The cost of all operations of a group together.
    fn cost(&self, group: &Group, rows: u32) -> Cost {
        self.each(group, rows) * group.count()
    }

    /// Bytes that all operations of a group have to move between memory and the GPU.
    fn memory_bytes(&self, group: &Group, rows: u32) -> f64 {
        self.gpu.memory_bytes(&self.each(group, rows)) * group.count()
    }

    /// FLOPs a byte of these; `None` where there are no such bytes.
    fn intensity(&self, group: &Group, rows: u32) -> Option<f64> {
        let bytes = self.memory_bytes(group, rows);
        (bytes > 0.0).then(|| self.cost(group, rows).flops / bytes)
    }

    /// The roofline of all operations of a group together, in microseconds.
    fn roofline_us(&self, group: &Group, rows: u32) -> (f64, Bound) {
        let each = self.each(group, rows);
        let (us, bound) = self.gpu.roofline_us(&each, self.precision);
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
