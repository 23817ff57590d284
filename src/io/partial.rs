//! OUTPUT.partial: every finished row at once, in the order of finishing, so that a killed run loses nothing.
//!
//! The first line, `{"journal":{...},"crc32":"C"}`, says whose answers these are. A record is a line
//! `{"row":R,"input":"H","done":D,"answer":A,"crc32":"C"}`. R is the row's place in the input, counted from 0; H hashes
//! everything the answer depends on; D says whether the answer is final; C is the CRC-32 of the line before `,"crc32"`: a
//! line that a disk has changed is no answer. The last record of a row counts.
//!
//! Once every row has an answer OUTPUT is made of it, compressed if it is to be, and OUTPUT.job.json, which says of each line what it answers ([`super::finished`]).

mod earlier;
mod lines;
mod read;

pub use self::lines::now;
use self::lines::{Header, Record};
use self::read::{Answers, Lines};
use super::finished::{Answered, Contents, Finished};
use super::identity::Identity;
use super::kept::{Holder, Kept, Place};
use super::packed::{Packed, RowsOut};
use super::shard::{Holds, ShardOutput};
use crate::error::{Error, Result};
use crate::files::names::beside;
use crate::files::resolve::place;
use crate::files::{Claim, Out, Resolved, Unfinished, resolve};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The option that is the time which templates read.
pub const TIME: &str = "--now";

/// What a run does with the rows that an earlier one left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// There must be none of an unfinished job.
    Afresh,
    /// They go.
    Overwrite,
    /// They are kept.
    Resume,
}

/// An answer that will be in OUTPUT.
#[derive(Debug, Clone, Copy)]
struct Standing {
    input: u64,
    done: bool,
    place: Place,
}

/// The journal of one run, and how OUTPUT is made of it.
#[derive(Debug)]
pub struct Journal {
    claim: Claim,
    header: Header,
    /// The text of OUTPUT, where answers in it count.
    output: Option<File>,
    /// The next record starts here; what lies behind it is torn or of a run that is not resumed.
    end: u64,
    /// Whether this run has written a record.
    begun: bool,
    /// Nothing is left that another run could use.
    spent: bool,
    /// Answers of this run by row.
    rows: Vec<Option<Standing>>,
    /// Where rows that failed go in place of OUTPUT.
    errors: Option<Out>,
    /// What an earlier run wrote there, where OUTPUT is finished.
    errors_were: Option<Contents>,
    /// What is said of OUTPUT where it is a shard.
    pub shard: Option<Box<ShardOutput>>,
}

impl Journal {
    /// Opens OUTPUT.partial, anew or with what an earlier run left in it (or in OUTPUT). `identity`: whose answers will be
    /// in it.
    ///
    /// # Errors
    /// OUTPUT could not be written, another run is writing it, or what an earlier run left is in the way or of another model or input.
    pub fn open(output: &Path, start: Start, identity: &Identity) -> Result<(Self, Kept)> {
        let Resolved::Place(place) = resolve(output)? else {
            return Err(Error::file(
                output,
                "found a pipe or a device, expected a file that can be put together",
            ));
        };
        let mut journal = Self {
            claim: Claim::take(&place)?,
            header: Header::new(identity.clone(), None),
            output: None,
            end: 0,
            begun: false,
            spent: false,
            rows: Vec::new(),
            errors: None,
            errors_were: None,
            shard: None,
        };
        let mut kept = Kept::default();
        match start {
            Start::Afresh => {
                journal.check_absence()?;
                let instead = "--resume keeps its answers, --overwrite replaces it";
                journal.claim.refuse_finished(instead)?;
            }
            Start::Overwrite => {}
            Start::Resume => journal.resume(&mut kept)?,
        }
        Ok((journal, kept))
    }

    /// Has rows that failed go to `path` in place of OUTPUT, once every row has an answer. `start`: what the journal was opened
    /// with.
    ///
    /// # Errors
    /// It cannot be written, or there is a file that is not empty and that no earlier run of this job wrote.
    pub fn errors_to(&mut self, path: &Path, start: Start) -> Result<()> {
        let out = Out::open(path, Unfinished::Removed)?;
        let name = match &out {
            Out::Whole(whole) => Some(whole.target().to_owned()),
            Out::Stream(_) => None,
        };
        let named = name.as_ref().map(|name| name.display().to_string());
        let replaces = match (start, &name) {
            (Start::Afresh, _) => false,
            (Start::Overwrite, _) => true,
            // The file is of a run that ended between giving this name and OUTPUT's, or of one that came to its end.
            (Start::Resume, Some(name)) => {
                self.end > 0 && self.header.errors == named || self.wrote_errors(name)?
            }
            (Start::Resume, None) => false,
        };
        self.errors = Some(out.refuse_finished(replaces)?);
        if self.end == 0 {
            self.header.errors = named;
        }
        Ok(())
    }

    /// Whether the run that finished OUTPUT wrote this file of errors too, as it is now.
    fn wrote_errors(&self, path: &Path) -> Result<bool> {
        if self.errors_were.is_none() || !path.is_file() {
            return Ok(false);
        }
        let file = File::open(path).map_err(|error| Error::io(path, error))?;
        Ok(self.errors_were == Some(Contents::of(&file, path)?))
    }

    pub fn path(&self) -> &Path {
        self.claim.path()
    }

    /// Whose answers the journal beside OUTPUT has, or else OUTPUT, and how many sequences ran at once, at most; `None` where that is not
    /// known. What is wrong with a journal is told by [`Journal::open`].
    pub fn earlier(output: &Path) -> Option<(Identity, Option<u32>)> {
        let output = place(output)?;
        let journal = File::open(beside(&output, ".partial")).ok();
        let header = journal.and_then(|file| Header::parse(Lines::new(&file).next().ok()??));
        match header {
            Some(header) => Some((header.of, header.max_seqs)),
            None => Finished::beside(&output).map(|found| (found.of, found.max_seqs)),
        }
    }

    /// Has the header say how many sequences run at once, at most. It is written with the first answer.
    pub fn note_max_seqs(&mut self, max_seqs: u32) {
        self.header.max_seqs = Some(max_seqs);
    }

    /// When the job began, in seconds since 1970.
    pub fn created(&self) -> u64 {
        self.header.created
    }

    /// What a failed write is told as.
    fn lost(&self, error: &std::io::Error) -> Error {
        Error::file(
            self.path(),
            format!(
                "{error}; the rows before are in it, and the same command with --resume goes on from them"
            ),
        )
    }

    /// What a failed write to `path` is told as, where OUTPUT is put together.
    fn unmade(&self, path: &Path, error: &std::io::Error) -> Error {
        Error::file(
            path,
            format!(
                "{error}; all rows are in {}, and the same command with --resume puts them together",
                self.path().display()
            ),
        )
    }

    /// Writes `text` behind what counts. What this run does not go on from is cut off with the first record: a run that
    /// fails to start takes nothing from an earlier one.
    fn write(&mut self, text: &str) -> Result<()> {
        if !self.begun {
            self.claim.cut(self.end)?;
            self.begun = true;
        }
        let written = self.claim.file().write_all_at(text.as_bytes(), self.end);
        written.map_err(|error| self.lost(&error))?;
        self.end += text.len() as u64;
        Ok(())
    }

    /// Writes the answer of row `row` (a line of JSON without its newline), through to the system.
    ///
    /// # Errors
    /// The system refused.
    pub fn put(&mut self, row: u64, input: u64, done: bool, answer: &str) -> Result<()> {
        if self.end == 0 {
            self.write(&self.header.line())?;
        }
        let record = Record::line(row, input, done, answer);
        let place = Place {
            holder: Holder::Journal,
            offset: self.end,
            bytes: u32::try_from(record.len())
                .map_err(|_| Error::file(self.path(), "an answer of more than 4 GiB"))?,
        };
        self.write(&record)?;
        self.stand(row, Standing { input, done, place });
        Ok(())
    }

    /// Takes over the answer of an earlier run.
    pub fn keep(&mut self, row: u64, input: u64, place: Place) {
        let done = true;
        self.stand(row, Standing { input, done, place });
    }

    fn stand(&mut self, row: u64, answer: Standing) {
        let row = row as usize;
        if self.rows.len() <= row {
            self.rows.resize(row + 1, None);
        }
        self.rows[row] = Some(answer);
    }

    /// Puts OUTPUT, and what there is of errors, together in input order and moves them into place whole, and then the record of
    /// what OUTPUT answers.
    ///
    /// # Errors
    /// The system refused; OUTPUT is what it was and the journal is there to resume from.
    pub fn assemble(mut self) -> Result<()> {
        let second = self.claim.second()?;
        let (file, path) = (second.file(), second.path());
        let mut errors = self.errors.take().map(RowsOut::onto).transpose()?;
        self.copy_to(file, path, errors.as_mut())?;
        let mut errors = errors.map(RowsOut::finish_out).transpose()?;
        let mut rows = Vec::new();
        for (row, answer) in (0..).zip(&self.rows) {
            let answer = answer.filter(|answer| answer.done || errors.is_none());
            rows.extend(answer.map(|Standing { input, done, .. }| Answered {
                row,
                input: format!("{input:016x}"),
                done,
            }));
        }
        let contents = Contents::of(file, path)?;
        let mut shard = self.shard.take();
        if let Some(shard) = &mut shard {
            let failed = rows.iter().filter(|answer| !answer.done).count();
            shard.describe(&contents, Holds::Lines, rows.len() as u64, failed as u64)?;
        }
        let finished = Finished {
            job: Finished::VERSION,
            of: self.header.of.clone(),
            created: self.header.created,
            max_seqs: self.header.max_seqs,
            output: contents,
            errors: match &mut errors {
                Some(Out::Whole(whole)) => Some(Contents::of_whole(whole)?),
                _ => None,
            },
            rows,
        };
        // Errors come first: whoever waits for OUTPUT finds them there. The journal, which has the rows of both, goes last: while
        // it is there, another run does all of this again.
        if let Some(errors) = errors {
            errors.finish()?;
        }
        self.claim.install_second(second)?;
        if let Some(shard) = shard {
            shard.finish()?;
        }
        finished.write(self.claim.target())?;
        self.spent = true;
        self.claim.remove()
    }

    fn copy_to(&self, file: &File, path: &Path, mut errors: Option<&mut RowsOut>) -> Result<()> {
        let fail = |error| self.unmade(path, &error);
        let out = BufWriter::with_capacity(1 << 20, file);
        let mut out = Packed::new(out, self.claim.target()).map_err(fail)?;
        let mut journal = Answers::new(self.claim.file(), self.path());
        let mut output = self
            .output
            .as_ref()
            .map(|file| Answers::new(file, self.claim.target()));
        for (row, answer) in (0..).zip(&self.rows) {
            let Some(Standing { place, done, .. }) = answer else {
                continue;
            };
            let answer = match (place.holder, &mut output) {
                (Holder::Journal, _) => journal.read_of_row(place, row)?,
                (Holder::Output, Some(output)) => output.read(place)?,
                (Holder::Output, None) => unreachable!("its answers are found by reading it"),
            };
            match &mut errors {
                Some(errors) if !done => {
                    let written = errors.write_all(answer);
                    written.map_err(|error| self.unmade(errors.name(), &error))?;
                }
                _ => out.write_all(answer).map_err(fail)?,
            }
        }
        out.finish().map(drop).map_err(fail)
    }
}

impl Drop for Journal {
    /// A run that wrote nothing (its model did not load) leaves nothing behind.
    fn drop(&mut self) {
        if self.claim.found_bytes() == 0 && !self.begun && !self.spent {
            // Nothing depends on it.
            let _ = self.claim.remove();
        }
    }
}
