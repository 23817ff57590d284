//! A GPU that schedules itself, or several with a stage each, and the first of them launched kernel by kernel.

use super::bits::Descriptors;
use super::probe::ProbeLog;
use std::sync::Arc;
use tailgraph::backend::cuda::device::{GpuDevice, GpuStages, launched};
use tailgraph::backend::cuda::driver::gpu::OpenGpu;
use tailgraph::backend::cuda::engine::model::{InOrder, programs};
use tailgraph::backend::cuda::engine::program::StepProgram;
use tailgraph::backend::device::EngineSpec;
use tailgraph::backend::{Device, GpuSpec, LaunchWay, SharedSink};
use tailgraph::error::{Error, Result};
use tailgraph::model::{DType, Model};
use tailgraph::plan::{Plan, RingCapacities};
use tailgraph::runtime::replay::Replayer;
use tailgraph::runtime::{EngineOptions, EngineShape, SingleEngine};

/// Steps whose descriptors are noted: more than any round takes.
const MOST_STEPS: u32 = 1 << 20;

pub struct OnGpu {
    pub gpu: OpenGpu,
    /// From the first on.
    pub gpus: u32,
    pub model: Arc<Model>,
    pub plan: Plan,
}

impl OnGpu {
    /// An engine that waits for its launch.
    pub fn engine(
        &self,
        dtype: DType,
        options: &EngineOptions,
        sink: &SharedSink,
    ) -> Result<SingleEngine> {
        let spec = self.spec(options, sink);
        if self.gpus == 1 {
            return SingleEngine::on(&self.device(dtype), &spec);
        }
        let of_gpu = |ordinal| GpuSpec {
            dtype,
            ..GpuSpec::new(ordinal)
        };
        let gpus = (0..self.gpus).map(of_gpu).collect();
        SingleEngine::on(&GpuStages::open(&gpus)?, &spec)
    }

    /// The engine that [`Self::engine`] makes on one GPU, with a kernel more in each step's graph: it notes the fingerprint of
    /// the descriptor
    /// that it finds. It stands first, so that the step ends as ever.
    pub fn described(
        &self,
        dtype: DType,
        options: &EngineOptions,
    ) -> Result<(SingleEngine, Descriptors)> {
        let (gpu, plan) = (&self.gpu, &self.plan);
        let options = options.one_step_in_flight();
        let bucket_sizes = plan.bucket_sizes.reachable(&options);
        let (device, spec) = (self.device(dtype), self.spec(&options, &None));
        let placement = device.placement(&spec, &bucket_sizes, &options, true);
        let log = ProbeLog::new(
            &gpu.context,
            &gpu.module,
            MOST_STEPS,
            gpu.overlaps_launches(),
        )?;
        let mut calls: Vec<Box<dyn StepProgram>> = vec![Box::new(log.clone())];
        for program in programs(gpu, &self.model, &placement)? {
            calls.push(Box::new(program));
        }
        let calls = Box::new(InOrder(calls));
        let runs = launched(
            gpu,
            vec![calls],
            &bucket_sizes,
            &options,
            LaunchWay::DeviceGraph,
        )?;
        let rings = RingCapacities::new(&options);
        let engine = SingleEngine::of(runs, &bucket_sizes, &options, rings)?;
        let context = gpu.context.clone();
        let descriptors = move || {
            let stream = context.new_stream();
            let stream = stream.map_err(|error| Error::Runtime(error.to_string()))?;
            log.read(&stream)
        };
        Ok((engine, Box::new(descriptors)))
    }

    pub fn replayer(&self, dtype: DType, shape: &EngineShape) -> Result<Replayer> {
        let spec = self.spec(&shape.options, &None);
        Replayer::new(shape, self.device(dtype).stages(&spec)?)
    }

    fn device(&self, dtype: DType) -> GpuDevice {
        GpuDevice {
            gpu: self.gpu.clone(),
            spec: GpuSpec {
                dtype,
                ..GpuSpec::new(0)
            },
        }
    }

    fn spec<'a>(&'a self, options: &'a EngineOptions, sink: &'a SharedSink) -> EngineSpec<'a> {
        EngineSpec {
            model: &self.model,
            plan: &self.plan,
            options,
            sink,
        }
    }
}
