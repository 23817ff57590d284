//! `doctor`: what this machine and this build can do, whether a model fits, and what to do about each problem.

mod kernels;
mod links;
mod print;

use super::args::DoctorCommand;
use super::args::doctor::Format;
use super::args::profile::Tool;
use super::paths::{Files, open_printed};
use super::profile::find;
use super::{Exit, shown, spec};
use crate::backend::cuda::driver::image::HAS_KERNELS;
use crate::backend::cuda::driver::machine::{Missing, probe};
use crate::bytes::Bytes;
use crate::command::download::model_of_config;
use crate::error::{Error, Result};
use crate::plan::MemoryPlan;
use crate::plan::budget::{Available, Budget};
use crate::session::sizes::memory;
use crate::session::{RunSpec, Target};
pub use print::memory_text;
use print::{Details, json_document, text};
use std::path::Path;
use std::sync::Arc;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Ok,
    /// Works, but not as well as it could.
    Warn,
    /// Does not work.
    Problem,
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Problem => "problem",
        }
    }
}

/// One thing looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Check {
    name: &'static str,
    status: Status,
    /// What was found.
    detail: String,
    /// What to do about it, or could be done; always there unless the status is ok.
    advice: Option<String>,
}

impl Check {
    fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self {
            name,
            status: Status::Ok,
            detail: detail.into(),
            advice: None,
        }
    }

    fn not_ok(
        name: &'static str,
        status: Status,
        detail: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            name,
            status,
            detail: detail.into(),
            advice: Some(advice.into()),
        }
    }
}

/// Looks at the machine, the build and the model. All is well where there is no problem; a warning is none.
pub(super) fn run(args: &DoctorCommand) -> Result<Exit> {
    let devices = spec::devices(&args.run)?;
    let first = devices.all[0].clone();
    let source = args.model.as_deref().map(model_of_config);
    let mut files = Files::default().writes("--output", args.output.as_deref());
    if let Some(Ok(source)) = &source {
        files = files.runs(source, &args.run.buckets);
    }
    files.keep_apart()?;
    let printed = open_printed::<Format>(args.output.as_deref())?;
    let spec = match source {
        Some(Ok(source)) => Some(Ok(spec::on(devices, source, &args.run, &args.engine)?)),
        Some(Err(error)) => Some(Err(error)),
        None => None,
    };
    let target = match &spec {
        Some(Ok(spec)) => Target::of(spec),
        _ => Target::open(&first),
    };
    let available = Available::now();
    let mut checks = machine(available.as_ref());
    checks.push(build());
    checks.push(match &target {
        Ok(_) => gpu(),
        Err(Error::Usage(_)) => return target.map(|_| Exit::Done),
        // A device that cannot be used is what doctor is there to say.
        Err(why) => Check::not_ok(
            "gpu",
            Status::Problem,
            "the one asked for cannot be used, so no model was looked at",
            shown(why),
        ),
    });
    checks.extend([Tool::Systems, Tool::Compute].map(profiler));
    let mut details = Details::default();
    if let Ok(target) = &target {
        if let Some(measured) = links::measured(&first) {
            checks.push(links::check(&measured));
            details.links = measured.ok();
        }
        let config = match &spec {
            Some(Ok(spec)) => spec.model.config().ok().map(|(config, _)| config),
            _ => None,
        };
        let known = args.model.is_none() || config.is_some();
        if let (Some(name), Some(spec)) = (&args.model, spec) {
            let sizes = spec.and_then(|spec| sizes(&spec, target));
            checks.extend(model(name, &sizes, available.as_ref()));
            details.memory = sizes.ok();
        }
        // A model without a configuration has no check here: its memory tells why.
        if let Some(device) = target.gpus().first().filter(|_| known) {
            let name = args.model.as_deref();
            let found = kernels::found(&device.gpu, name.zip(config.as_ref()));
            checks.push(kernels::check(&found));
            details.kernels = found.ok();
        }
    }
    let mut out = Vec::new();
    match args.format() {
        Format::Text => text(&checks, &details, &mut out),
        Format::Json => json_document(&checks, &details, &mut out),
    }
    .map_err(|source| Error::io("what doctor found", source))?;
    printed.finish_with(&out)?;
    let is_well = checks.iter().all(|check| check.status != Status::Problem);
    Ok(if is_well { Exit::Done } else { Exit::Problem })
}

fn sizes(spec: &RunSpec, target: &Target) -> Result<MemoryPlan> {
    let (config, _) = spec.model.config()?;
    let plan = spec.plan(&Arc::new(config))?;
    memory(spec, target, &plan, true)
}

fn machine(available: Option<&Available>) -> Vec<Check> {
    let cores = match std::thread::available_parallelism() {
        Ok(cores) => Check::ok("cores", format!("{cores} to run on")),
        Err(error) => Check::not_ok(
            "cores",
            Status::Warn,
            format!("the system does not say how many there are: {error}"),
            "set RAYON_NUM_THREADS to the number of threads to use",
        ),
    };
    let memory = match available {
        Some(available) => Check::ok(
            "memory",
            format!(
                "{} available of {}{}",
                Bytes(available.bytes),
                Bytes(available.total_bytes),
                if available.limited {
                    " (what this process's control group may use)"
                } else {
                    ""
                }
            ),
        ),
        None => Check::not_ok(
            "memory",
            Status::Warn,
            format!(
                "this system does not say how much is available; {} are assumed",
                Bytes(Budget::new(None).bytes)
            ),
            "say how much to use with --memory-limit",
        ),
    };
    vec![cores, memory]
}

fn build() -> Check {
    let what = format!(
        "tailgraph {} for {}-{}, {}",
        env!("TAILGRAPH_VERSION"),
        std::env::consts::ARCH,
        std::env::consts::OS,
        if HAS_KERNELS {
            "CPU reference and GPU"
        } else {
            "CPU reference only"
        }
    );
    if cfg!(debug_assertions) {
        Check::not_ok(
            "build",
            Status::Warn,
            format!("{what}; not optimised, so many times slower"),
            "build with cargo build --release",
        )
    } else {
        Check::ok("build", what)
    }
}

fn gpu() -> Check {
    let driver = match probe() {
        Ok(driver) => driver,
        Err(missing) => {
            let has_driver = Path::new("/proc/driver/nvidia/version").exists();
            if missing == Missing::Kernels && !has_driver {
                return Check::ok("gpu", format!("no NVIDIA driver here; {}", shown(&missing)));
            }
            return Check::not_ok(
                "gpu",
                Status::Warn,
                "none that this build can use; the CPU reference runs all the same",
                shown(&missing),
            );
        }
    };
    let (major, minor) = driver.version;
    let gpus: Vec<String> = driver.gpus.iter().map(ToString::to_string).collect();
    let found = format!("driver of CUDA {major}.{minor}; {}", gpus.join("; "));
    let unusable: Vec<String> = driver
        .gpus
        .iter()
        .filter_map(|gpu| gpu.usable().err())
        .map(shown)
        .collect();
    if unusable.is_empty() {
        Check::ok("gpu", found)
    } else {
        Check::not_ok("gpu", Status::Warn, found, unusable.join("; "))
    }
}

/// A tool that `profile` runs.
fn profiler(tool: Tool) -> Check {
    let (program, title, _) = tool.names();
    let warn = |detail, advice| Check::not_ok(program, Status::Warn, detail, advice);
    let Some(found) = find::find(tool) else {
        return warn(
            format!(
                "no {title}, which profile runs, on the PATH, in CUDA_HOME/bin or in /usr/local/cuda/bin"
            ),
            find::install(tool),
        );
    };
    let place = found.display();
    match find::version(&found) {
        Some((version, numbers)) if numbers[..2] >= find::OLDEST[..] => {
            Check::ok(program, format!("{title} {version}, {place}"))
        }
        Some((version, _)) => warn(
            format!("{title} {version}, {place}, is too old for profile"),
            find::install(tool),
        ),
        None => warn(
            format!("{place} --version names no release"),
            find::install(tool),
        ),
    }
}

/// Whether an error begins with the model, or with a file of it.
fn names(error: &str, model: &str) -> bool {
    let error = error.strip_prefix("--model ").unwrap_or(error);
    let rest = error.strip_prefix(model);
    rest.is_some_and(|rest| model.ends_with('/') || rest.starts_with([':', '/']))
}

/// `named`: as the user wrote it; its memory arithmetic, or why there is none.
fn model(named: &str, memory: &Result<MemoryPlan>, available: Option<&Available>) -> Vec<Check> {
    let memory = match memory {
        Ok(memory) => memory,
        Err(error) => {
            let advice = match error {
                Error::Memory(_) => {
                    "lower --max-context, --max-seqs or --step-tokens, raise --memory-limit, or free memory"
                }
                Error::Usage(_) => "change the option that the message names",
                _ => "check the path and the file that the message names",
            };
            let error = shown(error);
            let detail = if names(&error, named) {
                error
            } else {
                format!("{named}: {error}")
            };
            return vec![Check::not_ok("model", Status::Problem, detail, advice)];
        }
    };
    let options = &memory.options;
    let mut checks = vec![Check::ok(
        "model",
        format!(
            "{named}: {} sequences at once, context {}, fits in {} of {} ({})",
            options.max_seqs,
            options.max_context,
            Bytes(memory.total_bytes()),
            Bytes(memory.budget.bytes),
            shown(&memory.budget.source)
        ),
    )];
    if memory.full_sequences() < options.max_seqs {
        checks.push(Check::not_ok(
            "pool",
            Status::Warn,
            format!(
                "{} pages of {} tokens hold {} of {} sequences at full context: more will wait for pages",
                options.pages,
                options.page_tokens,
                memory.full_sequences(),
                options.max_seqs
            ),
            "lower --max-context or --max-seqs, or raise --memory-limit",
        ));
    }
    let mapped = memory.mapped_bytes();
    if memory.pinned_bytes() > 0 {
        checks.push(Check::ok(
            "pinned",
            format!(
                "{} of the host's memory, for the GPU",
                Bytes(memory.pinned_bytes())
            ),
        ));
        return checks;
    }
    let left = available.map(|a| a.bytes.saturating_sub(memory.total_bytes()));
    if let Some(left) = left.filter(|&left| mapped > left) {
        checks.push(Check::not_ok(
            "file cache",
            Status::Warn,
            format!(
                "{} of mapped weights, {} left to keep them in memory: steps will read them from disk again",
                Bytes(mapped),
                Bytes(left)
            ),
            "free memory, or lower --max-seqs and --max-context",
        ));
    }
    checks
}
