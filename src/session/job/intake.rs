//! Rows on their way from the input to the device.

use super::asked::Asked;
use super::{EVENT_POLL, Fault, Part, Run, lost};
use crate::error::Result;
use crate::io::source::{Todo, Work};
use crate::runtime::Engine;
use std::time::{Duration, Instant};

const INPUT_POLL: Duration = Duration::from_millis(50);
/// Rows that wait here, so that the first with a prefix is handed over knowing that others have it too.
const ROWS_AHEAD: usize = 64;
/// The same where rows that begin alike go to one of several replicas: they are looked for among so many.
const ROWS_AHEAD_OF_REPLICAS: usize = 512;
/// Sequences that one replica takes together, at most, however few of them it has room for.
const ALIKE: usize = 32;
/// How long the first row of a job waits for others, while the device has nothing to do.
const AHEAD_WAIT: Duration = Duration::from_millis(20);
/// Rows handed over in one go before events, interrupts and progress have their turn.
const ROWS_A_TURN: usize = 256;
/// Bytes of answers that may wait for earlier ones, for each row of the window.
const ANSWER_BYTES: u64 = 64 << 10;

impl Run<'_> {
    /// Hands rows to the device while both have room.
    pub(super) fn fill(&mut self, engine: &mut dyn Engine) -> std::result::Result<(), Fault> {
        for _ in 0..ROWS_A_TURN {
            let Some(work) = self.pull() else { break };
            let room = match self.job.output.written() {
                Some((next, waiting_bytes)) => {
                    work.row == next
                        || work.row < next + self.job.window
                            && waiting_bytes < self.job.window * ANSWER_BYTES
                }
                None => (self.sequences.len() as u64) < self.job.window,
            };
            if !room {
                let is_oldest = self.held.iter().all(|other| work.row < other.row);
                self.put_back(work);
                if !is_oldest {
                    // Only the oldest row makes room.
                    self.held.make_contiguous().sort_by_key(|work| work.row);
                    self.alike = 0;
                }
                if self.sequences.is_empty() {
                    // The oldest row is in its text work.
                    std::thread::sleep(EVENT_POLL);
                }
                break;
            }
            if !matches!(work.todo, Todo::Run(_)) {
                self.settle(work).map_err(Fault::Output)?;
                continue;
            }
            if let Some(work) = self.submit(engine, work)? {
                self.put_back(work);
                break;
            }
        }
        Ok(())
    }

    /// Hands a row's sequences to the device; the row with those for which there is no room.
    pub(super) fn submit(
        &mut self,
        engine: &mut dyn Engine,
        mut work: Work,
    ) -> std::result::Result<Option<Work>, Fault> {
        let Todo::Run(waiting) = &mut work.todo else {
            return Ok(Some(work));
        };
        if self.rows.get(&work.row).is_some_and(Asked::has_failed) {
            self.drop_rest(work).map_err(Fault::Output)?;
            return Ok(None);
        }
        let sequences = waiting.left();
        let mut left = sequences;
        while let Some(prepared) = waiting.peek() {
            prepared.request.borders = self.job.prefixes.borders(&prepared.request.prompt);
            let behind = self.behind.map(|behind| behind + left - 1);
            prepared.request.followers = behind.unwrap_or(0).min(ALIKE - 1) as u32;
            match engine.try_submit(&prepared.request) {
                Ok(Some(request)) => {
                    let asked = self
                        .rows
                        .entry(work.row)
                        .or_insert_with(|| Asked::new(work.input, work.label.clone(), sequences));
                    let part = Part {
                        row: work.row,
                        choice: asked.taken(request),
                    };
                    self.sequences
                        .enter(request, prepared, self.job.codec, part);
                    waiting.take();
                    left -= 1;
                }
                Ok(None) => return Ok(Some(work)),
                Err(error) => {
                    // Taken from the input, so it is among the rows that the device failed.
                    if !self.rows.contains_key(&work.row) {
                        self.fail(work.row, work.input, &work.label, &lost(&error))
                            .map_err(Fault::Output)?;
                    }
                    return Err(Fault::Device(error));
                }
            }
        }
        Ok(None)
    }

    /// The rest of a row that waits for room is no longer wanted.
    pub(super) fn drop_rest(&mut self, work: Work) -> Result<()> {
        if let (Todo::Run(waiting), Some(asked)) = (&work.todo, self.rows.get_mut(&work.row)) {
            asked.never_began(waiting.left());
            return self.close_if_over(work.row);
        }
        Ok(())
    }

    /// The next row, if one is there. Waits for one only while nothing else is going on.
    pub(super) fn pull(&mut self) -> Option<Work> {
        if self.cancelled {
            return None;
        }
        self.behind = None;
        if let Some(work) = self.job.rows.overtaken() {
            self.expect(&work);
            return Some(work);
        }
        self.take_in();
        if self.together && self.alike == 0 {
            self.alike = self.gather();
        }
        let next = self.held.pop_front();
        if self.alike > 0 {
            self.alike -= 1;
            let others = self.held.iter().take(self.alike);
            self.behind = Some(others.map(sequences_of).sum());
        }
        let idle = self.sequences.is_empty();
        if next.is_none() && self.exhausted && idle && !self.job.rows.none_overtaken() {
            std::thread::sleep(INPUT_POLL);
        }
        next
    }

    /// Puts a row back that was pulled.
    fn put_back(&mut self, work: Work) {
        self.held.push_front(work);
        self.alike = self.behind.take().map_or(0, |_| self.alike + 1);
    }

    /// Moves rows that begin as the first one does right behind it, in their order. How many they are with it: 0 where it shares
    /// nothing.
    fn gather(&mut self) -> usize {
        let Some(Todo::Run(first)) = self.held.front().map(|work| &work.todo) else {
            return 0;
        };
        let Some((prompt, _)) = first.prompts().next() else {
            return 0;
        };
        let borders = self.job.prefixes.borders(prompt);
        let Some(prefix) = borders
            .last()
            .map(|last| prompt[..last.tokens as usize].to_vec())
        else {
            return 0;
        };
        let begins_so = |work: &Work| match &work.todo {
            Todo::Run(waiting) => waiting
                .prompts()
                .all(|(prompt, _)| prompt.starts_with(&prefix)),
            _ => false,
        };
        if !begins_so(&self.held[0]) {
            return 0;
        }
        let (mut rows, mut sequences) = (1, sequences_of(&self.held[0]));
        for at in 1..self.held.len() {
            if sequences >= ALIKE {
                break;
            }
            if begins_so(&self.held[at])
                && let Some(work) = self.held.remove(at)
            {
                sequences += sequences_of(&work);
                self.held.insert(rows, work);
                rows += 1;
            }
        }
        rows
    }

    /// Takes rows from the input that are there: one, or as many as are looked at ahead.
    fn take_in(&mut self) {
        let ahead = match (self.job.prefixes.any(), self.together) {
            (false, _) => 1,
            (true, false) => ROWS_AHEAD,
            (true, true) => ROWS_AHEAD_OF_REPLICAS,
        };
        let mut start = Instant::now();
        while !self.exhausted && self.held.len() < ahead {
            let wait = if !self.sequences.is_empty() {
                Duration::ZERO
            } else if self.held.is_empty() {
                INPUT_POLL
            } else if self.counts.rows == 0 {
                AHEAD_WAIT.saturating_sub(start.elapsed())
            } else {
                Duration::ZERO
            };
            match self.job.rows.next(wait) {
                Ok(Ok(Some(work))) => {
                    if self.held.is_empty() {
                        start = Instant::now();
                    }
                    self.expect(&work);
                    self.held.push_back(work);
                }
                Ok(Ok(None)) => self.exhausted = true,
                Ok(Err(error)) => {
                    self.input_failure = Some(error);
                    self.exhausted = true;
                }
                Err(_) => break,
            }
        }
    }

    /// The row's sequences are to come.
    fn expect(&mut self, work: &Work) {
        if let Todo::Run(waiting) = &work.todo {
            for (prompt, sequences) in waiting.prompts() {
                self.job.prefixes.expect(prompt, sequences);
            }
        }
    }

    /// A row that needs no device.
    pub(super) fn settle(&mut self, work: Work) -> Result<()> {
        match work.todo {
            Todo::Kept(place) => {
                self.counts.rows += 1;
                self.counts.kept += 1;
                self.job.output.keep(work.row, work.input, place);
                Ok(())
            }
            Todo::Fail(error) => self.fail(work.row, work.input, &work.label, &error),
            Todo::Run(_) => unreachable!("rows to run go to the device"),
        }
    }
}

/// Sequences of a row that the device is still to have.
fn sequences_of(work: &Work) -> usize {
    match &work.todo {
        Todo::Run(waiting) => waiting.left(),
        _ => 0,
    }
}
