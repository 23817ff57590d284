//! Trace events as text. One event a line, so that a file that was cut off can still be read by eye; times are written
//! as microseconds with three decimals, counted from the trace's own zero.

use crate::error::{Error, Result};
use crate::files::{self, Unfinished};
use serde::Serialize;
use serde_json::json;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// The process of the device: its scheduler and its stages.
pub(super) const DEVICE: u32 = 1;

/// Where slices are drawn: a thread of a process. Thread numbers are unique over all processes, and none is its
/// process's, since viewers take that one for the main thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Track {
    pub process: u32,
    pub thread: u32,
}

#[derive(Serialize)]
struct Event<'a, A> {
    ph: &'static str,
    name: &'a str,
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    tid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    /// An arrow's: the same at both its ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    /// `e`: the arrow ends at the slice that is open there.
    #[serde(skip_serializing_if = "Option::is_none")]
    bp: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id2: Option<Id>,
    args: A,
}

impl<'a, A> Event<'a, A> {
    /// Thread 0: of the process as a whole.
    fn new(ph: &'static str, name: &'a str, track: Track, args: A) -> Self {
        Self {
            ph,
            name,
            pid: track.process,
            tid: (track.thread > 0).then_some(track.thread),
            ts: None,
            dur: None,
            cat: None,
            id: None,
            bp: None,
            id2: None,
            args,
        }
    }
}

/// The identity of a track that nests, within its process: Perfetto shows one without a process outside of all.
#[derive(Serialize)]
struct Id {
    local: String,
}

/// No arguments.
#[derive(Serialize)]
struct Nothing {}

const START: &str = "{\"traceEvents\":[\n";

/// A trace file that is being written: FILE.partial until it is whole.
pub struct Out {
    out: BufWriter<files::Out>,
    path: PathBuf,
    empty: bool,
    zero_ns: i128,
}

/// Exact to the nanosecond for the first hundred days: f64 has 53 bits.
fn us(ns: i128) -> f64 {
    ns as f64 / 1e3
}

impl Out {
    /// # Errors
    /// The file cannot be written, or another run is writing it.
    pub fn create(path: &Path, unfinished: Unfinished) -> Result<Self> {
        let out = files::Out::open(path, unfinished)?;
        Ok(Self {
            path: out.name().to_owned(),
            out: BufWriter::with_capacity(1 << 18, out),
            empty: true,
            zero_ns: 0,
        })
    }

    /// Which time of the scheduler's clock is the trace's 0. To be said before the first event that has a time.
    pub fn set_zero(&mut self, zero_ns: i128) {
        self.zero_ns = zero_ns;
    }

    pub fn zero_ns(&self) -> i128 {
        self.zero_ns
    }

    fn text(&mut self, text: &str) -> Result<()> {
        self.out
            .write_all(text.as_bytes())
            .map_err(|error| Error::io(&self.path, error))
    }

    fn put<A: Serialize>(&mut self, event: &Event<'_, A>) -> Result<()> {
        let first = std::mem::replace(&mut self.empty, false);
        self.text(if first { START } else { ",\n" })?;
        serde_json::to_writer(&mut self.out, event)
            .map_err(|error| Error::io(&self.path, error.into()))
    }

    /// The time of an event at `at_ns` of the scheduler's clock.
    fn ts(&self, at_ns: i128) -> Option<f64> {
        Some(us(at_ns - self.zero_ns))
    }

    fn named(&mut self, what: [&str; 2], track: Track, name: &str, order: u32) -> Result<()> {
        let [named, sorted] = what;
        self.put(&Event::new("M", named, track, json!({ "name": name })))?;
        let order = json!({ "sort_index": order });
        self.put(&Event::new("M", sorted, track, order))
    }

    /// Names a process; viewers put it at place `order`.
    ///
    /// # Errors
    /// The file cannot be written; so everywhere below.
    pub fn process(&mut self, process: u32, name: &str, order: u32) -> Result<()> {
        let track = Track { process, thread: 0 };
        self.named(["process_name", "process_sort_index"], track, name, order)
    }

    /// Names a track; viewers order them by their numbers.
    pub fn thread(&mut self, track: Track, name: &str) -> Result<()> {
        let what = ["thread_name", "thread_sort_index"];
        self.named(what, track, name, track.thread)
    }

    /// From `from_ns` to `to_ns` of the scheduler's clock.
    pub fn slice(
        &mut self,
        track: Track,
        name: &str,
        (from_ns, to_ns): (i128, i128),
        args: impl Serialize,
    ) -> Result<()> {
        self.put(&Event {
            ts: self.ts(from_ns),
            dur: Some(us(to_ns - from_ns)),
            ..Event::new("X", name, track, args)
        })
    }

    /// An arrow between two slices: each of its times is within one of its track. No other has this `id`.
    pub fn arrow(&mut self, id: u64, from: (Track, i128), to: (Track, i128)) -> Result<()> {
        for (ph, bp, (track, at_ns)) in [("s", None, from), ("f", Some("e"), to)] {
            self.put(&Event {
                cat: Some("hand-over"),
                id: Some(id),
                bp,
                ts: self.ts(at_ns),
                ..Event::new(ph, "hand-over", track, Nothing {})
            })?;
        }
        Ok(())
    }

    /// A counter of a process has this value from here on.
    pub fn counter(
        &mut self,
        process: u32,
        name: &str,
        unit: &str,
        at_ns: i128,
        value: u64,
    ) -> Result<()> {
        let track = Track { process, thread: 0 };
        let args = serde_json::Map::from_iter([(unit.to_owned(), value.into())]);
        self.put(&Event {
            ts: self.ts(at_ns),
            ..Event::new("C", name, track, args)
        })
    }

    /// The track `id` of a process has a slice; slices of a track nest, the outer one written first.
    pub fn nested(
        &mut self,
        (process, id): (u32, u64),
        name: &str,
        (from_ns, to_ns): (u64, u64),
        args: impl Serialize,
        inside: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let track = Track { process, thread: 0 };
        let local = || format!("0x{id:x}");
        self.put(&Event {
            cat: Some("request"),
            id2: Some(Id { local: local() }),
            ts: self.ts(from_ns.into()),
            ..Event::new("b", name, track, args)
        })?;
        inside(self)?;
        self.put(&Event {
            cat: Some("request"),
            id2: Some(Id { local: local() }),
            ts: self.ts(to_ns.into()),
            ..Event::new("e", name, track, Nothing {})
        })
    }

    /// Ends the text; `about` goes where viewers show it. It comes last: Perfetto reads no further than a key that it
    /// does not know, and what it says is known only now. What comes back has yet to be given its name.
    pub fn end(mut self, about: &impl Serialize) -> Result<files::Out> {
        if self.empty {
            self.text(START)?;
        }
        self.text("\n],\n\"otherData\":")?;
        serde_json::to_writer(&mut self.out, about)
            .map_err(|error| Error::io(&self.path, error.into()))?;
        self.text("}\n")?;
        let out = self.out.into_inner();
        out.map_err(|error| Error::io(&self.path, error.into_error()))
    }
}
