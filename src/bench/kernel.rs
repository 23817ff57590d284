//! `bench kernel`: the kernels of a model by rows, against what bounds them and against cuBLASLt.

use super::args::{PrintArgs, positive};
use super::cublaslt::CublasLt;
use super::drive::{self, Beside};
use super::floors::Rates;
use super::host;
use super::kernels::{Group, add, median};
use super::output::{Column, Format, text};
use super::ranges::List;
use super::workload::{self, Random};
use super::{BUILD_PROFILE, Kind, Point, now};
use crate::backend::timing::StepClock;
use crate::command::args::{ModelArg, TimedArgs};
use crate::command::paths::Files;
use crate::command::spec::timed;
use crate::command::{Exit, command_line, interrupt};
use crate::error::{Error, Result};
use crate::model::tensors::matrix_shape;
use crate::model::{DType, Model};
use crate::plan::cost::op_cost;
use crate::plan::{Limits, OpKind, StepKind, StepShape};
use crate::quote;
use crate::runtime::{Engine, Logits};
use crate::session::opened::load;
use crate::session::{Opened, RunSpec, Target};
use crate::sys::abi;
use crate::telemetry::say;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

#[derive(Debug, Clone, Args)]
pub struct KernelArgs {
    /// The operation whose kernels are timed, as `inspect --calls` names it. On a GPU they run several times in a row within
    /// each step, so that there is a time with their weights in the L2 cache too; those of experts and of sampling run once [default: every product, once a step]
    #[arg(value_name = "NAME", value_parser = operations())]
    name: Option<OpKind>,
    /// Rows of the steps: decode steps where their ladder has as many, else one prompt of so many tokens
    #[arg(long, value_name = "LIST", value_parser = positive, default_value = "1-8192*2")]
    rows: List,
    /// Runs of each row count, of some 20 steps that decode or 4 of one prompt
    #[arg(long, short, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    #[command(flatten)]
    model: ModelArg,
    /// cpu, cuda, or cuda:N for a certain GPU [default: cuda where it can run, else cpu]
    #[arg(long, value_name = "DEVICE", help_heading = "Model and device")]
    device: Option<String>,
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

/// The layout of a result: another number is another one.
const VERSION: u32 = 1;
/// Tokens of a decoded sequence's prompt: so few that all prompts are in one step.
const PROMPT_TOKENS: u32 = 4;
const NEW_TOKENS: u32 = 24;
/// Runs of a row count before those that count.
const WARM_UPS: u64 = 1;

const COLUMNS: &[Column] = &[
    Column::field("dtype", "dtype").rank(3),
    Column::field("step", "kind"),
    Column::field("rows", "rows"),
    Column::field("operations", "operations"),
    Column::field("weights", "weights").rank(4),
    Column::field("kernels", "kernels").rank(5),
    Column::field("us", "us"),
    Column::field("L2 warm", "warm_us"),
    Column::field("bound", "bound").rank(6),
    Column::field("bound us", "floor_us").rank(2),
    Column::share("of it", "fraction"),
    Column::field("FLOP/B", "intensity").rank(7),
    Column::field("TFLOP/s", "tflops"),
    Column::field("TB/s", "tbytes_per_s"),
    Column::field("cuBLASLt us", "cublaslt_us").rank(1),
    Column::field("its TFLOP/s", "cublaslt_tflops").rank(2),
    Column::field("its us / ours", "cublaslt_ratio").rank(1),
];

/// A result: the kernels of some operations at one number of rows. What only a known GPU, or one with cuBLASLt, has is null
/// elsewhere.
#[derive(Serialize)]
struct Row {
    schema: u32,
    build_version: &'static str,
    build_profile: &'static str,
    command: String,
    test_time: String,
    model: String,
    device: &'static str,
    device_info: Option<String>,
    dtype: &'static str,
    kernel_variants: Option<String>,
    kind: &'static str,
    rows: u32,
    bucket: Option<u32>,
    operations: String,
    weights: String,
    per_step: usize,
    kernels: Option<String>,
    steps: usize,
    us: Option<f64>,
    warm_us: Option<f64>,
    bytes: f64,
    flops: f64,
    intensity: Option<f64>,
    bound: Option<&'static str>,
    floor_us: Option<f64>,
    fraction: Option<f64>,
    tflops: Option<f64>,
    tbytes_per_s: Option<f64>,
    roofline_source: Option<String>,
    cublaslt_us: Option<f64>,
    cublaslt_tflops: Option<f64>,
    cublaslt_ratio: Option<f64>,
}

/// Runs `bench kernel`.
///
/// # Errors
/// Wrong usage; a run failed; results cannot be written.
pub fn run(args: &KernelArgs) -> Result<Exit> {
    let spec = |dtype| {
        let device = args.device.clone();
        timed(
            "bench kernel",
            &args.model.model,
            device,
            dtype,
            &args.timed,
        )
    };
    let first = spec(args.dtype.first().copied())?;
    Files::default()
        .runs(&first.model, &args.timed.buckets)
        .writes("--output", args.print.output.as_deref())
        .keep_apart()?;
    let out = args.print.open()?;
    let interrupt = interrupt::flag();
    let model = load(&first.model)?;
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
        return Err(Error::Usage(match args.name {
            Some(name) => format!(
                "bench kernel {}: the model has no such operation",
                name.name()
            ),
            None => "--rows: found none that a step of the bucket file's ladders has".into(),
        }));
    }
    let mut shown = text(&rows, args.print.format(), COLUMNS, args.print.width());
    if args.print.format() == Format::Md {
        shown = format!("{}\n\n{shown}", heading(&rows));
    }
    out.finish_with(shown.as_bytes())?;
    Ok(Exit::Done)
}

fn heading(rows: &[Value]) -> String {
    let of = |name: &str| quote::visible(rows[0][name].as_str().unwrap_or("unknown"));
    format!(
        "Kernels of {} on {}, {} build of tailgraph {}, {}. Bounds: {}. TB/s of bytes that have to come from memory, routing even.",
        of("model"),
        of("device_info"),
        of("build_profile"),
        of("build_version"),
        of("test_time"),
        of("roofline_source"),
    )
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
    /// `None`: no row count is measured in steps of this kind. Those that the decode ladder holds are in decode steps, the
    /// others in steps of one prompt.
    fn open(args: &'a KernelArgs, mut spec: RunSpec, kind: StepKind) -> Result<Option<Self>> {
        let config = Arc::new(spec.model.config()?.0);
        let ladders = spec.plan(&config)?.ladders;
        let largest = |kind| ladders.of(kind).last().copied().unwrap_or(0);
        let (decoded, prompts) = (largest(StepKind::Decode), largest(StepKind::Mixed));
        let mut rows = args.rows.0.clone();
        if let Some(rows) = rows.iter().find(|&&rows| rows > decoded.max(prompts)) {
            return Err(Error::Usage(format!(
                "--rows {rows}: expected at most {}, the largest step; --bucket-file names others",
                decoded.max(prompts)
            )));
        }
        rows.retain(|&rows| (rows <= decoded) == (kind == StepKind::Decode));
        rows.sort_unstable();
        rows.dedup();
        let Some(&most) = rows.last() else {
            return Ok(None);
        };
        // Room for all prompts of a decode, or for the one.
        let (max_seqs, max_context, prompt_rows) = match kind {
            StepKind::Decode => (most, PROMPT_TOKENS + NEW_TOKENS, most * PROMPT_TOKENS),
            _ => (1, most + 1, most),
        };
        spec.limits = Limits {
            max_seqs: Some(max_seqs),
            max_context: Some(max_context),
            step_tokens: Some(prompt_rows.max(max_seqs + 64).min(prompts)),
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
                say(&format!("{dtype}, {kind} steps of {rows} rows"));
            }
            let found = self.groups(&mut engine, &mut *clock, rows, interrupt)?;
            measured.extend(found.into_iter().map(|group| (rows, group)));
        }
        // Its memory is the library's now.
        drop(clock);
        drop(engine);
        let all = measured.iter();
        let all = all.map(|(rows, group)| self.row(*rows, group, library.as_ref()));
        all.collect()
    }

    /// The kernels of steps of `rows` rows, each timed in all of them.
    fn groups(
        &self,
        engine: &mut Engine,
        clock: &mut dyn StepClock,
        rows: u32,
        interrupt: &AtomicBool,
    ) -> Result<Vec<Group>> {
        let repeats = u64::from(self.args.repeats);
        // A prompt is one step, of which some are left untimed.
        let (batch, prompt_tokens, new_tokens, runs) = match self.kind {
            StepKind::Decode => (rows, PROMPT_TOKENS, NEW_TOKENS, repeats),
            _ => (1, rows, 1, repeats * 4),
        };
        let point = Point::of(Kind::Decode, batch, prompt_tokens, new_tokens);
        let vocabulary = self.opened.config.vocab_size as u32;
        let (mut groups, mut timed) = (vec![], false);
        for run in 0..WARM_UPS + runs {
            let mut random = Random::new(self.args.timed.seed, run);
            let arrivals = workload::arrivals(&point, Logits::None, vocabulary, &mut random);
            let beside = Beside::nothing(interrupt);
            let mut steps: HashMap<u64, (u32, u32)> = HashMap::new();
            let mut heard = |abi::tg_trace { outcome, .. }: &abi::tg_trace| {
                if outcome.action == abi::TG_ACTION_STEP {
                    steps.insert(outcome.step, (outcome.kind, outcome.rows));
                }
            };
            drive::run(engine, &arrivals, &beside, &mut heard)?;
            while let Some(times) = clock.next()? {
                let wanted = steps.get(&times.step) == Some(&(self.kind as u32, rows));
                if run >= WARM_UPS && wanted && !times.at.is_empty() {
                    timed = true;
                    add(&mut groups, &times, self.args.name, self.in_a_row.is_some());
                }
            }
        }
        if !timed {
            return Err(Error::Runtime(format!(
                "bench kernel: no {} step of {rows} rows was timed in {runs} runs, expected times of each kernel: `trace --kernels` shows whether this device leaves any",
                self.kind.name()
            )));
        }
        Ok(groups)
    }

    fn row(&self, rows: u32, group: &Group, library: Option<&CublasLt>) -> Result<Row> {
        let opened = &self.opened;
        let (config, precision) = (&opened.config, opened.precision()?);
        let context = match self.kind {
            StepKind::Decode => PROMPT_TOKENS + NEW_TOKENS / 2,
            _ => rows,
        };
        let shape = StepShape {
            kind: self.kind,
            rows,
            context,
        };
        let gpu = opened.target.device().known();
        let rates = gpu.map(|gpu| gpu.rates(precision));
        let cost = |&kind: &OpKind| op_cost(config, kind, &shape, precision);
        let by = rates.clone().unwrap_or_else(Rates::unlimited);
        let least = by.least(group.counted.iter().map(cost));
        let floor_us = rates.as_ref().map(|_| least.us());
        let intensity = (least.bytes > 0.0).then(|| least.flops / least.bytes);
        let (us, dtype) = (median(&group.us), opened.spec.device.dtype());
        let a_second = |amount: f64| us.map(|us| amount / us * 1e6);
        let dense = group.dense(config, &shape);
        let library_us = match (library, dense) {
            (Some(library), Some(dense)) => library.best_us(dense, dtype)?,
            _ => None,
        };
        let shapes = group.counted.iter().filter_map(|&kind| {
            let sizes: Vec<String> = matrix_shape(config, kind)?
                .iter()
                .map(usize::to_string)
                .collect();
            Some(sizes.join("x"))
        });
        Ok(Row {
            schema: VERSION,
            build_version: env!("CARGO_PKG_VERSION"),
            build_profile: BUILD_PROFILE,
            command: command_line(),
            test_time: now(),
            model: opened.spec.model.to_string(),
            device: opened.spec.device.name(),
            device_info: opened.target.device().info().or_else(host::processor),
            dtype: dtype.name(),
            kernel_variants: opened.kernel_variants.clone(),
            kind: self.kind.name(),
            rows,
            bucket: opened.plan.ladders.bucket(self.kind, rows),
            operations: group.name(),
            weights: shapes.collect::<Vec<_>>().join(", "),
            per_step: group.per_step,
            kernels: (!group.kernels.is_empty()).then(|| group.kernels.join(", ")),
            steps: group.us.len(),
            us,
            warm_us: median(&group.warm_us),
            bytes: least.bytes.round(),
            flops: least.flops.round(),
            intensity,
            bound: rates.as_ref().map(|_| least.bound().name()),
            floor_us,
            fraction: floor_us.zip(us).map(|(floor, us)| floor / us),
            tflops: a_second(least.flops / 1e12),
            tbytes_per_s: a_second(least.bytes / 1e12),
            roofline_source: rates.map(|rates| rates.source),
            cublaslt_us: library_us,
            cublaslt_tflops: library_us
                .zip(dense)
                .map(|(us, dense)| dense.flops() / us / 1e6),
            cublaslt_ratio: library_us.zip(us).map(|(library, us)| library / us),
        })
    }
}
