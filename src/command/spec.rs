//! From what was written to what it means: [`spec`] is the one way from flags to a [`RunSpec`].

use super::args::{EngineArgs, PrecisionArgs, RunArgs, TimedArgs};
use super::download;
use crate::backend::cuda::driver::image::HAS_KERNELS;
use crate::backend::cuda::driver::machine::Missing;
use crate::bytes::parse_bytes;
use crate::error::{Error, Result};
use crate::model::{DType, ModelSource};
use crate::plan::{Activations, Limits};
use crate::runtime::replicas::MAX_REPLICAS;
use crate::session::{DeviceSpec, GpuSpec, Opened, Parallel, RunSpec};
use std::time::Duration;

/// The devices of a run, of which there is at least one, and what several are there for.
#[derive(Clone)]
pub struct Devices {
    pub all: Vec<DeviceSpec>,
    pub parallel: Parallel,
}

/// The run of `model` that the flags ask for, checked as far as they go without the model.
///
/// # Errors
/// [`Error::Usage`], naming a flag and its value, for what there is not or what cannot be together; [`Error::File`] for a
/// model that is not there.
pub fn spec(model: &str, run: &RunArgs, engine: &EngineArgs) -> Result<RunSpec> {
    downloaded(devices(run)?, model, run, engine)
}

/// [`on`], with a model that may have to be downloaded: whether it fits is said before its weights come.
fn downloaded(
    devices: Devices,
    model: &str,
    run: &RunArgs,
    engine: &EngineArgs,
) -> Result<RunSpec> {
    let fits = |model| {
        let spec = on(devices.clone(), model, run, engine)?;
        Opened::new(spec, false).map(drop)
    };
    let model = download::model_that(model, fits)?;
    on(devices, model, run, engine)
}

/// [`spec`] of devices and a model that are known to be right.
///
/// # Errors
/// [`Error::Usage`], naming a flag and its value.
pub fn on(
    devices: Devices,
    model: ModelSource,
    run: &RunArgs,
    engine: &EngineArgs,
) -> Result<RunSpec> {
    let Devices { all, parallel } = devices;
    if let (Parallel::Stages, Some(stages)) = (parallel, engine.stages)
        && (stages as usize) < all.len()
    {
        return usage(format!(
            "--stages {stages}: expected at least one for each of the {} devices of --device, or no --stages",
            all.len()
        ));
    }
    let limit = engine.memory_limit.as_deref().map(parse_bytes).transpose();
    let mut all = all.into_iter();
    let first = all.next().unwrap_or_default();
    Ok(RunSpec {
        weights: run.precision.weights.unwrap_or_default(),
        beside: all.collect(),
        parallel,
        bucket_file: run.buckets.bucket_file.clone(),
        limits: engine.limits(),
        memory_limit: limit.map_err(|error| Error::Usage(format!("--memory-limit {error}")))?,
        ..RunSpec::of(model, first)
    })
}

/// The run whose steps `command` times in one of several types.
///
/// # Errors
/// Fails as [`spec_of_one`] does.
pub fn timed(command: &str, dtype: Option<DType>, args: &TimedArgs) -> Result<RunSpec> {
    let run = RunArgs {
        device: args.device.clone(),
        parallel: None,
        handover: None,
        precision: PrecisionArgs {
            dtype,
            fp16: false,
            weights: args.weights,
            activations: None,
        },
        launch: None,
        step_timeout_ms: None,
        buckets: args.buckets.clone(),
    };
    let engine = EngineArgs {
        memory_limit: args.memory_limit.clone(),
        ..EngineArgs::default()
    };
    spec_of_one(&args.model.model, &run, &engine, command)
}

/// [`spec`] for a command that has no use for several devices. `command`: its name.
///
/// # Errors
/// Fails as [`spec`] does; [`Error::Usage`] for several devices.
pub fn spec_of_one(
    model: &str,
    run: &RunArgs,
    engine: &EngineArgs,
    command: &str,
) -> Result<RunSpec> {
    let devices = devices(run)?;
    if devices.all.len() > 1 {
        return usage(format!(
            "--device {}: found {} devices, expected one, for `{command}` looks at one alone",
            run.device.as_deref().unwrap_or_default(),
            devices.all.len()
        ));
    }
    downloaded(devices, model, run, engine)
}

/// What the flags ask for to run a model on.
///
/// # Errors
/// Fails as [`spec`] does.
pub fn devices(run: &RunArgs) -> Result<Devices> {
    let mut all = match run.device.as_deref() {
        None => vec![DeviceSpec::default()],
        Some(name) => named(name)?,
    };
    for device in &mut all {
        match device {
            DeviceSpec::Cpu { .. } => check_cpu(run)?,
            DeviceSpec::Gpu(gpu) => set_up(run, gpu),
        }
    }
    parted(all, run)
}

/// What the devices, of which there is at least one, are there for.
///
/// # Errors
/// [`Error::Usage`], naming a flag.
pub fn parted(all: Vec<DeviceSpec>, run: &RunArgs) -> Result<Devices> {
    let parallel = match run.parallel {
        Some(_) if all.len() == 1 => {
            return usage(
                "--parallel: expected --device with several to share the work, such as cuda:0,1",
            );
        }
        parallel => parallel.unwrap_or_default(),
    };
    let between_gpus = parallel == Parallel::Stages && all[0].launch().is_some();
    if run.handover.is_some() && !between_gpus {
        return usage(
            "--handover: expected --parallel stages with it, and --device with several GPUs",
        );
    }
    Ok(Devices { all, parallel })
}

fn usage<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::Usage(message.into()))
}

/// `--device` as written: at least one.
///
/// # Errors
/// [`Error::Usage`] for what is none, or one twice.
pub fn named(device: &str) -> Result<Vec<DeviceSpec>> {
    let (kind, list) = device.split_once(':').unwrap_or((device, "0"));
    let numbers = list.split(',');
    let all = numbers.map(|number| format!("{kind}:{number}").parse().ok());
    let Some(all) = all.collect::<Option<Vec<DeviceSpec>>>() else {
        return usage(format!(
            "--device {device}: expected cpu, cuda, or either with numbers such as cuda:0,1"
        ));
    };
    if kind == "cuda" && !HAS_KERNELS {
        return usage(format!(
            "--device {device}: {}, or use --device cpu",
            Missing::Kernels
        ));
    }
    for (index, spec) in all.iter().enumerate() {
        if all[..index].contains(spec) {
            let title = spec.title();
            return usage(format!(
                "--device {device}: found {title} twice, expected each device once"
            ));
        }
    }
    if all.len() > MAX_REPLICAS {
        return usage(format!(
            "--device {device}: found {} devices, expected at most {MAX_REPLICAS}",
            all.len()
        ));
    }
    Ok(all)
}

/// Refuses what only a GPU has.
fn check_cpu(run: &RunArgs) -> Result<()> {
    match run.precision.dtype() {
        None | Some(DType::F32) => {}
        Some(_) if run.precision.fp16 => return usage("--fp16: the CPU computes in f32 only"),
        Some(dtype) => {
            let name = dtype.name();
            return usage(format!("--dtype {name}: the CPU computes in f32 only"));
        }
    }
    if run.precision.activations == Some(Activations::FP8) {
        return usage("--activations fp8: it is an option of --device cuda");
    }
    if run.launch.is_some() {
        return usage("--launch: the CPU launches no kernels; it is an option of --device cuda");
    }
    if run.buckets.kernel_file.is_some() {
        return usage("--kernel-file: it is an option of --device cuda");
    }
    if run.step_timeout_ms.is_some() {
        return usage("--step-timeout-ms: it is an option of --device cuda");
    }
    Ok(())
}

/// Uses a GPU as the flags say.
fn set_up(run: &RunArgs, gpu: &mut GpuSpec) {
    gpu.dtype = run.precision.dtype().unwrap_or(gpu.dtype);
    gpu.activations = run.precision.activations.unwrap_or_default();
    gpu.launch = run.launch.unwrap_or(gpu.launch);
    if let Some(limit) = run.step_timeout_ms {
        gpu.step_timeout = Duration::from_millis(limit);
    }
    gpu.handover = run.handover;
    gpu.kernel_file.clone_from(&run.buckets.kernel_file);
}

impl PrecisionArgs {
    /// `--dtype` or `--fp16`; `None` where neither is given.
    pub fn dtype(&self) -> Option<DType> {
        if self.fp16 {
            Some(DType::F16)
        } else {
            self.dtype
        }
    }
}

impl EngineArgs {
    pub fn limits(&self) -> Limits {
        Limits {
            max_seqs: self.max_seqs,
            requests: None,
            prompts: None,
            max_context: self.max_context,
            page_tokens: self.page_tokens,
            step_tokens: self.step_tokens,
            chunk_tokens: self.chunk_tokens,
            chunk_share: None,
            chunk_align: self.chunk_align,
            stages: self.stages.map(|stages| stages as usize),
            steps_in_flight: None,
            prefixes: self.no_prefix_sharing.then_some(0),
        }
    }
}
