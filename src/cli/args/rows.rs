//! Commands that answer rows, and what rows fall back to.

use super::EXIT_CODES;
use super::prompts::PromptArgs;
use crate::command::args::{EngineArgs, ModelArg, RecordArg, RunArgs, TextArgs};
use crate::command::values::parse_tokens;
use crate::error::{Error, Result};
use crate::io::fields::{
    FREQUENCY_PENALTY, MAX_STOP_BYTES, MAX_STOP_STRINGS, MIN_P, PRESENCE_PENALTY,
    REPETITION_PENALTY, TEMPERATURE, TOP_P, parse_seed, parse_top_k,
};
use crate::io::row::{MAX_LOGPROBS, MAX_NEW_TOKENS, MAX_TIMEOUT_MS, Options};
use crate::io::shard::Shard;
use clap::Args;
use std::path::PathBuf;

/// Defaults for rows that do not say; generation_config.json's come after these.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Defaults for rows")]
pub struct SamplingArgs {
    /// The most tokens to generate for a row [default: 128; for OpenAI batch rows 16 for completions, the rest of the context for
    /// chats]
    #[arg(long, short = 'n', visible_alias = "max-tokens", value_name = "N", value_parser = |s: &str| parse_tokens(s, MAX_NEW_TOKENS))]
    pub max_new_tokens: Option<u32>,
    /// Randomness of sampling; 0 (or anything below 1e-5) takes the most likely token
    #[arg(long, value_name = "T", value_parser = |s: &str| TEMPERATURE.parse(s))]
    pub temperature: Option<f32>,
    /// Keep the K most likely tokens; 0 keeps all, and so does -1
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = parse_top_k)]
    pub top_k: Option<u32>,
    /// Keep the most likely tokens that together have this probability; 1 keeps all, 0 only the most likely
    #[arg(long, value_name = "P", value_parser = |s: &str| TOP_P.parse(s))]
    pub top_p: Option<f32>,
    /// Drop tokens less likely than this fraction of the most likely one; 0 keeps all
    #[arg(long, value_name = "P", value_parser = |s: &str| MIN_P.parse(s))]
    pub min_p: Option<f32>,
    /// Above 1, tokens of prompt and answer become less likely
    #[arg(long, value_name = "X", value_parser = |s: &str| REPETITION_PENALTY.parse(s))]
    pub repetition_penalty: Option<f32>,
    /// Above 0, tokens that the answer has become less likely (-2 to 2)
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = |s: &str| PRESENCE_PENALTY.parse(s))]
    pub presence_penalty: Option<f32>,
    /// Above 0, tokens become less likely with each time that the answer has them (-2 to 2)
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = |s: &str| FREQUENCY_PENALTY.parse(s))]
    pub frequency_penalty: Option<f32>,
    /// Generate at least so many tokens before an end-of-sequence token, a stop id or a stop string may end the text
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=MAX_NEW_TOKENS as i64))]
    pub min_tokens: Option<u32>,
    /// Seed of the run. A row without a seed of its own is sampled by this one and its place in the input
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 0, value_parser = parse_seed)]
    pub seed: u64,
    /// End the text before this string; may be repeated
    #[arg(long, value_name = "TEXT", value_parser = parse_stop)]
    pub stop: Vec<String>,
    /// End at these token ids
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    pub stop_ids: Vec<u32>,
    /// Do not end at end-of-sequence tokens [default: false; true for random: models]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub ignore_eos: Option<bool>,
    /// Return each token's logprob and this many alternatives (0 to 20)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=MAX_LOGPROBS as i64))]
    pub logprobs: Option<u32>,
    /// Let completions ask for their prompts' logprobs too (`echo` with `logprobs`, or without new tokens). A GPU captures more graphs
    /// for that, and its steps take longer; on a CPU they always may
    #[arg(long)]
    pub prompt_logprobs: bool,
    /// Time limit of a row from when the scheduler receives it. Past it, a running row ends at its next token, a waiting one when its
    /// turn comes
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=MAX_TIMEOUT_MS))]
    pub timeout_ms: Option<u64>,
}

/// A stop string as rows may have it.
fn parse_stop(text: &str) -> std::result::Result<String, String> {
    match text.len() {
        0 => Err("found an empty string, expected at least one character".to_owned()),
        1..=MAX_STOP_BYTES => Ok(text.to_owned()),
        bytes => Err(format!(
            "found a string of {bytes} bytes, expected at most {MAX_STOP_BYTES}"
        )),
    }
}

impl SamplingArgs {
    /// The options that rows fall back to. The run's seed is not among them: it does not replace a row's.
    ///
    /// # Errors
    /// More stop strings than a row may have.
    pub fn options(&self) -> Result<Options> {
        if self.stop.len() > MAX_STOP_STRINGS {
            return Err(Error::Usage(format!(
                "--stop: found {} strings, expected at most {MAX_STOP_STRINGS}",
                self.stop.len()
            )));
        }
        Ok(Options {
            max_new_tokens: self.max_new_tokens,
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: None,
            min_tokens: self.min_tokens,
            seed: None,
            stop: (!self.stop.is_empty()).then(|| self.stop.clone()),
            stop_ids: (!self.stop_ids.is_empty()).then(|| self.stop_ids.clone()),
            ignore_eos: self.ignore_eos,
            skip_special_tokens: None,
            logprobs: self.logprobs,
            timeout_ms: self.timeout_ms,
        })
    }
}

/// Rows, and how they are answered.
#[derive(Debug, Clone, Args)]
pub struct JobArgs {
    /// Prompts to answer. Each is a user's message where the model has a chat template. An empty line stands between two answers
    #[arg(value_name = "PROMPT", conflicts_with_all = ["input", "lines"])]
    pub prompts: Vec<String>,
    /// The input, a row a line: {"id","prompt"}, {"id","input_ids"} or {"id","messages"}, with more fields named as the flags are;
    /// or the rows of an OpenAI batch file. May be compressed (gzip, Zstandard) [default: standard input]
    #[arg(long, short, value_name = "FILE|-")]
    pub input: Option<PathBuf>,
    /// Fail rows with unknown fields, rather than warn of them
    #[arg(long)]
    pub strict: bool,
    /// No progress and no summary on standard error
    #[arg(long, short)]
    pub quiet: bool,
    #[command(flatten)]
    pub record: RecordArg,
    #[command(flatten)]
    pub text: TextArgs,
    #[command(flatten)]
    pub prompt: PromptArgs,
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub struct GenerateArgs {
    /// Write the answers to FILE, as JSON lines in the order of the input. Until all rows are done they are in FILE.partial. A FILE
    /// named .gz or .zst is compressed [default: standard output]
    #[arg(long, short, value_name = "FILE|-")]
    pub output: Option<PathBuf>,
    /// Continue from FILE.partial, or from a finished FILE. Finished rows are kept; rows that failed, changed or are new are
    /// answered. FILE.job.json tells which rows have changed; without it, rows are matched by id alone
    #[arg(long, requires = "output")]
    pub resume: bool,
    /// Replace FILE, and that of --errors, where they are not empty. Rows of an unfinished run in FILE.partial are lost too
    #[arg(long, requires = "output", conflicts_with = "resume")]
    pub overwrite: bool,
    /// Write rows in error to this file instead of --output; rows that ended by timeout_ms too. The file is empty where there are
    /// none, and is written and resumed like that of --output. With --shard, give --errors to `merge` instead
    #[arg(
        long,
        value_name = "FILE",
        requires = "output",
        conflicts_with = "shard"
    )]
    pub errors: Option<PathBuf>,
    /// Answer every N-th row, from row I (counted from 0) on. FILE.shard.json says so, and `merge` joins the shards
    #[arg(long, value_name = "I/N", requires = "output", value_parser = Shard::parse)]
    pub shard: Option<Shard>,
    /// Check all rows, and print the tokens, memory and time that a run would take. Nothing is written. For the time, the model is
    /// loaded and a few steps are run
    #[arg(long, conflicts_with_all = ["resume", "shard", "record"])]
    pub dry_run: bool,
    /// Begin rows in the order of the input, where several devices else get those that begin alike together. Answers are in that
    /// order either way
    #[arg(long)]
    pub in_order: bool,
    #[command(flatten)]
    pub job: JobArgs,
    #[command(flatten)]
    pub model: ModelArg,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub struct TraceArgs {
    /// The trace, as JSON of Chrome's trace event format
    #[arg(long, short, value_name = "FILE")]
    pub output: PathBuf,
    /// Run nothing: make the trace of a run that `generate --record` or `score --record` recorded; of several devices one each:
    /// trace.0.json of trace.json
    #[arg(long, value_name = "RECORD", conflicts_with_all = ["prompts", "model", "input", "answers", "record", "lines", "system", "raw", "chat_template"])]
    pub from: Option<PathBuf>,
    /// Also time each step's kernels (on the CPU its operations), and print a table of each operation's time beside its floor
    #[arg(long, conflicts_with = "from")]
    pub kernels: bool,
    /// Write the answers to this file, as `generate --output` does [default: standard output]
    #[arg(long, value_name = "FILE|-")]
    pub answers: Option<PathBuf>,
    /// Replace the file of --answers where it is not empty. Rows of an unfinished run in FILE.partial are lost too
    #[arg(long, requires = "answers")]
    pub overwrite: bool,
    /// A checkpoint's directory, ORG/NAME[@REVISION] of the Hugging Face hub or random:PRESET[@SEED], as `generate` takes it
    #[arg(
        long,
        short,
        value_name = "MODEL",
        help_heading = "Model and device",
        display_order = 0,
        required_unless_present = "from"
    )]
    pub model: Option<String>,
    #[command(flatten)]
    pub job: JobArgs,
}
