//! The `inspect` command: the plan that the flags ask for, and the graphs that a GPU makes of it where one is asked.

use super::document::OnGpu;
use super::document::{Known, Share};
use crate::backend::cuda::driver::image::HAS_KERNELS;
use crate::backend::cuda::driver::machine::Missing;
use crate::backend::cuda::listed::calls::StepCalls;
use crate::backend::cuda::tuning::gpu::H200;
use crate::cli::args::InspectCommand;
use crate::cli::args::inspect::Format;
use crate::cli::paths::{Files, open_printed};
use crate::cli::{Exit, spec};
use crate::error::{Error, Result};
use crate::model::{DType, ModelSource};
use crate::plan::Plan;
use crate::plan::cost::Precision;
use crate::session::{DeviceSpec, Parallel, RunSpec, Target};
use std::path::Path;
use std::sync::Arc;

/// Element type of published weights: what a checkpoint's are taken to be where none is read.
const CHECKPOINT: DType = DType::BF16;

pub(in crate::cli) fn run(args: &InspectCommand) -> Result<Exit> {
    let run = &args.run;
    let asks_gpu = run
        .device
        .as_deref()
        .is_some_and(|device| device.split(':').next() != Some("cpu"));
    let calls = args.inspect.calls;
    let wrong = match (asks_gpu, calls) {
        (true, true) => Some("--calls: needs no GPU; expected --gpu NAME in place of --device"),
        (false, _) if run.launch.is_some() => Some(
            "--launch: a plan has no graphs; expected --device cuda with it, which captures them",
        ),
        (false, false) if run.buckets.kernel_file.is_some() => Some(
            "--kernel-file: a plan has no kernels; expected --device cuda with it, which captures them",
        ),
        _ => None,
    };
    if let Some(wrong) = wrong {
        return Err(Error::Usage(wrong.to_owned()));
    }
    // A plan alone is of no device: nothing is looked for, and it may be of any type.
    let devices = match &run.device {
        None => DeviceSpec::CPU.into(),
        Some(_) if asks_gpu => spec::devices(run)?,
        Some(name) => spec::parted(spec::named(name)?, run)?,
    };
    let source = if asks_gpu {
        ModelSource::parse(&args.model.model)?
    } else {
        ModelSource::parse_config(&args.model.model)?
    };
    let spec = spec::on(devices, source, run, &args.engine)?;
    keep_apart(args, &spec.model)?;
    let printed = open_printed::<Format>(args.output.as_deref())?;
    let (config, _) = spec.model.config()?;
    let plan = spec.plan(&Arc::new(config))?;
    let dtype = run.precision.dtype().unwrap_or(DType::BF16);
    let precision = Precision::new(dtype, CHECKPOINT);
    let mut out = Vec::new();
    if calls {
        let steps = self::calls(args, &spec, &plan, precision)?;
        let stages = plan.stages.len();
        args.inspect.list_calls(stages, &steps, &mut out)?;
    } else {
        let target = Target::open(&spec.device)?;
        let (precision, on_gpu) = match &target {
            Target::Cpu(_) => (precision, None),
            Target::Gpu(_) | Target::Stages(_) => on_gpu(&spec, &target, &plan)?,
        };
        let known = Known {
            on_gpu,
            shares: shares(&spec, plan.stages.len()),
        };
        args.inspect.run(&plan, precision, known, &mut out)?;
    }
    printed.finish_with(&out)?;
    Ok(Exit::Done)
}

/// What each device of `spec` does of so many stages, where there are several.
fn shares(spec: &RunSpec, stages: usize) -> Vec<Share> {
    if spec.beside.is_empty() {
        return vec![];
    }
    let of = |device: &DeviceSpec| {
        let does = |&stage: &usize| match spec.parallel {
            Parallel::Replicas => true,
            Parallel::Stages => spec.device_of(stage, stages) == device,
        };
        Share {
            device: device.title(),
            stages: (0..stages).filter(does).collect(),
        }
    };
    spec.devices().map(of).collect()
}

fn keep_apart(args: &InspectCommand, model: &ModelSource) -> Result<()> {
    let (printed, output) = match args.output.as_deref() {
        Some(file) => ("--output", file),
        None => ("what is printed", Path::new("-")),
    };
    Files::default()
        .runs(model, &args.run.buckets)
        .writes(printed, Some(output))
        .keep_apart()
}

/// The calls of the steps asked for, on a GPU like the one named.
fn calls(
    args: &InspectCommand,
    spec: &RunSpec,
    plan: &Plan,
    precision: Precision,
) -> Result<Vec<StepCalls>> {
    use crate::backend::cuda::device::on_paper;
    use crate::backend::cuda::families::Types;
    use crate::backend::cuda::families::limits::GpuShape;
    use crate::backend::cuda::lower::listing::Listing;
    use crate::backend::cuda::tuning::KernelChoice;
    use crate::session::sizes::wanted;

    if !HAS_KERNELS {
        return Err(Error::Usage(format!("--calls: {}", Missing::Kernels)));
    }
    let gpu = args.inspect.gpu.unwrap_or(&H200);
    let shape = GpuShape {
        capability: gpu.capability,
        class: gpu.class(),
        block_bytes: gpu.block_bytes,
    };
    let types = Types {
        operand: precision.compute,
        weights: precision.weights,
    };
    let sizes = on_paper(&wanted(spec, plan, precision, false), gpu)?;
    let file = args.run.buckets.kernel_file.as_deref();
    let choice = KernelChoice::open(file)?;
    let listing = Listing::new(plan, shape, types, &choice, &sizes.options)?;
    let mut steps = vec![];
    for bucket in args.inspect.buckets(plan)? {
        for stage in 0..plan.stages.len() {
            steps.push(listing.step(stage, args.inspect.kind, bucket)?);
        }
    }
    Ok(steps)
}

/// The graphs that the GPU makes of `plan`, and the types they are of.
fn on_gpu(spec: &RunSpec, target: &Target, plan: &Plan) -> Result<(Precision, Option<OnGpu>)> {
    use super::document::{Device, ms};
    use crate::backend::cuda::device::capture_all;
    use crate::backend::cuda::engine::captures::Captures;
    use crate::backend::cuda::tuning::Shape;
    use crate::backend::device::EngineSpec;
    use crate::runtime::core_bytes;
    use crate::session::opened::load;
    use crate::session::sizes::memory;
    use std::time::Instant;

    let Target::Gpu(device) = target else {
        return Err(Error::Usage(
            "--device: expected cuda, or none for the plan alone".into(),
        ));
    };
    let sizes = memory(spec, target, plan, false)?;
    let start = Instant::now();
    let model = load(&spec.model)?;
    let load_ms = ms(start.elapsed());
    let precision = spec.precision(&plan.config)?;
    let mut found = Captures::default();
    let engine = EngineSpec {
        model: &model,
        plan,
        options: &sizes.options,
        sink: &None,
    };
    capture_all(device, &engine, core_bytes, &mut found)?;
    let served = device.gpu.kernel_file()?;
    let on_gpu = OnGpu {
        device: Device {
            name: device.gpu.info.to_string(),
            launch: device.spec.launch.name(),
            kernel_variants: served.name(),
            entries: served.origin(precision.compute, Shape::of(&plan.config)),
            load_ms,
            memory: sizes.items,
        },
        known: crate::backend::device::Device::known(device),
        graphs: found.graphs,
    };
    Ok((precision, Some(on_gpu)))
}
