//! Kernels that run several times in a row within a step: what they take where their weights and operands are in the L2 cache.

use crate::backend::cuda::driver::call::KernelCall;
use crate::backend::cuda::engine::program::StepProgram;
use crate::backend::cuda::families::{Bucket, StepAt};
use crate::backend::timing::IN_A_ROW;
use crate::error::Result;
use crate::plan::OpKind;

/// A program whose kernels of one operation run [`IN_A_ROW`] times. Tokens are then others than the model's, as an operation that
/// adds to the residual stream adds several times.
pub struct InARow {
    pub inner: Box<dyn StepProgram>,
    pub operation: OpKind,
}

impl StepProgram for InARow {
    fn lower(&self, bucket: Bucket, at: StepAt) -> Result<Vec<KernelCall>> {
        Ok(repeated(self.inner.lower(bucket, at)?, self.operation))
    }

    fn check(&self) -> Result<()> {
        self.inner.check()
    }
}

fn repeated(calls: Vec<KernelCall>, operation: OpKind) -> Vec<KernelCall> {
    let asked = |call: &KernelCall| call.ops.iter().any(|op| op.kind == operation);
    let runs = calls.chunk_by(|one, next| asked(one) == asked(next));
    let times = |run: &[KernelCall]| if asked(&run[0]) { IN_A_ROW } else { 1 };
    runs.flat_map(|run| std::iter::repeat_n(run, times(run)).flatten())
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cuda::driver::launch::{Kernel, Launch};
    use crate::plan::Op;

    #[test]
    fn kernels_of_one_operation_run_in_a_row() {
        let call = |name: &str, kind: OpKind| KernelCall {
            kernel: Kernel::unloaded(name),
            launch: Launch::blocks(1, 32),
            arguments: vec![],
            weights: vec![],
            ops: vec![Op {
                layer: Some(0),
                kind,
            }],
        };
        let calls = vec![
            call("norm", OpKind::OperatorNorm),
            call("scores", OpKind::Attention),
            call("merge", OpKind::Attention),
            call("out", OpKind::ConvOutProj),
        ];
        let all = repeated(calls, OpKind::Attention);
        let names: Vec<&str> = all.iter().map(|call| call.kernel.name()).collect();
        let row = ["scores", "merge"].repeat(IN_A_ROW).join(" ");
        assert_eq!(names.join(" "), format!("norm {row} out"));
    }
}
