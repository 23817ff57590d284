//! The host's end of the logits ring (kernels/step/deliver.cu): a thread that takes tiles as the GPU posts them and hands
//! their rows to the sink, so that the same step delivers logits whoever launched it.

use crate::backend::cuda::driver::Address;
use crate::backend::cuda::families::head::LogitsRing;
use crate::backend::cuda::memory::pinned::Pinned;
use crate::backend::{LogitsSink, SharedRegion};
use crate::error::{Error, Result, said_by_panic};
use cudarc::driver::CudaContext;
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Tiles in the ring, the same number that kernels/step/deliver.cu has.
const TILES: usize = 2;
const TAKEN_AT: usize = 128;
const HEAD_BYTES: usize = 256;
/// Between two looks at an empty ring.
const PAUSE: Duration = Duration::from_micros(20);

/// `LogitsLine` of kernels/step/deliver.cu.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct LogitsLine {
    request: u64,
    position: u32,
    wanted: u32,
}

/// Byte offsets in the ring.
#[derive(Debug, Clone, Copy)]
struct Layout {
    lines: usize,
    vocabulary: usize,
}

impl Layout {
    fn line_bytes(self) -> usize {
        (self.lines * size_of::<LogitsLine>()).next_multiple_of(256)
    }

    fn tile_bytes(self) -> usize {
        self.line_bytes() + (self.lines * self.vocabulary * size_of::<f32>()).next_multiple_of(256)
    }

    fn tile(self, number: u64) -> usize {
        HEAD_BYTES + (number % TILES as u64) as usize * self.tile_bytes()
    }

    fn bytes(self) -> usize {
        HEAD_BYTES + TILES * self.tile_bytes()
    }
}

/// A sink's failure on its way to whoever runs the steps.
#[derive(Debug, Default)]
struct Failure {
    message: Mutex<Option<String>>,
    /// Somebody knows.
    reported: AtomicBool,
}

/// What the thread has.
struct Taker {
    layout: Layout,
    memory: Arc<Pinned>,
    sink: Arc<dyn LogitsSink>,
    failure: Arc<Failure>,
    end: Arc<AtomicBool>,
    hold: bool,
}

/// Bytes of pinned memory that a [`Delivery`] takes for tiles of up to `lines` rows `[vocabulary]`.
pub fn pinned_bytes(lines: usize, vocabulary: usize) -> usize {
    Layout { lines, vocabulary }.bytes()
}

/// The ring and its thread.
#[derive(Debug)]
pub struct Delivery {
    layout: Layout,
    memory: Arc<Pinned>,
    counter: Address,
    failure: Arc<Failure>,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Delivery {
    /// For tiles of up to `lines` rows `[vocabulary]`. `counter`: a zeroed u64 in device memory that lives as long as
    /// what is enqueued. `hold`: once the sink has failed, the GPU is let go on only
    /// after [`Delivery::check`] has said so, and no request ends without its logits; for a device that nobody waits
    /// for step by step. Elsewhere whoever waits for the step asks then.
    ///
    /// # Errors
    /// [`Error::Memory`] where there is not enough, pinned or the GPU's.
    pub fn new(
        context: &Arc<CudaContext>,
        counter: Address,
        lines: usize,
        vocabulary: usize,
        sink: Arc<dyn LogitsSink>,
        hold: bool,
    ) -> Result<Self> {
        let layout = Layout { lines, vocabulary };
        let memory = Pinned::new(context, layout.bytes())?;
        let failure = Arc::new(Failure::default());
        let end = Arc::new(AtomicBool::new(false));
        let taker = Taker {
            layout,
            memory: memory.clone(),
            sink,
            failure: failure.clone(),
            end: end.clone(),
            hold,
        };
        let thread = std::thread::Builder::new()
            .name("logits".into())
            .spawn(move || taker.run())
            .map_err(|error| Error::thread(&error))?;
        Ok(Self {
            layout,
            memory,
            counter,
            failure,
            end,
            thread: Some(thread),
        })
    }

    /// What kernels are given.
    pub fn ring(&self) -> LogitsRing {
        LogitsRing {
            ring: self.memory.device(),
            counter: self.counter,
            lines: self.layout.lines as u32,
        }
    }

    /// # Errors
    /// What the sink said when it failed.
    pub fn check(&self) -> Result<()> {
        let message = self.failure.message.lock().clone();
        match message {
            None => Ok(()),
            Some(message) => {
                self.failure.reported.store(true, Ordering::Release);
                Err(Error::Runtime(message))
            }
        }
    }
}

impl Drop for Delivery {
    /// Nothing on the GPU uses the ring any more.
    fn drop(&mut self) {
        self.end.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // It ends by itself: what a sink does wrong is its failure (`Taker::run`).
            let _ = thread.join();
        }
    }
}

impl Taker {
    fn run(&self) {
        let (posted, taken) = (self.word(0), self.word(TAKEN_AT));
        let mut number = 0;
        while !self.end.load(Ordering::Acquire) {
            if posted.load(Ordering::Acquire) == number {
                std::thread::sleep(PAUSE);
                continue;
            }
            if self.failure.message.lock().is_none()
                && let Err(message) = self.taken(number)
            {
                *self.failure.message.lock() = Some(message);
                while self.hold && !self.failure.reported.load(Ordering::Acquire) {
                    if self.end.load(Ordering::Acquire) {
                        return;
                    }
                    std::thread::sleep(PAUSE);
                }
            }
            number += 1;
            taken.store(number, Ordering::Release);
        }
    }

    /// Calls [`Self::take`] and puts a failure into words, a panic too: whoever waits for a tile would wait for ever.
    fn taken(&self, number: u64) -> std::result::Result<(), String> {
        match catch_unwind(AssertUnwindSafe(|| self.take(number))) {
            Ok(taken) => taken.map_err(|error| error.to_string()),
            Err(panic) => Err(format!("logits panicked: {}", said_by_panic(&*panic))),
        }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: inside the allocation, which `self` keeps, and aligned; both sides touch the word atomically only.
        unsafe { AtomicU64::from_ptr(self.memory.start().as_ptr().add(at).cast()) }
    }

    /// Hands the rows of a posted tile over, those of one request and consecutive positions at once.
    fn take(&self, number: u64) -> Result<()> {
        let vocabulary = self.layout.vocabulary;
        let slot = (number % TILES as u64) as usize;
        let count = self
            .word((1 + slot) * size_of::<u64>())
            .load(Ordering::Relaxed) as usize;
        assert!(count <= self.layout.lines);
        // SAFETY: inside the allocation and aligned; the GPU wrote this tile before it posted it, and leaves it
        // alone until it is taken.
        let (lines, logits) = unsafe {
            let tile = self
                .memory
                .start()
                .as_ptr()
                .add(self.layout.tile(number))
                .cast_const();
            let logits = tile.add(self.layout.line_bytes()).cast::<f32>();
            (
                std::slice::from_raw_parts(tile.cast::<LogitsLine>(), count),
                std::slice::from_raw_parts(logits, count * vocabulary),
            )
        };
        let follows = |a: &LogitsLine, b: &LogitsLine| {
            a.wanted == b.wanted && a.request == b.request && a.position + 1 == b.position
        };
        let mut first = 0;
        for run in lines.chunk_by(follows) {
            let end = first + run.len();
            if run[0].wanted != 0 {
                let rows = &logits[first * vocabulary..end * vocabulary];
                self.sink.rows(run[0].request, run[0].position, rows)?;
            }
            first = end;
        }
        Ok(())
    }
}
