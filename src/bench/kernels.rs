//! A model's kernels as they serve: timed inside whole steps ([`crate::backend::timing`]), so each one finds its weights in
//! memory, its operands where the kernel before it left them, and the neighbours that it overlaps.

use crate::backend::timing::{IN_A_ROW, Part, StepTimes};
use crate::model::declared::Role;
use crate::model::tensors::matrix_shape;
use crate::model::{ModelConfig, WeightFormat};
use crate::plan::cost::Precision;
use crate::plan::{Op, OpKind, StepShape};
use crate::trace::parts::FirstOf;
use indexmap::{IndexMap, IndexSet};

/// Operations that the same kernels do, by their name in tables (`conv_in_proj`, or `operator_norm + conv_in_proj`) and those of them
/// that no kernel before has a share in, which are what is counted here.
pub type Groups = IndexMap<(String, Vec<OpKind>), Times>;

/// The times of these kernels.
#[derive(Debug, Default)]
pub struct Times {
    /// Each once.
    pub kernels: String,
    /// How often a step has them.
    pub per_step: usize,
    /// The mean over its layers, of each step that was timed: the kernels' first time in the step, whose weights other layers'
    /// have driven out of the L2 cache.
    pub us: Vec<f64>,
    /// The same of the times that follow at once.
    pub warm_us: Vec<f64>,
}

/// A matrix that rows are multiplied by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dense {
    pub rows: u32,
    pub outputs: u32,
    pub inner: u32,
    pub weights: WeightFormat,
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

/// The one matrix that all rows of these operations are multiplied by, where it is one: what a library's product can stand beside.
/// The router's is not meant: it decides in f32.
pub fn dense(
    counted: &[OpKind],
    config: &ModelConfig,
    shape: &StepShape,
    precision: Precision,
) -> Option<Dense> {
    let mut products = counted.iter().filter(|&&kind| is_product(kind));
    let (&kind, None) = (products.next()?, products.next()) else {
        return None;
    };
    let (rows, role) = match kind {
        OpKind::Router | OpKind::ExpertGateUp | OpKind::ExpertDown => return None,
        OpKind::LmHead => (shape.logit_rows() as u32, Role::Head),
        _ => (shape.rows, Role::Matrix),
    };
    let [outputs, inner] = matrix_shape(config, kind)?[..] else {
        return None;
    };
    Some(Dense {
        rows,
        outputs: outputs as u32,
        inner: inner as u32,
        weights: role.stored(precision.weights),
    })
}

/// Adds the times of a step to `groups`: those of all products, or of the kernels of `operation` alone. `in_a_row`: these ran
/// [`IN_A_ROW`] times.
pub fn add(groups: &mut Groups, times: &StepTimes, operation: Option<OpKind>, in_a_row: bool) {
    // For each layer: its operations that are counted, and its kernels in order with what each took in us.
    let mut layers: IndexMap<&[Op], (Vec<OpKind>, Vec<_>)> = IndexMap::new();
    let mut counts = FirstOf::default();
    for (part, (at, end_ns)) in times.parts.iter().zip(times.spans()) {
        let (counted, kernels) = layers.entry(&part.ops).or_default();
        counted.extend(counts.new_in(part).iter().map(|op| op.kind));
        counted.dedup();
        let us = end_ns.saturating_sub(at.ready_ns) as f64 / 1e3;
        kernels.push((part, us));
    }
    let mut alike: IndexMap<_, Vec<_>> = IndexMap::new();
    for (ops, (counted, kernels)) in layers {
        let wanted = match operation {
            Some(operation) => ops.iter().any(|op| op.kind == operation),
            None => counted.iter().any(|&kind| is_product(kind)),
        };
        if wanted && !counted.is_empty() {
            let group = (kernels[0].0.operation(), counted);
            alike.entry(group).or_default().push(kernels);
        }
    }
    let runs = if in_a_row { IN_A_ROW } else { 1 };
    let us = |kernels: &[(&Part, f64)]| kernels.iter().map(|(_, us)| us).sum::<f64>();
    for (group, layers) in alike {
        let of_one = layers.len() as f64;
        let split = layers.iter().map(|of| of.split_at(of.len() / runs));
        let (first, more): (Vec<_>, Vec<_>) = split.unzip();
        let launches = first[0].iter().filter_map(|(part, _)| part.kernel.as_ref());
        let names: IndexSet<&str> = launches.map(|launch| launch.name.as_str()).collect();
        let known = groups.entry(group).or_default();
        known.kernels = Vec::from_iter(names).join(", ");
        known.per_step = layers.len();
        known.us.push(us(&first.concat()) / of_one);
        if in_a_row {
            let times = (runs - 1) as f64;
            known.warm_us.push(us(&more.concat()) / of_one / times);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::timing::{KernelLaunch, PartTime};
    use crate::model::ModelSource;
    use crate::plan::StepKind;

    /// A step of kernels of these operations of a layer, which take so many us each.
    fn step(kernels: &[(&[OpKind], usize, &str, u64)]) -> StepTimes {
        let (mut now_ns, mut at) = (0, vec![]);
        let part = |&(kinds, layer, name, us): &(&[OpKind], usize, &str, u64)| {
            at.push(PartTime {
                waits_ns: 0,
                ready_ns: now_ns,
            });
            now_ns += us * 1000;
            let layer = Some(layer);
            Part {
                ops: kinds.iter().map(|&kind| Op { layer, kind }).collect(),
                index: 0,
                count: 1,
                kernel: Some(KernelLaunch {
                    name: name.to_owned(),
                    grid: (1, 1, 1),
                    threads: 32,
                }),
            }
        };
        StepTimes {
            parts: kernels.iter().map(part).collect(),
            at,
            end_ns: now_ns,
            ..StepTimes::default()
        }
    }

    /// Two layers of an in-projection of two kernels (3 and 1 us, then 5 and 3), and a convolution between that is no product.
    #[test]
    fn products_are_means_over_layers() {
        const IN_PROJ: &[OpKind] = &[OpKind::OperatorNorm, OpKind::ConvInProj];
        // What ends a product that was counted is none, nor what is beside it.
        const CONV: &[OpKind] = &[OpKind::ConvInProj, OpKind::ShortConv];
        let times = step(&[
            (IN_PROJ, 0, "a", 3),
            (IN_PROJ, 0, "b", 1),
            (CONV, 0, "c", 5),
            (IN_PROJ, 1, "a", 5),
            (IN_PROJ, 1, "b", 3),
            (CONV, 1, "c", 5),
        ]);
        let mut groups = Groups::new();
        add(&mut groups, &times, None, false);
        add(&mut groups, &times, None, false);
        let ((name, counted), found) = groups.first().unwrap();
        assert_eq!(
            (groups.len(), name.as_str()),
            (1, "operator_norm + conv_in_proj")
        );
        assert_eq!((found.per_step, &found.us[..]), (2, &[6.0, 6.0][..]));
        assert!(found.warm_us.is_empty());
        assert_eq!(found.kernels, "a, b");
        let config = ModelSource::parse("random:lfm2-8b-a1b").unwrap();
        let config = config.config().unwrap().0;
        let shape = StepShape {
            kind: StepKind::Decode,
            rows: 8,
            context: 32,
        };
        let dense = Dense {
            rows: 8,
            outputs: 6144,
            inner: 2048,
            weights: WeightFormat::E4M3,
        };
        let precision = Precision::BF16.with(WeightFormat::E4M3);
        let of = |kinds: &[OpKind]| super::dense(kinds, &config, &shape, precision);
        assert_eq!(of(counted), Some(dense));
        let head = of(&[OpKind::LmHead]).unwrap();
        assert_eq!(head.weights, WeightFormat::BF16);
        assert_eq!(of(&[OpKind::ExpertDown]), None, "one of many matrices");
        assert_eq!(of(&[OpKind::QkvProj, OpKind::LmHead]), None, "two of them");
    }

    /// The first time is cold, those behind it are warm, with another kernel between or not.
    #[test]
    fn times_in_a_row_are_told_from_the_first() {
        const DOWN: &[OpKind] = &[OpKind::ExpertDown];
        let time = |us| {
            [
                (&[OpKind::Router][..], 0, "router", 9),
                (DOWN, 0, "down", us),
            ]
        };
        let row = [vec![time(20)], vec![time(4); IN_A_ROW - 1]].concat();
        let (mut groups, times) = (Groups::new(), step(&row.concat()));
        add(&mut groups, &times, Some(OpKind::ExpertDown), true);
        let (_, found) = groups.first().unwrap();
        assert_eq!((groups.len(), found.per_step), (1, 1));
        assert_eq!(
            (&found.us[..], &found.warm_us[..]),
            (&[20.0][..], &[4.0][..])
        );
        assert_eq!(found.kernels, "down");
    }
}
