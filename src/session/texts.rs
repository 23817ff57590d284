//! What makes tokens of a model's questions and text of its answers.

use super::eos;
use super::opened::Opened;
use crate::error::Result;
use crate::io::codec::Codec;
use crate::io::prepare::{Rules, generation_options};
use crate::io::row::Options;
use crate::model::ModelSource;
use crate::telemetry::warn;
use crate::text::Threads;
use std::sync::Arc;

/// A model's tokenizer and chat template, and what questions to it are checked against and fall back to.
pub struct Texts {
    pub codec: Arc<Codec>,
    pub rules: Rules,
    /// Where its text work is done.
    pub threads: Threads,
}

impl Texts {
    /// Reads the tokenizer's files. What ends answers is warned of on standard error where it had to be looked for, and
    /// what generation_config.json advises and is not followed.
    ///
    /// # Errors
    /// A file is missing or not what it should be.
    pub fn of(opened: &Opened) -> Result<Self> {
        let threads = Threads::new(opened.spec.text_timeout);
        let template = opened.spec.chat_template.as_deref();
        let codec = Codec::load(&opened.spec.model, template, &threads)?.with_time(opened.spec.now);
        if let (Some(warning), Some(dir)) = (opened.generation.warning(), opened.spec.model.dir()) {
            let file = dir.join("generation_config.json");
            warn(&format!("{}: {warning}", file.display()));
        }
        let random = matches!(opened.spec.model, ModelSource::Random { .. });
        let last = Options {
            // Nothing has taught random weights when to end.
            ignore_eos: Some(random),
            ..generation_options(&opened.generation)
        };
        let rules = Rules {
            vocab_size: opened.config.vocab_size as u32,
            max_context: opened.max_context(),
            model_context: opened.config.max_position_embeddings as u32,
            eos_ids: eos::ids(opened, &codec),
            defaults: opened.spec.defaults.clone().or(&last),
            advised_new_tokens: opened.generation.max_new_tokens,
            run_seed: opened.spec.seed,
            prompt_logprobs: opened.delivers,
        };
        Ok(Self {
            codec: Arc::new(codec),
            rules,
            threads,
        })
    }
}
