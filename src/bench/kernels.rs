//! A model's kernels as they serve: timed inside whole steps ([`crate::backend::timing`]), so each one finds its weights in
//! memory, its operands where the kernel before it left them, and the neighbours that it overlaps.

use super::stats::{quantile, sorted};
use crate::backend::timing::{IN_A_ROW, Part, StepTimes};
use crate::model::ModelConfig;
use crate::model::tensors::matrix_shape;
use crate::plan::{Op, OpKind, StepShape};
use crate::trace::parts::FirstOf;

/// Operations that the same kernels do.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// In the order of a stage.
    pub kinds: Vec<OpKind>,
    /// Those of them that no kernel before has a share in: what is counted here.
    pub counted: Vec<OpKind>,
    /// Those that do them, each once.
    pub kernels: Vec<String>,
    /// How often a step has them.
    pub per_step: usize,
    /// The mean over its layers, of each step that was timed: the kernels' first time in the step, whose weights other layers'
    /// have driven out of the L2 cache.
    pub us: Vec<f64>,
    /// The same of the times that follow at once.
    pub warm_us: Vec<f64>,
}

/// A matrix that rows are multiplied by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dense {
    pub rows: u32,
    pub outputs: u32,
    pub inner: u32,
}

impl Dense {
    pub fn flops(&self) -> f64 {
        2.0 * f64::from(self.rows) * f64::from(self.outputs) * f64::from(self.inner)
    }
}

fn is_product(kind: OpKind) -> bool {
    use OpKind::*;
    matches!(
        kind,
        ConvInProj
            | ConvOutProj
            | QkvProj
            | AttentionOutProj
            | DenseGateUp
            | DenseDown
            | Router
            | ExpertGateUp
            | ExpertDown
            | LmHead
    )
}

/// The median over steps; `None` where nothing was timed.
pub fn median(us: &[f64]) -> Option<f64> {
    (!us.is_empty()).then(|| quantile(&sorted(us), 0.5))
}

impl Group {
    /// The name in tables: `conv_in_proj`, or `operator_norm + conv_in_proj`.
    pub fn name(&self) -> String {
        let names: Vec<&str> = self.kinds.iter().map(|kind| kind.name()).collect();
        names.join(" + ")
    }

    /// Whether both are of the same operations.
    fn is(&self, other: &Self) -> bool {
        (&self.kinds, &self.counted) == (&other.kinds, &other.counted)
    }

    /// The one matrix that all rows are multiplied by, where it is one: what a library's product can stand beside. The router's
    /// is not meant: it decides in f32.
    pub fn dense(&self, config: &ModelConfig, shape: &StepShape) -> Option<Dense> {
        let mut products = self.counted.iter().filter(|&&kind| is_product(kind));
        let (&kind, None) = (products.next()?, products.next()) else {
            return None;
        };
        let rows = match kind {
            OpKind::Router | OpKind::ExpertGateUp | OpKind::ExpertDown => return None,
            OpKind::LmHead => shape.logit_rows() as u32,
            _ => shape.rows,
        };
        let [outputs, inner] = matrix_shape(config, kind)?[..] else {
            return None;
        };
        Some(Dense {
            rows,
            outputs: outputs as u32,
            inner: inner as u32,
        })
    }
}

fn kinds(ops: &[Op]) -> Vec<OpKind> {
    let mut kinds: Vec<OpKind> = ops.iter().map(|op| op.kind).collect();
    kinds.dedup();
    kinds
}

/// The times of the kernels of one layer's operations in one step, in their order.
struct Layer<'a> {
    ops: &'a [Op],
    counted: Vec<OpKind>,
    times: Vec<(&'a Part, f64)>,
}

fn layers(times: &StepTimes) -> Vec<Layer<'_>> {
    let ends = times.at.iter().skip(1).map(|next| next.ready_ns);
    let ends = ends.chain([times.end_ns]);
    let mut layers: Vec<Layer<'_>> = vec![];
    let mut counts = FirstOf::default();
    for ((part, at), end_ns) in times.parts.iter().zip(&times.at).zip(ends) {
        let us = end_ns.saturating_sub(at.ready_ns) as f64 / 1e3;
        match layers.iter_mut().find(|layer| layer.ops == part.ops) {
            Some(layer) => layer.times.push((part, us)),
            None => layers.push(Layer {
                ops: &part.ops,
                counted: kinds(&counts.new_in(part)),
                times: vec![(part, us)],
            }),
        }
    }
    layers
}

/// Adds the times of a step to `groups`: those of all products, or of the kernels of `operation` alone. `in_a_row`: these ran
/// [`IN_A_ROW`] times.
pub fn add(groups: &mut Vec<Group>, times: &StepTimes, operation: Option<OpKind>, in_a_row: bool) {
    let mut step: Vec<Group> = vec![];
    for layer in layers(times) {
        let wanted = match operation {
            Some(operation) => layer.ops.iter().any(|op| op.kind == operation),
            None => layer.counted.iter().any(|&kind| is_product(kind)),
        };
        if !wanted || layer.counted.is_empty() {
            continue;
        }
        let rows = if in_a_row { IN_A_ROW } else { 1 };
        let (first, more) = layer.times.split_at(layer.times.len() / rows);
        let us = |times: &[(&Part, f64)]| times.iter().map(|(_, us)| us).sum::<f64>();
        let mut found = Group {
            kinds: kinds(layer.ops),
            counted: layer.counted,
            kernels: vec![],
            per_step: 1,
            us: vec![us(first)],
            warm_us: vec![us(more) / (rows - 1).max(1) as f64],
        };
        for name in first.iter().filter_map(|(part, _)| part.kernel.as_ref()) {
            if !found.kernels.contains(&name.name) {
                found.kernels.push(name.name.clone());
            }
        }
        match step.iter_mut().find(|known| known.is(&found)) {
            Some(known) => {
                known.per_step += 1;
                known.us[0] += found.us[0];
                known.warm_us[0] += found.warm_us[0];
            }
            None => step.push(found),
        }
    }
    for mut found in step {
        let layers = found.per_step as f64;
        found.us[0] /= layers;
        found.warm_us[0] /= layers;
        if !in_a_row {
            found.warm_us.clear();
        }
        match groups.iter_mut().find(|known| known.is(&found)) {
            Some(known) => {
                known.us.append(&mut found.us);
                known.warm_us.append(&mut found.warm_us);
            }
            None => groups.push(found),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::timing::{KernelLaunch, PartTime};
    use crate::model::ModelSource;
    use crate::plan::StepKind;
    use std::sync::Arc;

    fn part(kinds: &[OpKind], layer: usize, kernel: &str) -> Part {
        let op = |&kind: &OpKind| Op {
            layer: Some(layer),
            kind,
        };
        Part {
            ops: kinds.iter().map(op).collect(),
            index: 0,
            count: 1,
            kernel: Some(KernelLaunch {
                name: kernel.to_owned(),
                grid: (1, 1, 1),
                threads: 32,
            }),
        }
    }

    /// A step of kernels that take so many us each.
    fn step(parts: &[(Part, u64)]) -> StepTimes {
        let mut now_ns = 0;
        let at = parts.iter().map(|(_, us)| {
            let ready_ns = now_ns;
            now_ns += us * 1000;
            PartTime {
                waits_ns: 0,
                ready_ns,
            }
        });
        StepTimes {
            stage: 0,
            step: 0,
            at: at.collect(),
            parts: parts
                .iter()
                .map(|(part, _)| part.clone())
                .collect::<Arc<[Part]>>(),
            end_ns: now_ns,
        }
    }

    const IN_PROJ: [OpKind; 2] = [OpKind::OperatorNorm, OpKind::ConvInProj];

    /// Two layers of an in-projection of two kernels (3 and 1 us, then 5 and 3), and a convolution between that is no product.
    #[test]
    fn products_are_means_over_layers() {
        let layer = |layer, first, second| {
            [
                (part(&IN_PROJ, layer, "a"), first),
                (part(&IN_PROJ, layer, "b"), second),
                // What ends a product that was counted is none, nor what is beside it.
                (
                    part(&[OpKind::ConvInProj, OpKind::ShortConv], layer, "c"),
                    5,
                ),
            ]
        };
        let times = step(&[layer(0, 3, 1), layer(1, 5, 3)].concat());
        let mut groups = vec![];
        add(&mut groups, &times, None, false);
        add(&mut groups, &times, None, false);
        let [group] = &groups[..] else {
            panic!("{groups:?}")
        };
        assert_eq!(group.name(), "operator_norm + conv_in_proj");
        assert_eq!((group.per_step, &group.us[..]), (2, &[6.0, 6.0][..]));
        assert_eq!(
            (median(&group.us), median(&group.warm_us)),
            (Some(6.0), None)
        );
        assert_eq!(group.kernels, ["a", "b"]);
        let config = ModelSource::parse("random:lfm2-8b-a1b").unwrap();
        let config = config.config().unwrap().0;
        let shape = StepShape {
            kind: StepKind::Decode,
            rows: 8,
            context: 32,
        };
        let (rows, outputs, inner) = (8, 6144, 2048);
        let dense = Dense {
            rows,
            outputs,
            inner,
        };
        assert_eq!(group.dense(&config, &shape), Some(dense));
        let of = |kinds: &[OpKind]| {
            let counted = kinds.to_vec();
            let group = Group {
                counted,
                ..group.clone()
            };
            group.dense(&config, &shape)
        };
        assert_eq!(of(&[OpKind::ExpertDown]), None, "one of many matrices");
        assert_eq!(of(&[OpKind::QkvProj, OpKind::LmHead]), None, "two of them");
    }

    /// The first time is cold, those behind it are warm, with another kernel between or not.
    #[test]
    fn times_in_a_row_are_told_from_the_first() {
        let row = |first: u64, more: u64| -> Vec<(Part, u64)> {
            let each = |time: usize| {
                let us = if time == 0 { first } else { more };
                [
                    (part(&[OpKind::Router], 0, "router"), 9),
                    (part(&[OpKind::ExpertDown], 0, "down"), us),
                ]
            };
            (0..IN_A_ROW).flat_map(each).collect()
        };
        let mut groups = vec![];
        add(
            &mut groups,
            &step(&row(20, 4)),
            Some(OpKind::ExpertDown),
            true,
        );
        let [group] = &groups[..] else {
            panic!("{groups:?}")
        };
        assert_eq!(
            (&group.us[..], &group.warm_us[..]),
            (&[20.0][..], &[4.0][..])
        );
        assert_eq!(
            (group.per_step, &group.kernels[..]),
            (1, &["down".to_owned()][..])
        );
    }
}
