//! The `replay` command.

use super::args::{BucketArgs, EngineArgs, ReplayArgs, RunArgs};
use super::spec::spec_of_one;
use super::{Exit, print};
use crate::backend::LaunchWay;
use crate::backend::device::{EngineSpec, Stages};
use crate::backend::{SharedSink, UnreadLogits};
use crate::error::{Error, Result};
use crate::io::identity::Identity;
use crate::io::record::{Header, Line, Reader, of_recording, recordings};
use crate::io::replay::{Replayed, replay};
use crate::model::fingerprint::fingerprint;
use crate::model::{DType, ModelSource, WeightsAs};
use crate::plan::{Activations, Limits, Plan};
use crate::quote;
use crate::session::opened::load;
use crate::session::sizes::memory;
use crate::session::{DeviceSpec, RunSpec, Target};
use crate::telemetry::warn;
use std::path::Path;
use std::sync::Arc;

pub fn run(args: ReplayArgs) -> Result<Exit> {
    let recordings = recordings(&args.record);
    let mut exit = Exit::Done;
    for record in &recordings {
        let replayed = replay_one(&args, record)?;
        if recordings.len() > 1 {
            print(format!("{}: ", quote::visible(record.display())).as_bytes())?;
        }
        print(format!("{replayed}\n").as_bytes())?;
        if replayed.difference.is_some() {
            exit = Exit::Disagreed;
        } else if !replayed.complete {
            warn(&format!(
                "{}: the recorded run did not come to its end, and what it has was replayed",
                record.display()
            ));
        }
    }
    Ok(exit)
}

fn replay_one(args: &ReplayArgs, record: &Path) -> Result<Replayed> {
    let mut recording = Reader::open(record)?;
    let header = recording.header.clone();
    let spec = run_spec(args.clone(), &header)?;
    check_model(&recording, &spec.model)?;
    let target = Target::of(&spec)?;
    spec.device.warn_if_passed_over();
    let path = recording.path().to_owned();
    let recorded = |error| of_recording(&path, error);
    let plan = plan(&path, &spec, &target, &header)?;
    check_prompts(&path, plan.config.vocab_size as u32)?;
    let stages = stages(&spec, &target, &plan, &header).map_err(recorded)?;
    replay(&mut recording, stages).map_err(recorded)
}

/// # Errors
/// The recording is of another model.
fn check_model(recording: &Reader, source: &ModelSource) -> Result<()> {
    let header = &recording.header;
    let now = Identity::of_model(&fingerprint(source)?);
    match now.differences(&header.identity) {
        None => Ok(()),
        Some(differences) => Err(Error::file(
            recording.path(),
            format!(
                "found a run of another model, --model {}, which differs from {source} in {differences}: expected the same, of other weights come other tokens",
                quote::text(&header.model)
            ),
        )),
    }
}

/// What a recording names so, where there is such.
fn known<T>(found: Option<T>, what: &str, name: &str, expected: &str) -> Result<T> {
    found.ok_or_else(|| {
        let name = quote::text(name);
        Error::Usage(format!("found the {what} {name}, expected {expected}"))
    })
}

/// The recorded sizes; on a GPU in the recorded type, unless another is asked for.
fn run_spec(args: ReplayArgs, header: &Header) -> Result<RunSpec> {
    let (dtype, weights) = (args.precision.dtype(), args.precision.weights);
    let activations = args.precision.activations;
    let launch = args.launch;
    let run = RunArgs {
        device: args.device,
        parallel: None,
        handover: None,
        precision: args.precision,
        launch,
        step_timeout_ms: None,
        buckets: BucketArgs {
            bucket_file: None,
            kernel_file: args.kernel_file,
        },
    };
    let mut spec = spec_of_one(&args.model.model, &run, &EngineArgs::default(), "replay")?;
    if let DeviceSpec::Gpu(gpu) = &mut spec.device {
        if launch.is_none() {
            gpu.launch = LaunchWay::HostKernels;
        }
        if dtype.is_none() && header.device != "cpu" {
            let found = DType::by_name(&header.dtype);
            gpu.dtype = known(found, "dtype", &header.dtype, "f32, bf16 or f16")?;
        }
        if let (None, Some(name)) = (activations, &header.activations) {
            let found = Activations::by_name(name);
            gpu.activations = known(found, "activations", name, "as-is or fp8")?;
        }
    }
    if let (None, Some(name)) = (weights, &header.weights) {
        let found = WeightsAs::by_name(name);
        spec.weights = known(found, "weights", name, "as-is, bf16 or fp8")?;
    }
    let shape = &header.engine;
    spec.limits = Limits {
        max_seqs: Some(shape.options.max_seqs),
        requests: None,
        prompts: None,
        max_context: Some(shape.options.max_context),
        page_tokens: Some(shape.options.page_tokens),
        step_tokens: Some(shape.options.step_tokens),
        chunk_tokens: Some(shape.options.chunk_tokens),
        chunk_share: Some(shape.options.chunk_share),
        chunk_align: Some(shape.options.chunk_align),
        stages: Some(shape.stages as usize),
        steps_in_flight: Some(shape.options.steps_in_flight),
        prefixes: Some(shape.options.prefixes),
    };
    Ok(spec)
}

/// The recorded sizes as a plan of this model, in this device's memory.
fn plan(path: &Path, spec: &RunSpec, target: &Target, header: &Header) -> Result<Plan> {
    let recorded = |error| of_recording(path, error);
    let shape = &header.engine;
    let (config, _) = spec.model.config()?;
    let mut plan = spec.plan(&Arc::new(config)).map_err(recorded)?;
    let variants = target.device().kernel_variants()?;
    if let (Some(recorded), Some(found)) = (&header.kernel_variants, &variants)
        && recorded != found
    {
        warn(&format!(
            "the recorded run chose its kernels by {recorded}, this one does by {found}: bits may differ; --kernel-file names another file, and a file may have entries for another GPU than this one"
        ));
    }
    plan.bucket_sizes = shape.bucket_sizes.clone();
    let memory = memory(spec, target, &plan, true).map_err(recorded)?;
    if memory.options.pages < shape.options.pages {
        return Err(Error::Memory(format!(
            "the recorded run had {} pages of {} tokens, found room for {}: free memory or replay on a larger device",
            shape.options.pages, shape.options.page_tokens, memory.options.pages
        )));
    }
    Ok(plan)
}

/// Backends trust the tokens that they are given.
fn check_prompts(path: &Path, vocab_size: u32) -> Result<()> {
    let mut recording = Reader::open(path)?;
    while let Some(line) = recording.next_line()? {
        if let Line::Request(request) = line
            && let Some(token) = request.prompt.iter().find(|&&token| token >= vocab_size)
        {
            return Err(recording.wrong(format!(
                "found token {token}, expected one below the model's {vocab_size}: replay with the recorded model, {}",
                recording.header.model
            )));
        }
    }
    Ok(())
}

fn stages(spec: &RunSpec, target: &Target, plan: &Plan, header: &Header) -> Result<Stages> {
    let model = load(spec)?;
    let sink: SharedSink = Some(Arc::new(UnreadLogits));
    let spec = EngineSpec {
        model: &model,
        plan,
        options: &header.engine.options,
        sink: &sink,
    };
    target.device().stages(&spec)
}
