//! What `score` reads: arrays or rows of JSON, each with its tokens or with what is wrong with it.

use crate::cli::args::ScoreArgs;
use crate::cli::input::open_lines;
use crate::error::Result;
use crate::io::answer::Label;
use crate::io::arrays::{self, Kind, Sample};
use crate::io::codec::Codec;
use crate::io::hash::Fnv64;
use crate::io::lines::Ids;
use crate::io::prepare::prompt_tokens;
use crate::io::row::{Code, Format, Id, RowError};
use crate::io::shard::{InputHash, Shard, WholeInput};
use crate::model::{ModelConfig, ModelSource};
use crate::text::{Clock, Threads};
use std::sync::Arc;

/// One row of the input: tokens to score, or why not.
pub(super) struct Entry {
    /// Its place in the output.
    pub row: u64,
    pub label: Label,
    pub sample: std::result::Result<Sample, RowError>,
}

/// The entries of this run, and all of the input, of which they may be a shard.
pub(super) struct Entries {
    pub of_run: Vec<Entry>,
    pub input: WholeInput,
    /// The time that a chat template may have read.
    pub clock: Option<Arc<Clock>>,
}

pub(super) fn read(
    args: &ScoreArgs,
    shape: Option<(usize, usize)>,
    source: &ModelSource,
    config: &ModelConfig,
    max_context: usize,
) -> Result<Entries> {
    let path = &args.input;
    let samples = match (Kind::of(path), shape) {
        (Kind::Safetensors, _) => arrays::safetensors(path)?,
        (Kind::Npy, _) => arrays::npy(path)?,
        (Kind::Bin, Some(shape)) => arrays::bin(path, shape)?,
        _ => return of_rows(args, source, config, max_context),
    };
    arrays::check(path, &samples, config.vocab_size, max_context)?;
    let mut input = InputHash::default();
    let mut of_run = Vec::new();
    for (place, sample) in (0..).zip(samples) {
        let hash = Fnv64::default().with(bytemuck::cast_slice(&sample.tokens));
        input.add(sample.number, hash.finish());
        if let Some(row) = place_in_run(args.shard, place) {
            of_run.push(Entry {
                row,
                label: Label {
                    line: sample.number,
                    id: Id::line(sample.number),
                    format: Format::Own,
                },
                sample: Ok(sample),
            });
        }
    }
    Ok(Entries {
        of_run,
        input: input.finish(),
        clock: None,
    })
}

/// Where an entry is in the output of this run; nothing where it is another shard's.
fn place_in_run(shard: Option<Shard>, place: u64) -> Option<u64> {
    match shard {
        None => Some(place),
        Some(shard) => shard.holds(place).then(|| shard.place(place)),
    }
}

/// JSON lines: `logits.{i}` counts rows from 0. A bad row is its own error.
fn of_rows(
    args: &ScoreArgs,
    source: &ModelSource,
    config: &ModelConfig,
    max_context: usize,
) -> Result<Entries> {
    let threads = Threads::new(args.text.timeout());
    let codec = Codec::load(source, None, &threads)?.with_time(args.clock.now);
    let codec = Arc::new(codec);
    let mut lines = open_lines(Some(&args.input), None, args.quiet)?;
    let mut ids = Ids::default();
    let mut input = InputHash::default();
    let mut of_run = Vec::new();
    let mut number = 0;
    while let Some((row, text)) = lines.next_row()? {
        let place = number;
        number += 1;
        input.add(row.line, text.finish());
        let id = ids.claim(&row);
        let Some(in_run) = place_in_run(args.shard, place) else {
            continue;
        };
        let tokens = id.and_then(|()| {
            let ask = row.ask?;
            let vocab_size = config.vocab_size as u32;
            let codec = codec.clone();
            let has_text = ask.has_text();
            let work = move || {
                let context = max_context as u32;
                prompt_tokens(&ask.prompt, ask.names, vocab_size, context, &codec)
            };
            let tokens = if has_text {
                threads.run(work)??
            } else {
                work()?
            };
            if tokens.len() > max_context {
                return Err(Code::ContextLength.error(format!(
                    "found {} tokens, expected at most the context of {max_context}",
                    tokens.len()
                )));
            }
            Ok(tokens)
        });
        of_run.push(Entry {
            row: in_run,
            label: Label {
                line: row.line,
                id: row.id,
                format: Format::Own,
            },
            sample: tokens.map(|tokens| Sample {
                number: place,
                name: format!("line {}", row.line),
                tokens,
            }),
        });
    }
    Ok(Entries {
        of_run,
        input: input.finish(),
        clock: codec.clock(),
    })
}
