//! Chat templates: messages to a prompt, as `apply_chat_template` of transformers renders them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use chrono::NaiveDateTime;
use serde_json::{Map, Value};

use super::conversation::{Chat, Doubt};
use super::files::{self, TOKENIZER_CONFIG, read};
use super::threads::{self, Part};
use super::{Clock, Tokenizer, Unrendered, jinja};
use crate::quote;
use crate::{Error, Result};

/// LFM2's template without tools, for random presets, whose tokenizer has LFM2's special tokens.
const BUILT_IN: &str = "{{- bos_token -}}{%- for message in messages -%}{{- '<|im_start|>' + message['role'] + '\\n' \
    + message['content'] + '<|im_end|>\\n' -}}{%- endfor -%}{%- if add_generation_prompt -%}\
    {{- '<|im_start|>assistant\\n' -}}{%- endif -%}";

/// The name of the template for conversations with tools, where a checkpoint has one.
const TOOL_USE: &str = "tool_use";
const DEFAULT: &str = "default";

/// The chat template of a checkpoint. What it renders is encoded without adding special tokens.
pub struct ChatTemplate {
    /// The templates' names and texts; most checkpoints have one, `default`.
    sources: Vec<(String, String)>,
    templates: jinja::Templates,
    clock: Arc<Clock>,
    /// The file that the templates come from, for messages.
    path: PathBuf,
    /// The special tokens by their names: `bos_token` and the like.
    variables: Map<String, Value>,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl ChatTemplate {
    /// Reads the templates of the checkpoint in `dir`: chat_template.jinja and additional_chat_templates/tool_use.jinja, or,
    /// where neither is there, tokenizer_config.json's `chat_template`, which is a string or named ones. Templates find the
    /// special tokens of `tokenizer` as variables. `None`: the checkpoint has no template.
    ///
    /// # Errors
    /// A file cannot be read, is not what it should be, or holds a template with a syntax error.
    pub fn load(dir: &Path, tokenizer: &Tokenizer) -> Result<Option<Self>> {
        let config_path = dir.join(TOKENIZER_CONFIG);
        let path = dir.join("chat_template.jinja");
        let mut templates = Vec::new();
        templates.extend(
            read(&path, jinja::MAX_SOURCE_BYTES as u64)?.map(|text| (DEFAULT.to_owned(), text)),
        );
        let additional = dir.join("additional_chat_templates/tool_use.jinja");
        templates.extend(
            read(&additional, jinja::MAX_SOURCE_BYTES as u64)?
                .map(|text| (TOOL_USE.to_owned(), text)),
        );
        if !templates.is_empty() {
            return Self::new(path, templates, tokenizer).map(Some);
        }
        let config = files::object(&config_path)?.unwrap_or_default();
        let templates = named(config.get("chat_template").unwrap_or(&Value::Null))
            .map_err(|message| Error::file(&config_path, message))?;
        if templates.is_empty() {
            return Ok(None);
        }
        Self::new(config_path, templates, tokenizer).map(Some)
    }

    /// Reads a file that holds one template.
    ///
    /// # Errors
    /// There is no such file, or one of the errors of [`ChatTemplate::load`].
    pub fn open(path: &Path, tokenizer: &Tokenizer) -> Result<Self> {
        let text = read(path, jinja::MAX_SOURCE_BYTES as u64)?
            .ok_or_else(|| Error::file(path, "found no such file, expected a Jinja template"))?;
        Self::new(path.to_owned(), vec![(DEFAULT.to_owned(), text)], tokenizer)
    }

    /// The template that goes with [`Tokenizer::bytes`].
    ///
    /// # Errors
    /// None that a caller can cause.
    pub fn built_in() -> Result<Self> {
        let templates = vec![(DEFAULT.to_owned(), BUILT_IN.to_owned())];
        Self::new(
            "(built-in chat template)".into(),
            templates,
            &Tokenizer::bytes(),
        )
    }

    fn new(path: PathBuf, sources: Vec<(String, String)>, tokenizer: &Tokenizer) -> Result<Self> {
        threads::at(Part::Template);
        // One time for all rows of a run: a prompt depends on its row alone.
        let clock = Arc::new(Clock::at(chrono::Local::now().naive_local()));
        let mut templates = jinja::Templates::new(clock.clone());
        for (name, source) in &sources {
            templates.add(name, source).map_err(|error| match error {
                Unrendered::NoThread(message) => Error::Runtime(message),
                Unrendered::Refused(message) => Error::file(
                    &path,
                    format!(
                        "chat template {} is no Jinja template that is supported here: {message}",
                        quote::name(name)
                    ),
                ),
            })?;
        }
        Ok(Self {
            sources,
            templates,
            clock,
            path,
            variables: tokenizer
                .all_named()
                .into_iter()
                .map(|(name, token)| (name.to_owned(), token.into()))
                .collect(),
        })
    }

    /// Sets the time that `strftime_now` shows, which is that of loading the template until then.
    pub fn set_clock(&mut self, now: NaiveDateTime) {
        self.clock = Arc::new(Clock::at(now));
        self.templates.set_clock(self.clock.clone());
    }

    /// The clock that the templates read; `None` where no template names `strftime_now`.
    pub fn clock(&self) -> Option<&Arc<Clock>> {
        let mut sources = self.sources.iter();
        let reads = sources.any(|(_, source)| source.contains("strftime_now"));
        reads.then_some(&self.clock)
    }

    /// The template that transformers chooses: `tool_use` for a conversation with tools, if there is one, else `default`.
    fn choose(&self, chat: &Chat) -> std::result::Result<&(String, String), String> {
        let find = |wanted: &str| self.sources.iter().find(|(name, _)| name == wanted);
        let tools = chat.tools.as_ref().and_then(|_| find(TOOL_USE));
        tools.or_else(|| find(DEFAULT)).ok_or_else(|| {
            format!(
                "{}: found no template named `{DEFAULT}`, expected one in `chat_template`",
                self.path.display()
            )
        })
    }

    fn reads(&self, chat: &Chat) -> Option<&jinja::Reads> {
        threads::at(Part::Template);
        self.choose(chat)
            .ok()
            .and_then(|(name, _)| self.templates.reads(name))
    }

    /// `chat` with each message's content in the form that the template takes, a list of parts or a text. transformers
    /// leaves that to its caller.
    #[must_use]
    pub fn fit(&self, chat: Chat) -> Chat {
        match self.reads(&chat) {
            Some(reads) => chat.fit(reads),
            None => chat,
        }
    }

    /// What the template may not show of `chat`.
    #[must_use]
    pub fn doubts(&self, chat: &Chat) -> Vec<Doubt> {
        let reads = self.reads(chat);
        reads.map(|reads| chat.doubts(reads)).unwrap_or_default()
    }

    /// The prompt, as `apply_chat_template` of transformers renders it.
    ///
    /// # Errors
    /// The template refuses the conversation, or there was no thread.
    pub fn render(&self, chat: &Chat) -> std::result::Result<String, Unrendered> {
        threads::at(Part::Template);
        let (name, source) = self.choose(chat)?;
        let (messages, continued) = chat.normalized(source)?;
        let mut variables = self.variables.clone();
        variables.extend(chat.kwargs.clone());
        variables.insert("messages".into(), messages);
        variables.insert("tools".into(), chat.tools.clone().unwrap_or_default());
        variables.entry("documents").or_insert(Value::Null);
        variables.insert(
            "add_generation_prompt".into(),
            chat.add_generation_prompt.into(),
        );
        let rendered = self
            .templates
            .render(name, &variables)
            .map_err(|error| match error {
                Unrendered::Refused(message) => {
                    format!("{}: {message}", self.path.display()).into()
                }
                no_thread @ Unrendered::NoThread(_) => no_thread,
            })?;
        Ok(match continued {
            None => rendered,
            Some(continued) => continued.cut(rendered)?,
        })
    }
}

/// The names and templates in tokenizer_config.json's `chat_template`.
fn named(value: &Value) -> std::result::Result<Vec<(String, String)>, String> {
    let wrong = || {
        "chat_template: expected a string, a list of {\"name\": …, \"template\": …} or an object of templates by name"
            .to_owned()
    };
    let pair = |name: Option<&str>, template: &Value| match (name, template.as_str()) {
        (Some(name), Some(template)) => Ok((name.to_owned(), template.to_owned())),
        _ => Err(wrong()),
    };
    match value {
        Value::Null => Ok(Vec::new()),
        Value::String(text) => Ok(vec![(DEFAULT.to_owned(), text.clone())]),
        Value::Array(items) => items
            .iter()
            .map(|item| pair(item["name"].as_str(), &item["template"]))
            .collect(),
        Value::Object(items) => items
            .iter()
            .map(|(name, template)| pair(Some(name), template))
            .collect(),
        _ => Err(wrong()),
    }
}
