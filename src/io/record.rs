//! A run on record: what `--record` writes and `replay` reads.
//!
//! A file of JSON lines, each an object with one key that says what the line is:
//!
//! | key | holds |
//! |---|---|
//! | `header` | the first line: the format's version, the model (its name and what it is made of), device, dtype and launch way as the user named them, and the engine's sizes |
//! | `request` | the next request (they count from 0) as the scheduler was given it |
//! | `cancel` | a request that the host asked to end early |
//! | `turn` | a `tg_trace` record of kernels/abi.h: a turn of the scheduler, what it saw and what came of it |
//! | `token`, `end` | what the host was told, in this order; log-probabilities are the bits of an f32 |
//! | `done` | the last line of a run that came to its end |
//!
//! A request, and a cancel, stands before every turn that has seen it. Tokens and ends are in order among themselves,
//! and so are turns; how the two mix says nothing.

pub mod lines;
pub mod turn;

pub use lines::{Done, EndLine, Header, Line, TokenLine, VERSION};
pub use turn::Turn;

use crate::error::{Error, Result};
use crate::files::names::beside;
use crate::files::{Out, Unfinished};
use crate::quote;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

/// A line that is longer is none of ours: a prompt of a million tokens takes an eighth of it.
const MAX_LINE_BYTES: u64 = 64 << 20;

/// A recording that is being written: FILE.partial until it is whole. That of a run which fails stays there.
pub struct Writer {
    out: BufWriter<Out>,
    path: PathBuf,
}

impl Writer {
    /// Claims the file.
    ///
    /// # Errors
    /// It cannot be written, or another run is writing it.
    pub fn create(path: &Path) -> Result<Self> {
        let out = Out::open(path, Unfinished::Kept)?;
        Ok(Self {
            path: out.name().to_owned(),
            out: BufWriter::with_capacity(1 << 20, out),
        })
    }

    /// # Errors
    /// The file cannot be written.
    pub fn put(&mut self, line: &Line) -> Result<()> {
        serde_json::to_writer(&mut self.out, line)
            .map_err(std::io::Error::from)
            .and_then(|()| self.out.write_all(b"\n"))
            .map_err(|error| Error::io(&self.path, error))
    }

    /// Everything so far is in the file, which has its name from now on if the recording is `whole`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(mut self, whole: bool) -> Result<()> {
        if whole {
            return Out::finish_buffered(self.out);
        }
        self.out
            .flush()
            .map_err(|error| Error::io(&self.path, error))
    }
}

/// Where the runs of so many replicas are recorded: of several each in a file of its own, `run.0.jsonl` of `run.jsonl`.
pub fn record_paths(path: &Path, replicas: usize) -> Vec<PathBuf> {
    match replicas {
        0 | 1 => vec![path.to_owned()],
        _ => (0..replicas)
            .map(|replica| numbered(path, replica))
            .collect(),
    }
}

/// The recordings of a run: the file, or where no such file is there, those of its replicas.
pub fn recordings(path: &Path) -> Vec<PathBuf> {
    let all = (0..).map(|replica| numbered(path, replica));
    let replicas: Vec<_> = all.take_while(|path| path.exists()).collect();
    if path.exists() || replicas.is_empty() {
        return vec![path.to_owned()];
    }
    replicas
}

fn numbered(path: &Path, replica: usize) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!(".{replica}"));
    if let Some(ending) = path.extension() {
        name.push(".");
        name.push(ending);
    }
    path.with_file_name(name)
}

/// Whether a file is there that begins as a recording of any version.
pub fn is_recording(path: &Path) -> bool {
    let first = File::open(path).and_then(|file| read_line(&mut BufReader::new(file)));
    first.is_ok_and(|line| lines::version(&line).is_some())
}

/// A recording that is being read.
pub struct Reader {
    input: BufReader<File>,
    path: PathBuf,
    line: u64,
    pub header: Header,
}

impl Reader {
    /// # Errors
    /// There is no such file, or it does not begin as a recording of this version.
    pub fn open(path: &Path) -> Result<Self> {
        let expected = "a file that --record wrote";
        let file = File::open(path).map_err(|error| not_there(path, &error, expected))?;
        let mut input = BufReader::with_capacity(1 << 20, file);
        let text = read_line(&mut input).map_err(|error| Error::open(path, &error, expected))?;
        let none = || {
            Error::file(
                path,
                format!("line 1: found no header, expected {expected}"),
            )
        };
        let version = lines::version(&text).ok_or_else(none)?;
        if version != VERSION {
            return Err(Error::file(
                path,
                format!(
                    "found a recording of version {version}, expected {VERSION}: record the run again"
                ),
            ));
        }
        let Ok(Line::Header(header)) = serde_json::from_slice(&text) else {
            return Err(none());
        };
        Ok(Self {
            input,
            path: path.to_owned(),
            line: 1,
            header: *header,
        })
    }

    /// The next line. `None` at the end, also where the last line was cut off.
    ///
    /// # Errors
    /// The file cannot be read, or a line is none that a recording has.
    pub fn next_line(&mut self) -> Result<Option<Line>> {
        let text = read_line(&mut self.input).map_err(|error| Error::io(&self.path, error))?;
        self.line += 1;
        if text.last() != Some(&b'\n') {
            return match text.len() as u64 {
                MAX_LINE_BYTES => Err(self.wrong(format!(
                    "found more than {MAX_LINE_BYTES} bytes, expected a line that --record writes"
                ))),
                _ => Ok(None),
            };
        }
        serde_json::from_slice(&text).map(Some).map_err(|error| {
            self.wrong(format!(
                "{}, expected a line that --record writes",
                quote::message(error)
            ))
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// An error of the line that was read last.
    pub fn wrong(&self, message: impl std::fmt::Display) -> Error {
        Error::file(&self.path, format!("line {}: {message}", self.line))
    }
}

/// A line with its end, of [`MAX_LINE_BYTES`] at most.
fn read_line(input: &mut BufReader<File>) -> std::io::Result<Vec<u8>> {
    let mut line = Vec::new();
    input.take(MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
    Ok(line)
}

/// A run that did not come to its end has left its recording under another name.
fn not_there(path: &Path, error: &std::io::Error, expected: &str) -> Error {
    let partial = beside(path, ".partial");
    if error.kind() != std::io::ErrorKind::NotFound || !partial.exists() {
        return Error::open(path, error, expected);
    }
    Error::file(
        path,
        format!(
            "found no such file, expected {expected}; {} is that of a run which did not come to its end, and can be read as well",
            partial.display()
        ),
    )
}

/// Sizes that cannot be are the recording's: no option has asked for them.
pub fn of_recording(path: &Path, error: Error) -> Error {
    match error {
        Error::Usage(message) => {
            Error::file(path, format!("a size of the recorded run: {message}"))
        }
        error => error,
    }
}
