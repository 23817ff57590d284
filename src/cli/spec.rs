//! From what was written to what it means: [`spec`] is the one way from flags to a [`RunSpec`].

use super::args::{EngineArgs, PrecisionArgs, RunArgs, TimedArgs};
use crate::backend::LaunchWay;
#[cfg(not(feature = "cuda"))]
use crate::backend::spec::without_gpu_support;
use crate::error::{Error, Result};
use crate::model::{DType, ModelSource};
use crate::plan::Limits;
use crate::plan::bytes::parse_bytes;
use crate::session::{DeviceSpec, GpuSpec, RunSpec};
use std::time::Duration;

/// The run of `model` that the flags ask for, checked as far as they go without the model.
///
/// # Errors
/// [`Error::Usage`], naming a flag and its value, for what there is not or what cannot be together; [`Error::File`] for a
/// model that is not there.
pub fn spec(model: &str, run: &RunArgs, engine: &EngineArgs) -> Result<RunSpec> {
    let device = device(run)?;
    on(device, ModelSource::parse(model)?, run, engine)
}

/// [`spec`] of a device and a model that are known to be right.
///
/// # Errors
/// [`Error::Usage`], naming a flag and its value.
pub fn on(
    device: DeviceSpec,
    model: ModelSource,
    run: &RunArgs,
    engine: &EngineArgs,
) -> Result<RunSpec> {
    let limit = engine.memory_limit.as_deref().map(parse_bytes).transpose();
    Ok(RunSpec {
        bucket_file: run.buckets.bucket_file.clone(),
        limits: engine.limits(),
        memory_limit: limit.map_err(|error| Error::Usage(format!("--memory-limit {error}")))?,
        ..RunSpec::of(model, device)
    })
}

/// The run whose steps a command times in one of several types.
///
/// # Errors
/// As [`spec`].
pub fn timed(
    model: &str,
    device: Option<String>,
    dtype: Option<DType>,
    args: &TimedArgs,
) -> Result<RunSpec> {
    let run = RunArgs {
        device,
        precision: PrecisionArgs { dtype, fp16: false },
        launch: None,
        ahead: false,
        step_timeout_ms: None,
        buckets: args.buckets.clone(),
    };
    let engine = EngineArgs {
        memory_limit: args.memory_limit.clone(),
        ..EngineArgs::default()
    };
    spec(model, &run, &engine)
}

/// What the flags ask for to run a model on.
///
/// # Errors
/// As [`spec`].
pub fn device(run: &RunArgs) -> Result<DeviceSpec> {
    if run.ahead && run.launch != Some(LaunchWay::HostGraph) {
        return usage(
            "--ahead: expected --launch host-graph with it; in the other ways nobody waits for the host to launch a graph",
        );
    }
    let device = match run.device.as_deref() {
        None => DeviceSpec::default(),
        Some(name) => named(name)?,
    };
    match device {
        DeviceSpec::Cpu { .. } => check_cpu(run)?,
        DeviceSpec::Gpu(gpu) => return Ok(DeviceSpec::Gpu(on_gpu(run, gpu))),
    }
    Ok(device)
}

fn usage<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::Usage(message.into()))
}

/// `--device` as written.
fn named(device: &str) -> Result<DeviceSpec> {
    let numbers: Option<Vec<_>> = match device {
        "cpu" => return Ok(DeviceSpec::CPU),
        "cuda" => Some(vec![Ok(0)]),
        _ => device
            .strip_prefix("cuda:")
            .map(|list| list.split(',').map(str::parse::<u32>).collect()),
    };
    let numbers = numbers.filter(|list| list.iter().all(|number| number.is_ok()));
    match numbers.as_deref() {
        None => usage(format!(
            "--device {device}: expected cpu, cuda, or cuda: with GPU numbers such as cuda:0,1"
        )),
        #[cfg(not(feature = "cuda"))]
        Some(_) => Err(without_gpu_support(device)),
        #[cfg(feature = "cuda")]
        Some(&[Ok(ordinal)]) => Ok(DeviceSpec::Gpu(GpuSpec::new(ordinal))),
        #[cfg(feature = "cuda")]
        Some(_) => usage(format!(
            "--device {device}: this version runs a model on one GPU, expected cuda:N with one number"
        )),
    }
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

fn on_gpu(run: &RunArgs, gpu: GpuSpec) -> GpuSpec {
    GpuSpec {
        dtype: run.precision.dtype().unwrap_or(gpu.dtype),
        launch: match run.launch {
            Some(LaunchWay::HostGraph) if run.ahead => LaunchWay::HostGraphAhead,
            Some(way) => way,
            None => gpu.launch,
        },
        step_timeout: run
            .step_timeout_ms
            .map_or(gpu.step_timeout, Duration::from_millis),
        kernel_file: run.buckets.kernel_file.clone(),
        ..gpu
    }
}

impl PrecisionArgs {
    /// `--dtype` or `--fp16`; `None` where neither is given.
    pub fn dtype(&self) -> Option<DType> {
        match self.fp16 {
            true => Some(DType::F16),
            false => self.dtype,
        }
    }
}

impl EngineArgs {
    pub fn limits(&self) -> Limits {
        Limits {
            max_seqs: self.max_seqs,
            prompts: None,
            max_context: self.max_context,
            page_tokens: self.page_tokens,
            step_tokens: self.step_tokens,
            chunk_tokens: self.chunk_tokens,
            chunk_share: None,
            chunk_align: self.chunk_align,
            stages: self.stages.map(|stages| stages as usize),
            steps_in_flight: None,
        }
    }
}
