//! `inspect`: a plan with each operation's shapes, bytes, FLOPs and least time, and its graphs as a GPU was given them. All that is
//! known is one `document`, which is the JSON; tables and graphs for Graphviz are views of it.

mod document;
mod dot;
mod text;

use super::args::InspectArgs;
use super::args::inspect::Format;
use super::paths::{Files, open_printed};
use super::{Exit, spec};
use crate::backend::cuda::catalogue::StepCalls;
use crate::backend::cuda::driver::gpu::expect_kernels;
use crate::backend::cuda::tuning::gpu::H200;
use crate::command::download::{model, model_of_config};
use crate::error::{Error, Result};
use crate::model::{DType, WeightFormat};
use crate::plan::{Plan, Precision, StepKind};
use crate::session::{DeviceSpec, Parallel, RunSpec, Target};
use document::{Asked, OnGpu};
use serde::Serialize;
use serde_json::json;
use std::io::{self, Write};
use std::sync::Arc;

pub(super) fn run(args: &InspectArgs) -> Result<Exit> {
    let run = &args.run;
    let asks_gpu = run
        .device
        .as_deref()
        .is_some_and(|device| device.split(':').next() != Some("cpu"));
    let calls = args.calls;
    if asks_gpu && calls {
        return Err(Error::Usage(
            "--calls: needs no GPU; expected --gpu NAME in place of --device".into(),
        ));
    }
    if !asks_gpu && (run.launch.is_some() || run.buckets.kernel_file.is_some() && !calls) {
        return Err(Error::Usage(
            "--launch and --kernel-file: a plan has no graphs and no kernels; expected --device cuda, which captures them".into(),
        ));
    }
    // A plan alone is of no device: nothing is looked for, and it may be of any type.
    let devices = match &run.device {
        None => spec::Devices {
            all: vec![DeviceSpec::CPU],
            parallel: Parallel::default(),
        },
        Some(_) if asks_gpu => spec::devices(run)?,
        Some(name) => spec::parted(spec::named(name)?, run)?,
    };
    let source = if asks_gpu {
        model(&args.model.model)?
    } else {
        model_of_config(&args.model.model)?
    };
    let spec = spec::on(devices, source, run, &args.engine)?;
    Files::default()
        .runs(&spec.model, &run.buckets)
        .writes("--output", args.output.as_deref())
        .keep_apart()?;
    let printed = open_printed::<Format>(args.output.as_deref())?;
    let (config, _) = spec.model.config()?;
    let plan = spec.plan(&Arc::new(config))?;
    let dtype = run.precision.dtype().unwrap_or(DType::BF16);
    // Published weights are bf16: what a checkpoint's are taken to be where none is read and config.json says no other.
    let stored = match plan.config.quantization {
        Some(_) => WeightFormat::E4M3,
        None => WeightFormat::BF16,
    };
    let precision = Precision {
        activations: run.precision.activations.unwrap_or_default(),
        ..Precision::new(dtype, spec.weights.of(stored))
    };
    let shown = if calls {
        args.show_calls(&self::calls(args, &spec, &plan, precision)?)?
    } else {
        match Target::open(&spec.device)? {
            Target::Cpu(_) => args.show(&plan, precision, None)?,
            target => {
                let (precision, on_gpu) = on_gpu(&spec, &target, &plan)?;
                args.show(&plan, precision, Some(&on_gpu))?
            }
        }
    };
    printed.finish_with(&shown)?;
    Ok(Exit::Done)
}

impl InspectArgs {
    /// What is printed of `plan`, and of what a GPU was given for it where one was asked.
    ///
    /// # Errors
    /// [`Error::Usage`] for rows that no bucket holds.
    pub fn show(
        &self,
        plan: &Plan,
        precision: Precision,
        on_gpu: Option<&OnGpu>,
    ) -> Result<Vec<u8>> {
        let known_gpu = on_gpu.and_then(|on_gpu| on_gpu.known);
        let gpu = self.gpu.or(known_gpu).unwrap_or(&H200);
        let asked = Asked {
            plan,
            precision,
            gpu,
            args: self,
            rows: self.rows(plan)?,
        };
        let document = asked.document(on_gpu);
        written(|out| match self.format() {
            Format::Text => text::write(&document, out),
            Format::Json => json(&document, out),
            Format::Dot => dot::write(&document, out),
        })
    }

    /// Kernel calls as they are printed.
    fn show_calls(&self, steps: &[StepCalls]) -> Result<Vec<u8>> {
        match self.format() {
            Format::Json => written(|out| json(&json!({ "steps": steps }), out)),
            Format::Text => written(|out| text::calls(steps, out)),
            Format::Dot => Err(Error::Usage(
                "--calls: a list, and no graph; expected --format text or json".into(),
            )),
        }
    }

    fn format(&self) -> Format {
        if self.json { Format::Json } else { self.format }
    }

    /// The rows asked for, or the default ones.
    fn rows(&self, plan: &Plan) -> Result<Vec<u32>> {
        let sizes = plan.bucket_sizes.of(self.kind);
        let largest = sizes.last().copied().unwrap_or(0);
        if let Some(rows) = self.rows.iter().find(|&&rows| rows > largest) {
            return Err(Error::Usage(format!(
                "--tokens {rows}: expected at most {largest}, the largest {} bucket",
                self.kind.name()
            )));
        }
        Ok(match self.kind {
            _ if !self.rows.is_empty() => self.rows.clone(),
            StepKind::Decode => [1, 8, 32, 128, 256]
                .into_iter()
                .filter(|&rows| rows <= largest)
                .collect(),
            _ => sizes.to_vec(),
        })
    }
}

fn written(view: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    view(&mut out).map_err(|source| Error::io("standard output", source))?;
    Ok(out)
}

fn json(document: &impl Serialize, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, document)?;
    writeln!(out)
}

/// The calls of the steps asked for, on a GPU like the one named.
fn calls(
    args: &InspectArgs,
    spec: &RunSpec,
    plan: &Plan,
    precision: Precision,
) -> Result<Vec<StepCalls>> {
    use crate::backend::cuda::device::on_paper;
    use crate::backend::cuda::families::limits::GpuShape;
    use crate::backend::cuda::lower::listing::Listing;
    use crate::backend::cuda::tuning::KernelChoice;
    use crate::session::sizes::wanted;

    expect_kernels("--calls")?;
    let gpu = args.gpu.unwrap_or(&H200);
    let shape = GpuShape {
        capability: gpu.capability,
        class: gpu.class(),
        block_bytes: gpu.block_bytes,
    };
    let sizes = on_paper(&wanted(spec, plan, precision, false), gpu)?;
    let choice = KernelChoice::open(args.run.buckets.kernel_file.as_deref())?;
    let listing = Listing::new(plan, shape, precision, &choice, &sizes.options)?;
    // The buckets of the rows asked for, each once.
    let rows = args.rows(plan)?.into_iter();
    let buckets = rows.filter_map(|rows| plan.bucket_sizes.bucket(args.kind, rows));
    let mut buckets: Vec<u32> = buckets.collect();
    buckets.dedup();
    let mut steps = vec![];
    for bucket in buckets {
        for stage in 0..plan.stages.len() {
            steps.push(listing.step(stage, args.kind, bucket)?);
        }
    }
    Ok(steps)
}

/// The graphs that the GPU makes of `plan`, and the types they are of.
fn on_gpu(spec: &RunSpec, target: &Target, plan: &Plan) -> Result<(Precision, OnGpu)> {
    use crate::backend::cuda::device::capture_all;
    use crate::backend::cuda::engine::captures::Captures;
    use crate::backend::cuda::tuning::Shape;
    use crate::backend::device::EngineSpec;
    use crate::runtime::core_bytes;
    use crate::session::opened::load;
    use crate::session::sizes::memory;

    let Target::Gpu(device) = target else {
        return Err(Error::Usage(
            "--device: expected cuda, or none for the plan alone".into(),
        ));
    };
    let sizes = memory(spec, target, plan, false)?;
    let model = load(spec)?;
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
        device: document::Device {
            name: device.gpu.info.to_string(),
            launch: device.spec.launch.name(),
            kernel_variants: served.name(),
            entries: served.origin(precision.compute, Shape::of(&plan.config)),
        },
        known: crate::backend::device::Device::known(device),
        graphs: found.graphs,
    };
    Ok((precision, on_gpu))
}
