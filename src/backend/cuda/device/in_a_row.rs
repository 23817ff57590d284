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

fn does(call: &KernelCall, kinds: &[OpKind]) -> bool {
    call.ops.iter().any(|op| kinds.contains(&op.kind))
}

/// Experts run behind their router each time, as it clears what their blocks count up (`clear_counts` in kernels/common/experts.cuh).
fn repeated(calls: Vec<KernelCall>, operation: OpKind) -> Vec<KernelCall> {
    let asked = |call: &KernelCall| does(call, &[operation]);
    let mut all: Vec<KernelCall> = Vec::with_capacity(calls.len());
    for run in calls.chunk_by(|one, next| asked(one) == asked(next)) {
        let mut from = all.len();
        all.extend_from_slice(run);
        if !asked(&run[0]) {
            continue;
        }
        let experts = [OpKind::ExpertGateUp, OpKind::ExpertDown];
        if run.iter().any(|call| does(call, &experts)) {
            let is_router = |call: &KernelCall| does(call, &[OpKind::Router]);
            let end = all[..from].iter().rposition(is_router).unwrap_or(from);
            let before = all[..end].iter().rposition(|call| !is_router(call));
            from = before.map_or(0, |before| before + 1);
        }
        let row = all[from..].to_vec();
        (1..IN_A_ROW).for_each(|_| all.extend_from_slice(&row));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cuda::driver::launch::{Kernel, Launch};
    use crate::plan::Op;

    #[test]
    fn experts_run_behind_their_router_and_others_alone() {
        let call = |name: &str, kinds: &[OpKind]| KernelCall {
            kernel: Kernel::unloaded(name),
            launch: Launch::blocks(1, 32),
            arguments: vec![],
            ops: kinds
                .iter()
                .map(|&kind| Op {
                    layer: Some(0),
                    kind,
                })
                .collect(),
        };
        let calls = vec![
            call("in", &[OpKind::OperatorNorm, OpKind::ConvInProj]),
            call("conv", &[OpKind::ShortConv]),
            call("router", &[OpKind::FfnNorm, OpKind::Router]),
            call("sort", &[OpKind::Router]),
            call("up", &[OpKind::ExpertGateUp]),
            call("down", &[OpKind::ExpertDown]),
        ];
        let names = |operation| {
            let all = repeated(calls.clone(), operation);
            all.iter()
                .map(|call| call.kernel.name().to_owned())
                .collect::<Vec<_>>()
        };
        let row = |names: &[&str]| names.repeat(IN_A_ROW).join(" ");
        let conv = names(OpKind::ShortConv).join(" ");
        assert_eq!(conv, format!("in {} router sort up down", row(&["conv"])));
        let down = names(OpKind::ExpertDown).join(" ");
        assert_eq!(
            down,
            format!("in conv {}", row(&["router", "sort", "up", "down"]))
        );
        let router = names(OpKind::Router).join(" ");
        assert_eq!(
            router,
            format!("in conv {} up down", row(&["router", "sort"]))
        );
    }
}
