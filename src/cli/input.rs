//! Where rows come from: prompts of the command line, a file, or standard input.

use super::args::PromptArgs;
use super::paths::is_stdio;
use crate::at_start;
use crate::error::{Error, Result};
use crate::io::lines::Lines;
use crate::io::plain::Plain;
use crate::io::unpacked::{self, Unpacked};
use crate::plan::MAX_SEQS;
use crate::session::progress::Total;
use crate::telemetry::{say, warn};
use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, IsTerminal, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::path::Path;

const STANDARD_INPUT: &str = "standard input";

/// What becomes of prompts that are texts, for a model that has a chat template or has none; `None` where the input is
/// rows of JSON.
///
/// # Errors
/// [`Error::Usage`] for options of texts beside rows, and for a system message without a template.
pub(super) fn plain(
    args: &PromptArgs,
    arguments: bool,
    has_template: bool,
) -> Result<Option<Plain>> {
    if !arguments && !args.lines {
        let unused = match (&args.system, args.raw) {
            (Some(_), _) => "--system: rows have their own system messages, in messages",
            (None, true) => "--raw: rows say what they are, by prompt or messages",
            (None, false) => return Ok(None),
        };
        return Err(Error::Usage(format!(
            "{unused}; expected prompts as arguments or --lines beside it"
        )));
    }
    if args.system.is_some() && !has_template {
        return Err(Error::Usage(
            "--system: the model has no chat template to put it into, expected one, or --chat-template FILE".to_owned(),
        ));
    }
    Ok(Some(if args.raw || !has_template {
        Plain::Completion
    } else {
        Plain::Chat {
            system: args.system.clone(),
        }
    }))
}

/// Rows, or lines of text, of a file or, for `-` or no path at all, of standard input. Either may be compressed.
///
/// # Errors
/// There is no such file, or standard input was closed.
pub(super) fn open_lines(path: Option<&Path>, plain: Option<Plain>, quiet: bool) -> Result<Lines> {
    let expected = match plain {
        None => "JSON lines",
        Some(_) => "lines of text",
    };
    let path = path.filter(|path| !is_stdio(path));
    let from = match path {
        Some(path) => of_file(path, expected)?,
        None => of_standard_input(expected, plain.is_some(), quiet)?,
    };
    let name = path.unwrap_or(Path::new(STANDARD_INPUT));
    // A file by way of a shell's `<` is one all the same.
    let place = path.unwrap_or(Path::new("/dev/stdin"));
    let lines = if place.is_file() {
        Lines::file(from, name)
    } else {
        Lines::reader(from, name)
    };
    Ok(match plain {
        None => lines,
        Some(plain) => lines.of_prompts(plain),
    })
}

fn of_file(path: &Path, expected: &str) -> Result<Box<dyn BufRead + Send>> {
    if path.is_dir() {
        return Err(Error::file(
            path,
            format!("found a directory, expected a file of {expected}"),
        ));
    }
    let file = File::open(path)
        .map_err(|error| Error::open(path, &error, &format!("a file of {expected}")))?;
    let whole = WholeInput::new(file).map_err(|error| Error::io(path, error))?;
    Ok(Box::new(BufReader::new(Unpacked::new(whole))))
}

fn of_standard_input(
    expected: &str,
    is_text: bool,
    quiet: bool,
) -> Result<Box<dyn BufRead + Send>> {
    if at_start::closed(0) {
        return Err(Error::file(
            STANDARD_INPUT,
            format!("was closed when the program started, expected {expected} or --input FILE"),
        ));
    }
    if !quiet && std::io::stdin().is_terminal() {
        let what = if is_text {
            "a prompt"
        } else {
            "a row, such as {\"prompt\": \"Hello\"},"
        };
        say(&format!("tailgraph: type {what} and Enter; Ctrl-D ends"));
        say("or give a prompt on the command line: tailgraph generate --model MODEL \"Hello\"");
    }
    Ok(Box::new(BufReader::new(Unpacked::new(std::io::stdin()))))
}

/// Whether rows come from somebody at a terminal.
pub(super) fn is_typed(path: Option<&Path>) -> bool {
    path.is_none_or(is_stdio) && std::io::stdin().is_terminal()
}

/// Counts the rows of an input that can be read twice, on a thread of its own: the run does not wait for it. `share`: how
/// many of so many rows are to be answered.
///
/// # Errors
/// The system refused a thread.
pub(super) fn count_rows(
    path: Option<&Path>,
    share: impl Fn(u64) -> u64 + Send + 'static,
) -> Result<Total> {
    let total = Total::default();
    let Some(file) = again(path) else {
        return Ok(total);
    };
    let counted = total.clone();
    let count = move || {
        if let Ok(rows) = unpacked::count_rows(Unpacked::new(file)) {
            // Nobody else sets it.
            let _ = counted.set(share(rows));
        }
    };
    // Not joined: it ends with the process.
    std::thread::Builder::new()
        .name("counter".to_owned())
        .spawn(count)
        .map_err(|error| Error::thread(&error))?;
    Ok(total)
}

/// An input that can be read twice, to be read besides. What is wrong with it is said by whoever reads it for good.
fn again(path: Option<&Path>) -> Option<File> {
    let (path, read) = match path.filter(|path| !is_stdio(path)) {
        Some(path) => (path, 0),
        // Who started us may have read a part of it.
        None => (Path::new("/dev/stdin"), position_of_standard_input()),
    };
    // Opening a pipe would take its rows away.
    if !path.metadata().is_ok_and(|about| about.is_file()) {
        return None;
    }
    let mut file = File::open(path).ok()?;
    file.seek(SeekFrom::Start(read)).ok()?;
    Some(file)
}

/// How much of an input is looked at before a run: 1,024 rows of 16 KiB.
const LOOKED_AT_BYTES: u64 = 16 << 20;

/// Sequences that an input asks for, where it can be read twice and they are fewer than an engine can run at once. `lines`:
/// each line is a prompt.
pub(super) fn few_sequences(path: Option<&Path>, lines: bool) -> Option<u32> {
    let mut text = Vec::new();
    let mut start = Unpacked::new(again(path)?).take(LOOKED_AT_BYTES + 1);
    start.read_to_end(&mut text).ok()?;
    let is_whole = text.len() as u64 <= LOOKED_AT_BYTES;
    let mut rows = Lines::file(Box::new(Cursor::new(text)), STANDARD_INPUT);
    if lines {
        rows = rows.of_prompts(Plain::Completion);
    }
    let mut sequences = 0;
    while let Some((row, _)) = rows.next_row().ok()? {
        sequences += row.ask.map_or(0, |ask| ask.choices.count() as u32);
        if sequences >= MAX_SEQS {
            return None;
        }
    }
    is_whole.then_some(sequences.max(1))
}

fn position_of_standard_input() -> u64 {
    let file = std::io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .map(File::from);
    file.and_then(|mut file| file.stream_position())
        .unwrap_or(0)
}

/// An empty input is one that is done, but seldom what was meant.
pub(super) fn warn_of_no_rows(input: Option<&Path>, expected: &str) {
    let name = match input.filter(|path| !is_stdio(path)) {
        Some(path) => path.display().to_string(),
        None => STANDARD_INPUT.to_owned(),
    };
    warn(&format!(
        "{name}: found no rows, expected lines of {expected}"
    ));
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn sequences_are_counted_as_rows_ask_for_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows");
        let count = |text: &str, lines| {
            File::create(&path)
                .unwrap()
                .write_all(text.as_bytes())
                .unwrap();
            few_sequences(Some(&path), lines)
        };
        let row = |n: u32| format!("{{\"prompt\": \"a\", \"n\": {n}}}\n");
        assert_eq!(count("", false), Some(1));
        let several = row(1) + "\n" + "no row\n" + &row(1);
        assert_eq!(count(&several, false), Some(2));
        assert_eq!(count("one\ntwo\n\nthree", true), Some(3));
        assert_eq!(count(&row(1).repeat(1023), false), Some(1023));
        assert_eq!(count(&row(1).repeat(1024), false), None);
        // More than is looked at.
        let long = " ".repeat(LOOKED_AT_BYTES as usize) + &row(1);
        assert_eq!(count(&long, false), None);
    }
}
