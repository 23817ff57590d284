//! A model's tokenizer and chat template: questions to tokens, and tokens to text.

use super::row::{Code, RowError};
use crate::error::{Error, Result};
use crate::model::ModelSource;
use crate::telemetry::warn;
use crate::text::{Chat, ChatTemplate, Clock, Doubt, StopMatcher, TextStream, Threads, Tokenizer};
use chrono::NaiveDateTime;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Text to tokens and back, for any thread. Errors of a text are one line and become the row's.
pub struct Codec {
    /// `None`: ids go in and come out, and nothing has a text.
    tokenizer: Option<Tokenizer>,
    template: Option<ChatTemplate>,
    /// Somebody was told of a prompt that begins with two BOS.
    told_of_bos: AtomicBool,
}

const NO_TOKENIZER: &str = "the model has no tokenizer.json, expected input_ids without stop strings, or the model's tokenizer.json beside its weights";

impl Codec {
    pub fn new(tokenizer: Option<Tokenizer>, template: Option<ChatTemplate>) -> Self {
        Self {
            tokenizer,
            template,
            told_of_bos: AtomicBool::new(false),
        }
    }

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
                return Ok(Self::new(None, None));
            }
            ModelSource::Dir(dir) => Tokenizer::load(dir)?,
            ModelSource::Random { .. } => Tokenizer::bytes(),
        };
        let template = match (template, source) {
            (Some(file), _) => Some(ChatTemplate::open(file, &tokenizer)?),
            (None, ModelSource::Dir(dir)) => ChatTemplate::load(dir, &tokenizer)?,
            (None, ModelSource::Random { .. }) => Some(ChatTemplate::built_in()?),
        };
        Ok(Self::new(Some(tokenizer), template))
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

    /// Why tokens have no text, where they have none: then there are no stop strings to look for either.
    pub fn no_text(&self) -> Option<&str> {
        self.tokenizer.is_none().then_some(NO_TOKENIZER)
    }

    /// Token ids of `text`; with `special`, as a prompt of its own (a leading BOS where the tokenizer has one).
    pub fn encode(&self, text: &str, special: bool) -> std::result::Result<Vec<u32>, String> {
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

    /// The text of tokens, special ones too.
    ///
    /// # Errors
    /// Tokens have no text.
    pub fn decode(&self, ids: &[u32]) -> std::result::Result<String, String> {
        let tokenizer = self.tokenizer.as_ref().ok_or(NO_TOKENIZER)?;
        Ok(tokenizer.decode(ids, false))
    }

    /// The conversation as text.
    pub fn render(&self, chat: &Chat) -> std::result::Result<String, RowError> {
        let why = match &self.template {
            Some(template) => return Ok(template.render(&template.fit(chat.clone()))?),
            None if self.tokenizer.is_none() => NO_TOKENIZER,
            None => {
                "the model has no chat template (neither chat_template.jinja nor one in tokenizer_config.json), expected prompt or input_ids"
            }
        };
        Err(Code::ChatTemplate.error(format!("messages: {why}")))
    }

    /// What the template may not show of the conversation as it is meant.
    pub fn doubts(&self, chat: &Chat) -> Vec<Doubt> {
        let template = self.template.as_ref();
        template
            .map(|template| template.doubts(chat))
            .unwrap_or_default()
    }

    /// The bytes that a token has of its own, special tokens included: a piece of a character where it is one. `None`
    /// for an id without a token.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        self.tokenizer.as_ref()?.token_bytes(id)
    }

    /// The text of a sequence, which is fed token by token and ends before what `stop` finds; its pieces are tokens.
    /// `special`: special tokens are shown too, other than those that end the sequence. `None` where tokens have no text.
    pub fn stream(&self, stop: StopMatcher, special: bool) -> Option<TextStream> {
        let tokenizer = self.tokenizer.as_ref()?;
        Some(TextStream::matching(tokenizer, stop).with_special(special))
    }
}

/// Nothing has this name. A link that leads nowhere is something.
fn is_absent(path: &Path) -> bool {
    let found = path.symlink_metadata();
    found.is_err_and(|error| error.kind() == ErrorKind::NotFound)
}
