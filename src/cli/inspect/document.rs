//! What `inspect` knows of a plan and of its captured graphs. `--format json` writes it as it stands; tables and graphs are made of
//! it.

use crate::backend::cuda::catalogue::{AlikeNodes, CapturedGraph};
use crate::backend::cuda::tuning::Origin;
use crate::backend::cuda::tuning::gpu::Gpu;
use crate::backend::cuda::tuning::variants::Variant;
use crate::cli::args::InspectArgs;
use crate::model::ModelConfig;
use crate::model::tensors::{Declared, Role, declared, model_bytes, model_parameters};
use crate::plan::cost::op_cost;
use crate::plan::{BucketSizes, Cost, Op, OpKind, Plan, Precision, Stage, StepKind, StepShape};
use serde::{Serialize, Serializer};
use std::time::Duration;

#[derive(Debug, Serialize)]
pub struct Document<'a> {
    pub model: Model<'a>,
    pub weight_dtype: &'static str,
    pub compute_dtype: &'static str,
    pub gpu: Bounds,
    pub buckets: &'a BucketSizes,
    pub kind: StepKind,
    pub context: u32,
    pub stages: Vec<StageCosts>,
    /// The whole step, for each number of rows.
    pub totals: Vec<Total>,
    /// `None`, and no graphs, where no GPU was asked.
    pub device: Option<&'a Device>,
    pub graphs: Vec<Graph<'a>>,
}

#[derive(Debug, Serialize)]
pub struct Model<'a> {
    #[serde(flatten)]
    pub config: &'a ModelConfig,
    pub parameters: f64,
    pub weight_bytes: f64,
    pub kv_bytes_per_token: u64,
    pub conv_state_bytes_per_sequence: u64,
}

/// The GPU that least times are by.
#[derive(Debug, Serialize)]
pub struct Bounds {
    #[serde(flatten)]
    pub gpu: &'static Gpu,
    /// The rate for products of this type.
    pub flops_per_s: f64,
    /// FLOPs a byte from which on products bound an operation.
    pub ridge: f64,
}

#[derive(Debug, Serialize)]
pub struct StageCosts {
    pub index: usize,
    pub first_layer: usize,
    pub layers: usize,
    pub operations: Vec<Operation>,
    pub totals: Vec<Costs>,
}

/// Operations of one kind in a stage: all have the same shapes, and costs are of all of them together.
#[derive(Debug, Serialize)]
pub struct Operation {
    pub operation: OpKind,
    /// Empty before the first and after the last layer.
    pub layers: Vec<usize>,
    /// What one of them reads.
    pub weights: Vec<Weight>,
    pub costs: Vec<Costs>,
}

/// A tensor by its published name, in which `{}` is an expert's number; its shape has the experts first.
#[derive(Debug, Serialize)]
pub struct Weight {
    pub name: &'static str,
    pub role: Role,
    pub shape: Vec<usize>,
}

impl From<Declared> for Weight {
    fn from(tensor: Declared) -> Self {
        Self {
            name: tensor.name,
            role: tensor.role,
            shape: tensor.whole_shape(),
        }
    }
}

/// What operations move, compute and take at least in one step.
#[derive(Debug, Serialize)]
pub struct Costs {
    pub rows: u32,
    #[serde(flatten)]
    pub sum: Cost,
    /// Bytes that cross the memory bus.
    pub memory_bytes: f64,
    /// FLOPs a byte of these; `None` where there are no such bytes.
    pub intensity: Option<f64>,
    /// The floor: the sum over the operations.
    pub roofline_us: f64,
    /// What bounds the larger part of that time.
    pub bound: &'static str,
}

#[derive(Debug, Serialize)]
pub struct Total {
    #[serde(flatten)]
    pub costs: Costs,
    pub bucket: Option<u32>,
}

/// The GPU that captured the graphs.
#[derive(Debug, Serialize)]
pub struct Device {
    /// Its name and ordinal.
    pub name: String,
    /// The name in `--launch`.
    pub launch: &'static str,
    /// What chose the kernels: its architecture and digest.
    pub kernel_variants: String,
    /// Whose entries chose the kernels of decode steps; `None`: there are none.
    #[serde(serialize_with = "origin")]
    pub entries: Option<Origin>,
}

fn origin<S: Serializer>(origin: &Option<Origin>, out: S) -> Result<S::Ok, S::Error> {
    origin.map(Origin::json).serialize(out)
}

/// One graph of a stage, kind and bucket, or of all stages where the host launches them together.
#[derive(Debug, Serialize)]
pub struct Graph<'a> {
    pub stages: Vec<usize>,
    pub kind: StepKind,
    pub bucket: u32,
    #[serde(flatten)]
    pub costs: Costs,
    pub captured: Captured<'a>,
}

#[derive(Debug, Serialize)]
pub struct Captured<'a> {
    pub nodes: usize,
    pub edges: usize,
    pub early_edges: usize,
    pub dispatcher: bool,
    pub copies: u32,
    pub capture_ms: f64,
    pub instantiate_ms: f64,
    pub upload_ms: f64,
    pub device_bytes: u64,
    pub variant: Option<Variant>,
    pub kernels: Vec<AlikeNodes<'a>>,
    pub operations: Vec<OperationNodes>,
}

#[derive(Debug, Serialize)]
pub struct OperationNodes {
    #[serde(flatten)]
    pub op: Op,
    /// Places of the nodes that do it or have a share in it.
    pub nodes: Vec<usize>,
}

/// What a GPU was given for a plan.
pub struct OnGpu {
    pub device: Device,
    /// The GPU, where its roofline is known.
    pub known: Option<&'static Gpu>,
    pub graphs: Vec<CapturedGraph>,
}

/// What is asked of a plan.
pub(super) struct Asked<'a> {
    pub plan: &'a Plan,
    pub precision: Precision,
    pub gpu: &'static Gpu,
    pub args: &'a InspectArgs,
    pub rows: Vec<u32>,
}

impl<'a> Asked<'a> {
    pub fn document(&self, on_gpu: Option<&'a OnGpu>) -> Document<'a> {
        let (plan, gpu, precision) = (self.plan, self.gpu, self.precision);
        let ops = plan.stages.iter().flat_map(|stage| &stage.ops);
        let total = |&rows: &u32| Total {
            costs: self.costs(ops.clone(), self.args.kind, rows),
            bucket: plan.bucket_sizes.bucket(self.args.kind, rows),
        };
        let graphs = on_gpu.iter().flat_map(|on_gpu| &on_gpu.graphs);
        let per_sequence = plan.conv_state_bytes_per_sequence(precision.compute);
        Document {
            model: Model {
                config: &plan.config,
                parameters: model_parameters(&plan.config),
                weight_bytes: model_bytes(&plan.config, precision.weights),
                kv_bytes_per_token: plan.kv_bytes_per_token(precision.compute) as u64,
                conv_state_bytes_per_sequence: per_sequence as u64,
            },
            weight_dtype: precision.weights.name(),
            compute_dtype: precision.compute.name(),
            gpu: Bounds {
                gpu,
                flops_per_s: gpu.flops_per_s(precision),
                ridge: gpu.ridge(precision),
            },
            buckets: &plan.bucket_sizes,
            kind: self.args.kind,
            context: self.args.context,
            stages: plan.stages.iter().map(|stage| self.stage(stage)).collect(),
            totals: self.rows.iter().map(total).collect(),
            graphs: graphs.map(|graph| self.graph(graph)).collect(),
            device: on_gpu.map(|on_gpu| &on_gpu.device),
        }
    }

    fn costs<'o>(&self, ops: impl Iterator<Item = &'o Op>, kind: StepKind, rows: u32) -> Costs {
        let shape = StepShape {
            kind,
            rows,
            context: self.args.context,
        };
        let cost = |op: &Op| op_cost(&self.plan.config, op, &shape, self.precision);
        let costs: Vec<Cost> = ops.map(cost).collect();
        let rates = self.gpu.rates(self.precision);
        let least = rates.least(costs.iter().copied());
        Costs {
            rows,
            sum: costs.into_iter().sum(),
            memory_bytes: least.bytes,
            intensity: (least.bytes > 0.0).then(|| least.flops / least.bytes),
            roofline_us: least.us(),
            bound: least.bound().name(),
        }
    }

    /// The same for each number of rows that was asked for.
    fn by_rows<'o>(&self, ops: impl Iterator<Item = &'o Op> + Clone) -> Vec<Costs> {
        let rows = self.rows.iter();
        rows.map(|&rows| self.costs(ops.clone(), self.args.kind, rows))
            .collect()
    }

    fn stage(&self, stage: &Stage) -> StageCosts {
        // In the order of a forward pass.
        let operations = OpKind::ALL.into_iter().filter_map(|kind| {
            let ops = stage.ops.iter().filter(move |op| op.kind == kind);
            let weights = declared(&self.plan.config, kind).into_iter();
            ops.clone().next().map(|_| Operation {
                operation: kind,
                layers: ops.clone().filter_map(|op| op.layer).collect(),
                weights: weights.map(Weight::from).collect(),
                costs: self.by_rows(ops),
            })
        });
        StageCosts {
            index: stage.index,
            first_layer: stage.layers.start,
            layers: stage.layers.len(),
            operations: operations.collect(),
            totals: self.by_rows(stage.ops.iter()),
        }
    }

    fn graph(&self, graph: &'a CapturedGraph) -> Graph<'a> {
        let stages = &self.plan.stages[graph.stages.clone()];
        let ops = stages.iter().flat_map(|stage| &stage.ops);
        let nodes_of = |op: &Op| OperationNodes {
            op: *op,
            nodes: graph.nodes_of(*op).map(|(place, _)| place).collect(),
        };
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        Graph {
            stages: graph.stages.clone().collect(),
            kind: graph.kind,
            bucket: graph.rows,
            costs: self.costs(ops.clone(), graph.kind, graph.rows),
            captured: Captured {
                nodes: graph.nodes.len(),
                edges: graph.edges.len(),
                early_edges: graph.pdl_edges(),
                dispatcher: graph.dispatcher,
                copies: graph.copies,
                capture_ms: ms(graph.capture),
                instantiate_ms: ms(graph.instantiate),
                upload_ms: ms(graph.upload),
                device_bytes: graph.device_bytes,
                variant: graph.variant,
                kernels: graph.alike(),
                operations: ops.map(nodes_of).collect(),
            },
        }
    }
}
