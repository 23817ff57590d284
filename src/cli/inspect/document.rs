//! What `inspect` knows of a plan and of its captured graphs. `--format json` writes it as it stands; tables and graphs are made of
//! it. Bytes and FLOPs are whole numbers.

use crate::backend::cuda::listed::captured::{CapturedGraph, KernelShape};
use crate::backend::cuda::tuning::Origin;
use crate::backend::cuda::tuning::gpu::{Gpu, Rates};
use crate::backend::cuda::tuning::variants::Variant;
use crate::cli::args::InspectArgs;
use crate::model::LayerType;
use crate::model::tensors::{declared, model_bytes, model_parameters};
use crate::plan::cost::{distinct_experts, op_cost};
use crate::plan::memory::MemoryItem;
use crate::plan::{Cost, Ladders, Op, OpKind, Plan, Precision, Stage, StepKind, StepShape};
use serde::{Serialize, Serializer};
use std::time::Duration;

#[derive(Debug, Serialize)]
pub struct Document {
    pub model: Model,
    pub weight_dtype: &'static str,
    pub compute_dtype: &'static str,
    pub gpu: Bounds,
    pub buckets: Ladders,
    pub kind: StepKind,
    pub context: u32,
    /// What each of several devices does.
    pub shares: Vec<Share>,
    pub stages: Vec<StageCosts>,
    /// The whole step, for each number of rows.
    pub totals: Vec<Total>,
    /// `None` where no GPU was asked.
    pub device: Option<Device>,
    pub graphs: Vec<Graph>,
}

#[derive(Debug, Serialize)]
pub struct Model {
    pub layers: usize,
    pub attention_layers: usize,
    pub dense_layers: usize,
    pub experts: usize,
    pub experts_per_token: usize,
    pub hidden_size: usize,
    pub vocab_size: usize,
    pub tied_embeddings: bool,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub parameters: u64,
    pub weight_bytes: u64,
    pub kv_bytes_per_token: u64,
    pub conv_state_bytes_per_sequence: u64,
}

/// The GPU that least times are by.
#[derive(Debug, Serialize)]
pub struct Bounds {
    pub name: &'static str,
    pub title: &'static str,
    pub bytes_per_s: f64,
    pub flops_per_s: f64,
    /// FLOPs a byte from which on products bound an operation.
    pub ridge: f64,
    pub l2_bytes: u64,
    pub source: &'static str,
}

/// What one of several devices does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Share {
    pub device: String,
    pub stages: Vec<usize>,
}

#[derive(Debug, Serialize)]
pub struct StageCosts {
    pub index: usize,
    pub first_layer: usize,
    pub layers: usize,
    pub operations: Vec<Operation>,
    pub totals: Vec<Costs>,
}

/// Operations of one kind in a stage, or one of them: all have the same shapes, and costs are of all of them together.
#[derive(Debug, Serialize)]
pub struct Operation {
    pub operation: OpKind,
    /// Empty before the first and after the last layer.
    pub layers: Vec<usize>,
    /// What one of them reads.
    pub weights: Vec<Weight>,
    pub costs: Vec<Costs>,
}

#[derive(Debug, Serialize)]
pub struct Weight {
    pub name: &'static str,
    pub shape: Vec<usize>,
    pub bytes: u64,
}

/// What operations move, compute and take at least in one step.
#[derive(Debug, Serialize)]
pub struct Costs {
    pub rows: u32,
    pub weight_bytes: u64,
    pub cache_bytes: u64,
    pub activation_bytes: u64,
    pub flops: u64,
    /// Bytes that cross the memory bus.
    pub memory_bytes: u64,
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
    /// Experts of a layer that the step reads, expected.
    pub experts_per_layer: f64,
    /// The time from one step's end to the next with every stage busy.
    pub slowest_stage_us: f64,
}

/// The GPU that captured the graphs.
#[derive(Debug, Clone, Serialize)]
pub struct Device {
    /// Its name and ordinal.
    pub name: String,
    /// As in `--launch`.
    pub launch: &'static str,
    /// What chose the kernels: its architecture and digest.
    pub kernel_variants: String,
    /// Whose entries chose the kernels of decode steps; `None`: there are none.
    #[serde(serialize_with = "origin")]
    pub entries: Option<Origin>,
    /// Until the weights were in the host's memory, or mapped into it.
    pub load_ms: f64,
    /// What a run of these sizes takes, by `doctor`'s arithmetic.
    pub memory: Vec<MemoryItem>,
}

fn origin<S: Serializer>(origin: &Option<Origin>, out: S) -> Result<S::Ok, S::Error> {
    origin.map(Origin::json).serialize(out)
}

/// One graph of a stage, kind and bucket, or of all stages where the host launches them together.
#[derive(Debug, Serialize)]
pub struct Graph {
    pub stages: Vec<usize>,
    pub kind: StepKind,
    pub bucket: u32,
    /// How many operations of the plan it does.
    pub operations: usize,
    #[serde(flatten)]
    pub costs: Costs,
    /// `None` where no GPU was asked.
    pub captured: Option<Captured>,
}

#[derive(Debug, Serialize)]
pub struct Captured {
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
    pub kernels: Vec<Kernel>,
    pub operations: Vec<OperationNodes>,
}

/// Nodes that are alike.
#[derive(Debug, Serialize)]
pub struct Kernel {
    pub name: String,
    pub count: usize,
    /// How many of them may start before the one ahead ends.
    pub early: usize,
    pub operations: Vec<&'static str>,
    #[serde(flatten)]
    pub shape: Option<KernelShape>,
}

#[derive(Debug, Serialize)]
pub struct OperationNodes {
    #[serde(flatten)]
    pub op: Op,
    /// Places of the nodes that do it or have a share in it.
    pub nodes: Vec<usize>,
}

/// What is known of a plan beside it.
#[derive(Clone, Default)]
pub struct Known {
    /// What a GPU was given for it, where one was asked.
    pub on_gpu: Option<OnGpu>,
    pub shares: Vec<Share>,
}

/// What a GPU was given for a plan.
#[derive(Debug, Clone)]
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
    pub rates: Rates,
    pub args: &'a InspectArgs,
    pub rows: Vec<u32>,
}

impl Asked<'_> {
    pub fn document(&self, known: Known) -> Document {
        let (plan, gpu) = (self.plan, self.gpu);
        let stages: Vec<_> = plan.stages.iter().map(|stage| self.stage(stage)).collect();
        let totals = self.rows.iter().enumerate().map(|(index, &rows)| {
            let of_stages = stages.iter().map(|stage| stage.totals[index].roofline_us);
            let ops = plan.stages.iter().flat_map(|stage| &stage.ops);
            Total {
                costs: self.costs(ops, self.args.kind, rows),
                bucket: plan.ladders.bucket(self.args.kind, rows),
                experts_per_layer: distinct_experts(&plan.config, f64::from(rows)),
                slowest_stage_us: of_stages.fold(0.0, f64::max),
            }
        });
        let totals: Vec<Total> = totals.collect();
        Document {
            model: self.model(),
            weight_dtype: self.precision.weights.name(),
            compute_dtype: self.precision.compute.name(),
            gpu: Bounds {
                name: gpu.name,
                title: gpu.title,
                bytes_per_s: gpu.bytes_per_s,
                flops_per_s: gpu.flops_per_s(self.precision),
                ridge: gpu.ridge(self.precision),
                l2_bytes: whole(gpu.l2_bytes),
                source: gpu.source,
            },
            buckets: plan.ladders.clone(),
            kind: self.args.kind,
            context: self.args.context,
            shares: known.shares,
            stages,
            totals,
            graphs: self.graphs(known.on_gpu.as_ref()),
            device: known.on_gpu.map(|on_gpu| on_gpu.device),
        }
    }

    fn costs<'a>(&self, ops: impl Iterator<Item = &'a Op>, kind: StepKind, rows: u32) -> Costs {
        let shape = StepShape {
            kind,
            rows,
            context: self.args.context,
        };
        let cost = |op: &Op| op_cost(&self.plan.config, op.kind, &shape, self.precision);
        let costs: Vec<Cost> = ops.map(cost).collect();
        let least = self.rates.least(costs.iter().copied());
        let sum: Cost = costs.into_iter().sum();
        Costs {
            rows,
            weight_bytes: whole(sum.weight_bytes),
            cache_bytes: whole(sum.cache_bytes),
            activation_bytes: whole(sum.activation_bytes),
            flops: whole(sum.flops),
            memory_bytes: whole(least.bytes),
            intensity: (least.bytes > 0.0).then(|| least.flops / least.bytes),
            roofline_us: least.us(),
            bound: least.bound().name(),
        }
    }

    /// The same for each number of rows that was asked for.
    fn by_rows(&self, ops: &[Op]) -> Vec<Costs> {
        let rows = self.rows.iter();
        rows.map(|&rows| self.costs(ops.iter(), self.args.kind, rows))
            .collect()
    }

    fn model(&self) -> Model {
        let config = &self.plan.config;
        let (weights, compute) = (self.precision.weights, self.precision.compute);
        let mixers = config.layer_types.iter();
        Model {
            layers: config.layer_types.len(),
            attention_layers: mixers.filter(|&&m| m == LayerType::FullAttention).count(),
            dense_layers: config.num_dense_layers.min(config.layer_types.len()),
            experts: config.num_experts,
            experts_per_token: config.num_experts_per_tok,
            hidden_size: config.hidden_size,
            vocab_size: config.vocab_size,
            tied_embeddings: config.tie_word_embeddings,
            heads: config.num_attention_heads,
            kv_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
            parameters: whole(model_parameters(config)),
            weight_bytes: whole(model_bytes(config, weights)),
            kv_bytes_per_token: whole(self.plan.kv_bytes_per_token(compute)),
            conv_state_bytes_per_sequence: whole(self.plan.conv_state_bytes_per_sequence(compute)),
        }
    }

    fn stage(&self, stage: &Stage) -> StageCosts {
        // Operations of a kind together, in the order of a forward pass, or one by one.
        let groups: Vec<Vec<Op>> = if self.args.layers {
            stage.ops.iter().map(|op| vec![*op]).collect()
        } else {
            let of = |kind| stage.ops.iter().filter(move |op| op.kind == kind).copied();
            OpKind::ALL.map(|kind| of(kind).collect()).into()
        };
        let groups = groups.iter().filter(|ops| !ops.is_empty());
        StageCosts {
            index: stage.index,
            first_layer: stage.layers.start,
            layers: stage.layers.len(),
            operations: groups.map(|ops| self.operation(ops)).collect(),
            totals: self.by_rows(&stage.ops),
        }
    }

    fn operation(&self, ops: &[Op]) -> Operation {
        let weights = declared(&self.plan.config, ops[0].kind).into_iter();
        let weights = weights.map(|tensor| Weight {
            name: tensor.name,
            bytes: whole(tensor.bytes(self.precision.weights)),
            shape: tensor.whole_shape(),
        });
        Operation {
            operation: ops[0].kind,
            layers: ops.iter().filter_map(|op| op.layer).collect(),
            weights: weights.collect(),
            costs: self.by_rows(ops),
        }
    }

    /// The captured graphs, or those that the plan has.
    fn graphs(&self, on_gpu: Option<&OnGpu>) -> Vec<Graph> {
        let graph = |stages: &[Stage], kind, rows, captured: Option<&CapturedGraph>| {
            let ops = stages.iter().flat_map(|stage| &stage.ops);
            Graph {
                stages: stages.iter().map(|stage| stage.index).collect(),
                kind,
                bucket: rows,
                operations: ops.clone().count(),
                costs: self.costs(ops.clone(), kind, rows),
                captured: captured.map(|graph| Captured::new(graph, ops)),
            }
        };
        let stages = &self.plan.stages;
        if let Some(on_gpu) = on_gpu {
            let graphs = on_gpu.graphs.iter();
            return graphs
                .map(|of| graph(&stages[of.stages.clone()], of.kind, of.rows, Some(of)))
                .collect();
        }
        let mut graphs = vec![];
        for stage in stages.chunks(1) {
            for kind in StepKind::ALL {
                let ladder = self.plan.ladders.of(kind).iter();
                graphs.extend(ladder.map(|&rows| graph(stage, kind, rows, None)));
            }
        }
        graphs
    }
}

impl Captured {
    fn new<'a>(graph: &CapturedGraph, ops: impl Iterator<Item = &'a Op>) -> Self {
        let alike = graph.alike();
        let kernels = alike.iter().map(|alike| Kernel {
            name: alike.node.name.clone(),
            count: alike.count,
            early: alike.early,
            operations: alike
                .kinds
                .iter()
                .map(|kind| kind.map_or("scheduler", OpKind::name))
                .collect(),
            shape: alike.node.kernel,
        });
        let nodes_of = |op: &Op| OperationNodes {
            op: *op,
            nodes: graph.nodes_of(*op).map(|(place, _)| place).collect(),
        };
        Self {
            nodes: graph.nodes.len(),
            edges: graph.edges.len(),
            early_edges: graph.early_edges(),
            dispatcher: graph.dispatcher,
            copies: graph.copies,
            capture_ms: ms(graph.capture),
            instantiate_ms: ms(graph.instantiate),
            upload_ms: ms(graph.upload),
            device_bytes: graph.device_bytes,
            variant: graph.variant,
            kernels: kernels.collect(),
            operations: ops.map(nodes_of).collect(),
        }
    }
}

pub(super) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn whole(amount: f64) -> u64 {
    amount.round() as u64
}
