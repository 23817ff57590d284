//! A row to be sampled, and a plain implementation of the rules that gives its token.

use tailgraph::sys::abi;

fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = 0xd251_1f53_u64 * u64::from(counter[0]);
        let b = 0xcd9e_8d57_u64 * u64::from(counter[2]);
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [
            key[0].wrapping_add(0x9e37_79b9),
            key[1].wrapping_add(0xbb67_ae85),
        ];
    }
    counter
}

#[test]
fn the_generator_here_is_philox() {
    let known = [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8];
    assert_eq!(philox([0; 4], [0; 2]), known);
}

/// One sampled row.
pub struct Row {
    pub logits: Vec<f32>,
    /// Ids of the sequence so far.
    pub seen: Vec<u32>,
    /// Tokens of these that the answer has, the last ones; at least one.
    pub answered: usize,
    pub sampling: abi::tg_sampling,
    pub biases: Vec<abi::tg_bias>,
    pub stop_ids: Vec<i32>,
    /// The row's position; the new token's is one more.
    pub position: u32,
}

impl Default for Row {
    /// Greedy, after a prompt of one token and an answer of one.
    fn default() -> Self {
        Self {
            logits: vec![],
            seen: vec![0, 1],
            answered: 1,
            sampling: abi::tg_sampling {
                top_p: 1.0_f32.to_bits(),
                repetition_penalty: 1.0_f32.to_bits(),
                logprobs: abi::TG_LOGPROBS_NONE,
                ..abi::tg_sampling::default()
            },
            biases: vec![],
            stop_ids: vec![],
            position: 1,
        }
    }
}

impl Row {
    pub fn scores(&self) -> Vec<f32> {
        let penalty = f32::from_bits(self.sampling.repetition_penalty);
        let temperature = f32::from_bits(self.sampling.temperature);
        let presence = f32::from_bits(self.sampling.presence_penalty);
        let frequency = f32::from_bits(self.sampling.frequency_penalty);
        let answer = &self.seen[self.seen.len() - self.answered..];
        let early = self.position + 1 < self.sampling.stop_from;
        let score = |(id, &l): (usize, &f32)| {
            let bias = self.biases.iter().find(|bias| bias.id == id as u32);
            let l = l + bias.map_or(0.0, |bias| f32::from_bits(bias.bias));
            let seen = penalty != 1.0 && self.seen.contains(&(id as u32));
            let l = match l {
                l if !seen => l,
                l if l < 0.0 => l * penalty,
                l => l / penalty,
            };
            let times = answer.iter().filter(|&&token| token == id as u32).count();
            let l = match times {
                0 => l,
                times => l - (presence + frequency * times as f32),
            };
            let l = if early && self.stop_ids.contains(&(id as i32)) {
                f32::NEG_INFINITY
            } else {
                l
            };
            if temperature == 0.0 {
                l
            } else {
                l / temperature
            }
        };
        self.logits.iter().enumerate().map(score).collect()
    }

    pub fn token(&self) -> usize {
        let scores = self.scores();
        let mut ids: Vec<usize> = (0..scores.len()).collect();
        // best first, ties: lower id first
        ids.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
        if f32::from_bits(self.sampling.temperature) == 0.0 {
            return ids[0];
        }
        let best = scores[ids[0]];
        let mass = |id: usize| f64::from(scores[id] - best).exp();
        if self.sampling.top_k > 0 {
            let kth = scores[ids[ids.len().min(self.sampling.top_k as usize) - 1]];
            ids.retain(|&id| scores[id] >= kth);
        }
        let top_p = f32::from_bits(self.sampling.top_p);
        if top_p < 1.0 {
            let total: f64 = ids.iter().rev().map(|&id| mass(id)).sum();
            let removable = (1.0 - f64::from(top_p)) * total;
            let mut running = 0.0;
            while ids.len() > 1 {
                running += mass(ids[ids.len() - 1]);
                if running > removable {
                    break;
                }
                ids.pop();
            }
        }
        let min_p = f64::from(f32::from_bits(self.sampling.min_p));
        ids.retain(|&id| mass(id) >= min_p);
        let key = [self.sampling.key as u32, (self.sampling.key >> 32) as u32];
        let value = |id: usize| {
            let counter = [id as u32 / 4, self.position + 1, 0x7361_6d70, 0];
            let word = philox(counter, key)[id % 4];
            let u = (f64::from(word >> 8) + 0.5) / f64::from(1 << 24);
            f64::from(scores[id]) - (-u.ln()).ln()
        };
        ids.sort_by(|&a, &b| value(b).total_cmp(&value(a)).then(a.cmp(&b)));
        ids[0]
    }

    pub fn check(&self, what: &str, sampled: &abi::tg_sampled) {
        assert_eq!(
            sampled.token as usize,
            self.token(),
            "{what} {:?}",
            self.sampling
        );
        let Some(count) = Some(self.sampling.logprobs).filter(|&n| n != abi::TG_LOGPROBS_NONE)
        else {
            assert_eq!(sampled.logprob, 0, "{what}: nobody asked");
            return;
        };
        let max = self
            .logits
            .iter()
            .copied()
            .fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = self.logits.iter().map(|&l| f64::from(l - max).exp()).sum();
        let close = |bits: u32, id: usize| {
            let expected = f64::from(self.logits[id]) - f64::from(max) - sum.ln();
            let found = f64::from(f32::from_bits(bits));
            assert!(
                (found - expected).abs() <= 1e-6 * (1.0 + expected.abs()),
                "{what}: logprob of {id}"
            );
        };
        close(sampled.logprob, sampled.token as usize);
        let mut ids: Vec<usize> = (0..self.logits.len()).collect();
        ids.sort_by(|&a, &b| self.logits[b].total_cmp(&self.logits[a]).then(a.cmp(&b)));
        for (i, &id) in ids.iter().enumerate().take(count as usize) {
            assert_eq!(sampled.top_ids[i] as usize, id, "{what}: place {i}");
            close(sampled.top_logprobs[i], id);
        }
    }
}
