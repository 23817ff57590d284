//! Weights of a conv layer's experts that its in-projection asks for, to the second-level cache, while it multiplies
//! (kernels/swap_ab/prefetch.cuh).

use super::super::Lowering;
use super::super::experts::ExpertWeights;
use crate::backend::cuda::tuning::variants::Products;
use crate::sys::abi;

/// `PREFETCH_BYTES` there.
const PIECE_BYTES: u64 = 4096;

/// Whole pieces of each of `matrices` matrices of `matrix_bytes`, of `mib` MiB in all.
fn pieces(mib: u32, matrices: u64, matrix_bytes: u64) -> u32 {
    let each = (u64::from(mib) << 20) / matrices.max(1);
    (each.min(matrix_bytes) / PIECE_BYTES) as u32
}

impl Lowering<'_> {
    /// Pieces of each expert's gate, and of its up, that this bucket's [`Lowering::swap_ab_conv`] asks for.
    pub(in super::super) fn prefetched_pieces(&self) -> u32 {
        match (self.variant.products, self.grouped()) {
            (Products::SwapAb, Some((_, shape))) => {
                // Weights of 16 bits are all that grouped experts take.
                let matrix =
                    2 * u64::from(self.hidden()) * self.config.moe_intermediate_size as u64;
                pieces(
                    shape.prefetch_mib,
                    2 * self.config.num_experts as u64,
                    matrix,
                )
            }
            _ => 0,
        }
    }

    /// What that asks for, as its kernel has it.
    pub(super) fn prefetch(
        &self,
        experts: Option<&ExpertWeights>,
    ) -> abi::tg_swap_ab_prefetch_args {
        let of = |number: fn(&ExpertWeights) -> u64| experts.map_or(0, number);
        abi::tg_swap_ab_prefetch_args {
            gate: of(|w| w.gate),
            up: of(|w| w.up),
            expert_bytes: of(|w| 2 * w.gate_up_stride),
            experts: self.config.num_experts as u32,
            pieces: experts.map_or(0, |_| self.prefetched_pieces()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_whole_and_of_the_matrix() {
        let matrix = 2 * 2048 * 1792;
        assert_eq!(pieces(16, 64, matrix), 64);
        assert_eq!(pieces(16, 128, matrix), 32, "as much of more experts");
        assert_eq!(pieces(1, 192, matrix), 1, "5,461 bytes each");
        assert_eq!(pieces(1024, 64, matrix), 1792, "all there is");
        assert_eq!(pieces(1, 2, 4095), 0);
        assert_eq!((pieces(0, 64, matrix), pieces(1, 0, matrix)), (0, 256));
    }
}
