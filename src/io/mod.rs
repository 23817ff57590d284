//! What comes in as JSON lines or arrays, checked, and what goes out as rows or arrays.
//!
//! - [`row`]: what a line asks. [`mod@line`] reads it ([`line::parse`] is a pure function); what it carries is a body of
//!   [`openai`] or `own`, whose parts are [`messages`] and [`fields`]; `elsewhere` has the fields of other formats
//! - [`prepare`]: a question as a [`crate::runtime::Request`], against the model's limits and the defaults; [`codec`]: the model's
//!   tokenizer and chat template
//! - [`answer`]: the line that is written for a row (`outcome` is what came of it, [`echo`] the prompt in it), with a body of [`openai_answer`] in one that
//!   is of the OpenAI format, which [`openai_stream`] has in chunks; [`tool_calls`]: those that a model writes
//! - [`lines`], [`source`]: rows of a file, of standard input or of the command line, one at a time; [`once`]: warnings of them; [`rows`]: the thread that
//!   reads them and makes tokens of their texts; [`plain`]: prompts that are no rows; [`unpacked`], [`packed`]: compressed
//!   files, read and written
//! - [`output`]: where answers go, in input order: a stream, or a journal ([`partial`]) whose answers `--resume` finds
//!   again ([`kept`]), or those of an OUTPUT ([`finished`]), if they are of the same model and options ([`identity`])
//! - [`arrays`], [`tensors`], [`logits`], [`expect`], [`logprobs`]: token arrays in, logits out and compared
//! - [`shard`]: some rows of an input, and the record of which; [`merge`]: shards as one file
//! - [`record`], [`replay`]: a run's requests, schedule and tokens as a file, and the run once more
//!
//! Knows the runtime's requests, the backend's logits sink and text's tokenizers and templates.

pub mod answer;
pub mod arrays;
pub mod codec;
pub mod echo;
mod elsewhere;
pub mod expect;
pub mod fields;
pub mod finished;
pub mod hash;
pub mod identity;
pub mod kept;
pub mod line;
pub mod lines;
pub mod logits;
pub mod logprobs;
pub mod merge;
pub mod messages;
pub mod once;
pub mod openai;
pub mod openai_answer;
pub mod openai_stream;
mod outcome;
pub mod output;
mod own;
pub mod packed;
pub mod partial;
pub mod plain;
pub mod prepare;
pub mod record;
pub mod replay;
pub mod row;
pub mod rows;
pub mod shard;
pub mod source;
pub mod tensors;
pub mod tool_calls;
pub mod unpacked;

pub use codec::Codec;
pub use row::{Code, Id, Row, RowError};
