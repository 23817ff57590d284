//! The `generate` command.

use super::args::GenerateArgs;
use super::paths::{is_stdio, keep_journal_apart};
use super::spec::spec;
use super::{Exit, interrupt};
use crate::at_start;
use crate::error::{Error, Result};
use crate::files::names::beside;
use crate::files::{Out, Resolved, Unfinished, resolve};
use crate::io::identity::Identity;
use crate::io::kept::Kept;
use crate::io::lines::Lines;
use crate::io::output::{Ordered, Output};
use crate::io::partial::{Journal, Start};
use crate::io::prepare::Rules;
use crate::io::row::Options;
use crate::io::source::Source;
use crate::model::fingerprint::fingerprint;
use crate::session::job::{Job, Style, Summary};
use crate::session::recording::Keep;
use crate::session::{Opened, Progress, RunSpec, Session, Texts};
use crate::telemetry::{say, warn};
use crate::trace::{About, Live};
use std::fs::File;
use std::io::{BufReader, BufWriter, IsTerminal, Read};
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::time::Instant;

/// Rows read and tokenized ahead of the device.
const READ_AHEAD: usize = 64;
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
    let opened = Opened::new(run_spec(&args)?, false)?;
    let texts = Texts::of(&opened)?;
    let plain = !args.prompts.is_empty() && args.output.is_none();
    let style = if plain { Style::Plain } else { Style::Json };
    let total = (!args.prompts.is_empty()).then_some(args.prompts.len() as u64);
    check_paths(&args, trace.as_ref())?;
    let resumes_by = match trace {
        None => "the same command with --resume",
        Some(_) => "`generate --resume` with the same rows, model and options",
    };
    let lines = open_input(&mut args)?;
    let identity = identity(&opened, &texts.rules)?;
    let settings = identity.hash();
    // Before the weights: what cannot be written is said at once.
    let (output, kept) = open_output(&args, style, &identity)?;
    let mut keep = Keep::recording(args.record.record.as_deref())?;
    if let Some(to) = trace {
        keep.trace = Some(Live::create(to.path, began)?);
        keep.parts = to.parts;
    }

    let mut session = Session::start(opened, texts, keep)?;
    interrupt::look();
    let interrupt = interrupt::flag();
    let (rules, codec) = (session.rules().clone(), session.codec());
    let mut source = Source::new(lines, rules, codec.clone(), kept, settings, Box::new(warn));
    let (send, rows) = sync_channel(READ_AHEAD);
    // Not joined: it may wait for standard input for ever, and ends with the process.
    let read = move || {
        loop {
            let work = source.next_work();
            let last = !matches!(work, Ok(Some(_)));
            if send.send(work).is_err() || last {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("reader".to_owned())
        .spawn(read)
        .map_err(|error| Error::thread(&error))?;
    let job = Job {
        rows,
        codec: &*codec,
        output,
        style,
        window: WINDOW.max(4 * u64::from(session.opened().options.max_seqs)),
        progress: Progress::new(args.quiet, total),
        interrupt: &interrupt,
    };
    let summary = session.run(job)?;
    let about = match summary.failure {
        None => session.finish(!summary.interrupted)?,
        Some(_) => None,
    };
    Ok((finish(&args, resumes_by, summary)?, about))
}

fn finish(args: &GenerateArgs, resumes_by: &str, summary: Summary) -> Result<Exit> {
    let counts = summary.counts;
    if !args.quiet {
        let seconds = summary.elapsed.as_secs_f64();
        let kept = match counts.kept {
            0 => String::new(),
            kept => format!(", {kept} kept from an earlier run"),
        };
        say(&format!(
            "{} rows, {} failed{kept}; {} prompt and {} new tokens in {seconds:.2} s ({:.1} new tok/s)",
            counts.rows,
            counts.failed,
            counts.prompt_tokens,
            counts.tokens,
            counts.tokens as f64 / seconds.max(1e-9),
        ));
    }
    if let Some(failure) = summary.failure {
        return Err(failure);
    }
    if counts.rows == 0 && !summary.interrupted {
        warn_of_no_rows(args.input.as_deref());
    }
    if summary.interrupted {
        let advice = match &args.output {
            Some(path) if is_file_output(path) => format!("; {resumes_by} goes on"),
            _ => String::new(),
        };
        let record = args.record.record.as_deref().and_then(resolve::place);
        let record = record.map_or(String::new(), |place| {
            let partial = beside(&place, ".partial");
            format!("; the recording so far is {}", partial.display())
        });
        say(&format!("tailgraph: interrupted{advice}{record}"));
        return Ok(Exit::Interrupted);
    }
    Ok(if counts.failed > 0 {
        Exit::RowsFailed
    } else {
        Exit::Done
    })
}

/// An empty input is one that is done, but seldom what was meant.
pub(super) fn warn_of_no_rows(input: Option<&Path>) {
    let name = match input.filter(|path| !is_stdio(path)) {
        Some(path) => path.display().to_string(),
        None => "standard input".to_owned(),
    };
    warn(&format!("{name}: found no rows, expected lines of JSON"));
}

fn run_spec(args: &GenerateArgs) -> Result<RunSpec> {
    Ok(RunSpec {
        defaults: args.sampling.options()?,
        seed: args.sampling.seed,
        ..spec(&args.model.model, &args.run, &args.engine)?
    })
}

/// Everything besides a row that its answer depends on, under the names by which a user knows it. Not --timeout-ms: it
/// decides whether there is an answer, and rows without one are tried again.
fn identity(opened: &Opened, rules: &Rules) -> Result<Identity> {
    let Options {
        max_new_tokens,
        temperature,
        top_k,
        top_p,
        min_p,
        repetition_penalty,
        seed: _,
        stop,
        stop_ids,
        ignore_eos,
        logprobs,
        timeout_ms: _,
    } = &rules.defaults;
    Ok(Identity::of_model(&fingerprint(&opened.spec.model)?)
        .with("--dtype", opened.spec.device.dtype().name())
        // What memory has room for counts too: it is the limit of rows that name none.
        .with("--max-context", rules.max_context)
        .with("--max-new-tokens", text(max_new_tokens))
        .with("--temperature", text(temperature))
        .with("--top-k", text(top_k))
        .with("--top-p", text(top_p))
        .with("--min-p", text(min_p))
        .with("--repetition-penalty", text(repetition_penalty))
        .with("--seed", rules.run_seed)
        .with("--stop", text(stop))
        .with("--stop-ids", text(stop_ids))
        .with("--ignore-eos", text(ignore_eos))
        .with("--logprobs", text(logprobs)))
}

/// An option as a message shows it.
fn text<T: std::fmt::Debug>(option: &Option<T>) -> String {
    match option {
        Some(value) => format!("{value:?}"),
        None => "not given".to_owned(),
    }
}

/// Whether OUTPUT is a file we put together, rather than a pipe or a device we write to as it is. What cannot be either is
/// refused as a file.
fn is_file_output(path: &Path) -> bool {
    !is_stdio(path) && matches!(resolve(path), Ok(Resolved::Place(_)) | Err(_))
}

fn check_paths(args: &GenerateArgs, trace: Option<&TraceTo<'_>>) -> Result<()> {
    if args.resume && !args.output.as_deref().is_some_and(is_file_output) {
        return Err(Error::Usage(
            "--resume: expected --output FILE, a file that an earlier run wrote".to_owned(),
        ));
    }
    // Rows may come from a file by way of standard input.
    let input = match args.input.as_deref() {
        _ if !args.prompts.is_empty() => None,
        None => Some(Path::new("/dev/stdin")),
        Some(path) if is_stdio(path) => Some(Path::new("/dev/stdin")),
        given => given,
    };
    if let Some(output) = args.output.as_deref().filter(|path| is_file_output(path)) {
        let flag = if trace.is_some() {
            "--answers"
        } else {
            "--output"
        };
        let others = [
            (input, "input"),
            (args.record.record.as_deref(), "--record"),
            (trace.map(|trace| trace.path), "trace"),
        ];
        keep_journal_apart(flag, output, &others)?;
    }
    args.record
        .keep_apart(&[(input, "input"), (args.output.as_deref(), "--output")])
}

fn open_input(args: &mut GenerateArgs) -> Result<Lines> {
    if !args.prompts.is_empty() {
        return Ok(Lines::arguments(std::mem::take(&mut args.prompts)));
    }
    open_lines(args.input.as_deref(), args.quiet)
}

/// Rows of a file or, for `-` or no path at all, of standard input.
pub(super) fn open_lines(path: Option<&Path>, quiet: bool) -> Result<Lines> {
    match path.filter(|path| !is_stdio(path)) {
        Some(path) => {
            if path.is_dir() {
                return Err(Error::file(
                    path,
                    "found a directory, expected a file of JSON lines",
                ));
            }
            let file = File::open(path)
                .map_err(|error| Error::open(path, &error, "a file of JSON lines"))?;
            let regular = file.metadata().is_ok_and(|about| about.is_file());
            let whole = WholeInput::new(file).map_err(|error| Error::io(path, error))?;
            let from = Box::new(BufReader::new(whole));
            Ok(match regular {
                true => Lines::file(from, path),
                false => Lines::reader(from, path),
            })
        }
        None => {
            if at_start::closed(0) {
                return Err(Error::file(
                    "standard input",
                    "was closed when the program started, expected rows of JSON or --input FILE",
                ));
            }
            if !quiet && std::io::stdin().is_terminal() {
                say("tailgraph: reading rows of JSON from the terminal; end with Ctrl-D");
            }
            let stdin = BufReader::new(std::io::stdin());
            Ok(Lines::reader(Box::new(stdin), "standard input"))
        }
    }
}

fn open_output(args: &GenerateArgs, style: Style, identity: &Identity) -> Result<(Output, Kept)> {
    let start = match (args.resume, args.overwrite) {
        (true, _) => Start::Resume,
        (false, true) => Start::Overwrite,
        (false, false) => Start::Afresh,
    };
    let path = args.output.as_deref();
    if let Some(path) = path.filter(|path| is_file_output(path)) {
        let (journal, kept) = Journal::open(path, start, identity)?;
        if kept.by_id() > 0 {
            warn(&format!(
                "{}: {} answers of a finished run are kept by id: what was asked then is not compared; without --resume all rows run again",
                path.display(),
                kept.by_id()
            ));
        }
        return Ok((Output::File(journal), kept));
    }
    let separator = match style {
        Style::Json => "",
        Style::Plain => "\n",
    };
    let out = open_stream(path)?;
    let name = out.name().to_owned();
    let ordered = Ordered::new(Box::new(BufWriter::new(out)), name, separator);
    Ok((Output::Stream(ordered), Kept::default()))
}

/// Standard output, or a file or stream that rows go to as they come.
pub(super) fn open_stream(path: Option<&Path>) -> Result<Out> {
    match path.filter(|path| !is_stdio(path)) {
        None => Out::stdout(),
        Some(path) => Out::open(path, Unfinished::Kept),
    }
}

/// An input file that must not end before the length it had when it was opened: somebody has emptied it meanwhile, and the
/// rows that are missing are no end of the job.
struct WholeInput {
    file: File,
    expected: u64,
    read: u64,
}

impl WholeInput {
    fn new(file: File) -> std::io::Result<Self> {
        let found = file.metadata()?;
        Ok(Self {
            // Only a regular file has a length.
            expected: if found.is_file() { found.len() } else { 0 },
            file,
            read: 0,
        })
    }
}

impl Read for WholeInput {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let bytes = self.file.read(buffer)?;
        self.read += bytes as u64;
        if bytes == 0 && !buffer.is_empty() && self.read < self.expected {
            return Err(std::io::Error::other(format!(
                "found {} bytes, expected the {} that it had when it was opened: it was shortened while it was read",
                self.read, self.expected
            )));
        }
        Ok(bytes)
    }
}
