//! Logprobs of a prompt's own tokens, from logits as they come.

/// `log softmax(logits)[token]`, in f64: the largest logit is taken out first, terms are summed in order.
pub fn log_softmax(logits: &[f32], token: usize) -> f32 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits
        .iter()
        .map(|&logit| f64::from(logit - largest).exp())
        .sum();
    (f64::from(logits[token] - largest) - sum.ln()) as f32
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
            found[next] = Some(log_softmax(logits, token as usize));
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
        assert!((log_softmax(&[1e4, 1e4], 0) - 0.5_f32.ln()).abs() < 1e-6);
    }
}
