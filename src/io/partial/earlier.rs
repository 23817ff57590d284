//! What an earlier run left: whether it is in the way of this one, and its answers where this one goes on from them.

use super::Journal;
use super::lines::{Header, Record};
use super::read::Lines;
use crate::error::{Error, Result};
use crate::files::whole::JOURNAL_START;
use crate::io::finished::{Contents, Finished, job_path};
use crate::io::identity::Identity;
use crate::io::kept::{Holder, Kept, Place};
use crate::io::packed::is_packed;
use crate::io::unpacked::Unpacked;
use crate::telemetry::warn;
use std::fs::File;
use std::path::Path;

/// Rows that an earlier run left.
struct Left {
    header: Header,
    /// Where the header ends.
    records: u64,
}

impl Journal {
    /// # Errors
    /// There are rows of a job that did not come to its end, or something that is no journal.
    pub(super) fn check_absence(&self) -> Result<()> {
        match self.left()? {
            Some(_) => Err(Error::Usage(format!(
                "{}: found rows of an unfinished run: --resume goes on from them, --overwrite starts afresh",
                self.path().display()
            ))),
            None => Ok(()),
        }
    }

    /// What OUTPUT.partial holds, if it has a row.
    fn left(&self) -> Result<Option<Left>> {
        let mut lines = Lines::new(self.claim.file());
        let fail = |error| Error::io(self.path(), error);
        let header = lines.next().map_err(fail)?.map(Header::parse);
        let records = lines.offset;
        match header {
            Some(Some(header)) => {
                let has_row = lines.next().map_err(fail)?.is_some();
                Ok(has_row.then_some(Left { header, records }))
            }
            // Torn before the first row was whole.
            None if lines.line.is_empty()
                || lines.line.starts_with(JOURNAL_START)
                || JOURNAL_START.starts_with(&lines.line) =>
            {
                Ok(None)
            }
            _ => Err(Error::Usage(format!(
                "{}: line 1 is no header of a journal as this version of tailgraph writes it, expected {{\"journal\":...}} and its checksum: go on with the version that wrote it, or --overwrite starts afresh",
                self.path().display()
            ))),
        }
    }

    /// Finds the rows of the journal, or else those of OUTPUT.
    pub(super) fn resume(&mut self, kept: &mut Kept) -> Result<()> {
        let Some(left) = self.left()? else {
            self.header.takes_up = self.take_up(kept)?;
            return Ok(());
        };
        self.check_same(&left.header.of, self.path())?;
        let takes_up = &left.header.takes_up;
        if takes_up.is_some() && self.take_up(kept)? != *takes_up {
            return Err(Error::file(
                self.claim.target(),
                format!(
                    "is no longer the file whose answers {} goes on from; bring that one back, or start afresh with --overwrite",
                    self.path().display()
                ),
            ));
        }
        self.header = left.header;
        self.read_back(left.records, kept)
    }

    /// # Errors
    /// The answers in `path` are those of another model or other options.
    fn check_same(&self, of: &Identity, path: &Path) -> Result<()> {
        match self.header.of.differences(of) {
            None => Ok(()),
            Some(differences) => Err(Error::file(
                path,
                format!(
                    "found rows of another model or other options, which differ in {differences}: expected the same as this run's, go on with those; --overwrite starts afresh"
                ),
            )),
        }
    }

    /// The answers of OUTPUT, if it is there: by their rows where the record beside it says what these were, else by id.
    fn take_up(&mut self, kept: &mut Kept) -> Result<Option<Contents>> {
        let target = self.claim.target();
        let file = match File::open(target) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io(target, error)),
        };
        let contents = Contents::of(&file, target)?;
        let text = self.text_of(file)?;
        let finished = Finished::beside(target).filter(|found| found.output == contents);
        match finished {
            Some(finished) => {
                self.check_same(&finished.of, &job_path(target))?;
                kept.take_rows(&text, &finished.rows)
                    .map_err(|error| Error::io(target, error))?;
                self.header.created = finished.created;
                self.header.max_seqs = finished.max_seqs;
                self.errors_were = finished.errors;
            }
            None => kept
                .take_ids(&text)
                .map_err(|error| Error::io(target, error))?,
        }
        self.output = Some(text);
        Ok(Some(contents))
    }

    /// The text of OUTPUT, whose answers are read by their places: of a compressed one in a file that has no name left.
    fn text_of(&self, output: File) -> Result<File> {
        if !is_packed(self.claim.target()) {
            return Ok(output);
        }
        let second = self.claim.second()?;
        let mut text = second.file();
        std::io::copy(&mut Unpacked::new(output), &mut text)
            .and_then(|_| text.try_clone())
            .map_err(|error| Error::io(self.claim.target(), error))
    }

    /// Reads the records from `offset` on; a last line that a kill tore is left outside `end`.
    fn read_back(&mut self, offset: u64, kept: &mut Kept) -> Result<()> {
        let fail = |error| Error::io(self.claim.path(), error);
        let mut lines = Lines::new(self.claim.file());
        lines.seek(offset).map_err(fail)?;
        // The header was the first.
        let mut number = 1_u64;
        let mut damaged: Option<(u64, u64)> = None;
        loop {
            let start = lines.offset;
            number += 1;
            let Some(line) = lines.next().map_err(fail)? else {
                break;
            };
            let (Some(record), Ok(bytes)) = (Record::parse(line), u32::try_from(line.len())) else {
                damaged.get_or_insert((number, 0)).1 += 1;
                continue;
            };
            let place = Place {
                holder: Holder::Journal,
                offset: start,
                bytes,
            };
            if record.done {
                kept.by_row.insert(record.row, (record.input, place));
            } else {
                kept.by_row.remove(&record.row);
            }
        }
        self.end = lines.offset;
        if let Some((first, count)) = damaged {
            warn(&format!(
                "{}: found {count} lines that are not as they were written, the first of them line {first}: their rows are answered again",
                self.path().display()
            ));
        }
        Ok(())
    }
}
