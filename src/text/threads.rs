//! Threads for text work, which may never end: a template and a tokenizer.json are programs that nobody has checked.
//!
//! A thread cannot be stopped from outside. One that is past its deadline is left behind, and its work is an error. At most
//! `MOST` threads do text work at the same time. While all of them are past their deadlines, further work is refused
//! without waiting.

use parking_lot::{Condvar, Mutex};
use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// The time that text work has without `--text-timeout`.
pub const DEFAULT_LIMIT: Duration = Duration::from_secs(5);
/// The most threads that do text work at the same time, those left behind among them.
const MOST: usize = 8;
/// The stack of such a thread: parsers, compilers and values recurse as deep as the bounds on a template allow. Pages are
/// taken only when they are touched.
const STACK_BYTES: usize = 256 << 20;

/// A program of a checkpoint that text work may hang in.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part {
    Tokenizer,
    Template,
}

/// The name of each [`Part`] in messages.
const NAMES: [&str; 2] = ["tokenizer.json", "the chat template"];

/// Why text work came to nothing, on one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Late {
    /// The work is past its deadline.
    #[error("{0}")]
    Over(String),
    /// The work was not begun: another try may succeed.
    #[error("{0}")]
    NoThread(String),
}

/// The threads of a run; clones share one bound.
#[derive(Clone)]
pub struct Threads(Arc<Inner>);

struct Inner {
    limit: Duration,
    busy: Mutex<Vec<Arc<Busy>>>,
    /// A thread has left `busy`.
    left: Condvar,
}

/// One thread at work.
pub struct Busy {
    since: Instant,
    /// The [`Part`] that the thread is in, as a number.
    part: AtomicUsize,
}

/// The right to do text work, until it is dropped.
pub struct Place {
    threads: Threads,
    pub busy: Arc<Busy>,
}

thread_local! {
    /// This thread's work, where it has a deadline.
    static HERE: RefCell<Option<Arc<Busy>>> = const { RefCell::new(None) };
    /// Whether this thread's stack is deep enough for text work.
    static IS_DEEP: Cell<bool> = const { Cell::new(false) };
}

impl Threads {
    /// Threads whose work has the time `limit`.
    pub fn new(limit: Duration) -> Self {
        Self(Arc::new(Inner {
            limit,
            busy: Mutex::default(),
            left: Condvar::new(),
        }))
    }

    /// What `work` gives, done on a thread of its own.
    ///
    /// # Errors
    /// The work is not done by the deadline, or there was no thread.
    pub fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Late> {
        let place = self.enter()?;
        let busy = place.busy.clone();
        let (send, receive) = channel();
        let thread = start("text", move || {
            place.take();
            let done = work();
            drop(place);
            // Nobody receives what comes past the deadline.
            drop(send.send(done));
        });
        let thread = thread.map_err(|error| Late::NoThread(no_thread(&error)))?;
        match receive.recv_timeout(self.0.limit) {
            Ok(done) => Ok(done),
            Err(RecvTimeoutError::Timeout) => Err(self.over(&busy)),
            Err(RecvTimeoutError::Disconnected) => match thread.join() {
                Err(panic) => resume_unwind(panic),
                Ok(()) => unreachable!("it sends before it ends"),
            },
        }
    }

    /// A place, for which this waits while all are taken.
    ///
    /// # Errors
    /// Every thread is past its deadline.
    pub fn enter(&self) -> Result<Place, Late> {
        let mut all = self.0.busy.lock();
        while all.len() >= MOST {
            let left = all.iter().map(|busy| self.left(busy)).max();
            let left = left.unwrap_or_default();
            if left.is_zero() {
                return Err(self.all_hang(&all));
            }
            self.0.left.wait_for(&mut all, left);
        }
        let busy = Arc::new(Busy {
            since: Instant::now(),
            part: AtomicUsize::new(Part::Tokenizer as usize),
        });
        all.push(busy.clone());
        Ok(Place {
            threads: self.clone(),
            busy,
        })
    }

    /// The time that `busy` has left.
    pub fn left(&self, busy: &Busy) -> Duration {
        self.0.limit.saturating_sub(busy.since.elapsed())
    }

    /// Whether `busy` has had one part in `share` of its time.
    pub fn has_had(&self, busy: &Busy, share: u32) -> bool {
        busy.since.elapsed() >= self.0.limit / share
    }

    /// The error of work that is past its deadline.
    pub fn over(&self, busy: &Busy) -> Late {
        Late::Over(format!(
            "{} is not done after {} s, expected it to be done by then: mend it, shorten the text, or give it more time with --text-timeout",
            NAMES[busy.part.load(Ordering::Relaxed)],
            self.0.limit.as_secs_f64()
        ))
    }

    fn all_hang(&self, all: &[Arc<Busy>]) -> Late {
        let mut at = String::new();
        for (part, name) in NAMES.iter().enumerate() {
            let is_there = |busy: &&Arc<Busy>| busy.part.load(Ordering::Relaxed) == part;
            match all.iter().filter(is_there).count() {
                0 => {}
                count => {
                    let and = if at.is_empty() { "" } else { ", " };
                    let _ = write!(at, "{and}{count} in {name}");
                }
            }
        }
        Late::NoThread(format!(
            "all {MOST} threads for text are past their deadline of {} s ({at}), expected one that is free: rows of input_ids are served all the same; --text-timeout gives text more time",
            self.0.limit.as_secs_f64()
        ))
    }
}

impl Place {
    /// Makes this thread the one that does the place's work.
    pub fn take(&self) {
        HERE.set(Some(self.busy.clone()));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.threads.0.busy.lock();
        all.retain(|busy| !Arc::ptr_eq(busy, &self.busy));
        self.threads.0.left.notify_one();
    }
}

/// Notes that this thread goes on with `part`.
pub(super) fn at(part: Part) {
    HERE.with_borrow(|here| {
        if let Some(busy) = here {
            busy.part.store(part as usize, Ordering::Relaxed);
        }
    });
}

/// Starts a thread whose stack is deep enough for text work.
///
/// # Errors
/// The system refused it.
pub fn start(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    deep(name).spawn(move || {
        IS_DEEP.set(true);
        work();
    })
}

fn deep(name: &str) -> Builder {
    Builder::new().name(name.to_owned()).stack_size(STACK_BYTES)
}

/// Runs `work` where the stack is deep enough for text work: here, or on a thread of its own.
///
/// # Errors
/// There was no thread.
pub(super) fn on_a_deep_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    if IS_DEEP.get() {
        return Ok(work());
    }
    std::thread::scope(|scope| {
        let thread = deep("text").spawn_scoped(scope, work);
        let thread = thread.map_err(|error| no_thread(&error))?;
        thread.join().map_err(|panic| resume_unwind(panic))
    })
}

fn no_thread(error: &std::io::Error) -> String {
    format!(
        "the system refused a thread for text: {error}; expected room for one with a stack of {} MiB",
        STACK_BYTES >> 20
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn work_past_its_deadline_is_left_behind_and_its_thread_serves_again_once_it_ends() {
        let threads = Threads::new(Duration::from_millis(50));
        let hold = Arc::new(AtomicBool::new(true));
        for _ in 0..MOST {
            let hold = hold.clone();
            let late = threads.run(move || {
                at(Part::Template);
                while hold.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let Err(Late::Over(message)) = late else {
                panic!("{late:?}");
            };
            assert!(message.contains("the chat template is not done after 0.05 s"));
        }
        let began = Instant::now();
        let refused = threads.run(|| ()).unwrap_err().to_string();
        assert!(refused.contains("all 8 threads") && refused.contains("8 in the chat template"));
        assert!(began.elapsed() < Duration::from_millis(40), "at once");
        hold.store(false, Ordering::Relaxed);
        while threads.run(|| ()).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn work_waits_for_a_thread_while_one_is_within_its_deadline() {
        let threads = Threads::new(Duration::from_secs(60));
        let places: Vec<Place> = (0..MOST).map(|_| threads.enter().unwrap()).collect();
        let other = threads.clone();
        let waits = std::thread::spawn(move || other.run(|| 7));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waits.is_finished());
        drop(places);
        assert_eq!(waits.join().unwrap(), Ok(7));
    }
}
