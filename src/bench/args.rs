//! Flags that all kinds of `bench` share, how they spell lists, and what comes of them.

use super::output::{Format, TABLE_WIDTH};
use super::ranges::{self, Length, Lengths, List};
use super::{Kind, Point};
use crate::backend::{Handover, LaunchWay, Parallel};
use crate::command::args::{BucketArgs, EngineArgs, PrecisionArgs, RunArgs};
use crate::command::paths::open_printed;
use crate::command::values::parse_seconds;
use crate::error::Result;
use crate::files::Out;
use crate::model::{DType, WeightsAs};
use crate::plan::{Activations, StepKind};
use crate::runtime::Logits;
use clap::{Args, ValueEnum};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub const LISTS: &str = "Lists are values with commas between, or ranges: 1-4 is 1,2,3,4; 32-96+32 is 32,64,96; 1-256*4 is 1,4,16,64,256. \
All combinations are measured.";

/// Where results go, and how they look.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Results")]
pub struct PrintArgs {
    /// The file to write [default: standard output]
    #[arg(long, short, value_name = "FILE|-")]
    pub output: Option<PathBuf>,
    /// How to print the results [default: as the file's name ends, else md]
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<Format>,
    /// Tables of all columns, rather than of those that the terminal has room for
    #[arg(long)]
    pub wide: bool,
}

impl PrintArgs {
    pub fn format(&self) -> Format {
        let extension = self.output.as_deref().and_then(Path::extension);
        let by_name = || Format::from_str(extension?.to_str()?, false).ok();
        self.format.or_else(by_name).unwrap_or(Format::Md)
    }

    /// Characters of a line that tables may take.
    pub fn width(&self) -> usize {
        if self.wide {
            return usize::MAX;
        }
        let terminal = match self.output {
            Some(_) => None,
            None => console::Term::stdout().size_checked(),
        };
        terminal.map_or(TABLE_WIDTH, |(_, columns)| usize::from(columns))
    }

    /// What results are written to, once there are some.
    ///
    /// # Errors
    /// [`crate::Error::Usage`] where it is the name of a format; the system refused.
    pub fn open(&self) -> Result<Out> {
        open_printed::<Format>(self.output.as_deref())
    }
}

/// On what each combination is measured, and how.
#[derive(Debug, Clone, Args)]
pub struct SharedArgs {
    #[command(flatten)]
    pub on: OnArgs,
    #[command(flatten)]
    pub measuring: MeasuringArgs,
    #[command(flatten)]
    pub print: PrintArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model and device")]
pub struct OnArgs {
    /// A checkpoint's directory, ORG/NAME[@REVISION] or random:PRESET[@SEED] (see `generate --help`)
    // `bench` without a kind has it among the arguments of `bench decode`, which clap asks nothing of where a kind is named.
    #[arg(long, short, value_name = "MODEL", required = true)]
    pub model: Option<String>,
    /// cpu, cuda or cuda:N; serve, score and prefill also take several, such as cuda:0,1 [default: cuda where it can run, else cpu]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// How several devices share the work (see `generate --help`) [default: replicas]
    #[arg(long, value_name = "HOW")]
    pub parallel: Option<Parallel>,
    /// How stages on GPUs hand steps on: straight to the next GPU (peer), or through the host's memory [default: peer where the
    /// GPUs reach each other's memory, else host]
    #[arg(long, value_name = "WAY")]
    pub handover: Option<Handover>,
    /// Ways to launch (GPUs only) [default: device-graph]
    #[arg(long, value_name = "WAYS", value_delimiter = ',')]
    pub launch: Vec<LaunchWay>,
    /// Types of matrix inputs, key-value pages and convolution state [default: f32 on the CPU, bf16 on GPUs]
    #[arg(long, value_name = "TYPES", value_delimiter = ',')]
    pub dtype: Vec<DType>,
    /// Formats of the weights (see `generate --help`) [default: as-is]
    #[arg(long, value_name = "FORMATS", value_delimiter = ',')]
    pub weights: Vec<WeightsAs>,
    /// What prompts' activations are multiplied in (see `generate --help`) [default: as-is]
    #[arg(
        long,
        value_name = "FORMAT",
        value_delimiter = ',',
        help_heading = "Model and device"
    )]
    pub activations: Vec<Activations>,
    /// Bucket sizes and stages from these TOML files [default: the built-in one]
    #[arg(long, value_name = "FILES", value_delimiter = ',')]
    pub bucket_file: Vec<PathBuf>,
    /// Which kernels serve which bucket, from these TOML files (GPUs only) [default: the built-in ones]
    #[arg(long, value_name = "FILES", value_delimiter = ',')]
    pub kernel_file: Vec<PathBuf>,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Measuring")]
pub struct MeasuringArgs {
    /// Threads that spin on the host while a run is measured, up to 4096
    #[arg(long, value_name = "LIST", value_parser = threads, default_value = "0")]
    pub cpu_load: List,
    /// The seed of the prompts and arrival times
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Unmeasured first runs of each combination, on every engine
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub warm_up: u32,
    /// Measured runs. Each starts every engine anew and goes through all combinations
    #[arg(long, short, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeats: u32,
    /// Idle time before each measured run, so that a GPU at its power limit recovers from the last one
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = |s: &str| parse_seconds(s, 0.0..=3600.0))]
    pub pause: Duration,
    /// The device's memory bandwidth in GB/s, for the floor [default: known for some GPUs, see `inspect --gpu`]
    #[arg(long, value_name = "GB/S", value_parser = above_zero)]
    pub bandwidth: Option<f64>,
    /// The device's peak in TFLOP/s, for the floor
    #[arg(long, value_name = "TFLOP/S", value_parser = above_zero)]
    pub tflops: Option<f64>,
    /// No progress on standard error
    #[arg(long, short)]
    pub quiet: bool,
}

impl OnArgs {
    pub fn model(&self) -> &str {
        self.model.as_deref().unwrap_or_default()
    }

    /// All combinations of launch, types, bucket file and kernel file, as the flags of other commands.
    pub fn settings(&self) -> Vec<RunArgs> {
        let mut settings = Vec::new();
        let types = || {
            let mut types = vec![];
            for activations in options(&self.activations) {
                for weights in options(&self.weights) {
                    let of_dtype = |dtype| (dtype, weights, activations);
                    types.extend(options(&self.dtype).into_iter().map(of_dtype));
                }
            }
            types
        };
        for launch in options(&self.launch) {
            for (dtype, weights, activations) in types() {
                for bucket_file in options(&self.bucket_file) {
                    for kernel_file in options(&self.kernel_file) {
                        settings.push(RunArgs {
                            device: self.device.clone(),
                            parallel: self.parallel,
                            handover: self.handover,
                            precision: PrecisionArgs {
                                dtype,
                                fp16: false,
                                weights,
                                activations,
                            },
                            launch,
                            step_timeout_ms: None,
                            buckets: BucketArgs {
                                bucket_file: bucket_file.clone(),
                                kernel_file,
                            },
                        });
                    }
                }
            }
        }
        settings
    }
}

/// What kinds that run a model differ in: what [`super::measure`] takes of each.
pub struct Measurement<'a> {
    pub kind: Kind,
    pub shared: &'a SharedArgs,
    /// All combinations of the lists that it takes.
    pub points: Vec<Point>,
    /// The kinds of steps that engines make ready.
    pub steps: Vec<StepKind>,
    /// The logits that requests ask for.
    pub wanted: Logits,
    /// Whether logits stay on the device; `None`: there are none.
    pub logits_on_device: Option<bool>,
    /// The file for what each step took.
    pub steps_file: Option<&'a Path>,
}

impl<'a> Measurement<'a> {
    /// Requests that generate: they ask for no logits.
    pub fn of(kind: Kind, shared: &'a SharedArgs, points: Vec<Point>) -> Self {
        Self {
            kind,
            shared,
            points,
            steps: vec![StepKind::Decode, StepKind::Mixed],
            wanted: Logits::None,
            logits_on_device: None,
            steps_file: None,
        }
    }
}

/// Each of `values`, or nothing once where there are none.
pub fn options<T: Clone>(values: &[T]) -> Vec<Option<T>> {
    match values {
        [] => vec![None],
        values => values.iter().cloned().map(Some).collect(),
    }
}

/// Points of all combinations, the first list outermost.
pub fn points(
    kind: Kind,
    (batches, new_tokens, prompts): (&[u32], &[u32], &Lengths),
    shared: &SharedArgs,
) -> Vec<Point> {
    let mut points = Vec::new();
    for &batch in batches {
        for &new_tokens in new_tokens {
            for &Length { shortest, longest } in &prompts.0 {
                for &cpu_load in &shared.measuring.cpu_load.0 {
                    points.push(Point {
                        ragged_from: (shortest < longest).then_some(shortest),
                        cpu_load,
                        ..Point::of(kind, batch, longest, new_tokens)
                    });
                }
            }
        }
    }
    points
}

pub fn positive(text: &str) -> std::result::Result<List, String> {
    let list = ranges::parse(text)?;
    if list.0.contains(&0) {
        return Err("found 0, expected numbers of at least 1".to_owned());
    }
    Ok(list)
}

/// More would take minutes to begin, and all of the machine.
fn threads(text: &str) -> std::result::Result<List, String> {
    let list = ranges::parse(text)?;
    match list.0.iter().find(|&&threads| threads > 4096) {
        Some(threads) => Err(format!("found {threads}, expected at most 4096 threads")),
        None => Ok(list),
    }
}

pub fn above_zero(text: &str) -> std::result::Result<f64, String> {
    let found = text.parse().ok();
    let found = found.filter(|&x: &f64| x > 0.0 && x.is_finite());
    found.ok_or_else(|| "expected a number above 0".to_owned())
}
