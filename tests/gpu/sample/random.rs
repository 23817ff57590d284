//! Random rows to be sampled.

use super::plain::Row;
use crate::common::random::Random;
use tailgraph::sys::abi;

fn sampling(random: &mut Random) -> abi::tg_sampling {
    let pick = |random: &mut Random, values: [f32; 4]| values[random.below(4)].to_bits();
    abi::tg_sampling {
        key: random.next(),
        temperature: pick(random, [0.0, 0.3, 1.0, 1.7]),
        top_p: pick(random, [1.0, 0.05, 0.6, 0.95]),
        min_p: pick(random, [0.0, 0.0, 0.02, 0.4]),
        repetition_penalty: pick(random, [1.0, 1.3, 1.1, 0.8]),
        top_k: [0, 1, 7, 60][random.below(4)],
        logprobs: [abi::TG_LOGPROBS_NONE, 0, 3, 20][random.below(4)],
        presence_penalty: pick(random, [0.0, 0.0, 1.1, -0.7]),
        frequency_penalty: pick(random, [0.0, 0.0, 0.9, -0.3]),
        ..abi::tg_sampling::default()
    }
}

/// A row of any sampling after `answered` tokens of an answer, with biases and stop ids, some of the one among the other, and
/// some of no token.
pub fn row(random: &mut Random, vocabulary: usize, answered: usize) -> Row {
    let tokens = answered + 1 + random.below(40);
    // Few ids, so that some come again.
    let ids = 1 + random.below(vocabulary.min(30));
    let seen: Vec<u32> = (0..tokens).map(|_| random.below(ids) as u32).collect();
    let position = tokens as u32 - 1;
    let step = 1 + random.below(3);
    let count = [0, 0, 1, 9, 300][random.below(5)].min(vocabulary / step);
    let bias = |random: &mut Random| [-100.0, 100.0, -1.7, 0.6][random.below(4)] as f32;
    let mut biases: Vec<abi::tg_bias> = (0..count)
        .map(|i| abi::tg_bias {
            id: (i * step) as u32,
            bias: bias(random).to_bits(),
        })
        .collect();
    if count == 9 {
        biases[8].id = 1 << 31;
    }
    let stop_ids = (0..[0, 1, 16][random.below(3)])
        .map(|_| random.below(vocabulary + 2) as i32)
        .collect();
    Row {
        logits: logits(random, vocabulary),
        seen,
        answered,
        sampling: abi::tg_sampling {
            bias_count: biases.len() as u32,
            stop_from: [0, position, position + 1, position + 2][random.below(4)],
            ..sampling(random)
        },
        biases,
        stop_ids,
        position,
    }
}

/// Logits with a few likely ids; in steps of an eighth for every second case, so that many tie.
fn logits(random: &mut Random, vocabulary: usize) -> Vec<f32> {
    let spread = 1.0 + random.below(8) as f32;
    let coarse = random.below(2) == 0;
    let values = random.values(vocabulary, 1.0).into_iter();
    values
        .map(|v| {
            let v = v.powi(3) * spread * 3.0;
            if coarse {
                (v * 8.0).round() / 8.0 + 0.0
            } else {
                v
            }
        })
        .collect()
}
