//! Flags that several commands share: from what was written to what it means.

use super::args::{
    BucketArgs, DoctorCommand, Dtype, EngineArgs, InspectCommand, PrecisionArgs, RunArgs,
};
use super::doctor::Subject;
use super::{Exit, print};
use crate::error::{Error, Result};
use crate::model::{DType, ModelConfig, ModelSource};
use crate::plan::budget::Budget;
use crate::plan::bytes::parse_bytes;
use crate::plan::cost::Precision;
use crate::plan::memory::{MemoryPlan, WeightPlacement};
use crate::plan::{GraphFile, Limits, Plan};
use std::sync::Arc;

/// Element type of published weights.
const CHECKPOINT: DType = DType::BF16;

fn usage<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::Usage(message.into()))
}

impl PrecisionArgs {
    /// `--dtype` or `--fp16`; `None` where neither is given.
    pub fn dtype(&self) -> Option<DType> {
        if self.fp16 {
            return Some(DType::F16);
        }
        self.dtype.map(|dtype| match dtype {
            Dtype::F32 => DType::F32,
            Dtype::Bf16 => DType::BF16,
            Dtype::F16 => DType::F16,
        })
    }
}

impl RunArgs {
    /// Checks that the flags name something this build runs: the CPU, in f32.
    ///
    /// # Errors
    /// [`Error::Usage`] for a device or a combination that there is not.
    pub fn check(&self) -> Result<()> {
        match self.device.as_deref() {
            None | Some("cpu") => {}
            Some(device) if device == "cuda" || is_gpu_list(device) => {
                return if cfg!(feature = "cuda") {
                    usage(format!(
                        "--device {device}: this version does not run models on GPUs yet, expected --device cpu"
                    ))
                } else {
                    usage(format!(
                        "--device {device}: this build has no GPU support; build it with `cargo build --release --features cuda`, or use --device cpu"
                    ))
                };
            }
            Some(other) => {
                return usage(format!(
                    "--device {other}: expected cpu, cuda, or cuda: with GPU numbers such as cuda:0,1"
                ));
            }
        }
        match self.precision.dtype() {
            None | Some(DType::F32) => {}
            Some(_) if self.precision.fp16 => return usage("--fp16: the CPU computes in f32 only"),
            Some(dtype) => {
                let name = format!("{dtype:?}").to_lowercase();
                return usage(format!("--dtype {name}: the CPU computes in f32 only"));
            }
        }
        if self.launch.is_some() {
            return usage(
                "--launch: the CPU launches no kernels; it is an option of --device cuda",
            );
        }
        Ok(())
    }
}

fn is_gpu_list(device: &str) -> bool {
    device
        .strip_prefix("cuda:")
        .is_some_and(|list| list.split(',').all(|gpu| gpu.parse::<u32>().is_ok()))
}

impl EngineArgs {
    pub fn limits(&self) -> Limits {
        Limits {
            max_seqs: self.max_seqs,
            max_context: self.max_context,
            page_tokens: self.page_tokens,
            step_tokens: self.step_tokens,
            chunk_align: self.chunk_align,
            stages: self.stages.map(|stages| stages as usize),
            steps_in_flight: None,
        }
    }

    /// # Errors
    /// [`Error::Usage`] for a size that is none.
    pub fn budget(&self) -> Result<Budget> {
        let limit = self
            .memory_limit
            .as_deref()
            .map(|text| parse_bytes(text).map_err(|e| Error::Usage(format!("--memory-limit {e}"))))
            .transpose()?;
        Ok(Budget::new(limit))
    }
}

/// The plan that the flags ask for.
pub fn plan(config: &Arc<ModelConfig>, buckets: &BucketArgs, limits: &Limits) -> Result<Plan> {
    GraphFile::open(buckets.bucket_file.as_deref())?.plan(config.clone(), limits)
}

/// Sizes of a run on the CPU, before any weight is loaded.
pub fn memory(
    source: &ModelSource,
    plan: &Plan,
    limits: &Limits,
    budget: Budget,
) -> Result<MemoryPlan> {
    let placement = match source {
        ModelSource::Dir(_) => WeightPlacement::Mapped,
        ModelSource::Random { .. } => WeightPlacement::Resident,
    };
    let precision = Precision::new(DType::F32, CHECKPOINT);
    MemoryPlan::new(plan, precision, placement, limits, budget)
}

/// The `inspect` command.
pub fn inspect(args: &InspectCommand) -> Result<Exit> {
    let source = ModelSource::parse(&args.model.model)?;
    let (config, _) = source.config()?;
    let limits = Limits {
        stages: args.stages.map(|stages| stages as usize),
        ..Limits::default()
    };
    let plan = plan(&Arc::new(config), &args.buckets, &limits)?;
    let dtype = args.precision.dtype().unwrap_or(DType::BF16);
    let mut out = Vec::new();
    args.inspect
        .run(&plan, Precision::new(dtype, CHECKPOINT), &mut out)?;
    print(&out)?;
    Ok(Exit::Done)
}

/// The `doctor` command.
pub fn doctor(args: &DoctorCommand) -> Result<Exit> {
    args.run.check()?;
    let budget = args.engine.budget()?;
    let subject = args.model.as_ref().map(|name| Subject {
        name: name.clone(),
        memory: ModelSource::parse(name).and_then(|source| {
            let (config, _) = source.config()?;
            let limits = args.engine.limits();
            let plan = plan(&Arc::new(config), &args.run.buckets, &limits)?;
            memory(&source, &plan, &limits, budget)
        }),
    });
    let mut out = Vec::new();
    let healthy = args.doctor.run(subject.as_ref(), &mut out)?;
    print(&out)?;
    Ok(if healthy { Exit::Done } else { Exit::Problem })
}
