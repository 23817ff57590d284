//! The `doctor` command: what the flags ask about, looked at.

use super::kernels;
use super::{Asked, Found, Subject, links};
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
    let subject = match (&args.model, spec, &target) {
        (Some(name), Some(spec), Ok(target)) => Some(Subject {
            name: name.clone(),
            memory: spec.and_then(|spec| sizes(&spec, target)),
        }),
        _ => None,
    };
    let mut out = Vec::new();
    let asked = match &target {
        Ok(target) => Asked {
            unusable: None,
            kernels: kernels_of(args.model.as_deref(), target),
            links: links::measured(&first),
        },
        Err(error) => Asked {
            unusable: Some(error.to_string()),
            ..Asked::default()
        },
    };
    let healthy = args.doctor.run(&asked, subject.as_ref(), &mut out)?;
    printed.finish_with(&out)?;
    Ok(if healthy { Exit::Done } else { Exit::Problem })
}

fn sizes(spec: &RunSpec, target: &Target) -> Result<MemoryPlan> {
    let (config, _) = spec.model.config()?;
    let plan = spec.plan(&Arc::new(config))?;
    memory(spec, target, &plan, true)
}

/// Which kernels serve the model that `name` is on the first GPU of `target`. Without a model it is about one of the first shapes that
/// there are; of a model without a configuration nothing is said, since its memory tells why.
fn kernels_of(name: Option<&str>, target: &Target) -> Option<Found> {
    let device = target.gpus().first()?;
    let config = match name {
        None => None,
        Some(name) => Some(ModelSource::parse_config(name).ok()?.config().ok()?.0),
    };
    Some(kernels::found(&device.gpu, name.zip(config.as_ref())))
}
