//! `bench gemm`: every product of a model by rows, with the kernels that serve there, against what bounds it and against
//! cuBLASLt.

mod yardstick;

use super::{BUILD_PROFILE, now};
use crate::backend::cuda::tuning::gpu::Rates;
use crate::backend::timing::StepClock;
use crate::bench::clock::Clocks;
use crate::bench::drive::{self, Beside};
use crate::bench::host::Busy;
use crate::bench::output::{Format, GEMM, text};
use crate::bench::products::{self, Product, Steps};
use crate::bench::workload::{self, Random};
use crate::bench::{Kind, Point};
use crate::cli::args::bench::GemmArgs;
use crate::cli::paths::Files;
use crate::cli::spec::timed;
use crate::cli::{Exit, command_line, interrupt};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::plan::cost::op_cost;
use crate::plan::params::params;
use crate::plan::{Limits, OpKind, StepKind, StepShape};
use crate::runtime::{Engine, Logits};
use crate::session::Opened;
use crate::session::opened::load;
use crate::sys::abi;
use crate::telemetry::say;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use yardstick::{Yardstick, library};

/// Of what `--format json` prints: another number is another layout.
const VERSION: u32 = 1;
/// Of a decoded sequence: so short that all prompts are in one step.
const PROMPT_TOKENS: u32 = 4;
const NEW_TOKENS: u32 = 24;
/// Runs of a row count before those that count.
const WARM_UPS: u64 = 1;

pub fn run(args: &GemmArgs) -> Result<Exit> {
    let spec = |dtype| {
        let device = args.device.clone();
        timed("bench gemm", &args.model.model, device, dtype, &args.timed)
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
    let dtypes = match &args.dtype[..] {
        [] => vec![None],
        dtypes => dtypes.iter().copied().map(Some).collect(),
    };
    let mut rows = vec![];
    for dtype in dtypes {
        for kind in [StepKind::Decode, StepKind::Mixed] {
            let Some(table) = Table::open(args, spec(dtype)?, kind)? else {
                continue;
            };
            let Some(found) = table.measure(&model, &interrupt)? else {
                say("tailgraph: interrupted");
                return Ok(Exit::Interrupted);
            };
            rows.extend(found);
        }
    }
    if rows.is_empty() {
        return Err(Error::Usage(
            "--rows: found none that a step of the bucket file's ladders has".into(),
        ));
    }
    let (format, width) = (args.print.format(), args.print.width());
    let mut shown = text(&rows, format, GEMM, width);
    if format == Format::Md {
        shown = format!("{}\n\n{shown}", heading(&rows));
    }
    out.finish_with(shown.as_bytes())?;
    Ok(Exit::Done)
}

fn heading(rows: &[Value]) -> String {
    let of = |name: &str| rows[0][name].as_str().unwrap_or("unknown").to_owned();
    format!(
        "Products of {} on {}, {} build of tailgraph {}, {}. Bounds: {}. TB/s of bytes that have to come from memory, routing even.",
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
    args: &'a GemmArgs,
    kind: StepKind,
    rows: Vec<u32>,
    opened: Opened,
}

impl<'a> Table<'a> {
    /// `None`: no row count is measured in steps of this kind. Those that the decode ladder holds are in decode steps, the
    /// others in steps of one prompt.
    fn open(
        args: &'a GemmArgs,
        mut spec: crate::session::RunSpec,
        kind: StepKind,
    ) -> Result<Option<Self>> {
        let config = Arc::new(spec.model.config()?.0);
        let ladders = spec.plan(&config)?.ladders;
        let largest = |kind| ladders.of(kind).last().copied().unwrap_or(0);
        let (decoded, prompts) = (largest(StepKind::Decode), largest(StepKind::Mixed));
        if let Some(rows) = args
            .rows
            .0
            .iter()
            .find(|&&rows| rows > decoded.max(prompts))
        {
            return Err(Error::Usage(format!(
                "--rows {rows}: expected at most {}, the largest step; --bucket-file names others",
                decoded.max(prompts)
            )));
        }
        let mut rows = args.rows.0.clone();
        rows.retain(|&rows| (rows <= decoded) == (kind == StepKind::Decode));
        rows.sort_unstable();
        rows.dedup();
        let Some(&most) = rows.last() else {
            return Ok(None);
        };
        let (max_seqs, max_context) = match kind {
            StepKind::Decode => (most, PROMPT_TOKENS + NEW_TOKENS),
            _ => (1, most + 1),
        };
        // Room for all prompts of a decode, or for the one.
        let step_tokens = most
            * if kind == StepKind::Decode {
                PROMPT_TOKENS
            } else {
                1
            };
        spec.limits = Limits {
            max_seqs: Some(max_seqs),
            max_context: Some(max_context),
            step_tokens: Some(step_tokens.max(max_seqs + 64).min(prompts)),
            ..Limits::default()
        };
        let mut opened = Opened::new(spec, false)?;
        opened.only(&[StepKind::Decode, StepKind::Mixed]);
        Ok(Some(Self {
            args,
            kind,
            rows,
            opened,
        }))
    }

    /// A row for each row count and product. `None`: interrupted.
    fn measure(&self, model: &Arc<Model>, interrupt: &AtomicBool) -> Result<Option<Vec<Value>>> {
        // First: opening it may wait for all that the GPU runs, and an engine's scheduler runs as long as the engine.
        let library = library(&self.opened.target)?;
        let (mut engine, mut clock) = self.opened.engine_timed(model)?;
        let mut measured = vec![];
        for &rows in &self.rows {
            if !self.args.timed.quiet {
                let dtype = self.opened.spec.device.dtype().name();
                say(&format!(
                    "{dtype}, {} steps of {rows} rows",
                    self.kind.name()
                ));
            }
            let Some(found) = self.products(&mut engine, &mut *clock, rows, interrupt)? else {
                return Ok(None);
            };
            measured.push((rows, found));
        }
        // Its memory is the library's now.
        drop(clock);
        drop(engine);
        let mut library = Yardstick::new(library, self.opened.spec.device.dtype());
        let mut all = vec![];
        for (rows, found) in measured {
            for product in &found {
                all.push(self.row(rows, product, &mut library)?);
            }
        }
        Ok(Some(all))
    }

    /// The products of steps of `rows` rows, each timed in all of them.
    fn products(
        &self,
        engine: &mut Engine,
        clock: &mut dyn StepClock,
        rows: u32,
        interrupt: &AtomicBool,
    ) -> Result<Option<Vec<Product>>> {
        let wanted = Steps {
            kind: self.kind,
            rows,
        };
        let (batch, prompt_tokens, new_tokens) = match self.kind {
            StepKind::Decode => (rows, PROMPT_TOKENS, NEW_TOKENS),
            _ => (1, rows, 1),
        };
        let point = Point::of(Kind::Decode, batch, prompt_tokens, new_tokens);
        // A prompt is one step, of which some are left untimed.
        let runs = match self.kind {
            StepKind::Decode => u64::from(self.args.repeats),
            _ => u64::from(self.args.repeats) * 4,
        };
        let vocabulary = self.opened.config.vocab_size as u32;
        let mut products = vec![];
        for run in 0..WARM_UPS + runs {
            let mut random = Random::new(self.args.timed.seed, run);
            let arrivals = workload::at_once(&point, batch, Logits::None, vocabulary, &mut random);
            let beside = Beside {
                most_in_flight: None,
                clocks: Clocks::unknown(),
                busy: &Busy::default(),
                joules: &|| None,
                interrupt,
            };
            let mut steps: HashMap<u64, Steps> = HashMap::new();
            let mut heard = |record: &abi::tg_trace| {
                let outcome = &record.outcome;
                if outcome.action == abi::TG_ACTION_STEP {
                    let kind = match outcome.kind {
                        abi::TG_KIND_DECODE => StepKind::Decode,
                        abi::TG_KIND_MIXED => StepKind::Mixed,
                        _ => StepKind::Score,
                    };
                    let rows = outcome.rows;
                    steps.insert(outcome.step, Steps { kind, rows });
                }
            };
            if drive::run_heard(engine, &arrivals, &beside, &mut heard)?.is_none() {
                return Ok(None);
            }
            let counts = run >= WARM_UPS;
            let whole = |step| counts && steps.get(&step) == Some(&wanted);
            products::read(clock, whole, &mut products)?;
        }
        if products.is_empty() {
            return Err(Error::Runtime(format!(
                "bench gemm: no {} step of {rows} rows was timed in {runs} runs, expected times of each kernel: `trace --kernels` shows whether this device leaves any",
                self.kind.name()
            )));
        }
        Ok(Some(products))
    }

    fn row(&self, rows: u32, product: &Product, library: &mut Yardstick) -> Result<Value> {
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
        let cost = |&kind: &OpKind| op_cost(config, kind, &shape, precision);
        let gpu = opened.target.device().known();
        let rates = gpu.map_or_else(Rates::unlimited, |gpu| gpu.rates(precision));
        let least = rates.least(product.counted.iter().map(cost));
        let (bytes, flops) = (least.bytes, least.flops);
        let floor_us = gpu.map(|_| least.us());
        let us = product.median_us();
        let a_second = |amount: f64| us.map(|us| amount / us * 1e6);
        let dense = product.dense(config, &shape);
        let library_us = match dense {
            Some(dense) => library.us(dense)?,
            None => None,
        };
        let bound = gpu.map(|gpu| match flops / bytes.max(1.0) < gpu.ridge(precision) {
            true => "memory",
            false => "compute",
        });
        let shapes = product.counted.iter().filter_map(|&kind| {
            let weights = params(config, kind);
            let sizes: Vec<String> = weights
                .first()?
                .shape
                .iter()
                .map(usize::to_string)
                .collect();
            (sizes.len() > 1 && !matches!(kind, OpKind::ShortConv)).then(|| sizes.join("x"))
        });
        Ok(json!({
            "schema": VERSION,
            "build_version": env!("CARGO_PKG_VERSION"),
            "build_profile": BUILD_PROFILE,
            "command": command_line(),
            "test_time": now(),
            "model": opened.spec.model.to_string(),
            "device": opened.spec.device.name(),
            "device_info": opened.target.device().info().or_else(crate::bench::host::processor),
            "dtype": opened.spec.device.dtype().name(),
            "kernel_variants": opened.kernel_variants,
            "kind": self.kind.name(),
            "rows": rows,
            "bucket": opened.plan.ladders.bucket(self.kind, rows),
            "operations": product.name(),
            "weights": shapes.collect::<Vec<_>>().join(", "),
            "per_step": product.per_step,
            "kernels": (!product.kernels.is_empty()).then(|| product.kernels.join(", ")),
            "steps": product.us.len(),
            "us": us,
            "bytes": bytes.round(),
            "flops": flops.round(),
            "intensity": (bytes > 0.0).then(|| flops / bytes),
            "bound": bound,
            "floor_us": floor_us,
            "fraction": floor_us.zip(us).map(|(floor, us)| floor / us),
            "tflops": a_second(flops / 1e12),
            "tbytes_per_s": a_second(bytes / 1e12),
            "roofline_source": gpu.map(|gpu| format!("{}, {}", gpu.title, gpu.source)),
            "cublaslt_us": library_us,
            "cublaslt_tflops": library_us.zip(dense).map(|(us, dense)| dense.flops() / us / 1e6),
            "cublaslt_ratio": library_us.zip(us).map(|(library, us)| library / us),
        }))
    }
}
