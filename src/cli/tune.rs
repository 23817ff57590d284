//! The `tune` command: measures which kernels serve each decode bucket best, and writes that down as a file of kernel
//! variants. The measuring is `bench::tuning`'s.

use super::Exit;
use super::args::TuneArgs;
use crate::backend::cuda::device::GpuDevice;
use crate::backend::cuda::driver::gpu::expect_kernels;
use crate::backend::cuda::driver::machine::Gpu;
use crate::backend::cuda::tuning::variants::{Architecture, Entry};
use crate::backend::cuda::tuning::{KernelFile, Shape};
use crate::backend::device::EngineSpec;
use crate::bench::drive::{self, Beside};
use crate::bench::tuning::{Found, engine};
use crate::bench::workload::{self, Random};
use crate::bench::{Kind, Point};
use crate::cli::args::{BucketArgs, TimedArgs};
use crate::cli::paths::{Files, is_stdio, open_asked};
use crate::cli::spec::timed;
use crate::cli::table::Table;
use crate::cli::{interrupt, print};
use crate::error::{Error, Result};
use crate::model::{DType, Model};
use crate::plan::{BucketSizes, Limits, Plan, StepKind};
use crate::runtime::Logits;
use crate::session::opened::load;
use crate::session::{Opened, RunSpec, Target};
use crate::telemetry::say;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Tokens of each prompt.
const PROMPT_TOKENS: u32 = 32;

/// New ones behind [`PROMPT_TOKENS`]: several steps that all sequences are in.
const NEW_TOKENS: u32 = 32;

/// A step has room for all sequences and so many tokens of prompts, by default.
const CHUNK_TOKENS: u32 = 64;

struct Tuned {
    dtype: DType,
    found: Found,
}

pub fn run(args: &TuneArgs) -> Result<Exit> {
    expect_kernels("tune")?;
    let interrupt = interrupt::flag();
    let spec = run_spec(args, DType::BF16)?;
    let config = Arc::new(spec.model.config()?.0);
    let plan = spec.plan(&config)?;
    let asked = asked(args, &plan)?;
    let Target::Gpu(GpuDevice { gpu, .. }) = Target::open(&spec.device)? else {
        return Err(Error::Usage(
            "tune: the CPU has one kernel for everything; expected --device cuda and a GPU".into(),
        ));
    };
    let base = gpu.kernel_file()?;
    let base = base.file;
    let buckets = |dtype| match &asked {
        Some(asked) => asked.clone(),
        None => every(&plan, base.architecture, dtype),
    };
    let path = args.output.as_deref().filter(|path| !is_stdio(path));
    // A kernel file may be brought up to date where it is.
    let read = BucketArgs {
        kernel_file: None,
        ..args.timed.buckets.clone()
    };
    Files::default()
        .runs(&spec.model, &read)
        .writes("--output", path)
        .keep_apart()?;
    let output = open_asked(path)?;
    let model = load(&spec)?;
    interrupt::look();
    let mut tuned = Vec::new();
    for &dtype in &args.dtype {
        let buckets = buckets(dtype);
        tuned.extend(of_dtype(args, &model, dtype, &plan, &buckets, &interrupt)?);
    }
    let file = written(args, &base, Shape::of(&config), &gpu.info, &tuned)?;
    let mut table = Vec::new();
    print_table(&tuned, &mut table)
        .map_err(|error| Error::io("the table of what was measured", error))?;
    match output {
        Some(output) => {
            output.finish_with(file.to_string().as_bytes())?;
            print(&table)?;
        }
        None => {
            String::from_utf8_lossy(&table).lines().for_each(say);
            print(file.to_string().as_bytes())?;
        }
    }
    Ok(Exit::Done)
}

fn run_spec(args: &TuneArgs, dtype: DType) -> Result<RunSpec> {
    // Nothing is tuned on a CPU: without a GPU the error is about that.
    let device = args.timed.device.as_deref().unwrap_or("cuda").to_owned();
    let asked = TimedArgs {
        device: Some(device),
        ..args.timed.clone()
    };
    timed("tune", Some(dtype), &asked)
}

/// The decode buckets of a type that have a choice.
fn every(plan: &Plan, architecture: Architecture, dtype: DType) -> Vec<u32> {
    let sizes = plan.bucket_sizes.decode.iter().copied();
    let most = architecture.chosen_rows(dtype);
    sizes.filter(|&rows| rows <= most).collect()
}

/// The decode buckets that are asked for, ascending, which the plan must have.
fn asked(args: &TuneArgs, plan: &Plan) -> Result<Option<Vec<u32>>> {
    let sizes = &plan.bucket_sizes.decode;
    let Some(asked) = &args.bucket else {
        return Ok(None);
    };
    let mut asked = asked.0.clone();
    asked.sort_unstable();
    asked.dedup();
    match asked.iter().find(|rows| !sizes.contains(rows)) {
        None => Ok(Some(asked)),
        Some(rows) => Err(Error::Usage(format!(
            "--bucket {rows}: expected decode buckets, which are {sizes:?}; --bucket-file names others"
        ))),
    }
}

/// What was found for each bucket.
fn of_dtype(
    args: &TuneArgs,
    model: &Arc<Model>,
    dtype: DType,
    plan: &Plan,
    buckets: &[u32],
    interrupt: &AtomicBool,
) -> Result<Vec<Tuned>> {
    let mut spec = run_spec(args, dtype)?;
    let most = buckets.last().copied().unwrap_or(1);
    spec.limits = Limits {
        max_seqs: Some(most),
        max_context: Some(PROMPT_TOKENS + NEW_TOKENS),
        // So that all are in before the first has its tokens.
        step_tokens: step_tokens(plan, most),
        ..Limits::default()
    };
    let mut opened = Opened::new(spec, false)?;
    // A step of any other number of rows is measured by nobody.
    opened.plan.bucket_sizes = BucketSizes {
        decode: buckets.to_vec(),
        ..opened.plan.bucket_sizes
    };
    let Target::Gpu(device) = &opened.target else {
        return Err(Error::Usage("tune: expected --device cuda".into()));
    };
    let spec = EngineSpec {
        model,
        plan: &opened.plan,
        options: &opened.options,
        sink: &None,
    };
    let (mut engine, tuning) = engine(device, &spec)?;
    engine.launch()?;
    let vocabulary = opened.config.vocab_size as u32;
    let mut tuned = Vec::new();
    for &rows in buckets {
        let point = Point::of(Kind::Decode, rows, PROMPT_TOKENS, NEW_TOKENS);
        let mut random = Random::new(args.timed.seed, u64::from(rows));
        let arrivals = workload::arrivals(&point, Logits::None, vocabulary, &mut random);
        tuning.lock().wanted = Some(rows);
        let beside = Beside::nothing(interrupt);
        drive::run(&mut engine, &arrivals, &beside, &mut |_| {})?;
        let found = tuning.lock().found.take().ok_or_else(|| {
            Error::Runtime(format!(
                "tune: no decode step had all {rows} sequences, though {NEW_TOKENS} tokens each were generated: \
                 this is a bug in tailgraph"
            ))
        })?;
        if !args.timed.quiet {
            say(&line(device.spec.dtype, &found));
            for timed in &found.finalists {
                say(&format!(
                    "  {:.3} ms by {}",
                    timed.median_ms(),
                    timed.variant
                ));
            }
        }
        let dtype = device.spec.dtype;
        tuned.push(Tuned { dtype, found });
    }
    Ok(tuned)
}

/// The largest that a step of the plan may have; `None` where that is less than `most` sequences and a chunk need.
fn step_tokens(plan: &Plan, most: u32) -> Option<u32> {
    let largest = |kind| plan.bucket_sizes.of(kind).last().copied();
    let rows = largest(StepKind::Mixed)?.min(largest(StepKind::Score)?);
    (rows >= most.saturating_add(CHUNK_TOKENS)).then_some(rows)
}

fn line(dtype: DType, found: &Found) -> String {
    let dtype = dtype.name();
    let (chosen, current) = (&found.chosen, &found.current);
    format!(
        "{dtype}, bucket {}: {:.3} ms by {} (now {:.3} ms by {}; {} measured)",
        found.rows,
        chosen.median_ms(),
        chosen.variant,
        current.median_ms(),
        current.variant,
        found.measured
    )
}

fn print_table(tuned: &[Tuned], out: &mut Vec<u8>) -> std::io::Result<()> {
    let mut table = Table::new(&[0, 4, 6]);
    table.row([
        "dtype", "bucket", "measured", "ms", "by", "ms now", "by", "ratio",
    ]);
    for Tuned { dtype, found } in tuned {
        let (chosen, current) = (&found.chosen, &found.current);
        let (chosen_ms, current_ms) = (chosen.median_ms(), current.median_ms());
        table.row([
            dtype.name().to_owned(),
            found.rows.to_string(),
            found.measured.to_string(),
            format!("{chosen_ms:.3}"),
            chosen.variant.to_string(),
            format!("{current_ms:.3}"),
            if chosen.variant == current.variant {
                "the same: nothing else is quicker, but for noise".to_owned()
            } else {
                current.variant.to_string()
            },
            format!("{:.3}", chosen_ms / current_ms),
        ]);
    }
    table.write("", out)
}

/// `base` with what was found on `gpu` in it, for models of `shape`.
fn written(
    args: &TuneArgs,
    base: &KernelFile,
    shape: Shape,
    gpu: &Gpu,
    tuned: &[Tuned],
) -> Result<KernelFile> {
    let entry = |Tuned { dtype, found }: &Tuned| {
        let (rows, variant) = (found.rows, found.chosen.variant);
        let ms = Some(found.chosen.median_ms());
        (*dtype, Entry { rows, variant, ms })
    };
    let found: Vec<(DType, Entry)> = tuned.iter().map(entry).collect();
    let of_build = || option_env!("TAILGRAPH_COMMIT").map(str::to_owned);
    let driver = crate::backend::cuda::driver::machine::probe()?;
    let (major, minor) = driver.version;
    let noted = [
        ("model", Some(args.timed.model.model.clone())),
        ("gpu", Some(gpu.name.clone())),
        ("driver", Some(format!("CUDA {major}.{minor}"))),
        (
            "date",
            Some(chrono::Utc::now().format("%Y-%m-%d").to_string()),
        ),
        ("commit", args.commit.clone().or_else(of_build)),
        ("command", Some(crate::command::command_line())),
    ];
    let noted = noted.into_iter();
    let measured = noted.filter_map(|(name, text)| Some((name.to_owned(), text?)));
    Ok(base.tuned(gpu.class, shape, &found, measured.collect()))
}
