//! The rows of a mixed step that the last layers need: which they are, and what is gathered of them.

use crate::common::random::Random;
use crate::rig::{Rig, Step, config, operand};
use crate::support::Gpu;
use tailgraph::backend::cuda::families::needed::{Gathered, Listed};
use tailgraph::model::{DType, ModelConfig};
use tailgraph::plan::{NeededRows, StepKind};
use tailgraph::sys::abi;

/// Steps of chunks of any lengths, one of them of as many sequences as there may be.
fn steps(random: &mut Random) -> Vec<Step> {
    let mut steps = vec![];
    for sequences in [1, 2, 7, 33, 100, abi::TG_MAX_SLOTS as usize] {
        let mut step = Step::with_slots(random, sequences, 64, 16);
        for slot in 0..sequences {
            let rows = if sequences > 100 {
                1 + random.below(2)
            } else {
                1 + random.below(20)
            };
            step.chunk(slot, random.below(40) as u32, rows);
            step.chunks[slot].sampled = random.below(3) > 0;
        }
        steps.push(step);
    }
    steps
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_last_rows_of_each_sequence_are_listed_and_gathered() {
    let gpu = Gpu::new();
    let mut random = Random(63);
    let config = ModelConfig {
        hidden_size: 96,
        ..config()
    };
    let (heads, kv_heads) = (config.num_attention_heads, config.num_key_value_heads);
    let (hidden, q) = (config.hidden_size, heads * config.head_dim);
    let qkv = q + 2 * kv_heads * config.head_dim;
    let rig = Rig::new(&gpu, config, operand(DType::BF16));
    for step in steps(&mut random) {
        for last in [1, 3, 5, 15] {
            let rows = step.rows().len();
            // These are as the scheduler has them: each row's own, what it is of, and the sampled ones.
            let (mut listed_rows, mut from, mut sequences, mut samples) =
                (vec![], vec![], vec![], vec![]);
            let mut first_row = 0;
            for (index, chunk) in step.chunks.iter().enumerate() {
                let (all, first) = (chunk.tokens.len(), from.len());
                let skipped = all - all.min(last);
                for row in skipped..all {
                    let position = chunk.first_position + row as u32;
                    listed_rows.extend([chunk.slot, position, 0, index as u32]);
                    from.push((first_row + row) as u32);
                }
                let sample = if chunk.sampled {
                    samples.push(from.len() as u32 - 1);
                    samples.len() as u32 - 1
                } else {
                    u32::MAX
                };
                sequences.push([
                    chunk.slot,
                    first as u32,
                    (all - skipped) as u32,
                    chunk.first_position + skipped as u32,
                    sample,
                ]);
                first_row += all;
            }
            let needed = from.len();
            let on_gpu = step.upload(&gpu);
            let h = random.values(rows * hidden, 1.0);
            let qkv_rows = random.values(rows * qkv, 1.0);
            let (h_at, qkv_at) = (
                gpu.values(DType::F32, &h),
                gpu.values(DType::BF16, &qkv_rows),
            );
            let [list, rows_at, from_at, sequences_at, samples_at] = [
                size_of::<abi::tg_step>(),
                16 * rows,
                4 * rows,
                size_of::<abi::tg_sequence>() * step.chunks.len(),
                4 * step.chunks.len(),
            ]
            .map(|bytes| gpu.poisoned(bytes));
            let (h_to, qkv_to) = (
                gpu.poisoned(4 * rows * hidden),
                gpu.poisoned(2 * rows * qkv),
            );
            // SAFETY: the arrays have the shapes that the calls ask for.
            unsafe {
                rig.enqueue(&on_gpu, StepKind::Mixed, rows).run(|to| {
                    let listed = Listed {
                        step: list.at(0),
                        rows: rows_at.at(0),
                        from: from_at.at(0),
                        sequences: sequences_at.at(0),
                        samples: samples_at.at(0),
                    };
                    let of_model = NeededRows {
                        layer: 0,
                        rows: last as u32,
                    };
                    to.list_needed_rows(&listed, of_model).unwrap();
                    to.gather_rows(&Gathered {
                        from: Some(listed.from),
                        h: (h_to.at(0), h_at.at(0)),
                        qkv: Some((qkv_to.at(0), qkv_at.at(0))),
                    });
                });
            }
            let what = format!("{} sequences, {last} rows", step.chunks.len());
            assert_eq!(gpu.get_u32(&rows_at)[..4 * needed], listed_rows, "{what}");
            assert_eq!(gpu.get_u32(&from_at)[..needed], from, "{what}");
            assert_eq!(gpu.get_u32(&samples_at)[..samples.len()], samples, "{what}");
            let words = size_of::<abi::tg_sequence>() / 4;
            for (found, expected) in gpu.get_u32(&sequences_at).chunks(words).zip(&sequences) {
                assert_eq!(found[..5], expected[..], "{what}");
            }
            let at = std::mem::offset_of!(abi::tg_step, rows) / 4;
            assert_eq!(gpu.get_u32(&list)[at], needed as u32, "{what}");
            let (h_to, qkv_to) = (
                gpu.get_values(DType::F32, &h_to),
                gpu.get_values(DType::BF16, &qkv_to),
            );
            let qkv_rows = gpu.get_values(DType::BF16, &qkv_at);
            for (to, &from) in from.iter().enumerate() {
                let from = from as usize;
                let row = |values: &[f32], at: usize, pitch: usize, width: usize| {
                    values[at * pitch..][..width].to_vec()
                };
                assert_eq!(
                    row(&h_to, to, hidden, hidden),
                    row(&h, from, hidden, hidden)
                );
                assert_eq!(row(&qkv_to, to, qkv, q), row(&qkv_rows, from, qkv, q));
                assert!(row(&qkv_to, to, qkv, qkv)[q..].iter().all(|v| v.is_nan()));
            }
            assert!(h_to[needed * hidden..].iter().all(|v| v.is_nan()), "{what}");
        }
    }
}
