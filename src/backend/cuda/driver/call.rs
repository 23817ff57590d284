//! A kernel launch as a value. Lowering makes a list of them; streams, captures, listings, timing and tests read that one
//! list.

use crate::backend::cuda::driver::arguments::{self, Value};
use crate::backend::cuda::driver::launch::{Argument, Kernel, Launch};
use crate::backend::cuda::matrix::Matrix;
use crate::backend::timing::{KernelLaunch, Part};
use crate::error::Result;
use crate::plan::Op;
use cudarc::driver::{CudaStream, sys};

/// One launch of one kernel.
#[derive(Debug, Clone)]
pub struct KernelCall {
    pub kernel: Kernel,
    pub launch: Launch,
    pub arguments: Vec<Argument>,
    /// The matrices that it multiplies with; of experts the first one's.
    pub weights: Vec<Matrix>,
    /// The operations of the plan that it does or has a share in; none where the program knows of no plan.
    pub ops: Vec<Op>,
}

impl KernelCall {
    /// Whether the arguments are of the kernel's size.
    ///
    /// # Errors
    /// They are not: this is a bug.
    pub fn check(&self) -> Result<()> {
        arguments::check(self.kernel.name(), &self.arguments)
    }
}

/// A call that only has to be queued: its tensor maps are made.
#[derive(Debug)]
pub struct ReadyCall {
    kernel: Kernel,
    launch: Launch,
    values: Vec<Value>,
    ops: Vec<Op>,
}

impl ReadyCall {
    /// # Errors
    /// The arguments are not of the kernel's size, or the driver refuses the shape of a tensor map.
    pub fn new(call: &KernelCall) -> Result<Self> {
        Ok(Self {
            kernel: call.kernel.clone(),
            launch: call.launch,
            values: arguments::values(call.kernel.name(), &call.arguments)?,
            ops: call.ops.clone(),
        })
    }

    /// The operations of the plan that it does or has a share in.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// The kernel's.
    pub fn name(&self) -> &str {
        self.kernel.name()
    }

    /// Hands it to `take` as a node's parameters, which point into this thread's stack.
    pub fn with_node<T>(
        &self,
        take: impl FnOnce(&sys::CUDA_KERNEL_NODE_PARAMS) -> Result<T>,
    ) -> Result<T> {
        self.kernel.with_node(self.launch, &self.values, take)
    }

    /// Queues it on `stream`.
    ///
    /// # Errors
    /// Fails as [`Kernel::launch`] does.
    ///
    /// # Safety
    /// The caller keeps the promises of [`Kernel::launch`].
    pub unsafe fn launch(&self, stream: &CudaStream) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { (self.kernel).launch_with(stream, self.launch, &self.values, false) }
    }
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
            weights: vec![],
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
