//! Rows of the input with their texts as tokens, in order. A thread reads them and does their text work ([`Threads`]).
//! Where one takes long, another thread reads on, and the row comes behind others: once it is done, or as an error at its
//! deadline.

use super::codec::Codec;
use super::prepare::{Rules, prepare_all};
use super::row::{Prompt, RowError};
use super::source::{Source, Todo, Work};
use crate::error::{Error, Result};
use crate::text::Doubt;
use crate::text::threads::{self, Busy, Threads};
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// Rows read and tokenized ahead of the device.
const READ_AHEAD: usize = 64;
/// Others wait for a row for this part of its time, so that rows come in order wherever they can.
const WAITED_FOR: u32 = 10;

/// The end that takes the rows. It also looks after the deadlines, whenever it is asked for a row.
pub struct Rows {
    reading: Arc<Reading>,
    /// Ends with `None`, or with an error of the input.
    in_order: Receiver<Result<Option<Work>>>,
}

struct Reading {
    source: Mutex<Source>,
    rules: Rules,
    codec: Arc<Codec>,
    threads: Threads,
    in_order: SyncSender<Result<Option<Work>>>,
    texts: Mutex<Texts>,
    /// What the chat template may not show of a row, with the row's line. Who holds `source` warns of it: that may be a thread
    /// that waits for input.
    doubts: Mutex<Vec<(u64, Vec<Doubt>)>>,
}

#[derive(Default)]
struct Texts {
    made: Vec<Making>,
    /// Done behind their place in the order.
    late: Vec<Work>,
}

/// A row whose text work is going on.
struct Making {
    work: Work,
    busy: Arc<Busy>,
    /// Another thread reads on.
    overtaken: bool,
}

impl Rows {
    /// Begins to read `source`.
    ///
    /// # Errors
    /// The input is not that of the answers that are kept, or the system refused a thread.
    pub fn start(
        mut source: Source,
        rules: Rules,
        codec: Arc<Codec>,
        threads: Threads,
    ) -> Result<Self> {
        source.check_input()?;
        let (send, in_order) = sync_channel(READ_AHEAD);
        let rows = Self {
            reading: Arc::new(Reading {
                source: Mutex::new(source),
                rules,
                codec,
                threads,
                in_order: send,
                texts: Mutex::default(),
                doubts: Mutex::default(),
            }),
            in_order,
        };
        rows.read_on().map_err(|error| Error::thread(&error))?;
        Ok(rows)
    }

    /// The next row in order, `None` at the end. Rows that others have overtaken may still be to come: see
    /// [`Rows::overtaken`].
    ///
    /// # Errors
    /// Nothing came within `wait`.
    pub fn next(
        &self,
        wait: Duration,
    ) -> std::result::Result<Result<Option<Work>>, RecvTimeoutError> {
        self.in_order.recv_timeout(wait)
    }

    /// A row that others have overtaken and that is done, or past its deadline. To be asked for often.
    pub fn overtaken(&self) -> Option<Work> {
        let threads = &self.reading.threads;
        let mut texts = self.reading.texts.lock();
        for making in &mut texts.made {
            if !making.overtaken && threads.has_had(&making.busy, WAITED_FOR) {
                // Tried again at the next call where there is no thread.
                making.overtaken = self.read_on().is_ok();
            }
        }
        let is_over = |making: &Making| making.overtaken && threads.left(&making.busy).is_zero();
        if let Some(at) = texts.made.iter().position(is_over) {
            let Making { work, busy, .. } = texts.made.swap_remove(at);
            return Some(work.failed(threads.over(&busy).into()));
        }
        texts.late.pop()
    }

    /// No row is left that others have overtaken.
    pub fn none_overtaken(&self) -> bool {
        let texts = self.reading.texts.lock();
        texts.made.is_empty() && texts.late.is_empty()
    }

    /// Not joined: it may wait for standard input, or be left behind, and ends with the process.
    fn read_on(&self) -> std::io::Result<()> {
        let reading = self.reading.clone();
        let read = move || {
            if catch_unwind(AssertUnwindSafe(|| reading.read())).is_err() {
                let bug = "the thread that reads rows ended before the input did: this is a bug in tailgraph";
                drop(reading.in_order.send(Err(Error::Runtime(bug.to_owned()))));
            }
        };
        threads::start("reader", read).map(drop)
    }
}

impl Reading {
    /// Until the input ends, another thread reads on, or nobody takes rows any more.
    fn read(&self) {
        loop {
            let mut source = self.source.lock();
            let next = source.next_row();
            self.warn_doubts(&mut source);
            drop(source);
            let last = !matches!(next, Ok(Some(_)));
            let work = match next {
                Ok(Some((work, ask))) => {
                    let Some(work) = self.with_text(work, ask) else {
                        return;
                    };
                    Ok(Some(work))
                }
                Ok(None) => Ok(None),
                Err(error) => Err(error),
            };
            if self.in_order.send(work).is_err() || last {
                return;
            }
        }
    }

    fn warn_doubts(&self, source: &mut Source) {
        for (line, doubts) in self.doubts.lock().drain(..) {
            source.warn_doubts(line, doubts);
        }
    }

    /// `None`: others have overtaken the row.
    fn with_text(&self, mut work: Work, ask: Option<super::row::Ask>) -> Option<Work> {
        let Some(ask) = ask else { return Some(work) };
        let prepare = |row| match prepare_all(&self.rules, &self.codec, row, &ask) {
            Ok(prepared) => Todo::Run(prepared),
            Err(error) => Todo::Fail(error),
        };
        if !ask.has_text() {
            work.todo = prepare(work.row);
            return Some(work);
        }
        let place = match self.threads.enter() {
            Ok(place) => place,
            Err(late) => return Some(work.failed(late.into())),
        };
        place.take();
        let (row, line, busy) = (work.row, work.label.line, place.busy.clone());
        self.texts.lock().made.push(Making {
            work,
            busy: busy.clone(),
            overtaken: false,
        });
        let todo = prepare(row);
        if let Prompt::Messages(chat) = &ask.prompt {
            let doubts = self.codec.doubts(chat);
            if !doubts.is_empty() {
                self.doubts.lock().push((line, doubts));
            }
            if let Some(mut source) = self.source.try_lock() {
                self.warn_doubts(&mut source);
            }
        }
        drop(place);
        let mut texts = self.texts.lock();
        let is_this = |making: &Making| Arc::ptr_eq(&making.busy, &busy);
        // Not there: its deadline has answered it.
        let at = texts.made.iter().position(is_this)?;
        let Making {
            mut work,
            overtaken,
            ..
        } = texts.made.swap_remove(at);
        work.todo = todo;
        if overtaken {
            texts.late.push(work);
            return None;
        }
        Some(work)
    }
}

impl Work {
    fn failed(mut self, error: RowError) -> Self {
        self.todo = Todo::Fail(error);
        self
    }
}
