//! The `generate` command.

mod shard;

use self::shard::shard_output;
use super::args::GenerateArgs;
use super::dry_run::DryRun;
use super::input::{count_rows, open_lines, warn_of_no_rows};
use super::paths::Files;
use super::spec::spec;
use super::{Exit, input, interrupt, summary};
use crate::error::{Error, Result};
use crate::files::names::beside;
use crate::files::{Out, Resolved, Unfinished, resolve};
use crate::io::answer::Origin;
use crate::io::finished::job_path;
use crate::io::identity::Identity;
use crate::io::kept::Kept;
use crate::io::lines::Lines;
use crate::io::output::{Ordered, Output};
use crate::io::packed::RowsOut;
use crate::io::partial::{Journal, Start, TIME};
use crate::io::record::{is_recording, record_paths};
use crate::io::rows::Rows;
use crate::io::shard::{Shard, ShardOutput};
use crate::io::source::Source;
use crate::quote;
use crate::session::echoing::Echoing;
use crate::session::identity::identity;
use crate::session::job::{Job, Style, Summary};
use crate::session::prefixes::Prefixes;
use crate::session::progress::Total;
use crate::session::recording::Keep;
use crate::session::{DeviceSpec, Opened, Progress, RunSpec, Texts};
use crate::telemetry::{say, warn};
use crate::text::parse_time;
use crate::trace::{About, Live};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Rows in flight or waiting to be written in order, at most.
const WINDOW: u64 = 1024;

pub fn run(args: GenerateArgs) -> Result<Exit> {
    serve(args, None).map(|(exit, _)| exit)
}

/// A trace of a job.
pub(super) struct TraceTo<'a> {
    pub path: &'a Path,
    /// With each step's kernels, or operations.
    pub parts: bool,
}

/// Runs the job, and writes a trace of it where there is one to write. What the trace says of itself comes back if the
/// job came to its end.
pub(super) fn serve(
    mut args: GenerateArgs,
    trace: Option<TraceTo<'_>>,
) -> Result<(Exit, Option<About>)> {
    let began = Instant::now();
    let opened = Opened::to_answer(run_spec(&args)?)?;
    if trace.is_some() && !opened.replicas.is_empty() {
        return Err(Error::Usage(
            "trace: expected --device with one device, or several with --parallel stages, whose timeline it is; `generate --record` keeps the run of each of several, for `trace --from`"
                .into(),
        ));
    }
    let texts = Texts::of(&opened)?;
    let plain = !args.job.prompts.is_empty() || args.job.prompt.lines;
    let style = if !plain || args.output.is_some() {
        Style::Json
    } else if std::io::stdout().is_terminal() {
        Style::Live
    } else {
        Style::Plain
    };
    let total = total(&args)?;
    check_paths(&args, &opened, trace.as_ref())?;
    let resumes_by = match trace {
        None => "the same command with --resume",
        Some(_) => "`generate --resume` with the same rows, model and options",
    };
    let typed = args.job.prompts.is_empty() && input::is_typed(args.job.input.as_deref());
    let lines = open_input(&mut args, texts.codec.has_template())?;
    if args.dry_run {
        let mut source = Source::new(lines, Kept::default(), 0, Box::new(warn));
        source.strict = args.job.strict;
        let rows = Rows::start(source, texts.rules, texts.codec, texts.threads)?;
        let exit = DryRun::of(&rows, &opened)?.report(&opened)?;
        return Ok((exit, None));
    }
    let identity = identity(&opened, &texts.rules)?;
    // Before the weights: what cannot be written is said at once.
    let clock = texts.codec.clock();
    let shard = shard_output(&args, &identity, &clock)?;
    let (picker, input) = match &shard {
        None => (None, None),
        Some(shard) => (Some(shard.picker()), Some(shard.input())),
    };
    let identity = match args.shard {
        None => identity,
        Some(shard) => identity.with("--shard", shard),
    };
    let identity = match &clock {
        None => identity,
        Some(clock) => identity.with(TIME, clock),
    };
    let settings = identity.hash();
    let (mut output, kept) = open_output(&args, style, &identity, shard)?;
    if let Some(clock) = clock.filter(|_| !kept.is_empty()) {
        // What the templates of earlier runs read is not known.
        clock.read();
    }
    output.note_max_seqs(opened.options.max_seqs);
    let replicas = opened.targets().count();
    let mut keep = Keep::recording(args.job.record.record.as_deref(), replicas)?;
    if let Some(to) = trace {
        keep.trace = Some(Live::create(to.path, began)?);
        keep.parts = to.parts;
    }

    let mut engine = Echoing::start(&opened, keep)?;
    interrupt::look();
    let interrupt = interrupt::flag();
    let codec = texts.codec;
    let mut source = Source::new(lines, kept, settings, Box::new(warn));
    source.strict = args.job.strict;
    source.picker = picker;
    let rows = Rows::start(source, texts.rules, codec.clone(), texts.threads)?;
    let origin = Origin {
        model: opened.spec.model.short_name(),
        created: output.created(),
    };
    let max_seqs = opened.options.max_seqs;
    let job = Job {
        rows,
        origin,
        codec: &codec,
        output,
        style,
        window: WINDOW.max(4 * u64::from(max_seqs) * replicas as u64),
        prefixes: Prefixes::of(&opened.options),
        in_order: args.in_order,
        // Text that comes is progress enough.
        progress: Progress::new(args.job.quiet || style == Style::Live, None)
            .counted(total)
            .typed(typed),
        interrupt: &interrupt,
    };
    let summary = job.run(&mut engine)?;
    let counts = &summary.counts;
    let idle = args.resume && counts.rows == counts.kept && !summary.interrupted;
    let leaves = idle && record_places(&args, replicas).any(|place| is_recording(&place));
    let about = match summary.failure {
        None => engine.finish(!summary.interrupted && !leaves)?,
        Some(_) => None,
    };
    if leaves {
        leave_recordings(&args, replicas)?;
    }
    if !args.job.quiet {
        let said = match style {
            Style::Live => vec![summary::speed(&summary)],
            Style::Json | Style::Plain => summary::lines(&summary, max_seqs * replicas as u32),
        };
        said.iter().for_each(|line| say(line));
    }
    // A shard of an input with few rows may have none.
    let rows_read = input.and_then(|read| Some(read.get()?.rows));
    let any = summary.counts.rows > 0 || rows_read.is_some_and(|rows| rows > 0);
    Ok((finish(&args, resumes_by, summary, any, replicas)?, about))
}

/// Rows to answer in all, as far as somebody may look at it.
fn total(args: &GenerateArgs) -> Result<Total> {
    let shard = args.shard;
    let share = move |rows| shard.map_or(rows, |shard: Shard| shard.share(rows));
    if !args.job.prompts.is_empty() {
        return Ok(Arc::new(share(args.job.prompts.len() as u64).into()));
    }
    if args.job.quiet {
        return Ok(Total::default());
    }
    count_rows(args.job.input.as_deref(), share)
}

/// The files that `--record` asks for.
fn record_places(args: &GenerateArgs, replicas: usize) -> impl Iterator<Item = PathBuf> {
    let path = args.job.record.record.as_deref();
    let paths = path.map(|path| record_paths(path, replicas));
    let places = paths.into_iter().flatten();
    places.filter_map(|path| resolve::place(&path))
}

/// A run that had nothing to do has nothing to record: its own recording goes, and that of an earlier run stays.
fn leave_recordings(args: &GenerateArgs, replicas: usize) -> Result<()> {
    for place in record_places(args, replicas) {
        let own = beside(&place, ".partial");
        std::fs::remove_file(&own).map_err(|error| Error::io(&own, error))?;
    }
    say("tailgraph: no row was left to answer, so what --record wrote before stays as it was");
    Ok(())
}

/// Where a run that was interrupted has left what it recorded, for a message.
fn recorded_so_far(args: &GenerateArgs, replicas: usize) -> String {
    let partial = |place: PathBuf| quote::visible(beside(&place, ".partial").display()).to_string();
    match &record_places(args, replicas)
        .map(partial)
        .collect::<Vec<_>>()[..]
    {
        [] => String::new(),
        partial => format!(
            "; the recording so far is {}, which the next run with --record writes over",
            partial.join(" and ")
        ),
    }
}

/// `any`: there were rows in the input.
fn finish(
    args: &GenerateArgs,
    resumes_by: &str,
    summary: Summary,
    any: bool,
    replicas: usize,
) -> Result<Exit> {
    let counts = summary.counts;
    if let Some(failure) = summary.failure {
        return Err(failure);
    }
    if !any && !summary.interrupted {
        let expected = if args.job.prompt.lines {
            "text"
        } else {
            "JSON"
        };
        warn_of_no_rows(args.job.input.as_deref(), expected);
    }
    if summary.interrupted {
        let advice = match &args.output {
            Some(path) if is_file_output(path) => format!("; {resumes_by} goes on"),
            _ => String::new(),
        };
        let record = recorded_so_far(args, replicas);
        say(&format!("tailgraph: interrupted{advice}{record}"));
        return Ok(Exit::Interrupted);
    }
    Ok(if counts.failed > 0 {
        Exit::RowsFailed
    } else {
        Exit::Done
    })
}

fn run_spec(args: &GenerateArgs) -> Result<RunSpec> {
    let output = args.output.as_deref().filter(|_| args.resume);
    // What the runs were that this one goes on from.
    let (earlier, max_seqs) = output.and_then(Journal::earlier).unzip();
    let time = earlier.as_ref().and_then(|of| of.option(TIME));
    let mut spec = RunSpec {
        defaults: args.job.sampling.options()?,
        seed: args.job.sampling.seed,
        prompt_logprobs: args.job.sampling.prompt_logprobs,
        chat_template: args.job.prompt.chat_template.clone(),
        now: args
            .job
            .prompt
            .clock
            .now
            .or(time.and_then(|time| parse_time(time).ok())),
        text_timeout: args.job.text.timeout(),
        ..spec(&args.model.model, &args.job.run, &args.job.engine)?
    };
    spec.limits.max_seqs = spec.limits.max_seqs.or(max_seqs.flatten());
    // A batch ends sooner where prompts fill its steps, and nobody waits for single tokens.
    spec.limits.chunk_share = spec.limits.chunk_tokens.is_none().then_some(1);
    // On a CPU the default does not depend on it.
    if spec.limits.max_seqs.is_none() && matches!(spec.device, DeviceSpec::Gpu(_)) {
        spec.limits.requests = match args.job.prompts.len() {
            0 => input::few_sequences(args.job.input.as_deref(), args.job.prompt.lines),
            prompts => u32::try_from(prompts).ok(),
        };
    }
    Ok(spec)
}

/// Whether OUTPUT is a file we put together, rather than a pipe or a device we write to as it is. What cannot be either is
/// refused as a file.
pub(super) fn is_file_output(path: &Path) -> bool {
    matches!(resolve(path), Ok(Resolved::Place(_)) | Err(_))
}

fn check_paths(args: &GenerateArgs, opened: &Opened, trace: Option<&TraceTo<'_>>) -> Result<()> {
    let to_file = args.output.as_deref().is_some_and(is_file_output);
    let wants_file = [
        (
            args.resume,
            "--resume: expected --output FILE, a file that an earlier run wrote",
        ),
        (
            args.shard.is_some(),
            "--shard: expected --output FILE, beside which its record is written",
        ),
    ];
    if let Some((_, message)) = wants_file.iter().find(|(given, _)| *given && !to_file) {
        return Err(Error::Usage((*message).to_owned()));
    }
    let answers = match trace {
        Some(_) => "--answers",
        None => "--output",
    };
    let files = Files::default()
        .reads("--chat-template", args.job.prompt.chat_template.as_deref())
        .runs(&opened.spec.model, &args.job.run.buckets)
        .writes(
            answers,
            Some(args.output.as_deref().unwrap_or(Path::new("-"))),
        )
        .writes("--errors", args.errors.as_deref())
        .writes_job(args.output.as_deref().filter(|path| is_file_output(path)))
        .writes_shard(args.shard.and(args.output.as_deref()))
        .writes_each(
            "--record",
            args.job.record.record.as_deref(),
            opened.targets().count(),
        )?
        .writes("--output", trace.map(|trace| trace.path));
    let files = if args.job.prompts.is_empty() {
        files.reads_rows(args.job.input.as_deref())
    } else {
        files
    };
    files.keep_apart()
}

fn open_input(args: &mut GenerateArgs, has_template: bool) -> Result<Lines> {
    let plain = input::plain(&args.job.prompt, !args.job.prompts.is_empty(), has_template)?;
    match plain {
        Some(plain) if !args.job.prompts.is_empty() => {
            Ok(Lines::arguments(std::mem::take(&mut args.job.prompts)).of_prompts(plain))
        }
        plain => open_lines(args.job.input.as_deref(), plain, args.job.quiet),
    }
}

fn open_output(
    args: &GenerateArgs,
    style: Style,
    identity: &Identity,
    shard: Option<ShardOutput>,
) -> Result<(Output, Kept)> {
    let start = match (args.resume, args.overwrite) {
        (true, _) => Start::Resume,
        (false, true) => Start::Overwrite,
        (false, false) => Start::Afresh,
    };
    let path = args.output.as_deref();
    if let Some(path) = path.filter(|path| is_file_output(path)) {
        let (mut journal, kept) = Journal::open(path, start, identity)?;
        if kept.by_id() > 0 {
            let found = format!("found no {} that is of this file", job_path(path).display());
            if shard.is_some() {
                return Err(Error::file(
                    path,
                    format!(
                        "{found}, so nothing says which shard's answers these are; --overwrite starts afresh"
                    ),
                ));
            }
            warn(&format!(
                "{}: {found}, so its {} answers are kept by their ids, and what was asked then is not compared; --overwrite answers all rows again",
                path.display(),
                kept.by_id()
            ));
        }
        if let Some(errors) = &args.errors {
            journal.errors_to(errors, start)?;
        }
        journal.shard = shard.map(Box::new);
        return Ok((Output::File(journal), kept));
    }
    let separator = match style {
        Style::Json => "",
        Style::Plain | Style::Live => "\n",
    };
    let out = open_rows(path, args.overwrite)?;
    let name = out.name().to_owned();
    let mut ordered = Ordered::new(Box::new(out), name, separator);
    ordered.errors = open_errors(args.errors.as_deref(), args.overwrite)?;
    Ok((Output::Stream(ordered), Kept::default()))
}

/// Standard output, or a file or stream that rows go to as they come.
pub(super) fn open_rows(path: Option<&Path>, overwrite: bool) -> Result<RowsOut> {
    let out = Out::open(path.unwrap_or(Path::new("-")), Unfinished::Kept)?;
    RowsOut::onto(out.refuse_finished(overwrite)?)
}

/// Where rows in error go that have a file of their own.
pub(super) fn open_errors(path: Option<&Path>, overwrite: bool) -> Result<Option<RowsOut>> {
    path.map(|path| open_rows(Some(path), overwrite))
        .transpose()
}
