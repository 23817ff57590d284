//! Several GPUs as the device of a run, each with a share of the model's stages.

use super::GpuDevice;
use super::memory;
use super::start::all_of_gpu;
use crate::backend::cuda::driver::peer;
use crate::backend::cuda::engine::host_pipeline::{HostPipeline, HostPipelineSpec, Route};
use crate::backend::cuda::engine::model::Placement;
use crate::backend::cuda::engine::pipeline::{GpuPipeline, PipelineSpec, StageProgram};
use crate::backend::cuda::tuning::gpu::Gpu;
use crate::backend::device::{Clocks, Device, EngineSpec, Runs, Stages, Started, Wanted, Watch};
use crate::backend::{GpuSpec, Handover, LaunchWay};
use crate::error::{Error, Result};
use crate::plan::{BucketSizes, Budget, EngineOptions, LayerRange, MemoryPlan, Plan};
use crate::telemetry::warn;

/// GPUs that a model's stages are shared out among, in order.
#[derive(Debug, Clone)]
pub struct GpuStages {
    /// At least one. All are used as the first one is, and run the kernels that serve that one.
    gpus: Vec<GpuDevice>,
}

impl GpuStages {
    pub fn gpus(&self) -> &[GpuDevice] {
        &self.gpus
    }

    fn first(&self) -> &GpuDevice {
        &self.gpus[0]
    }

    fn ranges(&self, plan: &Plan) -> Result<Vec<LayerRange>> {
        let shares = plan.shares(self.gpus.len())?.into_iter();
        Ok(shares
            .map(|stages| LayerRange::of(&plan.config, stages))
            .collect())
    }

    /// Whether each reaches its neighbours' memory.
    fn are_peers(&self) -> Result<bool> {
        let next = self.gpus.iter().cycle().skip(1);
        for (one, other) in self.gpus.iter().zip(next) {
            let (one, other) = (&one.gpu.context, &other.gpu.context);
            if !(peer::reaches(one, other)? && peer::reaches(other, one)?) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Each GPU's share of the model, there and ready to be launched.
    fn programs(
        &self,
        spec: &EngineSpec<'_>,
        bucket_sizes: &BucketSizes,
        options: &EngineOptions,
        hold: bool,
    ) -> Result<Vec<StageProgram>> {
        let shares = self.gpus.iter().zip(spec.plan.shares(self.gpus.len())?);
        let program = |(device, stages): (&GpuDevice, _)| {
            let placement = Placement {
                stages,
                ..device.placement(spec, bucket_sizes, options, hold)
            };
            Ok(StageProgram {
                gpu: device.gpu.clone(),
                program: Box::new(all_of_gpu(&device.gpu, spec, &placement)?),
            })
        };
        shares.map(program).collect()
    }

    /// Whether steps go from GPU to GPU. Says so where they do not and nobody asked for that.
    ///
    /// # Errors
    /// [`Error::Usage`] where they are to and cannot.
    fn hands_to_peers(&self) -> Result<bool> {
        let asked = self.first().spec.handover;
        let peers = asked != Some(Handover::Host) && self.are_peers()?;
        if asked == Some(Handover::Peer) && !peers {
            return Err(Error::Usage(
                "`handover` peer: these GPUs do not reach each other's memory, expected `handover` host".into(),
            ));
        }
        if asked.is_none() && !peers {
            warn(
                "these GPUs do not reach each other's memory: what stages hand on goes through memory of the host, which is slower",
            );
        }
        Ok(peers)
    }

    /// All stages as one, launched in a way of the host's.
    fn hosted(
        &self,
        spec: &EngineSpec<'_>,
        bucket_sizes: &BucketSizes,
        way: LaunchWay,
    ) -> Result<Stages> {
        let pipeline = HostPipelineSpec {
            launch: way,
            behind: way == LaunchWay::HostGraphAhead,
            route: match self.first().spec.handover {
                Some(Handover::Nccl) => Route::Nccl,
                _ if self.hands_to_peers()? => Route::Peer,
                _ => Route::Host,
            },
        };
        pipeline.route.check()?;
        let programs = self.programs(spec, bucket_sizes, spec.options, false)?;
        let pipeline = HostPipeline::new(programs, bucket_sizes, spec.options, pipeline)?;
        Ok(vec![Box::new(pipeline)])
    }
}

impl Device for GpuStages {
    type Spec = Vec<GpuSpec>;

    fn open(specs: &Vec<GpuSpec>) -> Result<Self> {
        let mut gpus: Vec<GpuDevice> = specs.iter().map(GpuDevice::open).collect::<Result<_>>()?;
        let Some(first) = gpus.first() else {
            return Err(Error::Usage("`device`: expected at least one GPU".into()));
        };
        let (name, known) = (first.gpu.info.to_string(), first.known());
        for (other, spec) in gpus.iter().zip(specs) {
            let found = other.known().map(|gpu| gpu.name);
            let alike = first.gpu.info.class.is_like(other.gpu.info.class);
            if !alike || found != known.map(|gpu| gpu.name) {
                return Err(Error::Usage(format!(
                    "`device` cuda:{}: found {}, expected a GPU like {name}: stages of one model are on GPUs of one kind",
                    spec.ordinal, other.gpu.info
                )));
            }
        }
        let class = first.gpu.info.class;
        for device in &mut gpus {
            let kernels = device.gpu.kernels.clone();
            device.gpu.kernels = kernels.as_gpu(class);
        }
        Ok(Self { gpus })
    }

    fn info(&self) -> Option<String> {
        let infos = self.gpus.iter().map(|device| device.gpu.info.to_string());
        Some(infos.collect::<Vec<_>>().join(" + "))
    }

    fn known(&self) -> Option<&'static Gpu> {
        self.first().known()
    }

    fn kernel_variants(&self) -> Result<Option<String>> {
        self.first().kernel_variants()
    }

    fn budget(&self, limit: Option<u64>) -> Result<Budget> {
        let budgets = self.gpus.iter().map(|device| device.budget(limit));
        let budgets: Vec<_> = budgets.collect::<Result<_>>()?;
        let least = budgets.into_iter().min_by_key(|budget| budget.bytes);
        least.ok_or_else(|| Error::Usage("`device`: expected at least one GPU".into()))
    }

    fn memory(&self, wanted: &Wanted<'_>) -> Result<MemoryPlan> {
        let budget = self.budget(wanted.memory_limit)?;
        let ranges = self.ranges(wanted.plan)?;
        let GpuDevice { gpu, spec } = self.first();
        memory::on_gpu(wanted, &ranges, spec.launch, &gpu.info, budget)
    }

    fn start(&self, spec: &EngineSpec<'_>, watch: Watch<'_>) -> Result<Started> {
        if !matches!(watch, Watch::Nothing | Watch::Stages) {
            return Err(Error::Usage(
                "`parallel` stages: parts of steps are timed and followed on one GPU alone, expected one `device`".into(),
            ));
        }
        let GpuSpec {
            launch,
            step_timeout,
            ..
        } = self.first().spec;
        let bucket_sizes = spec.plan.bucket_sizes.reachable(spec.options);
        let mut clocks = Clocks::default();
        let runs = match launch {
            way if way.is_of_bench() => {
                return Err(Error::Usage(format!(
                    "`launch` {}: a way of one GPU, found `parallel` stages, whose GPUs ask events in every way of the host's and are never \
                     behind each other: expected host-graph or device-graph",
                    way.name()
                )));
            }
            LaunchWay::DeviceGraph if self.first().spec.handover == Some(Handover::Nccl) => {
                return Err(Error::Usage(
                    "`handover` nccl: GPUs that schedule themselves send without it, expected `launch` host-graph or host-kernels, to compare with them".into(),
                ));
            }
            LaunchWay::DeviceGraph => {
                let peers = self.hands_to_peers()?;
                let pipeline = PipelineSpec {
                    // Whoever takes the logits may be held up by its disk for as long as that takes.
                    limit: spec.sink.is_none().then_some(step_timeout),
                    peers,
                    timed: matches!(watch, Watch::Stages),
                };
                let programs = self.programs(spec, &bucket_sizes, spec.options, true)?;
                let pipeline = GpuPipeline::new(programs, pipeline)?;
                clocks.stages = pipeline.clock().map(|clock| Box::new(clock) as _);
                Runs::Scheduler(Box::new(pipeline))
            }
            way => Runs::Stages(self.hosted(spec, &bucket_sizes, way)?),
        };
        Ok(Started {
            runs,
            bucket_sizes,
            options: *spec.options,
            clocks,
            step_timeout: Some(step_timeout),
        })
    }

    fn stages(&self, _spec: &EngineSpec<'_>) -> Result<Stages> {
        Err(Error::Usage(
            "`device`: stages that one thread runs in turn are on one device, expected one".into(),
        ))
    }
}
