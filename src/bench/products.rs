//! The products of a model as they are served: timed kernel by kernel inside whole steps ([`crate::backend::timing`]), so each
//! one finds its weights in memory, its operands where the kernel before it left them, and the neighbours that it overlaps.

use super::stats::{quantile, sorted};
use crate::backend::timing::{StepClock, StepTimes};
use crate::error::Result;
use crate::model::ModelConfig;
use crate::plan::params::params;
use crate::plan::{Op, OpKind, StepKind, StepShape};
use crate::trace::parts::FirstOf;

/// Steps that are timed: all of this kind and so many rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steps {
    pub kind: StepKind,
    pub rows: u32,
}

/// Operations that the same kernels do, at least one of them a product.
#[derive(Debug, Clone, PartialEq)]
pub struct Product {
    /// In the order of a stage.
    pub kinds: Vec<OpKind>,
    /// Those of them that no kernel before has a share in: what is counted here.
    pub counted: Vec<OpKind>,
    /// Those that do them, each once.
    pub kernels: Vec<String>,
    /// How often a step has them.
    pub per_step: usize,
    /// Of each step that was timed, the mean over its layers.
    pub us: Vec<f64>,
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

impl Product {
    /// As tables have it: `conv_in_proj`, or `operator_norm + conv_in_proj`.
    pub fn name(&self) -> String {
        let names: Vec<&str> = self.kinds.iter().map(|kind| kind.name()).collect();
        names.join(" + ")
    }

    /// Whether both are of the same operations.
    fn is(&self, other: &Self) -> bool {
        (&self.kinds, &self.counted) == (&other.kinds, &other.counted)
    }

    /// The median over steps.
    pub fn median_us(&self) -> Option<f64> {
        (!self.us.is_empty()).then(|| quantile(&sorted(&self.us), 0.5))
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
        let weights = params(config, kind);
        let [outputs, inner] = weights.first()?.shape[..] else {
            return None;
        };
        Some(Dense {
            rows,
            outputs: outputs as u32,
            inner: inner as u32,
        })
    }
}

/// One step's time of a product, over all its layers.
struct Sum {
    product: Product,
    us: f64,
}

fn kinds(ops: &[Op]) -> Vec<OpKind> {
    let mut kinds: Vec<OpKind> = ops.iter().map(|op| op.kind).collect();
    kinds.dedup();
    kinds
}

/// Adds the times of a step to the products that it has.
fn add(products: &mut Vec<Product>, times: &StepTimes) {
    let ends = times.at.iter().skip(1).map(|next| next.ready_ns);
    let parts = times.parts.iter().zip(&times.at);
    let mut sums: Vec<Sum> = vec![];
    let mut counts = FirstOf::default();
    // Where the kernels of the same operations that follow belong.
    let mut open: Option<usize> = None;
    for ((part, at), end_ns) in parts.zip(ends.chain([times.end_ns])) {
        if part.index == 0 {
            let counted = kinds(&counts.new_in(part));
            let product = counted.iter().any(|&kind| is_product(kind));
            open = product.then(|| place(&mut sums, kinds(&part.ops), counted));
        }
        let Some(sum) = open.map(|at| &mut sums[at]) else {
            continue;
        };
        sum.us += end_ns.saturating_sub(at.ready_ns) as f64 / 1e3;
        sum.product.per_step += usize::from(part.index == 0);
        if let Some(kernel) = &part.kernel
            && !sum.product.kernels.contains(&kernel.name)
        {
            sum.product.kernels.push(kernel.name.clone());
        }
    }
    for Sum { product, us } in sums {
        let each = us / product.per_step as f64;
        match products.iter_mut().find(|known| known.is(&product)) {
            Some(known) => known.us.push(each),
            None => products.push(Product {
                us: vec![each],
                ..product
            }),
        }
    }
}

/// Where the sum of these operations is, or is from now on.
fn place(sums: &mut Vec<Sum>, kinds: Vec<OpKind>, counted: Vec<OpKind>) -> usize {
    let product = Product {
        kinds,
        counted,
        kernels: vec![],
        per_step: 0,
        us: vec![],
    };
    let known = sums.iter().position(|sum| sum.product.is(&product));
    known.unwrap_or_else(|| {
        sums.push(Sum { product, us: 0.0 });
        sums.len() - 1
    })
}

/// Reads all that `clock` has, and adds the steps that `wanted` names to `products`.
///
/// # Errors
/// The clock has what no kernel can have left.
pub fn read(
    clock: &mut dyn StepClock,
    wanted: impl Fn(u64) -> bool,
    products: &mut Vec<Product>,
) -> Result<()> {
    while let Some(times) = clock.next()? {
        if !times.at.is_empty() && wanted(times.step) {
            add(products, &times);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::timing::{KernelLaunch, Part, PartTime};
    use crate::model::ModelSource;
    use std::sync::Arc;

    fn part(kinds: &[OpKind], kernel: &str, index: u32, count: u32) -> Part {
        let op = |&kind: &OpKind| Op {
            layer: Some(0),
            kind,
        };
        Part {
            ops: kinds.iter().map(op).collect(),
            index,
            count,
            kernel: Some(KernelLaunch {
                name: kernel.to_owned(),
                grid: (1, 1, 1),
                threads: 32,
            }),
        }
    }

    /// Two layers of an in-projection of two kernels (3 and 1 us, then 5 and 3), and a convolution between that is no product.
    #[test]
    fn products_are_means_over_layers() {
        let layer = [
            part(&[OpKind::OperatorNorm, OpKind::ConvInProj], "a", 0, 2),
            part(&[OpKind::OperatorNorm, OpKind::ConvInProj], "b", 1, 2),
            // What ends a product that was counted is none, nor what is beside it.
            part(&[OpKind::ConvInProj, OpKind::ShortConv], "c", 0, 1),
        ];
        let second = layer.clone().map(|mut part| {
            part.ops.iter_mut().for_each(|op| op.layer = Some(1));
            part
        });
        let time = |ready_ns| PartTime {
            waits_ns: 0,
            ready_ns,
        };
        let times = StepTimes {
            stage: 0,
            step: 0,
            parts: Arc::from([layer, second].concat()),
            at: [0, 3000, 4000, 9000, 14_000, 17_000].map(time).to_vec(),
            end_ns: 18_000,
        };
        let mut products = vec![];
        add(&mut products, &times);
        add(&mut products, &times);
        let [product] = &products[..] else {
            panic!("{products:?}")
        };
        assert_eq!(product.name(), "operator_norm + conv_in_proj");
        assert_eq!((product.per_step, &product.us[..]), (2, &[6.0, 6.0][..]));
        assert_eq!(product.median_us(), Some(6.0));
        assert_eq!(product.kernels, ["a", "b"]);
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
        assert_eq!(product.dense(&config, &shape), Some(dense));
        let of = |kinds: &[OpKind]| {
            let counted = kinds.to_vec();
            let product = Product {
                counted,
                ..product.clone()
            };
            product.dense(&config, &shape)
        };
        assert_eq!(of(&[OpKind::ExpertDown]), None, "one of many matrices");
        assert_eq!(of(&[OpKind::QkvProj, OpKind::LmHead]), None, "two of them");
    }
}
