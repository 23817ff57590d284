//! The model's own tokenizer and chat template as `io` wants them.

use crate::error::{Error, Result};
use crate::io::codec::{Codec, TextEnd, TextProgress, TextStream};
use crate::model::ModelSource;
use crate::telemetry::warn;
use crate::text::{
    self, Chat, ChatTemplate, Clock, Doubt, StopMatcher, Threads, Tokenizer, Unrendered,
};
use chrono::NaiveDateTime;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

pub struct ModelCodec {
    /// `None`: ids go in and come out, and nothing has a text.
    tokenizer: Option<Tokenizer>,
    template: Option<ChatTemplate>,
    /// Somebody was told of a prompt that begins with two BOS.
    told_of_bos: AtomicBool,
}

const NO_TOKENIZER: &str = "the model has no tokenizer.json, expected input_ids without stop strings, or the model's tokenizer.json beside its weights";

impl ModelCodec {
    /// A checkpoint's files, or the built-in tokenizer of random presets; with `template`, a file, in place of the chat
    /// template that there is. A checkpoint without tokenizer.json serves token ids, which is warned of.
    ///
    /// # Errors
    /// A file is not what it should be, or has not been read by the deadline of `threads`.
    pub fn load(source: &ModelSource, template: Option<&Path>, threads: &Threads) -> Result<Self> {
        let (model, template) = (source.clone(), template.map(Path::to_owned));
        let loaded = threads.run(move || Self::read(&model, template.as_deref()));
        loaded.unwrap_or_else(|late| Err(Error::Runtime(format!("{source}: {late}"))))
    }

    fn read(source: &ModelSource, template: Option<&Path>) -> Result<Self> {
        let tokenizer = match source {
            ModelSource::Dir(dir) if is_absent(&dir.join("tokenizer.json")) => {
                warn(&format!(
                    "{}: found no tokenizer.json: rows of token ids alone are served, and answers have no text",
                    dir.display()
                ));
                return Ok(Self {
                    tokenizer: None,
                    template: None,
                    told_of_bos: AtomicBool::new(false),
                });
            }
            ModelSource::Dir(dir) => Tokenizer::load(dir)?,
            ModelSource::Random { .. } => Tokenizer::bytes(),
        };
        let template = match (template, source) {
            (Some(file), _) => Some(ChatTemplate::open(file, &tokenizer)?),
            (None, ModelSource::Dir(dir)) => ChatTemplate::load(dir, &tokenizer)?,
            (None, ModelSource::Random { .. }) => Some(ChatTemplate::built_in()?),
        };
        Ok(Self {
            tokenizer: Some(tokenizer),
            template,
            told_of_bos: AtomicBool::new(false),
        })
    }

    /// Templates read `now` in place of the time when they were loaded.
    #[must_use]
    pub fn with_time(mut self, now: Option<NaiveDateTime>) -> Self {
        if let (Some(template), Some(now)) = (&mut self.template, now) {
            template.set_clock(now);
        }
        self
    }

    /// The time that a template may read; `None` where none does.
    pub fn clock(&self) -> Option<Arc<Clock>> {
        self.template.as_ref()?.clock().cloned()
    }

    /// Whether there are chats.
    pub fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// The id of the special token that the checkpoint's files give such a name: `eos_token` and the like.
    pub fn named_id(&self, name: &str) -> Option<u32> {
        let tokenizer = self.tokenizer.as_ref()?;
        tokenizer.token_id(tokenizer.named(name)?)
    }
}

/// Nothing has this name. A link that leads nowhere is something.
fn is_absent(path: &Path) -> bool {
    let found = path.symlink_metadata();
    found.is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

impl Codec for ModelCodec {
    fn no_text(&self) -> Option<&str> {
        self.tokenizer.is_none().then_some(NO_TOKENIZER)
    }

    fn encode(&self, text: &str, special: bool) -> std::result::Result<Vec<u32>, String> {
        let tokenizer = self.tokenizer.as_ref().ok_or(NO_TOKENIZER)?;
        let ids = tokenizer.encode(text, special);
        let ids = ids.map_err(|error| error.to_string())?;
        // An empty text has what the tokenizer adds alone.
        if special
            && let [first, second, ..] = ids[..]
            && first == second
            && tokenizer
                .encode("", true)
                .is_ok_and(|added| added.first() == Some(&first))
            && !self.told_of_bos.swap(true, Relaxed)
        {
            warn(
                "prompt: found a text that begins with the BOS token, before which the tokenizer puts one: the model reads both, as in transformers; leave it out of the text or give input_ids (said once)",
            );
        }
        Ok(ids)
    }

    fn render(&self, chat: &Chat) -> std::result::Result<String, Unrendered> {
        match &self.template {
            Some(template) => template.render(&template.fit(chat.clone())),
            None if self.tokenizer.is_none() => Err(format!("messages: {NO_TOKENIZER}").into()),
            None => Err("messages: the model has no chat template (neither chat_template.jinja nor one in tokenizer_config.json), expected prompt or input_ids".to_owned().into()),
        }
    }

    fn doubts(&self, chat: &Chat) -> Vec<Doubt> {
        let template = self.template.as_ref();
        template
            .map(|template| template.doubts(chat))
            .unwrap_or_default()
    }

    fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        self.tokenizer.as_ref()?.token_bytes(id)
    }

    fn stream(&self, stop: StopMatcher, special: bool) -> Box<dyn TextStream> {
        let Some(tokenizer) = &self.tokenizer else {
            return Box::new(NoText { tokens: 0 });
        };
        let stream = text::TextStream::matching(tokenizer, stop);
        Box::new(Stream(stream.with_special(special)))
    }
}

struct Stream(text::TextStream);

impl TextStream for Stream {
    fn push(&mut self, id: u32) -> TextProgress {
        match self.0.push(id) {
            text::Progress::Continue => TextProgress::Continue,
            text::Progress::Stopped => TextProgress::Stopped,
        }
    }

    fn push_last(&mut self, id: u32) {
        self.0.push_last(id);
    }

    fn certain(&mut self) -> String {
        self.0.certain()
    }

    fn finish(self: Box<Self>) -> TextEnd {
        let end = self.0.finish();
        TextEnd {
            text: end.text,
            stop_tokens: end.stopped.then_some(end.tokens),
            offsets: end.offsets,
        }
    }
}

/// Of tokens that have no text.
struct NoText {
    tokens: usize,
}

impl TextStream for NoText {
    fn push(&mut self, _: u32) -> TextProgress {
        self.tokens += 1;
        TextProgress::Continue
    }

    fn push_last(&mut self, _: u32) {
        self.tokens += 1;
    }

    fn certain(&mut self) -> String {
        String::new()
    }

    fn finish(self: Box<Self>) -> TextEnd {
        TextEnd {
            text: String::new(),
            stop_tokens: None,
            offsets: vec![0; self.tokens],
        }
    }
}
