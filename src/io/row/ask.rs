//! A question: a prompt and the options that one row gives.

use crate::text::Chat;

/// Prompt and options as one row gives them; nothing in it has met the model yet.
#[derive(Debug, Clone, PartialEq)]
pub struct Ask {
    pub prompt: Prompt,
    pub options: Options,
    /// New tokens where nobody names a limit, as far as the context goes; `None`: what it leaves after the prompt.
    pub unasked: Option<u32>,
    pub names: &'static FieldNames,
    pub choices: Choices,
    /// Each answer begins with its prompt, and has the prompt's logprobs where any are asked for. There may be no new tokens.
    pub echo: bool,
}

/// How many answers a row asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct Choices {
    /// To each prompt.
    pub n: u32,
    /// Prompts after the first.
    pub more: Vec<Prompt>,
}

/// Answers that one row may ask for.
pub const MAX_CHOICES: usize = 2048;

impl Choices {
    pub const ONE: Self = Self {
        n: 1,
        more: Vec::new(),
    };

    pub fn count(&self) -> usize {
        self.n as usize * (1 + self.more.len())
    }
}

impl Ask {
    /// A question of a program's own, whose options fall back to the run's.
    pub fn new(prompt: Prompt, options: Options) -> Self {
        Self {
            prompt,
            options,
            unasked: Some(DEFAULT_MAX_NEW_TOKENS),
            names: &FieldNames::OWN,
            choices: Choices::ONE,
            echo: false,
        }
    }

    /// Some of its prompts are texts or conversations.
    pub fn has_text(&self) -> bool {
        let mut prompts = std::iter::once(&self.prompt).chain(&self.choices.more);
        prompts.any(|prompt| !matches!(prompt, Prompt::Ids(_)))
    }

    /// A text to be continued, with the run's options.
    pub fn text(text: &str) -> Self {
        Self::new(Prompt::Text(text.to_owned()), Options::default())
    }

    /// A conversation to be answered, with the run's options.
    pub fn chat(chat: Chat) -> Self {
        Self::new(Prompt::Messages(Box::new(chat)), Options::default())
    }
}

/// How a row's format names what is checked against the model, for errors.
#[derive(Debug, PartialEq, Eq)]
pub struct FieldNames {
    pub ids: &'static str,
    pub stop_ids: &'static str,
    pub max_new_tokens: &'static str,
}

impl FieldNames {
    /// How rows of our own format name things.
    pub const OWN: Self = Self {
        ids: "input_ids",
        stop_ids: "stop_ids",
        max_new_tokens: "max_new_tokens",
    };
    /// How OpenAI batch rows name things.
    pub const OPENAI: Self = Self {
        ids: "prompt",
        stop_ids: "stop_token_ids",
        max_new_tokens: "max_tokens",
    };
}

/// The limit of our own rows that name none.
pub const DEFAULT_MAX_NEW_TOKENS: u32 = 128;

#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// Encoded with the tokenizer's special tokens.
    Text(String),
    Ids(Vec<u32>),
    /// Rendered by the chat template, encoded without special tokens.
    Messages(Box<Chat>),
}

/// Options of a row, of the command line, or of generation_config.json: absent ones come from the next.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Options {
    pub max_new_tokens: Option<u32>,
    pub temperature: Option<f32>,
    pub top_k: Option<u32>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    /// Token ids, no two the same, and what is added to their logits.
    pub logit_bias: Option<Vec<(u32, f32)>>,
    /// New tokens before one may end the answer.
    pub min_tokens: Option<u32>,
    pub seed: Option<u64>,
    pub stop: Option<Vec<String>>,
    pub stop_ids: Option<Vec<u32>>,
    pub ignore_eos: Option<bool>,
    /// Whether the text leaves special tokens out, as it does unless told otherwise.
    pub skip_special_tokens: Option<bool>,
    pub logprobs: Option<u32>,
    pub timeout_ms: Option<u64>,
}

impl Options {
    /// The fields that are set here, and `other`'s where they are not.
    #[must_use]
    pub fn or(self, other: &Self) -> Self {
        Self {
            max_new_tokens: self.max_new_tokens.or(other.max_new_tokens),
            temperature: self.temperature.or(other.temperature),
            top_k: self.top_k.or(other.top_k),
            top_p: self.top_p.or(other.top_p),
            min_p: self.min_p.or(other.min_p),
            repetition_penalty: self.repetition_penalty.or(other.repetition_penalty),
            presence_penalty: self.presence_penalty.or(other.presence_penalty),
            frequency_penalty: self.frequency_penalty.or(other.frequency_penalty),
            logit_bias: self.logit_bias.or_else(|| other.logit_bias.clone()),
            min_tokens: self.min_tokens.or(other.min_tokens),
            seed: self.seed.or(other.seed),
            stop: self.stop.or_else(|| other.stop.clone()),
            stop_ids: self.stop_ids.or_else(|| other.stop_ids.clone()),
            ignore_eos: self.ignore_eos.or(other.ignore_eos),
            skip_special_tokens: self.skip_special_tokens.or(other.skip_special_tokens),
            logprobs: self.logprobs.or(other.logprobs),
            timeout_ms: self.timeout_ms.or(other.timeout_ms),
        }
    }
}
