//! A GPU that schedules itself, or several with a stage each, and the first of them launched kernel by kernel.

use std::sync::Arc;
use tailgraph::backend::cuda::device::{GpuDevice, GpuStages};
use tailgraph::backend::cuda::driver::gpu::OpenGpu;
use tailgraph::backend::device::EngineSpec;
use tailgraph::backend::{Device, GpuSpec, SharedSink};
use tailgraph::error::Result;
use tailgraph::model::{DType, Model};
use tailgraph::plan::Plan;
use tailgraph::runtime::replay::Replayer;
use tailgraph::runtime::{Engine, EngineOptions, EngineShape};

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
    ) -> Result<Engine> {
        let spec = self.spec(options, sink);
        if self.gpus == 1 {
            return Engine::on(&self.device(dtype), &spec);
        }
        let of_gpu = |ordinal| GpuSpec {
            dtype,
            ..GpuSpec::new(ordinal)
        };
        let gpus = (0..self.gpus).map(of_gpu).collect();
        Engine::on(&GpuStages::open(&gpus)?, &spec)
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
