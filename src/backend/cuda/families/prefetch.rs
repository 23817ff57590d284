//! Weights of a layer's experts that a dense product asks for, to the second-level cache, while it multiplies
//! (kernels/common/prefetch.cuh).

use super::Lowering;
use super::experts::ExpertWeights;
use super::tiled::{Product, Rows};
use crate::backend::cuda::tuning::variants::Linear;
use crate::sys::abi;

/// Whole pieces of each of `matrices` matrices of `matrix_bytes`, of `mib` MiB in all.
fn pieces(mib: u32, matrices: u64, matrix_bytes: u64) -> u32 {
    let each = (u64::from(mib) << 20) / matrices.max(1);
    (each.min(matrix_bytes) / u64::from(abi::TG_PREFETCH_BYTES)) as u32
}

impl Lowering<'_> {
    /// What of a layer's experts this bucket's dense products ask for: a conv layer's in-projection ([`Lowering::swap_ab_conv`]), or
    /// of many rows each layer's out-projection.
    pub(super) fn prefetch(&self, experts: &ExpertWeights) -> abi::tg_prefetch_args {
        let pieces = match (self.variant.linear, self.grouped()) {
            (Linear::SwapAb | Linear::Persistent, Some((_, shape))) => pieces(
                shape.prefetch_mib,
                2 * self.config.num_experts as u64,
                experts.gate.bytes(),
            ),
            _ => 0,
        };
        abi::tg_prefetch_args {
            gate: experts.gate.address,
            up: experts.up.address,
            expert_bytes: experts.gate.stride_bytes(),
            experts: self.config.num_experts as u32,
            pieces,
        }
    }

    /// [`Lowering::product`] of all rows, behind which come the layer's experts, if it has any: the kernels for many rows may ask
    /// for some of their weights meanwhile.
    pub fn product_before(&mut self, product: &Product, experts: Option<&ExpertWeights>) {
        self.ahead = experts.map(|experts| self.prefetch(experts));
        self.product(product, Rows::Step);
        self.ahead = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_whole_and_of_the_matrix() {
        let matrix = 7_340_032;
        assert_eq!(pieces(16, 64, matrix), 64);
        assert_eq!(pieces(16, 128, matrix), 32, "as much of more experts");
        assert_eq!(pieces(1, 192, matrix), 1, "5,461 bytes each");
        assert_eq!(pieces(1024, 64, matrix), 1792, "all there is");
        assert_eq!(pieces(1, 2, 4095), 0);
        assert_eq!((pieces(0, 64, matrix), pieces(1, 0, matrix)), (0, 256));
    }
}
