//! Logprobs of a prompt's own tokens, from logits as they come.

use crate::runtime::TokenLogprobs;

/// `log softmax(logits)` of any token, in f64: the largest logit is taken out first, terms are summed in order.
pub fn log_softmax(logits: &[f32]) -> impl Fn(u32) -> f32 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits
        .iter()
        .map(|&logit| f64::from(logit - largest).exp())
        .sum();
    let sum = sum.ln();
    move |token| (f64::from(logits[token as usize] - largest) - sum) as f32
}

/// The logprobs of `token` and of the `count` best ones by `logits`, which are `[V]`: best first, ties to the lower id.
pub fn beside_best(logits: &[f32], token: u32, count: usize) -> TokenLogprobs {
    let logprob = log_softmax(logits);
    let mut best: Vec<u32> = Vec::with_capacity(count + 1);
    for (id, logit) in (0..).zip(logits) {
        let place = best.partition_point(|&other| logits[other as usize].total_cmp(logit).is_ge());
        if place < count {
            best.insert(place, id);
            best.truncate(count);
        }
    }
    TokenLogprobs {
        logprob: logprob(token),
        top: best.into_iter().map(|id| (id, logprob(id))).collect(),
    }
}

/// exp of minus the mean logprob; `None` for a single token, which nothing predicts.
pub fn perplexity(logprobs: &[Option<f32>]) -> Option<f64> {
    let known: Vec<f64> = logprobs.iter().flatten().map(|&p| f64::from(p)).collect();
    (!known.is_empty()).then(|| (-known.iter().sum::<f64>() / known.len() as f64).exp())
}

/// Collects logprobs of all requests; rows may come in any order.
#[derive(Debug, Default)]
pub struct Logprobs {
    prompts: Vec<Vec<u32>>,
    found: Vec<Vec<Option<f32>>>,
}

impl Logprobs {
    /// `prompts` in the order of submission.
    pub fn new(prompts: Vec<Vec<u32>>) -> Self {
        Self {
            found: prompts.iter().map(|_| Vec::new()).collect(),
            prompts,
        }
    }

    /// The logits after position `position`, which predict the token at the next one: `[V]`.
    pub fn add(&mut self, request: usize, position: u32, logits: &[f32]) {
        let next = position as usize + 1;
        let prompt = &self.prompts[request];
        let found = &mut self.found[request];
        found.resize(prompt.len(), None);
        if let Some(&token) = prompt.get(next) {
            found[next] = Some(log_softmax(logits)(token));
        }
    }

    /// What was found for a request, which is forgotten.
    pub fn take(&mut self, request: usize) -> Option<Vec<Option<f32>>> {
        self.found.get_mut(request).map(std::mem::take)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_logits_do_not_overflow() {
        assert!((log_softmax(&[1e4, 1e4])(0) - 0.5_f32.ln()).abs() < 1e-6);
    }

    #[test]
    fn the_best_are_in_order_and_ties_go_to_the_lower_id() {
        let logits = [1.0, 3.0, -2.0, 3.0, 0.5, 1.0];
        let found = beside_best(&logits, 2, 4);
        let ids: Vec<u32> = found.top.iter().map(|&(id, _)| id).collect();
        assert_eq!(ids, [1, 3, 0, 5]);
        let logprob = log_softmax(&logits);
        assert!(found.top.iter().all(|&(id, found)| found == logprob(id)));
        assert_eq!(found.logprob, logprob(2));
        assert_eq!(beside_best(&logits, 2, 0).top, []);
        assert_eq!(beside_best(&logits, 2, 9).top.len(), 6);
    }
}
