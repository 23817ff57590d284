//! Chat templates: messages to a prompt, as `apply_chat_template` of transformers renders them.

use std::path::{Path, PathBuf};

use chrono::NaiveDateTime;
use minijinja::Environment;
use serde_json::{Map, Value};

use super::{guarded, jinja, one_line};
use crate::{Error, Result};

/// LFM2's plain form, for random presets: their tokenizer has its special tokens.
const BUILT_IN: &str = "{{- bos_token -}}{%- for message in messages -%}{{- '<|im_start|>' + message['role'] + '\\n' \
    + message['content'] + '<|im_end|>\\n' -}}{%- endfor -%}{%- if add_generation_prompt -%}\
    {{- '<|im_start|>assistant\\n' -}}{%- endif -%}";

/// Used where a request brings tools, if there is one of this name.
const TOOL_USE: &str = "tool_use";
const DEFAULT: &str = "default";

/// Names under which tokenizer_config.json gives special tokens, and templates read them.
const SPECIAL_TOKENS: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// The chat template of a checkpoint. What it renders is encoded without adding special tokens.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// Where it comes from, for messages.
    path: PathBuf,
    /// `bos_token` and the like.
    variables: Map<String, Value>,
}

impl ChatTemplate {
    /// From `dir`: chat_template.jinja (with additional_chat_templates/tool_use.jinja), else
    /// tokenizer_config.json's `chat_template`, a string or a list of named ones. `None` where there is none.
    ///
    /// # Errors
    /// A file cannot be read, is not what it should be, or holds a template with a syntax error.
    pub fn load(dir: &Path) -> Result<Option<Self>> {
        let config_path = dir.join("tokenizer_config.json");
        let config = match read(&config_path)? {
            None => Value::Null,
            Some(text) => crate::json::from_slice(text.as_bytes()).map_err(|error| {
                Error::file(
                    &config_path,
                    format!("found broken JSON ({error}), expected an object"),
                )
            })?,
        };
        let path = dir.join("chat_template.jinja");
        let (path, templates) = match read(&path)? {
            Some(text) => {
                let mut templates = vec![(DEFAULT.to_owned(), text)];
                let additional = dir.join("additional_chat_templates/tool_use.jinja");
                templates.extend(read(&additional)?.map(|text| (TOOL_USE.to_owned(), text)));
                (path, templates)
            }
            None => {
                let templates = named(&config["chat_template"])
                    .map_err(|message| Error::file(&config_path, message))?;
                (config_path, templates)
            }
        };
        if templates.is_empty() {
            return Ok(None);
        }
        Self::new(path, templates, special_tokens(&config)).map(Some)
    }

    /// The template that goes with [`super::Tokenizer::bytes`].
    ///
    /// # Errors
    /// None that a caller can cause.
    pub fn built_in() -> Result<Self> {
        let config = serde_json::json!({
            "bos_token": "<|startoftext|>", "eos_token": "<|im_end|>", "pad_token": "<|pad|>"
        });
        let templates = vec![(DEFAULT.to_owned(), BUILT_IN.to_owned())];
        Self::new(
            "(built-in chat template)".into(),
            templates,
            special_tokens(&config),
        )
    }

    fn new(
        path: PathBuf,
        templates: Vec<(String, String)>,
        variables: Map<String, Value>,
    ) -> Result<Self> {
        let mut environment = jinja::environment();
        for (name, source) in templates {
            let source = jinja::prepare(&source);
            let label = name.clone();
            guarded("minijinja", || {
                environment
                    .add_template_owned(name, source)
                    .map_err(|error| describe(&error))
            })
            .map_err(|message| {
                Error::file(
                    &path,
                    format!("chat template `{label}`: {message}, expected a Jinja template"),
                )
            })?;
        }
        let mut template = Self {
            environment,
            path,
            variables,
        };
        template.set_clock(|| chrono::Local::now().naive_local());
        Ok(template)
    }

    /// What time `strftime_now` shows in place of the local time, for prompts that must not change with it.
    pub fn set_clock(&mut self, clock: impl Fn() -> NaiveDateTime + Send + Sync + 'static) {
        self.environment
            .add_function("strftime_now", move |format: &str| {
                jinja::strftime(clock(), format)
            });
    }

    /// `messages` is a list of objects with `role` and `content`; `tools` a list of JSON schemas.
    ///
    /// # Errors
    /// One line that says what the template has against them.
    pub fn render(
        &self,
        messages: &Value,
        tools: Option<&Value>,
        add_generation_prompt: bool,
    ) -> std::result::Result<String, String> {
        let tools = tools.filter(|tools| !tools.is_null());
        let name = match tools {
            Some(_) if self.environment.get_template(TOOL_USE).is_ok() => TOOL_USE,
            _ => DEFAULT,
        };
        let mut variables = self.variables.clone();
        variables.insert("messages".into(), messages.clone());
        variables.insert("tools".into(), tools.cloned().unwrap_or_default());
        variables.insert("documents".into(), Value::Null);
        variables.insert("add_generation_prompt".into(), add_generation_prompt.into());
        guarded("minijinja", || {
            let template = self.environment.get_template(name).map_err(|_| {
                format!("there is no template named `{name}`: expected one in `chat_template`")
            })?;
            template
                .render(&variables)
                .map_err(|error| describe(&error))
        })
        .map_err(|message| format!("{}: {message}", self.path.display()))
    }
}

/// The text of a file; `None` where there is no such file.
fn read(path: &Path) -> Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(path, error)),
    }
}

/// tokenizer_config.json's `chat_template` as names and templates.
fn named(value: &Value) -> std::result::Result<Vec<(String, String)>, String> {
    let wrong = || {
        "chat_template: expected a string or a list of {\"name\": …, \"template\": …}".to_owned()
    };
    match value {
        Value::Null => Ok(Vec::new()),
        Value::String(text) => Ok(vec![(DEFAULT.to_owned(), text.clone())]),
        Value::Array(items) => items
            .iter()
            .map(
                |item| match (item["name"].as_str(), item["template"].as_str()) {
                    (Some(name), Some(template)) => Ok((name.to_owned(), template.to_owned())),
                    _ => Err(wrong()),
                },
            )
            .collect(),
        _ => Err(wrong()),
    }
}

/// Special tokens of tokenizer_config.json, each a string or an object with `content`.
fn special_tokens(config: &Value) -> Map<String, Value> {
    let text = |value: &Value| {
        value
            .as_str()
            .or(value["content"].as_str())
            .map(str::to_owned)
    };
    let mut tokens = Map::new();
    let extra = config["extra_special_tokens"].as_object();
    let own = SPECIAL_TOKENS.iter().map(|&name| (name, &config[name]));
    for (name, value) in own.chain(
        extra
            .into_iter()
            .flatten()
            .map(|(name, value)| (name.as_str(), value)),
    ) {
        if let Some(token) = text(value) {
            tokens.insert(name.to_owned(), token.into());
        }
    }
    if let Some(additional) = config["additional_special_tokens"].as_array() {
        let additional: Vec<Value> = additional
            .iter()
            .filter_map(text)
            .map(Value::from)
            .collect();
        tokens.insert("additional_special_tokens".into(), additional.into());
    }
    tokens
}

/// A template's error on one line, with the template's line.
fn describe(error: &minijinja::Error) -> String {
    let message = one_line(error.detail().unwrap_or(error.kind().to_string().as_str()));
    match error.line() {
        Some(line) => format!("line {line}: {message}"),
        None => message,
    }
}
