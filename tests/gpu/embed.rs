//! The embedding gather: exact.

use crate::common::random::Random;
use crate::support::{BF16, Element, F16, F32, Gpu, HIDDEN, ROWS, State};
use tailgraph::backend::cuda::driver::launch::Argument;
use tailgraph::sys::abi;

const VOCABULARY: usize = 301;
const SLOTS: usize = 5;
const UNTOUCHED: f32 = 77.0;

fn gathers<T: Element>(gpu: &Gpu) {
    let mut random = Random(4);
    let kernel = gpu.kernel(&format!("tg_embed_{}", T::SUFFIX));
    for rows in ROWS {
        for hidden in HIDDEN {
            let embedding: Vec<T::Bits> = random
                .values(VOCABULARY * hidden, 1.0)
                .into_iter()
                .map(T::from_f32)
                .collect();
            let slots: Vec<abi::tg_slot> = (0..SLOTS)
                .map(|_| abi::tg_slot {
                    last_token: random.below(VOCABULARY) as i32,
                    ..abi::tg_slot::default()
                })
                .collect();
            // Decode rows first, as in a step: their token is their slot's newest.
            let decode_rows = random.below(rows + 1);
            let table: Vec<abi::tg_row> = (0..rows)
                .map(|row| abi::tg_row {
                    slot: random.below(SLOTS) as u32,
                    token: if row < decode_rows {
                        -1
                    } else {
                        random.below(VOCABULARY) as i32
                    },
                    ..abi::tg_row::default()
                })
                .collect();
            let state = State::new(gpu, &slots, &table, &[]);
            let blocks = rows + random.below(4);
            let from = gpu.upload(&embedding);
            let h = gpu.upload(&vec![UNTOUCHED; blocks * hidden]);
            let arguments = [
                gpu.address(&h),
                gpu.address(&from),
                state.state(gpu),
                state.step(gpu),
                Argument::U32(hidden as u32),
            ];
            // SAFETY: the arguments are the kernel's, and every array holds what its comment says.
            unsafe { gpu.launch(&kernel, blocks, &arguments) };
            let h = gpu.download(&h);

            for (row, entry) in table.iter().enumerate() {
                let token = if entry.token >= 0 {
                    entry.token
                } else {
                    slots[entry.slot as usize].last_token
                };
                let expected = embedding[token as usize * hidden..][..hidden]
                    .iter()
                    .map(|&bits| T::to_f32(bits));
                let found = h[row * hidden..][..hidden].iter().copied();
                assert!(
                    found.eq(expected),
                    "{} rows {rows} hidden {hidden} row {row}",
                    T::SUFFIX
                );
            }
            assert!(
                h[rows * hidden..].iter().all(|&v| v == UNTOUCHED),
                "padding was written"
            );
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn embedding_gathers_each_rows_token() {
    let gpu = Gpu::new();
    gathers::<BF16>(&gpu);
    gathers::<F16>(&gpu);
    gathers::<F32>(&gpu);
}
