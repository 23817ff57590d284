//! Whose format a row has, and so its answer.

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Format {
    Own,
    OpenAi(OpenAi),
}

/// What an answer to an OpenAI batch row repeats of its row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpenAi {
    /// `None` where the row names no endpoint we know: then it is an error.
    pub endpoint: Option<Endpoint>,
    /// `body.model`, as given.
    pub model: Option<String>,
    /// Whether the prompt shows tools, so that the answer may hold calls of them.
    pub tools: bool,
    /// Answers to each prompt, where there are several.
    pub n: Option<u32>,
}

/// What a batch row asks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    Chat,
    Completions,
}
