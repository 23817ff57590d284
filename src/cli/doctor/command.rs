//! The `doctor` command: what the flags ask about, looked at.

use super::{Subject, links};
use crate::cli::args::DoctorCommand;
use crate::cli::args::doctor::Format;
use crate::cli::paths::{Files, open_printed};
use crate::cli::{Exit, spec};
use crate::error::{Error, Result};
use crate::model::ModelSource;
use crate::plan::MemoryPlan;
use crate::session::sizes::memory;
use crate::session::{RunSpec, Target};
use std::sync::Arc;

pub(in crate::cli) fn run(args: &DoctorCommand) -> Result<Exit> {
    let devices = spec::devices(&args.run)?;
    let first = devices.all[0].clone();
    let source = args.model.as_deref().map(ModelSource::parse_config);
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
    let target = match target {
        Err(error @ Error::Usage(_)) => return Err(error),
        // A device that cannot be used is what doctor is there to say.
        target => target,
    };
    let links = match &target {
        Ok(_) => links::measured(&first),
        Err(_) => None,
    };
    let subject = match (&args.model, spec, &target) {
        (Some(name), Some(spec), Ok(target)) => Some(Subject {
            name: name.clone(),
            borrowed: borrowed(name, target),
            memory: spec.and_then(|spec| sizes(&spec, target)),
        }),
        _ => None,
    };
    let mut out = Vec::new();
    let unusable = target.err().map(|error| error.to_string());
    let healthy = args.doctor.run(
        unusable.as_deref(),
        links.as_ref(),
        subject.as_ref(),
        &mut out,
    )?;
    printed.finish_with(&out)?;
    Ok(if healthy { Exit::Done } else { Exit::Problem })
}

fn sizes(spec: &RunSpec, target: &Target) -> Result<MemoryPlan> {
    let (config, _) = spec.model.config()?;
    let plan = spec.plan(&Arc::new(config))?;
    memory(spec, target, &plan, true)
}

/// What is said where the kernel file has no entries for the model's own shapes; of a model without a configuration nothing, since
/// that is said with its memory.
#[cfg(feature = "cuda")]
fn borrowed(name: &str, target: &Target) -> Option<String> {
    use crate::backend::cuda::tuning::Shape;
    let device = target.gpus().first()?;
    let (config, _) = ModelSource::parse_config(name).ok()?.config().ok()?;
    let (file, own) = (device.gpu.kernel_file().ok()?, Shape::of(&config));
    let dtype = device.spec.dtype;
    let nearest = file.nearest(dtype, own);
    (nearest != own).then(|| {
        format!(
            "{0} has no entries in {1} for its shapes, {own}: those of {nearest} serve, as far as they fit; `tailgraph tune --model {name} \
             --dtype {1} -o FILE` measures which kernels serve it best, and --kernel-file FILE runs by them",
            file.path.display(),
            dtype.name(),
        )
    })
}

#[cfg(not(feature = "cuda"))]
fn borrowed(_: &str, _: &Target) -> Option<String> {
    None
}
