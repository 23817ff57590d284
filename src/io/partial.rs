//! OUTPUT.partial: every finished row at once, in the order of finishing, so that a killed run loses nothing.
//!
//! The first line, `{"journal":{...}}`, says whose answers these are. A record is a line
//! `{"row":R,"input":"H","done":D,"answer":A}`. R is the row's place in the input, counted from 0; H hashes everything the
//! answer depends on; D says whether the answer is final. The last record of a row counts. `{"ended":true}` is the last
//! line of a job that gave every row an answer.

mod lines;
mod read;

pub use self::lines::now;
use self::lines::{ENDED, First, Header, Record};
use self::read::{Answers, Lines};
use super::identity::Identity;
use super::kept::{Finished, Holder, Kept, Place};
use super::shard::{Holds, ShardOutput};
use crate::error::{Error, Result};
use crate::files::names::beside;
use crate::files::resolve::place;
use crate::files::whole::JOURNAL_START;
use crate::files::{Claim, Resolved, resolve};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

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

/// The journal of one run, and how OUTPUT is made of it.
#[derive(Debug)]
pub struct Journal {
    claim: Claim,
    header: Header,
    /// OUTPUT, where answers in it count.
    output: Option<File>,
    /// The next record starts here; what lies behind it is torn or of a run that is not resumed.
    end: u64,
    /// Whether this run has written a record.
    begun: bool,
    /// Nothing is left that another run could use.
    spent: bool,
    /// Answers of this run by row.
    rows: Vec<Option<Place>>,
    /// Of those, rows that another run may answer otherwise.
    not_done: u64,
    /// What is said of OUTPUT where it is a shard.
    shard: Option<Box<ShardOutput>>,
}

impl Journal {
    /// Opens OUTPUT.partial, anew or with what an earlier run left in it (or in OUTPUT). `identity`: whose answers will be
    /// in it.
    ///
    /// # Errors
    /// OUTPUT could not be written, another run is writing it, or what an earlier run left is in the way or of another
    /// model.
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
            not_done: 0,
            shard: None,
        };
        let mut kept = Kept::default();
        match start {
            Start::Afresh => journal.check_absence()?,
            Start::Overwrite => {}
            Start::Resume => journal.resume(&mut kept)?,
        }
        Ok((journal, kept))
    }

    /// OUTPUT is to have a record beside it.
    #[must_use]
    pub fn of_shard(mut self, shard: Option<ShardOutput>) -> Self {
        self.shard = shard.map(Box::new);
        self
    }

    pub fn path(&self) -> &Path {
        self.claim.path()
    }

    /// Sequences that ran at once, at most, in the unfinished run whose journal lies beside OUTPUT; `None` where there is none or
    /// it does not say so. What is wrong with a journal is told by [`Journal::open`].
    pub fn max_seqs(output: &Path) -> Option<u32> {
        let journal = File::open(beside(&place(output)?, ".partial")).ok()?;
        let mut lines = Lines::new(&journal);
        match First::parse(lines.next().ok()??) {
            First::Header(header) => header.max_seqs,
            First::OtherVersion | First::Foreign => None,
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

    /// # Errors
    /// There are rows of a job that did not come to its end, or something that is no journal.
    fn check_absence(&self) -> Result<()> {
        let wrong = |found: &str| {
            Err(Error::Usage(format!(
                "{}: {found}, --overwrite starts afresh",
                self.path().display()
            )))
        };
        match self.contents()? {
            Contents::Nothing | Contents::Journal { ended: true, .. } => Ok(()),
            Contents::Journal { .. } | Contents::OtherVersion => {
                wrong("found rows of an unfinished run: --resume goes on from them")
            }
            Contents::Foreign => wrong("found something that is no journal of an earlier run"),
        }
    }

    fn contents(&self) -> Result<Contents> {
        let mut lines = Lines::new(self.claim.file());
        let fail = |error| Error::io(self.path(), error);
        let Some(first) = lines.next().map_err(fail)? else {
            // Torn before the first row was whole, or somebody else's.
            let is_torn = lines.line.is_empty()
                || lines.line.starts_with(JOURNAL_START)
                || JOURNAL_START.starts_with(&lines.line);
            return Ok(match is_torn {
                true => Contents::Nothing,
                false => Contents::Foreign,
            });
        };
        let header = match First::parse(first) {
            First::Header(header) => header,
            First::OtherVersion => return Ok(Contents::OtherVersion),
            First::Foreign => return Ok(Contents::Foreign),
        };
        let records = lines.offset;
        if lines.next().map_err(fail)?.is_none() {
            return Ok(Contents::Nothing);
        }
        Ok(Contents::Journal {
            header,
            records,
            ended: self.ends_with(ENDED.as_bytes()).map_err(fail)?,
        })
    }

    fn ends_with(&self, text: &[u8]) -> std::io::Result<bool> {
        let Some(start) = self.claim.found_bytes().checked_sub(text.len() as u64) else {
            return Ok(false);
        };
        let mut found = vec![0; text.len()];
        self.claim.file().read_exact_at(&mut found, start)?;
        Ok(found == text)
    }

    /// Finds the rows of the journal, or else those of OUTPUT.
    fn resume(&mut self, kept: &mut Kept) -> Result<()> {
        let wrong = |found: &str| {
            Err(Error::file(
                self.path(),
                format!("{found}; --overwrite starts afresh"),
            ))
        };
        match self.contents()? {
            Contents::Nothing => {
                self.header.takes_up = self.take_up(kept)?;
                Ok(())
            }
            Contents::OtherVersion => wrong(
                "found a journal in another format, expected one that this version of tailgraph wrote: go on with the version that wrote it",
            ),
            Contents::Foreign => {
                wrong("line 1 is not the header of a journal, expected {\"journal\":...}")
            }
            Contents::Journal {
                header, records, ..
            } => {
                if let Some(differences) = self.header.of.differences(&header.of) {
                    return wrong(&format!(
                        "found rows of another model or other options, which differ in {differences}: expected the same as this run's, go on with those"
                    ));
                }
                if header.takes_up.is_some() && self.take_up(kept)? != header.takes_up {
                    return Err(Error::file(
                        self.claim.target(),
                        format!(
                            "is no longer the file whose answers {} goes on from; bring that one back, or start afresh with --overwrite",
                            self.path().display()
                        ),
                    ));
                }
                self.header = *header;
                self.read_back(records, kept)
            }
        }
    }

    /// The answers of OUTPUT, if it is there.
    fn take_up(&mut self, kept: &mut Kept) -> Result<Option<Finished>> {
        let target = self.claim.target();
        let file = match File::open(target) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io(target, error)),
        };
        let finished = Finished::read(target, &file, kept)?;
        self.output = Some(file);
        Ok(Some(finished))
    }

    /// Reads the records from `offset` on; a last line that a kill tore is left outside `end`.
    fn read_back(&mut self, offset: u64, kept: &mut Kept) -> Result<()> {
        let fail = |error| Error::io(self.claim.path(), error);
        let mut lines = Lines::new(self.claim.file());
        lines.seek(offset).map_err(fail)?;
        // The header was the first.
        let mut number = 1_u64;
        loop {
            let start = lines.offset;
            number += 1;
            let Some(line) = lines.next().map_err(fail)? else {
                break;
            };
            if line == ENDED.as_bytes() {
                continue;
            }
            let Some(record) = Record::parse(line) else {
                return Err(Error::file(
                    self.path(),
                    format!(
                        "line {number} is not a record of an earlier run, expected {{\"row\",\"input\",\"done\",\"answer\"}}: remove that line to keep the others; with --overwrite all are written over"
                    ),
                ));
            };
            let place = Place {
                holder: Holder::Journal,
                offset: start + record.answer_start as u64,
                bytes: record.answer_bytes as u32,
            };
            match record.done {
                true => kept.by_row.insert(record.row, (record.input, place)),
                false => kept.by_row.remove(&record.row),
            };
        }
        self.end = lines.offset;
        Ok(())
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
        let mut record = match self.end {
            0 => self.header.line(),
            _ => String::new(),
        };
        record.push_str(&Record::start(row, input, done));
        let place = Place {
            holder: Holder::Journal,
            offset: self.end + record.len() as u64,
            bytes: u32::try_from(answer.len())
                .map_err(|_| Error::file(self.path(), "an answer of more than 4 GiB"))?,
        };
        record.push_str(answer);
        record.push_str(Record::END);
        self.write(&record)?;
        self.not_done += u64::from(!done);
        self.keep(row, place);
        Ok(())
    }

    /// Takes over the answer of an earlier run.
    pub fn keep(&mut self, row: u64, place: Place) {
        let row = row as usize;
        if self.rows.len() <= row {
            self.rows.resize(row + 1, None);
        }
        self.rows[row] = Some(place);
    }

    /// Puts OUTPUT together in input order and moves it into place whole. `retry`: some rows may be answered better the
    /// next time, for which `--resume` finds the others.
    ///
    /// # Errors
    /// The system refused; OUTPUT is what it was and the journal is there to resume from.
    pub fn assemble(mut self, retry: bool) -> Result<()> {
        let second = self.claim.second()?;
        self.copy_to(second.file(), second.path())?;
        let mut shard = self.shard.take();
        if let Some(shard) = &mut shard {
            let answers = self.rows.iter().flatten().count() as u64;
            let (file, path) = (second.file(), second.path());
            shard.describe(file, path, Holds::Lines, answers, self.not_done)?;
        }
        // Answers that lie in OUTPUT alone are found there again, by id.
        let keep = retry && self.header.takes_up.is_none() && self.end > 0;
        self.claim.install_second(second)?;
        // The journal last: while it is there, another run does all of this again.
        if let Some(shard) = shard {
            shard.finish()?;
        }
        if keep {
            return self.write(ENDED);
        }
        self.spent = true;
        self.claim.remove()
    }

    fn copy_to(&self, file: &File, path: &Path) -> Result<()> {
        let mut out = BufWriter::with_capacity(1 << 20, file);
        let mut journal = Answers::new(self.claim.file(), self.path());
        let mut output = self
            .output
            .as_ref()
            .map(|file| Answers::new(file, self.claim.target()));
        for (row, place) in (0..).zip(&self.rows) {
            let Some(place) = place else { continue };
            let answer = match (place.holder, &mut output) {
                (Holder::Journal, _) => journal.read_of_row(place, row)?,
                (Holder::Output, Some(output)) => output.read(place)?,
                (Holder::Output, None) => unreachable!("its answers are found by reading it"),
            };
            out.write_all(answer)
                .map_err(|error| Error::io(path, error))?;
        }
        out.flush().map_err(|error| Error::io(path, error))
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

/// What OUTPUT.partial holds.
enum Contents {
    /// No row.
    Nothing,
    Journal {
        header: Box<Header>,
        /// Where the header ends.
        records: u64,
        ended: bool,
    },
    OtherVersion,
    Foreign,
}
