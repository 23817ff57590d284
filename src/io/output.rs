//! Where answers go: a journal that becomes OUTPUT, or a stream in input order.

use super::kept::Place;
use super::packed::RowsOut;
use super::partial::{Journal, now};
use crate::error::{Error, Result};
use crate::files::Out;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

/// One row's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Place of the row in the input, counted from 0.
    pub row: u64,
    /// Hash of everything the answer depends on.
    pub input: u64,
    /// Not worth another try: served, or wrong in itself.
    pub done: bool,
    pub text: String,
}

/// Takes every row's answer exactly once, in any order.
pub enum Output {
    File(Journal),
    Stream(Ordered),
}

impl Output {
    /// # Errors
    /// The system refused.
    pub fn put(&mut self, answer: Answer) -> Result<()> {
        match self {
            Self::File(journal) => journal.put(answer.row, answer.input, answer.done, &answer.text),
            Self::Stream(ordered) => ordered.put(answer.row, !answer.done, answer.text),
        }
    }

    /// An earlier run's answer stands.
    pub fn keep(&mut self, row: u64, input: u64, place: Place) {
        match self {
            Self::File(journal) => journal.keep(row, input, place),
            Self::Stream(_) => unreachable!("only a file is resumed"),
        }
    }

    /// When the job began, in seconds since 1970: a stream's job begins now.
    pub fn created(&self) -> u64 {
        match self {
            Self::File(journal) => journal.created(),
            Self::Stream(_) => now(),
        }
    }

    /// Keeps how many sequences run at once, at most, where another run may go on from this one.
    pub fn note_max_seqs(&mut self, max_seqs: u32) {
        match self {
            Self::File(journal) => journal.note_max_seqs(max_seqs),
            Self::Stream(_) => {}
        }
    }

    /// Rows before this one are out for good, and answers of so many bytes wait for it; `None` where order costs no memory.
    pub fn written(&self) -> Option<(u64, u64)> {
        match self {
            Self::File(_) => None,
            Self::Stream(ordered) => Some((ordered.next, ordered.waiting_bytes)),
        }
    }

    /// Whether row `row` is the next to be written, where order counts.
    pub fn waits_for(&self, row: u64) -> bool {
        self.written().is_some_and(|(next, _)| next == row)
    }

    /// Writes the beginning, or more, of the answer that is next; [`Output::put`] then writes the rest.
    ///
    /// # Errors
    /// The system refused.
    pub fn show(&mut self, text: &str) -> Result<()> {
        match self {
            Self::File(_) => Ok(()),
            Self::Stream(ordered) => ordered.show(text),
        }
    }

    /// Ends the output. `whole`: every row has its answer.
    ///
    /// # Errors
    /// The system refused.
    pub fn finish(self, whole: bool) -> Result<()> {
        match self {
            Self::File(journal) if whole => journal.assemble(),
            // OUTPUT stays what it was, and the journal is there to resume from.
            Self::File(_) => Ok(()),
            Self::Stream(ordered) => {
                let (_, errors) = ordered.finish()?;
                let errors = errors.map(RowsOut::finish_out).transpose()?;
                errors.filter(|_| whole).map_or(Ok(()), Out::finish)
            }
        }
    }
}

/// Writes answers in input order as soon as all earlier ones are there.
pub struct Ordered<W = Box<dyn Write>> {
    out: W,
    path: PathBuf,
    next: u64,
    /// Answers by row, and whether these failed.
    waiting: BTreeMap<u64, (bool, Box<str>)>,
    waiting_bytes: u64,
    /// Bytes of the next answer that are written already.
    shown: usize,
    /// Stands between two answers.
    separator: &'static str,
    /// Where rows that failed go in place of `out`.
    pub errors: Option<RowsOut>,
}

impl Ordered {
    /// `path` names the stream in errors.
    pub fn new(out: Box<dyn Write>, path: impl Into<PathBuf>, separator: &'static str) -> Self {
        Self::onto(out, path, separator)
    }
}

impl<W: Write> Ordered<W> {
    /// Onto something that comes back at the end.
    pub fn onto(out: W, path: impl Into<PathBuf>, separator: &'static str) -> Self {
        Self {
            out,
            path: path.into(),
            next: 0,
            waiting: BTreeMap::new(),
            waiting_bytes: 0,
            shown: 0,
            separator,
            errors: None,
        }
    }

    /// # Errors
    /// The system refused.
    pub fn put(&mut self, row: u64, failed: bool, text: String) -> Result<()> {
        self.waiting_bytes += text.len() as u64;
        self.waiting.insert(row, (failed, text.into()));
        while let Some((failed, text)) = self.waiting.remove(&self.next) {
            self.waiting_bytes -= text.len() as u64;
            self.write(failed, &text)?;
            self.next += 1;
        }
        self.out
            .flush()
            .map_err(|error| Error::io(&self.path, error))
    }

    fn show(&mut self, text: &str) -> Result<()> {
        // A token whose text is held back shows nothing, and no separator either.
        if text.is_empty() {
            return Ok(());
        }
        let separator = self.separator_before();
        self.shown += text.len();
        write!(self.out, "{separator}{text}")
            .and_then(|()| self.out.flush())
            .map_err(|error| Error::io(&self.path, error))
    }

    /// What is written before the next piece of the next answer.
    fn separator_before(&self) -> &'static str {
        if self.next == 0 || self.shown > 0 {
            ""
        } else {
            self.separator
        }
    }

    fn write(&mut self, failed: bool, text: &str) -> Result<()> {
        if let Some(errors) = self.errors.as_mut().filter(|_| failed) {
            errors.put(format!("{text}\n").as_bytes())?;
            let flushed = errors.flush();
            return flushed.map_err(|error| Error::io(errors.name(), error));
        }
        let separator = self.separator_before();
        // One that failed half-way has no text.
        let rest = text.get(self.shown..).unwrap_or_default();
        self.shown = 0;
        writeln!(self.out, "{separator}{rest}").map_err(|error| Error::io(&self.path, error))
    }

    /// What was written to, and where errors went. After an early end rows may be missing: the others still come in order.
    ///
    /// # Errors
    /// The system refused.
    pub fn finish(mut self) -> Result<(W, Option<RowsOut>)> {
        while let Some((row, (failed, text))) = self.waiting.pop_first() {
            self.next = row;
            self.write(failed, &text)?;
        }
        match self.out.flush() {
            Ok(()) => Ok((self.out, self.errors)),
            Err(error) => Err(Error::io(&self.path, error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_was_shown_in_part_is_written_once() {
        let mut ordered = Ordered::onto(Vec::new(), "test", "\n");
        ordered.put(0, false, "one".to_owned()).unwrap();
        // Text may be held back for some tokens.
        for piece in ["", "", "t", "", "w"] {
            ordered.show(piece).unwrap();
        }
        ordered.put(1, false, "two".to_owned()).unwrap();
        ordered.put(2, false, "three".to_owned()).unwrap();
        let (written, _) = ordered.finish().unwrap();
        assert_eq!(String::from_utf8(written).unwrap(), "one\n\ntwo\n\nthree\n");
    }
}
