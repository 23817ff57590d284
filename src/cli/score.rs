//! The `score` command.

mod entries;

use self::entries::{Entries, Entry};
use super::args::ScoreArgs;
use super::dry_run::DryRun;
use super::generate::{is_file_output, open_errors, open_rows};
use super::input::warn_of_no_rows;
use super::paths::Files;
use super::spec::spec;
use super::summary::counted;
use super::{Exit, interrupt, print};
use crate::command::values::Positions;
use crate::error::{Error, Result};
use crate::files::Out;
use crate::io::answer;
use crate::io::arrays::LogitsTarget;
use crate::io::arrays::{Kind, Sample};
use crate::io::expect::{Comparison, default_tolerance};
use crate::io::identity::Identity;
use crate::io::logits::{LogitsFile, ScoreSink};
use crate::io::logprobs::{self, Logprobs};
use crate::io::output::Ordered;
use crate::io::packed::RowsOut;
use crate::io::row::Id;
use crate::io::shard::ShardOutput;
use crate::io::tensors::TensorFile;
use crate::model::fingerprint::fingerprint;
use crate::plan::Prompts;
use crate::runtime::Logits;
use crate::session::prefixes::Prefixes;
use crate::session::recording::Keep;
use crate::session::{Opened, Progress, RunSpec, Target, job, scoring};
use crate::telemetry::{say, warn};
use std::path::Path;
use std::sync::Arc;

pub fn run(args: &ScoreArgs) -> Result<Exit> {
    let shape = check(args)?;
    let mut spec = spec(&args.model.model, &args.run, &args.engine)?;
    keep_apart(args, &spec)?;
    let target = Target::of(&spec)?;
    let (config, _) = spec.model.config()?;
    let max_context = args
        .engine
        .max_context
        .map_or(config.max_position_embeddings, |tokens| tokens as usize);
    let last_only = args.logits == Positions::Last;
    // Before anything is read: what cannot be written, or another run writes, is said at once.
    let mut file = match &args.output {
        Some(path) if !args.logprobs && !args.dry_run => {
            Some(LogitsFile::create(path, args.overwrite)?)
        }
        _ => None,
    };
    let mut rows = None;
    if args.logprobs && !args.dry_run {
        let out = open_rows(args.output.as_deref(), args.overwrite)?;
        let name = out.name().to_owned();
        let mut ordered = Ordered::onto(out, name, "");
        ordered.errors = open_errors(args.errors.as_deref(), args.overwrite)?;
        rows = Some(ordered);
    }
    let replicas = 1 + spec.replicas().len();
    let keep = Keep::recording(args.record.record.as_deref(), replicas)?;
    let mut shard = match (args.shard, &args.output) {
        (Some(shard), Some(path)) => {
            let of = identity(args, &spec, max_context)?;
            Some(ShardOutput::open(path, shard, of)?)
        }
        _ => None,
    };
    let Entries {
        of_run: entries,
        input,
        clock,
    } = entries::read(args, shape, &spec.model, &config, max_context)?;
    if input.rows == 0 {
        warn_of_no_rows(Some(&args.input), "JSON");
    }
    if let Some(shard) = &mut shard {
        shard.input_was(input);
        shard.clock = clock;
    }
    let samples: Vec<&Sample> = entries
        .iter()
        .filter_map(|e| e.sample.as_ref().ok())
        .collect();
    let targets: Vec<LogitsTarget> = samples.iter().copied().map(LogitsTarget::of).collect();

    let comparison = args
        .expect
        .as_ref()
        .map(|path| {
            let tolerance = args
                .tolerance
                .unwrap_or_else(|| default_tolerance(spec.device.dtype()));
            Comparison::new(
                TensorFile::open(path)?,
                &targets,
                config.vocab_size,
                tolerance,
                last_only,
            )
        })
        .transpose()?;
    if let Some(file) = &mut file {
        file.lay_out(&targets, config.vocab_size, last_only)?;
    }
    let logprobs = args
        .logprobs
        .then(|| Logprobs::new(samples.iter().map(|s| s.tokens.clone()).collect()));

    let longest = targets
        .iter()
        .map(|target| target.tokens)
        .max()
        .unwrap_or(1);
    spec.limits.max_context = spec.limits.max_context.or(Some(longest));
    spec.limits.prompts = Prompts::of(
        targets.iter().map(|target| target.tokens),
        args.logits.step_kind(),
    );
    let mut opened = Opened::on(target, spec, true)?;
    opened.only(&[args.logits.step_kind()]);
    let wanted = if last_only { Logits::Last } else { Logits::All };
    if args.dry_run {
        let mut found = DryRun::default();
        for entry in &entries {
            found.rows += 1;
            match &entry.sample {
                Ok(sample) => {
                    let request = scoring::request(&sample.tokens, wanted);
                    opened.plan_to_run(&mut found.planned, &request);
                }
                Err(error) => found.fail(entry.label.line, error),
            }
        }
        return found.report(&opened);
    }
    let sink = Arc::new(ScoreSink::new(
        targets,
        config.vocab_size,
        file,
        comparison,
        logprobs,
    ));
    // A token whose logits are wanted is computed.
    let prefixes = if last_only {
        Prefixes::of(&opened.options)
    } else {
        Prefixes::none()
    };
    let mut serving = opened.start(&Some(sink.clone()), keep)?;
    interrupt::look();
    let interrupt = interrupt::flag();

    let served: Vec<&Entry> = entries.iter().filter(|e| e.sample.is_ok()).collect();
    let failed = report_failures(&entries, &mut rows)?;
    let prompts: Vec<&[u32]> = samples
        .iter()
        .map(|sample| sample.tokens.as_slice())
        .collect();
    let mut progress = Progress::new(args.quiet, Some(prompts.len() as u64));
    let mut answered = vec![false; prompts.len()];
    let mut ended = |request: u64| -> Result<()> {
        answered[request as usize] = true;
        let Some(output) = &mut rows else {
            return Ok(());
        };
        let entry = served[request as usize];
        let found = sink.take_logprobs(request);
        let found = found.expect("where rows are written, logprobs are kept of each prompt");
        let row = logprobs_row(entry, prompts[request as usize], &found);
        output.put(entry.row, false, row)
    };
    let done = scoring::run(
        &mut serving,
        &prompts,
        wanted,
        prefixes,
        &interrupt,
        &mut progress,
        &mut ended,
    );
    let done = match done {
        Ok(done) => done,
        Err(error) => {
            if let Some(mut output) = rows {
                let lost = job::lost(&error);
                for (entry, _) in served.iter().zip(answered).filter(|(_, done)| !done) {
                    output.put(entry.row, true, answer::failed(&entry.label, &lost))?;
                }
                // The rows that were done stay in OUTPUT.partial.
                end_rows(output)?;
            }
            return Err(error);
        }
    };
    let seconds = progress.finish().as_secs_f64();
    let rows = rows.map(end_rows).transpose()?;
    if !done {
        return Err(Error::Interrupted);
    }
    serving.finish(true)?;
    match (rows, shard) {
        (None, shard) => sink.finish_file(shard.map(|shard| (shard, failed)))?,
        (Some((rows, errors)), None) => {
            // Errors come first, so that whoever waits for OUTPUT finds them there.
            errors.map_or(Ok(()), Out::finish)?;
            rows.finish()?;
        }
        (Some((rows, _)), Some(shard)) => {
            let answers = entries.len() as u64;
            shard.finish_lines(rows, answers, failed)?;
        }
    }
    if !args.quiet {
        say_rate(&prompts, seconds);
    }
    if let Some(comparison) = sink.comparison() {
        print(comparison.report().as_bytes())?;
        if !comparison.is_valid() {
            return Ok(Exit::Disagreed);
        }
    }
    Ok(if failed > 0 {
        Exit::RowsFailed
    } else {
        Exit::Done
    })
}

fn say_rate(prompts: &[&[u32]], seconds: f64) {
    let tokens: usize = prompts.iter().map(|prompt| prompt.len()).sum();
    let per_second = |count: usize| count as f64 / seconds.max(1e-9);
    say(&format!(
        "{}, {} in {seconds:.2} s: {:.1} samples/s, {:.1} tok/s",
        counted(prompts.len() as u64, "sample"),
        counted(tokens as u64, "token"),
        per_second(prompts.len()),
        per_second(tokens)
    ));
}

/// What answers depend on besides the samples.
fn identity(args: &ScoreArgs, spec: &RunSpec, max_context: usize) -> Result<Identity> {
    let wanted = match (args.logprobs, args.logits) {
        (true, _) => "--logprobs",
        (false, Positions::All) => "--logits all",
        (false, Positions::Last) => "--logits last",
    };
    let model = Identity::of_model(&fingerprint(&spec.model)?);
    Ok(spec
        .with_types(model)
        .with("--max-context", max_context)
        .with("what is given", wanted))
}

/// Checks what clap cannot; gives `--shape`.
fn check(args: &ScoreArgs) -> Result<Option<(usize, usize)>> {
    let usage = |message: String| Err(Error::Usage(message));
    let has_use = args.output.is_some() || args.logprobs || args.expect.is_some();
    if !has_use && !args.dry_run {
        return usage("score has nothing to do: expected --output FILE.safetensors, --logprobs or --expect FILE".to_owned());
    }
    if args.logprobs && args.logits == Positions::Last {
        return usage("--logprobs needs the logits of all positions, not --logits last".to_owned());
    }
    if let (Some(path), false) = (&args.output, args.logprobs)
        && Kind::of(path) != Kind::Safetensors
    {
        return usage(format!(
            "--output {}: expected a name that ends in .safetensors, or --logprobs for JSON lines",
            path.display()
        ));
    }
    if args.shard.is_some() && !args.output.as_deref().is_some_and(is_file_output) {
        return usage(
            "--shard: expected --output FILE, beside which its record is written".to_owned(),
        );
    }
    if args.tolerance.is_some_and(|t| !(t >= 0.0 && t.is_finite())) {
        return usage("--tolerance: expected a number of at least 0".to_owned());
    }
    match (&args.shape, Kind::of(&args.input)) {
        (None, Kind::Bin) => usage(format!(
            "--input {}: raw int32 has no shape of its own, expected --shape N,T",
            args.input.display()
        )),
        (None, _) => Ok(None),
        (Some(text), Kind::Bin) => match text
            .split_once(',')
            .map(|(n, t)| (n.trim().parse(), t.trim().parse()))
        {
            Some((Ok(n), Ok(t))) => Ok(Some((n, t))),
            _ => usage(format!("--shape {text}: expected N,T, two integers")),
        },
        (Some(_), _) => {
            usage("--shape: expected only with a .bin input, the others say their shape".to_owned())
        }
    }
}

fn keep_apart(args: &ScoreArgs, spec: &RunSpec) -> Result<()> {
    let printed = args.logprobs.then_some(Path::new("-"));
    Files::default()
        .reads_rows(Some(&args.input))
        .reads("--expect", args.expect.as_deref())
        .runs(&spec.model, &args.run.buckets)
        .writes("--output", args.output.as_deref().or(printed))
        .writes("--errors", args.errors.as_deref())
        .writes_shard(args.shard.and(args.output.as_deref()))
        .writes_each(
            "--record",
            args.record.record.as_deref(),
            1 + spec.replicas().len(),
        )?
        .keep_apart()
}

/// Where `--logprobs` go.
type Rows = Ordered<RowsOut>;

/// All rows that there are, in OUTPUT and in the file of those in error, which have no names yet.
fn end_rows(rows: Rows) -> Result<(Out, Option<Out>)> {
    let (rows, errors) = rows.finish()?;
    let errors = errors.map(RowsOut::finish_out).transpose()?;
    Ok((rows.finish_out()?, errors))
}

/// Rows in error: in their places among the answers, or on standard error. Returns how many.
fn report_failures(entries: &[Entry], rows: &mut Option<Rows>) -> Result<u64> {
    let mut failed = 0;
    for entry in entries {
        let Err(error) = &entry.sample else { continue };
        failed += 1;
        match rows {
            Some(output) => output.put(entry.row, true, answer::failed(&entry.label, error))?,
            None => {
                // Some messages begin with their line.
                let line = format!("line {}: ", entry.label.line);
                let message = error.message.strip_prefix(&line).unwrap_or(&error.message);
                warn(&format!("{line}{}: {message}", error.code.as_str()));
            }
        }
    }
    Ok(failed)
}

/// `{"id", "input_ids", "logprobs", "perplexity"}`: `logprobs[i]` is that of `input_ids[i]` after those before
/// it, null for the first; `perplexity` is null for a single token.
fn logprobs_row(entry: &Entry, tokens: &[u32], found: &[Option<f32>]) -> String {
    #[derive(serde::Serialize)]
    struct Row<'a> {
        id: &'a Id,
        input_ids: &'a [u32],
        logprobs: &'a [Option<f32>],
        perplexity: Option<f64>,
    }
    serde_json::to_string(&Row {
        id: &entry.label.id,
        input_ids: tokens,
        logprobs: found,
        perplexity: logprobs::perplexity(found),
    })
    .expect("numbers and strings always serialise")
}
