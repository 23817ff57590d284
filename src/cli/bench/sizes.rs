//! The sizes that points ask of an engine where no option of an engine does, and what is said where they are too much:
//! the options of `bench` that they come from.

use super::work::Work;
use crate::bench::{Kind, Point};
use crate::error::Result;
use crate::plan::options::{check_context, check_seqs};
use crate::plan::{Limits, Prompts};
use crate::session::RunSpec;
use std::sync::Arc;

/// The longest sequence.
pub struct Longest {
    tokens: u32,
    /// What says so.
    named: String,
}

/// An option as messages name it.
fn option(name: &str, value: u32, given: bool) -> String {
    let default = if given { "" } else { " (the default)" };
    format!("{name} {value}{default}")
}

fn total(prompt: u32, new: u32) -> u32 {
    prompt.saturating_add(new)
}

impl Work<'_> {
    pub fn longest(&self, points: &[Point]) -> Longest {
        let point = points
            .iter()
            .map(|point| (point.prompt_tokens, point.new_tokens))
            .max_by_key(|&(prompt, new)| total(prompt, new))
            .unwrap_or((1, 0));
        let lines = self.lines.iter().flatten().filter_map(|line| line.lengths);
        let line = lines.max_by_key(|&(prompt, new)| total(prompt, new));
        let line = line.filter(|&(prompt, new)| total(prompt, new) > total(point.0, point.1));
        let (prompt, new) = line.unwrap_or(point);
        let tokens = total(prompt, new);
        let args = self.args;
        let with_new = |prompt: String, new: String| format!("{prompt} and {new}, {tokens} tokens");
        let named = if let (Some(_), Some(path)) = (line, &args.arrivals) {
            let path = path.display();
            format!(
                "--arrivals {path}, a prompt of {prompt} and {new} to generate, {tokens} tokens"
            )
        } else if let Some(path) = &args.input {
            format!("--input {}, a prompt of {prompt} tokens", path.display())
        } else if args.context.is_some() {
            option("--context", tokens, true)
        } else {
            let prompt = option("--prompt-len", prompt, args.prompt_len.is_some());
            match args.kind {
                Kind::Score => prompt,
                Kind::Prefill => with_new(prompt, "its first token".to_owned()),
                _ => with_new(prompt, option("--gen-len", new, args.gen_len.is_some())),
            }
        };
        Longest { tokens, named }
    }

    /// What `score` reads; of several points as many as the largest, and as short as the shortest.
    fn prompts(&self, points: &[Point]) -> Option<Prompts> {
        let kind = self.args.logits.step_kind();
        if let Some(samples) = &self.samples {
            return Prompts::of(
                samples.iter().map(|sample| sample.tokens.len() as u32),
                kind,
            );
        }
        let count = points.iter().map(|point| point.batch).max()?;
        let shortest = points.iter().map(Point::mean_prompt).min()?;
        Some(Prompts {
            count,
            tokens: u64::from(count) * u64::from(shortest),
            kind,
        })
    }

    /// The limits of an engine of so many sequences and the longest one, where `spec`'s do not say otherwise.
    ///
    /// # Errors
    /// [`crate::error::Error::Usage`]: the points are more than the model or the ladders take.
    pub fn limits(
        &self,
        spec: &RunSpec,
        points: &[Point],
        sizes: (Option<u32>, &Longest),
    ) -> Result<Limits> {
        let (max_seqs, longest) = sizes;
        let mut limits = spec.limits;
        let plan = spec.plan(&Arc::new(self.config.clone()))?;
        if limits.max_seqs.is_none() {
            let devices = 1 + spec.replicas().len() as u32;
            let max_seqs = max_seqs.map(|batch| batch.div_ceil(devices));
            if let Some(batch) = max_seqs {
                let named = match (&self.args.batch, &self.args.max_concurrency) {
                    (None, Some(_)) => option("--max-concurrency", batch, true),
                    (given, _) => option("--batch", batch, given.is_some()),
                };
                check_seqs(&plan, batch, &named)?;
            }
            limits.max_seqs = max_seqs;
        }
        if self.args.kind == Kind::Score {
            limits.prompts = self.prompts(points);
        }
        if limits.max_context.is_none() {
            check_context(&plan, longest.tokens, &longest.named)?;
            limits.max_context = Some(longest.tokens);
        }
        Ok(limits)
    }
}
