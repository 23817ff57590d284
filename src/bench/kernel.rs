//! `bench kernel`: the kernels of a model by rows, against what bounds them and against cuBLASLt.

use super::args::{PrintArgs, positive};
use super::cublaslt::CublasLt;
use super::drive::Beside;
use super::floors::Rates;
use super::gpu_state::Watch;
use super::kernels::{Groups, Times, add, dense};
use super::output::{Column, Format, heading, number, shared, text};
use super::over_bare::Stamped;
use super::ranges::List;
use super::row::{Floored, Subject};
use super::stats::summary;
use super::workload::{self, Random};
use super::{Kind, Point};
use crate::backend::timing::StepClock;
use crate::command::args::TimedArgs;
use crate::command::paths::Files;
use crate::command::spec::timed;
use crate::command::{Exit, interrupt, shown};
use crate::error::{Error, Result};
use crate::model::{DType, Model};
use crate::plan::cost::kind_cost;
use crate::plan::{Limits, OpKind, StepKind, StepShape};
use crate::runtime::{Engine, Logits};
use crate::session::opened::load;
use crate::session::{Opened, RunSpec, Target};
use crate::telemetry::{say, warn};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

#[derive(Debug, Clone, Args)]
pub struct KernelArgs {
    /// Time the kernels of this operation alone, named as in `inspect --calls` [default: all matrix products]. On a GPU each of
    /// its kernels then runs several times in a row, so that the table also has its time with weights in the L2 cache; kernels of
    /// experts and of sampling run once
    #[arg(value_name = "NAME", value_parser = operations())]
    name: Option<OpKind>,
    /// Tokens of the steps that are timed: decode steps where a decode bucket has room for so many, else steps of one prompt
    #[arg(long = "tokens", alias = "rows", value_name = "LIST", value_parser = positive, default_value = "1-8192*2")]
    rows: List,
    /// Runs of each kind and size of step; a run is some 20 decode steps, or 4 steps of one prompt
    #[arg(long, short, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// Types of matrix inputs [default: f32 on the CPU, bf16 on GPUs]
    #[arg(
        long,
        value_name = "TYPES",
        value_delimiter = ',',
        help_heading = "Model and device"
    )]
    dtype: Vec<DType>,
    #[command(flatten)]
    timed: TimedArgs,
    #[command(flatten)]
    print: PrintArgs,
}

fn operations() -> impl TypedValueParser<Value = OpKind> {
    PossibleValuesParser::new(OpKind::ALL.map(OpKind::name)).map(|name| {
        let mut all = OpKind::ALL.into_iter();
        all.find(|kind| kind.name() == name)
            .expect("a name of the list")
    })
}

/// Tokens of a decoded sequence's prompt: so few that all prompts are in one step.
const PROMPT_TOKENS: u32 = 4;
const NEW_TOKENS: u32 = 24;
/// Runs of a row count before those that count.
const WARM_UPS: u64 = 1;

const COLUMNS: &[Column] = &[
    Column::setting("dtype", "dtype"),
    Column::setting("step", "kind"),
    Column::field("tokens", "rows"),
    Column::field("operations", "operations"),
    Column::field("weights", "weights").rank(4),
    Column::field("kernels", "kernels").rank(5),
    Column::field("us", "us"),
    Column::field("L2 warm", "warm_us"),
    Column::field("bound", "floor_bound").rank(6),
    Column::text("floor us", |row| {
        Some(number(row["floor_ms"].as_f64()? * 1e3))
    })
    .rank(2),
    Column::share("of floor", "floor_fraction"),
    Column::field("FLOP/B", "intensity").rank(7),
    Column::field("TFLOP/s", "tflops"),
    Column::field("TB/s", "tbytes_per_s"),
    Column::field("cuBLASLt us", "cublaslt_us").rank(1),
    Column::field("its us / ours", "cublaslt_ratio").rank(1),
];

/// A result: the kernels of some operations at one number of rows. What only a known GPU, or one with cuBLASLt, has is null
/// elsewhere.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Row {
    #[serde(flatten)]
    subject: Subject,
    repeats: u32,
    dtype: &'static str,
    kernel_variants: Option<String>,
    kind: &'static str,
    rows: u32,
    operations: String,
    weights: Option<String>,
    per_step: usize,
    kernels: Option<String>,
    steps: usize,
    us: Option<f64>,
    warm_us: Option<f64>,
    #[serde(flatten)]
    floor: Floored,
    intensity: Option<f64>,
    tflops: Option<f64>,
    tbytes_per_s: Option<f64>,
    cublaslt_us: Option<f64>,
    cublaslt_ratio: Option<f64>,
}

/// Runs `bench kernel`.
///
/// # Errors
/// Wrong usage; a run failed; results cannot be written.
pub fn run(args: &KernelArgs) -> Result<Exit> {
    let spec = |dtype| timed("bench kernel", dtype, &args.timed);
    let first = spec(args.dtype.first().copied())?;
    Files::default()
        .runs(&first.model, &args.timed.buckets)
        .writes("--output", args.print.output.as_deref())
        .keep_apart()?;
    let out = args.print.open()?;
    let interrupt = interrupt::flag();
    let model = load(&first)?;
    interrupt::look();
    let mut rows: Vec<Value> = vec![];
    for dtype in super::args::options(&args.dtype) {
        for kind in [StepKind::Decode, StepKind::Mixed] {
            let Some(table) = Table::open(args, spec(dtype)?, kind)? else {
                continue;
            };
            let found = table.measure(&model, &interrupt)?;
            rows.extend(found.iter().map(|row| json!(row)));
        }
    }
    if rows.is_empty() {
        let name = args.name.map_or("", OpKind::name);
        return Err(Error::Usage(format!(
            "bench kernel {name}: the model has no such operation"
        )));
    }
    let (format, width) = (args.print.format(), args.print.width());
    let mut columns = COLUMNS.to_vec();
    let settings = shared(&rows, &mut columns);
    let mut shown = text(&rows, format, &columns, width);
    if format == Format::Md {
        let heading = heading(&rows);
        shown = format!(
            "{heading}{settings}. TB/s of bytes that have to come from memory, routing even.\n\n{shown}"
        );
    }
    out.finish_with(shown.as_bytes())?;
    Ok(Exit::Done)
}

/// The row counts of one kind of step in one type, on an engine of their own.
struct Table<'a> {
    args: &'a KernelArgs,
    kind: StepKind,
    rows: Vec<u32>,
    opened: Opened,
    /// The operation whose kernels run several times in a row.
    in_a_row: Option<OpKind>,
}

/// The sequences whose steps of a kind have so many rows: those that decode one each, or one whose prompt has as many.
fn point(kind: StepKind, rows: u32) -> Point {
    match kind {
        StepKind::Decode => Point::of(Kind::Decode, rows, PROMPT_TOKENS, NEW_TOKENS),
        StepKind::Mixed | StepKind::Score => Point::of(Kind::Decode, 1, rows, 1),
    }
}

/// Whether the kernels of an operation can run again right behind themselves. Those of experts, and of sampling, leave words for
/// each other that a kernel of another operation clears.
fn runs_again(operation: OpKind) -> bool {
    !matches!(
        operation,
        OpKind::FfnNorm
            | OpKind::Router
            | OpKind::ExpertGateUp
            | OpKind::ExpertDown
            | OpKind::Sample
    )
}

impl<'a> Table<'a> {
    /// `None`: no row count is measured in steps of this kind. Those that decode buckets hold are in decode steps, the
    /// others in steps of one prompt.
    fn open(args: &'a KernelArgs, mut spec: RunSpec, kind: StepKind) -> Result<Option<Self>> {
        let config = Arc::new(spec.model.config()?.0);
        let bucket_sizes = spec.plan(&config)?.bucket_sizes;
        let largest = |kind| bucket_sizes.of(kind).last().copied().unwrap_or(0);
        let (decoded, prompts) = (largest(StepKind::Decode), largest(StepKind::Mixed));
        let mut rows = args.rows.0.clone();
        if let Some(rows) = rows.iter().find(|&&rows| rows > decoded.max(prompts)) {
            return Err(Error::Usage(format!(
                "--tokens {rows}: expected at most {}, the largest step; --bucket-file names others",
                decoded.max(prompts)
            )));
        }
        rows.retain(|&rows| (rows <= decoded) == (kind == StepKind::Decode));
        rows.sort_unstable();
        rows.dedup();
        let Some(&most) = rows.last() else {
            return Ok(None);
        };
        let largest = point(kind, most);
        // Room for all prompts of a decode, or for the one.
        let (seqs, prompt_tokens) = (largest.batch, largest.prompt_tokens);
        spec.limits = Limits {
            max_seqs: Some(seqs),
            max_context: Some(prompt_tokens + largest.new_tokens),
            step_tokens: Some((seqs * prompt_tokens).max(seqs + 64).min(prompts)),
            ..Limits::default()
        };
        let mut opened = Opened::new(spec, false)?;
        opened.only(&[StepKind::Decode, StepKind::Mixed]);
        let on_gpu = !matches!(opened.target, Target::Cpu(_));
        Ok(Some(Self {
            args,
            kind,
            rows,
            in_a_row: args.name.filter(|&name| on_gpu && runs_again(name)),
            opened,
        }))
    }

    /// A row for each row count and group of operations.
    fn measure(&self, model: &Arc<Model>, interrupt: &AtomicBool) -> Result<Vec<Row>> {
        // First: opening it may wait for all that the GPU runs, and an engine's scheduler runs as long as the engine.
        let library = CublasLt::of(&self.opened.target)?;
        let (mut engine, mut clock) = self.opened.engine_timed(model, self.in_a_row)?;
        let mut measured = vec![];
        for &rows in &self.rows {
            if !self.args.timed.quiet {
                let dtype = self.opened.spec.device.dtype().name();
                let kind = self.kind.name();
                say(&format!("{dtype}, {kind} steps of {rows} tokens"));
            }
            let found = self.groups(&mut *engine, &mut *clock, rows, interrupt)?;
            measured.extend(found.into_iter().map(|group| (rows, group)));
        }
        // Its memory is the library's now.
        drop(clock);
        drop(engine);
        let opened = &self.opened;
        let watch = Watch::new(opened.targets());
        let subject = Subject::new(opened, &watch, WARM_UPS as u32, self.args.timed.seed)?;
        let row = |(rows, group)| self.row(&subject, rows, group, library.as_ref());
        measured.into_iter().map(row).collect()
    }

    /// The kernels of steps of `rows` rows, each timed in all of them.
    fn groups(
        &self,
        engine: &mut dyn Engine,
        clock: &mut dyn StepClock,
        rows: u32,
        interrupt: &AtomicBool,
    ) -> Result<Groups> {
        let (kind, point) = (self.kind, point(self.kind, rows));
        // A prompt is one step, of which some are left untimed.
        let steps = if kind == StepKind::Decode { 1 } else { 4 };
        let runs = u64::from(self.args.repeats) * steps;
        let vocabulary = self.opened.config.vocab_size as u32;
        let (mut groups, mut timed) = (Groups::new(), false);
        for run in 0..WARM_UPS + runs {
            let mut random = Random::new(self.args.timed.seed, run);
            let arrivals = workload::arrivals(&point, Logits::None, vocabulary, &mut random);
            let beside = Beside::nothing(interrupt);
            let ran = Stamped::run(engine, clock, &arrivals, &beside, (kind, rows))?;
            for times in ran.steps().filter(|_| run >= WARM_UPS) {
                timed = true;
                add(&mut groups, times, self.args.name, self.in_a_row.is_some());
            }
        }
        if !timed {
            return Err(Error::Runtime(format!(
                "bench kernel: no {} step of {rows} tokens was timed in {runs} runs, expected each kernel's times",
                kind.name()
            )));
        }
        Ok(groups)
    }

    fn row(
        &self,
        subject: &Subject,
        rows: u32,
        ((name, counted), times): ((String, Vec<OpKind>), Times),
        library: Option<&CublasLt>,
    ) -> Result<Row> {
        let opened = &self.opened;
        let (config, precision) = (&opened.config, opened.precision()?);
        let point = point(self.kind, rows);
        let shape = StepShape {
            kind: self.kind,
            rows,
            context: point.prompt_tokens + point.new_tokens / 2,
        };
        let gpu = opened.target.device().known();
        let rates = gpu.map(|gpu| gpu.rates(precision));
        let cost = |&kind: &OpKind| kind_cost(config, kind, &shape, precision);
        let by = rates.clone().unwrap_or_else(Rates::unlimited);
        let least = by.least(counted.iter().map(cost));
        let intensity = (least.bytes > 0.0).then(|| least.flops / least.bytes);
        let median = |us: &[f64]| summary(us).map(|us| us.median);
        let us = median(&times.us);
        let (a_second, dtype) = (us.map(|us| 1e6 / us), opened.spec.device.dtype());
        let dense = dense(&counted, config, &shape, precision);
        let library_us = match (library, dense) {
            // What was measured is not lost by a product that the library refuses.
            (Some(library), Some(dense)) => library.us(dense, dtype).unwrap_or_else(|error| {
                warn(&shown(&error));
                None
            }),
            _ => None,
        };
        Ok(Row {
            subject: subject.clone(),
            repeats: self.args.repeats,
            dtype: dtype.name(),
            kernel_variants: opened.kernel_variants.clone(),
            kind: self.kind.name(),
            rows,
            operations: name,
            weights: dense.map(|of| format!("{}x{}", of.outputs, of.inner)),
            per_step: times.per_step,
            kernels: Some(times.kernels).filter(|names| !names.is_empty()),
            steps: times.us.len(),
            us,
            warm_us: median(&times.warm_us),
            floor: Floored::of(
                rates.as_ref(),
                Some(least),
                us.map_or(f64::NAN, |us| us / 1e3),
            ),
            intensity,
            tflops: a_second.map(|steps| least.flops * steps / 1e12),
            tbytes_per_s: a_second.map(|steps| least.bytes * steps / 1e12),
            cublaslt_us: library_us,
            cublaslt_ratio: library_us.zip(us).map(|(library, us)| library / us),
        })
    }
}
