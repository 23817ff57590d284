//! The `inspect` command: the plan that the flags ask for, and the graphs that a GPU makes of it where one is asked.

use super::args::InspectCommand;
use super::inspect::graphs::OnGpu;
use super::settings::plan;
use super::{Exit, print};
use crate::error::{Error, Result};
use crate::model::{DType, ModelSource};
use crate::plan::cost::Precision;
use std::sync::Arc;

/// Element type of published weights: what a checkpoint's are taken to be where none is read.
const CHECKPOINT: DType = DType::BF16;

pub(super) fn run(args: &InspectCommand) -> Result<Exit> {
    let source = ModelSource::parse(&args.model.model)?;
    let (config, _) = source.config()?;
    let limits = args.engine.limits();
    let plan = plan(&Arc::new(config), &args.run.buckets, &limits)?;
    let dtype = args.run.precision.dtype().unwrap_or(DType::BF16);
    let asks_gpu = args.run.device.as_deref().is_some_and(|d| d != "cpu");
    if !asks_gpu && args.run.launch.is_some() {
        return Err(Error::Usage(
            "--launch: a plan has no graphs; expected --device cuda with it, which captures them"
                .into(),
        ));
    }
    if !asks_gpu && args.run.buckets.kernel_file.is_some() {
        return Err(Error::Usage(
            "--kernel-file: a plan has no kernels; expected --device cuda with it, which captures them"
                .into(),
        ));
    }
    let (precision, on_gpu): (Precision, Option<OnGpu>) = match asks_gpu {
        false => (Precision::new(dtype, CHECKPOINT), None),
        true => on_gpu(args, &source, &plan, &limits)?,
    };
    let mut out = Vec::new();
    args.inspect
        .run(&plan, precision, on_gpu.as_ref(), &mut out)?;
    print(&out)?;
    Ok(Exit::Done)
}

/// Where there is no GPU support, only the reason why not comes of it.
#[cfg(not(feature = "cuda"))]
fn on_gpu<T>(
    args: &InspectCommand,
    _: &ModelSource,
    _: &crate::plan::Plan,
    _: &crate::plan::Limits,
) -> Result<T> {
    match args.run.target()? {
        super::target::Target::Cpu { .. } => Err(Error::Usage(
            "--device: expected cuda, or none for the plan alone".into(),
        )),
    }
}

#[cfg(feature = "cuda")]
fn on_gpu(
    args: &InspectCommand,
    source: &ModelSource,
    plan: &crate::plan::Plan,
    limits: &crate::plan::Limits,
) -> Result<(Precision, Option<OnGpu>)> {
    use super::settings::memory;
    use super::target::Target;
    use crate::backend::cuda::program::StepGraph;
    use crate::backend::cuda::survey::Survey;
    use crate::files::{Out, Unfinished};
    use crate::model::Model;
    use crate::runtime::cuda::{Launch, survey};
    use std::time::Instant;

    let target = args.run.target()?;
    let Target::Gpu {
        gpu, dtype, launch, ..
    } = &target
    else {
        return Err(Error::Usage(
            "--device: expected cuda, or none for the plan alone".into(),
        ));
    };
    let picture = args.inspect.picture(plan)?;
    let budget = args.engine.budget(&target)?;
    let sizes = memory(source, &target, plan, limits, budget, false)?;
    let start = Instant::now();
    let model = Model::load(source)?;
    let load = start.elapsed();
    let precision = Precision::new(*dtype, source.matrix_dtype(&plan.config)?);
    let mut drawn = false;
    let dot = args.inspect.dot.as_deref();
    let mut dot = dot
        .map(|path| Out::open(path, Unfinished::Removed))
        .transpose()?;
    let mut each = |step: &StepGraph| {
        let Some(dot) = &mut dot else {
            return Ok(());
        };
        let whole = *launch != Launch::DeviceGraph;
        // Of a step's graphs the first: the one with the dispatcher behind it.
        let is_it = !drawn
            && (whole || step.stage == picture.stage)
            && (step.bucket.kind, step.bucket.rows) == (picture.kind, picture.rows);
        if is_it {
            drawn = true;
            step.graph.write_dot(dot.begin()?)?;
        }
        Ok(())
    };
    let mut found = Survey::new(&mut each);
    survey(
        gpu,
        &model,
        plan,
        &sizes.options,
        *dtype,
        *launch,
        &mut found,
    )?;
    let on_gpu = OnGpu {
        device: gpu.info.to_string(),
        launch: target.launch().unwrap_or_default(),
        kernel_variants: target.kernel_variants(&plan.kernels)?.unwrap_or_default(),
        load,
        memory: sizes.items,
        graphs: std::mem::take(&mut found.graphs),
    };
    drop(found);
    let missing = on_gpu.graph(picture).is_none() || (args.inspect.dot.is_some() && !drawn);
    let pictured = args.inspect.dot.is_some() || args.inspect.svg.is_some();
    if pictured && missing {
        return Err(Error::Usage(format!(
            "--rows: no graph of {} {} was captured; expected rows that --max-seqs {} or --step-tokens {} let a step have",
            picture.kind.name(),
            picture.rows,
            sizes.options.max_seqs,
            sizes.options.step_tokens
        )));
    }
    if let Some(dot) = dot {
        dot.finish()?;
    }
    Ok((precision, Some(on_gpu)))
}
