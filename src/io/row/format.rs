//! Whose format a row has, and so its answer.

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Format {
    Own,
    OpenAi(OpenAi),
}

/// What an answer in the OpenAI format repeats of its question. One to a row in error repeats nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpenAi {
    pub endpoint: Endpoint,
    /// `model`, as given.
    pub model: Option<String>,
    /// Whether the prompt shows tools, so that the answer may hold calls of them.
    pub tools: bool,
    /// Answers to each prompt, where there are several.
    pub n: Option<u32>,
    /// How it is to come, where it is not to be whole.
    pub stream: Option<Stream>,
}

/// An answer that comes in chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    /// Its usage comes as the last.
    pub usage: bool,
}

/// What a body is sent to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Endpoint {
    #[default]
    Chat,
    Completions,
}
