//! Interprets the operations of one stage.

use super::attention::attention;
use super::batch::{Batch, Bounds, LastRows};
use super::conv::{ConvState, short_conv};
use super::ffn::{Routing, dense_gate_up, expert_gate_up};
use super::head::Head;
use super::kv::KvPool;
use super::lanes::Isa;
use super::linear::{Columns, Linear, add, add_bias};
use super::memory::{Buffers, LayerState, MixerState, check_ops, sizes_fit};
use super::norm::{embed, rmsnorm};
use super::rope::{HeadShape, QkWeights, qk_norm_rope};
use super::timing::Timer;
use super::{Probe, Probed};
use crate::backend::{RoutingSink, SharedSink, StageBackend, StepView};
use crate::error::{Error, Result};
use crate::model::rotary::inverse_frequencies;
use crate::model::{LayerType, Model, Tensor};
use crate::plan::EngineOptions;
use crate::plan::{NeededRows, Op, OpKind, Plan};
use crate::sys::abi;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Results of a [`Linear`] call that are held before they are put in place, for each row.
const SCRATCH_OUTPUTS: usize = 512;

/// One stage of a model on the CPU.
pub struct CpuStage {
    model: Arc<Model>,
    ops: Vec<Op>,
    first_layer: usize,
    layers: Vec<LayerState>,
    bounds: Bounds,
    shape: HeadShape,
    inverse_frequencies: Vec<f32>,
    conv_state: ConvState,
    kv: KvPool,
    linear: Linear,
    buffers: Buffers,
    routing: Routing,
    /// In the last stage.
    head: Option<Head>,
    embeds: bool,
    probe: Option<Probe>,
    timer: Option<Timer>,
    told: Option<Arc<dyn RoutingSink>>,
}

impl CpuStage {
    /// Allocates all that stage `stage` of `plan` will ever need.
    ///
    /// # Errors
    /// A plan that does not belong to the model, sizes that overflow.
    pub fn new(
        model: Arc<Model>,
        plan: &Plan,
        stage: usize,
        options: &EngineOptions,
        sink: SharedSink,
    ) -> Result<Self> {
        let Some(stage) = plan.stages.get(stage) else {
            return Err(Error::Runtime(format!(
                "stage {stage} is asked for, expected one below {}",
                plan.stages.len()
            )));
        };
        let config = &model.config;
        check_ops(config, &stage.ops, &stage.layers)?;
        let (slots, rows) = (options.max_seqs as usize, options.step_tokens as usize);
        let mut counts: HashMap<LayerType, usize> = HashMap::new();
        let layers = stage.layers.clone().map(|layer| {
            let count = counts.entry(config.layer_types[layer]).or_default();
            *count += 1;
            LayerState::new(&model, layer, *count - 1)
        });
        let layers: Vec<_> = layers.collect();
        let count = |layer| counts.get(&layer).copied().unwrap_or(0);
        let (convs, attentions) = (count(LayerType::Conv), count(LayerType::FullAttention));
        let shape = HeadShape::new(config);
        let (pages, page_tokens) = (options.pages as usize, options.page_tokens as usize);
        sizes_fit(&[attentions, pages, page_tokens, shape.kv()])?;
        let bounds = Bounds {
            vocab_size: config.vocab_size,
            step_tokens: rows,
            slots,
            pages,
            page_tokens,
            prefixes: options.prefixes as usize,
        };
        let places = slots + bounds.prefixes;
        sizes_fit(&[convs, places, config.conv_l_cache, config.hidden_size])?;
        let isa = Isa::detect();
        let buffers = Buffers::new(config, rows)?;
        let is_last = stage.ops.iter().any(|op| op.kind == OpKind::Sample);
        let head = is_last.then(|| {
            let norm = &model.weights.of(None, OpKind::FinalNorm)[0];
            Head::new(config, norm, bounds, sink)
        });
        let scratch = rows * config.num_experts_per_tok.max(1) * SCRATCH_OUTPUTS;
        Ok(Self {
            ops: stage.ops.clone(),
            first_layer: stage.layers.start,
            layers,
            bounds,
            shape,
            inverse_frequencies: inverse_frequencies(config.rope_theta, config.head_dim),
            conv_state: ConvState::new(convs, places, config.conv_l_cache, config.hidden_size),
            kv: KvPool::new(attentions, pages, page_tokens, shape.kv()),
            linear: Linear::new(isa, scratch),
            buffers,
            routing: Routing::new(config, rows),
            head,
            embeds: stage.ops.iter().any(|op| op.kind == OpKind::Embed),
            probe: None,
            timer: None,
            told: None,
            model,
        })
    }

    /// Calls `probe` after every operation.
    pub fn set_probe(&mut self, probe: Probe) {
        self.probe = Some(probe);
    }

    /// Tells `timer` when every operation begins.
    pub(super) fn set_timer(&mut self, timer: Timer) {
        self.timer = Some(timer);
    }

    /// Tells `routing` where the rows of every step go.
    pub fn tell(&mut self, routing: Arc<dyn RoutingSink>) {
        self.told = Some(routing);
    }

    /// Sequences that begin behind a shared prefix get its state, and the part of a page that it ends in.
    fn start_from_prefixes(&mut self, batch: &Batch<'_>) {
        for (sequence, pages) in batch.sequences.iter().zip(&batch.pages) {
            if sequence.from != abi::TG_NONE {
                let from = self.bounds.slots + sequence.from as usize;
                self.conv_state.copy(from, sequence.slot as usize);
            }
            if sequence.from_page != abi::TG_NONE {
                let page = sequence.first_position as usize / self.bounds.page_tokens;
                self.kv.copy_page(sequence.from_page, pages[page]);
            }
        }
    }

    /// Prefixes get the state of the sequences that have computed them to the end, and the page that they end in.
    fn leave_prefixes(&mut self, batch: &Batch<'_>) {
        for (sequence, pages) in batch.sequences.iter().zip(&batch.pages) {
            if sequence.flags & abi::TG_SEQUENCE_BORDER != 0 {
                let prefix = self.bounds.slots + sequence.computes as usize;
                self.conv_state.copy(sequence.slot as usize, prefix);
            }
            if let (Some(&last), true) = (pages.last(), sequence.border_page != abi::TG_NONE) {
                self.kv.copy_page(last, sequence.border_page);
            }
        }
    }

    fn operations(
        &mut self,
        which: Range<usize>,
        batch: &Batch<'_>,
        step: &StepView<'_>,
    ) -> Result<()> {
        for index in which {
            let op = self.ops[index];
            if let Some(timer) = &mut self.timer {
                timer.operation();
            }
            self.operation(&op, batch, step)?;
            self.show(&op, batch);
            if let (OpKind::Router, Some(layer), Some(told)) = (op.kind, op.layer, &self.told) {
                told.routed(step.kind(), layer, self.routing.experts())?;
            }
        }
        Ok(())
    }

    fn operation(&mut self, op: &Op, batch: &Batch<'_>, step: &StepView<'_>) -> Result<()> {
        match op.layer {
            Some(layer) => self.layer_operation(op.kind, layer, batch),
            None => self.outer_operation(op.kind, batch, step)?,
        }
        Ok(())
    }

    /// Operations before the first and after the last layer.
    fn outer_operation(
        &mut self,
        kind: OpKind,
        batch: &Batch<'_>,
        step: &StepView<'_>,
    ) -> Result<()> {
        let weights = self.model.weights.of(None, kind);
        let Buffers { h, x, packed, .. } = &mut self.buffers;
        match (kind, &mut self.head) {
            (OpKind::Embed, _) => embed(&weights[0], &batch.tokens, h),
            (OpKind::FinalNorm, Some(head)) => head.final_norm(self.linear.isa(), batch, h, x),
            (OpKind::LmHead, Some(head)) => {
                head.lm_head(batch, &mut self.linear, &weights[0], x, packed)?;
            }
            (OpKind::Sample, Some(head)) => head.sample(batch, step),
            _ => unreachable!("check_ops accepts no other"),
        }
        Ok(())
    }

    fn layer_operation(&mut self, kind: OpKind, layer: usize, batch: &Batch<'_>) {
        let config = &self.model.config;
        let weights = self.model.weights.of(Some(layer), kind);
        let state = &self.layers[layer - self.first_layer];
        let linear = &mut self.linear;
        let (isa, eps) = (linear.isa(), config.norm_eps);
        let (rows, hidden) = (batch.rows.len(), config.hidden_size);
        let shape = self.shape;
        let Buffers {
            h,
            x,
            wide,
            up,
            packed,
            out,
        } = &mut self.buffers;
        let h = &mut h[..rows * hidden];
        let add_projected = |linear: &mut Linear,
                             x: &[f32],
                             weight: &Tensor,
                             bias: Option<&[f32]>,
                             h: &mut [f32],
                             out: &mut [f32]| {
            let out = &mut out[..rows * hidden];
            linear.run(x, weight, rows, out, Columns::all(hidden));
            if let Some(bias) = bias {
                add_bias(out, bias);
            }
            add(h, out);
        };
        match (kind, &state.mixer) {
            (OpKind::OperatorNorm, _) => {
                rmsnorm(isa, h, &state.operator_norm, eps, &mut x[..rows * hidden]);
            }
            (OpKind::ConvInProj, MixerState::Conv { in_proj_bias, .. }) => {
                let bcx = &mut wide[..rows * 3 * hidden];
                linear.run(x, &weights[0], rows, bcx, Columns::all(3 * hidden));
                if let Some(bias) = in_proj_bias {
                    add_bias(bcx, bias);
                }
            }
            (OpKind::ShortConv, MixerState::Conv { weights, index, .. }) => {
                let bcx = &mut wide[..rows * 3 * hidden];
                let x = &mut x[..rows * hidden];
                short_conv(batch, weights, &mut self.conv_state, *index, bcx, x);
            }
            (OpKind::ConvOutProj, MixerState::Conv { out_proj_bias, .. }) => {
                add_projected(linear, x, &weights[0], out_proj_bias.as_deref(), h, out);
            }
            (OpKind::QkvProj, _) => {
                let (stride, mut offset) = (shape.qkv(), 0);
                for weight in weights {
                    linear.run(x, weight, rows, wide, Columns { stride, offset });
                    offset += weight.rows();
                }
            }
            (
                OpKind::QkNormRope,
                MixerState::Attention {
                    q_norm,
                    k_norm,
                    index,
                },
            ) => {
                let weights = QkWeights {
                    q_norm,
                    k_norm,
                    eps,
                    inverse_frequencies: &self.inverse_frequencies,
                };
                let qkv = &mut wide[..rows * shape.qkv()];
                qk_norm_rope(isa, batch, &weights, shape, qkv, &mut self.kv, *index);
            }
            (OpKind::Attention, MixerState::Attention { index, .. }) => {
                let qkv = &wide[..rows * shape.qkv()];
                let x = &mut x[..rows * shape.q()];
                attention(isa, batch, shape, qkv, &self.kv, *index, x);
            }
            (OpKind::AttentionOutProj, _) => {
                add_projected(linear, x, &weights[0], None, h, out);
            }
            (OpKind::FfnNorm, _) => {
                rmsnorm(isa, h, &state.ffn_norm, eps, &mut x[..rows * hidden]);
            }
            (OpKind::DenseGateUp, _) => {
                dense_gate_up(linear, [&weights[0], &weights[1]], x, rows, wide, up);
            }
            (OpKind::DenseDown, _) => add_projected(linear, wide, &weights[0], None, h, out),
            (OpKind::Router, _) => {
                let logits = &mut wide[..rows * config.num_experts];
                linear.run(
                    x,
                    &weights[0],
                    rows,
                    logits,
                    Columns::all(config.num_experts),
                );
                self.routing
                    .route(config, logits, state.expert_bias.as_deref());
            }
            (OpKind::ExpertGateUp, _) => {
                self.routing.pack(x, hidden, packed);
                expert_gate_up(linear, weights, &self.routing, packed, wide, up);
            }
            (OpKind::ExpertDown, _) => {
                let downs = self.routing.products(weights.iter());
                linear.run_grouped(wide, &downs, out, Columns::all(hidden));
                self.routing.combine(out, hidden, h);
            }
            _ => unreachable!("check_ops accepts no other"),
        }
    }

    fn show(&mut self, op: &Op, batch: &Batch<'_>) {
        let Some(probe) = &mut self.probe else {
            return;
        };
        let config = &self.model.config;
        let rows = batch.rows.len();
        let x_cols = match op.kind {
            OpKind::Attention => self.shape.q(),
            _ => config.hidden_size,
        };
        probe(
            op,
            &Probed {
                rows: batch.rows,
                h: &self.buffers.h[..rows * config.hidden_size],
                x: &self.buffers.x[..rows * x_cols],
                wide: &self.buffers.wide,
                experts: self.routing.experts(),
                expert_weights: self.routing.weights(),
            },
        );
    }
}

/// Moves some rows of `[.., cols]`, which ascend, to the front.
fn gather(values: &mut [f32], cols: usize, rows: &[usize]) {
    for (to, &from) in rows.iter().enumerate() {
        values.copy_within(from * cols..(from + 1) * cols, to * cols);
    }
}

impl StageBackend for CpuStage {
    fn row_floats(&self) -> usize {
        self.model.config.hidden_size
    }

    fn run(&mut self, step: &StepView<'_>) -> Result<()> {
        let batch = Batch::new(step, &self.bounds)?;
        let elements = batch.rows.len() * self.model.config.hidden_size;
        if !self.embeds {
            self.buffers.h[..elements].copy_from_slice(&step.activations()?[..elements]);
        }
        let number = step.header().number;
        if let Some(timer) = &mut self.timer {
            timer.begin(number);
        }
        if let Some(head) = &mut self.head {
            head.note(&batch);
        }
        self.start_from_prefixes(&batch);
        let needed = NeededRows::of_step(&self.model.config, step.kind());
        let whole = needed.map_or(self.ops.len(), |needed| needed.whole(&self.ops));
        self.operations(0..whole, &batch, step)?;
        if let (Some(needed), Some(first)) = (needed, self.ops.get(whole)) {
            let last = LastRows::of(&batch, needed.rows);
            // A stage behind the one with the last attention finds the rows gathered.
            if first.kind == OpKind::Attention {
                gather(
                    &mut self.buffers.h,
                    self.model.config.hidden_size,
                    &last.from,
                );
                gather(&mut self.buffers.wide, self.shape.qkv(), &last.from);
            }
            self.operations(whole..self.ops.len(), &last.batch(&batch), step)?;
        }
        self.leave_prefixes(&batch);
        if let Some(timer) = &mut self.timer {
            timer.end(number);
        }
        step.leave_activations(&self.buffers.h[..elements]);
        Ok(())
    }
}
