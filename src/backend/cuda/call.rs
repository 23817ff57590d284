//! A kernel launch as a value. Lowering makes a list of them; streams, captures, listings, timing and tests read that one
//! list.

use super::launch::{Kernel, Launch};
use super::tensor_map::Boxes;
use crate::backend::timing::{KernelLaunch, Part};
use crate::plan::Op;

/// An address in device memory, or in pinned memory as the device sees it. 0 is no array.
pub type Address = u64;

/// One argument of a kernel, by value.
#[derive(Debug, Clone, PartialEq)]
pub enum Argument {
    Address(Address),
    U32(u32),
    U64(u64),
    F32(f32),
    /// A tensor map of these boxes (`TensorMap` of kernels/common/wgmma.cuh).
    Boxes(Boxes),
}

/// One launch of one kernel.
#[derive(Debug, Clone)]
pub struct KernelCall {
    pub kernel: Kernel,
    pub launch: Launch,
    pub arguments: Vec<Argument>,
    /// The operations of the plan that it does or has a share in; none where the program knows of no plan.
    pub ops: Vec<Op>,
}

/// The kernels of a step for whoever times them. Calls of the same operations in a row are counted as the kernels of these.
pub fn parts(calls: &[KernelCall]) -> Vec<Part> {
    let alike = calls.chunk_by(|one, next| !one.ops.is_empty() && one.ops == next.ops);
    alike
        .flat_map(|calls| {
            let part = |(index, call): (usize, &KernelCall)| Part {
                ops: call.ops.clone(),
                index: index as u32,
                count: calls.len() as u32,
                kernel: Some(KernelLaunch {
                    name: call.kernel.name().to_owned(),
                    grid: call.launch.grid,
                    threads: call.launch.threads,
                }),
            };
            calls.iter().enumerate().map(part).collect::<Vec<_>>()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::OpKind;

    #[test]
    fn calls_of_the_same_operations_are_counted_together() {
        let op = |kind| Op { layer: None, kind };
        let (embed, norm, head) = (op(OpKind::Embed), op(OpKind::FinalNorm), op(OpKind::LmHead));
        let call = |name: &str, ops: &[Op]| KernelCall {
            kernel: Kernel::unloaded(name),
            launch: Launch::blocks(1, 32),
            arguments: vec![],
            ops: ops.to_vec(),
        };
        let calls = [
            call("a", &[]),
            call("b", &[]),
            call("c", &[embed]),
            call("d", &[norm, head]),
            call("e", &[norm, head]),
            call("f", &[head]),
        ];
        let found: Vec<_> = parts(&calls)
            .into_iter()
            .map(|part| (part.operation(), part.index, part.count))
            .collect();
        let expected = [
            ("a", 0, 1),
            ("b", 0, 1),
            ("embed", 0, 1),
            ("final_norm + lm_head", 0, 2),
            ("final_norm + lm_head", 1, 2),
            ("lm_head", 0, 1),
        ];
        assert_eq!(
            found,
            expected.map(|(name, index, count)| (name.to_owned(), index, count))
        );
    }
}
