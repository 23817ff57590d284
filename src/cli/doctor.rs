//! `doctor`: what this machine and this build can do, whether a model fits, and what to do about each problem.

mod command;
mod kernels;
mod links;
mod print;

pub(super) use self::command::run;
pub use self::kernels::{Found, Kernels};
pub use self::links::Links;
use super::args::doctor::{DoctorArgs, Format};
use super::args::profile::Tool;
use super::profile::find;
use crate::backend::cuda::driver::image::HAS_KERNELS;
use crate::backend::cuda::driver::machine::{Missing, probe};
use crate::error::{Error, Result};
use crate::plan::MemoryPlan;
use crate::plan::budget::{Available, Budget};
use crate::plan::bytes::Bytes;
use print::{Details, json_document, text};
use std::io::Write;
use std::path::Path;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
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
pub struct Check {
    pub name: &'static str,
    pub status: Status,
    /// What was found.
    pub detail: String,
    /// What to do about it, or could be done; always there unless the status is ok.
    pub advice: Option<String>,
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

/// The model that `--model` names.
#[derive(Debug)]
pub struct Subject {
    /// As the user wrote it.
    pub name: String,
    /// Its memory arithmetic, or why there is none: no such model, a wrong configuration, too little memory.
    pub memory: Result<MemoryPlan>,
}

/// What only a device that is there can be asked.
#[derive(Debug, Default)]
pub struct Asked {
    /// Why the GPU that is asked for cannot be used.
    pub unusable: Option<String>,
    /// On a GPU, which kernels serve it and the model.
    pub kernels: Option<Found>,
    /// Between GPUs, where there are several.
    pub links: Option<Links>,
}

impl DoctorArgs {
    /// Looks at the machine, the build and the model, prints what it found, and returns whether all is well (a
    /// warning is; a problem is not: exit code 1).
    ///
    /// # Errors
    /// [`Error::Io`] where `out` cannot be written.
    pub fn run(
        &self,
        asked: &Asked,
        subject: Option<&Subject>,
        out: &mut dyn Write,
    ) -> Result<bool> {
        let available = Available::now();
        let mut checks = machine(available.as_ref());
        checks.push(build());
        checks.push(match &asked.unusable {
            Some(why) => Check::not_ok(
                "gpu",
                Status::Problem,
                "the one asked for cannot be used, so no model was looked at",
                why.as_str(),
            ),
            None => gpu(),
        });
        checks.extend([Tool::Systems, Tool::Compute].map(profiler));
        checks.extend(asked.links.as_ref().map(links::check));
        if let Some(subject) = subject {
            checks.extend(model(subject, available.as_ref()));
        }
        checks.extend(asked.kernels.as_ref().map(kernels::check));
        let details = Details {
            links: asked.links.as_ref().and_then(|links| links.as_deref().ok()),
            kernels: asked.kernels.as_ref().and_then(|found| found.as_ref().ok()),
            memory: subject.and_then(|subject| subject.memory.as_ref().ok()),
        };
        let format = if self.json { Format::Json } else { self.format };
        match format {
            Format::Text => text(&checks, &details, out),
            Format::Json => json_document(&checks, &details, out),
        }
        .and_then(|()| out.flush())
        .map_err(|source| Error::io("standard output", source))?;
        Ok(checks.iter().all(|check| check.status != Status::Problem))
    }
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
                return Check::ok("gpu", format!("no NVIDIA driver here; {missing}"));
            }
            return Check::not_ok(
                "gpu",
                Status::Warn,
                "none that this build can use; the CPU reference runs all the same",
                missing.to_string(),
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
        .map(|missing| missing.to_string())
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
            format!("no {title} here, which profile runs"),
            find::missing(tool),
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

fn model(subject: &Subject, available: Option<&Available>) -> Vec<Check> {
    let memory = match &subject.memory {
        Ok(memory) => memory,
        Err(error) => {
            let advice = match error {
                Error::Memory(_) => {
                    "lower --max-context, --max-seqs or --step-tokens, raise --memory-limit, or free memory"
                }
                Error::Usage(_) => "change the option that the message names",
                _ => "check the path and the file that the message names",
            };
            let error = error.to_string();
            let detail = match names(&error, &subject.name) {
                true => error,
                false => format!("{}: {error}", subject.name),
            };
            return vec![Check::not_ok("model", Status::Problem, detail, advice)];
        }
    };
    let options = &memory.options;
    let mut checks = vec![Check::ok(
        "model",
        format!(
            "{}: {} sequences at once, context {}, fits in {} of {} ({})",
            subject.name,
            options.max_seqs,
            options.max_context,
            Bytes(memory.total_bytes()),
            Bytes(memory.budget.bytes),
            memory.budget.source
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
