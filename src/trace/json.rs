//! Trace events as text. One event a line, so that a file that was cut off can still be read by eye; times are written
//! as microseconds with three decimals, counted from the trace's own zero.

use crate::error::{Error, Result};
use crate::files::{self, Unfinished};
use serde::Serialize;
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
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    /// Of an arrow: the same at both its ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    /// `e`: the arrow ends at the slice that is open there.
    #[serde(skip_serializing_if = "Option::is_none")]
    bp: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id2: Option<Id>,
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    tid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    args: A,
}

/// Of a track that nests, within its process: Perfetto shows one without a process outside of all.
#[derive(Serialize)]
struct Id {
    local: String,
}

/// No arguments.
#[derive(Serialize)]
pub struct Nothing {}

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
        match std::mem::replace(&mut self.empty, false) {
            true => self.text(START)?,
            false => self.text(",\n")?,
        }
        serde_json::to_writer(&mut self.out, event)
            .map_err(|error| Error::io(&self.path, error.into()))
    }

    fn describe(&mut self, name: &str, track: Track, value: impl Serialize) -> Result<()> {
        self.put(&Event {
            ph: "M",
            name,
            cat: None,
            id: None,
            bp: None,
            id2: None,
            pid: track.process,
            tid: (track.thread > 0).then_some(track.thread),
            ts: None,
            dur: None,
            args: value,
        })
    }

    /// Names a process; viewers put it at place `order`.
    ///
    /// # Errors
    /// The file cannot be written; so everywhere below.
    pub fn process(&mut self, process: u32, name: &str, order: u32) -> Result<()> {
        let track = Track { process, thread: 0 };
        self.describe("process_name", track, serde_json::json!({ "name": name }))?;
        let order = serde_json::json!({ "sort_index": order });
        self.describe("process_sort_index", track, order)
    }

    /// Names a track; viewers order them by their numbers.
    pub fn thread(&mut self, track: Track, name: &str) -> Result<()> {
        self.describe("thread_name", track, serde_json::json!({ "name": name }))?;
        let order = serde_json::json!({ "sort_index": track.thread });
        self.describe("thread_sort_index", track, order)
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
            ph: "X",
            name,
            cat: None,
            id: None,
            bp: None,
            id2: None,
            pid: track.process,
            tid: Some(track.thread),
            ts: Some(us(from_ns - self.zero_ns)),
            dur: Some(us(to_ns - from_ns)),
            args,
        })
    }

    /// An arrow between two slices: each of its times is within one of its track. No other has this `id`.
    pub fn arrow(&mut self, id: u64, from: (Track, i128), to: (Track, i128)) -> Result<()> {
        for (ph, bp, (track, at_ns)) in [("s", None, from), ("f", Some("e"), to)] {
            self.put(&Event {
                ph,
                name: "hand-over",
                cat: Some("hand-over"),
                id: Some(id),
                bp,
                id2: None,
                pid: track.process,
                tid: Some(track.thread),
                ts: Some(us(at_ns - self.zero_ns)),
                dur: None,
                args: Nothing {},
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
        self.put(&Event {
            ph: "C",
            name,
            cat: None,
            id: None,
            bp: None,
            id2: None,
            pid: process,
            tid: None,
            ts: Some(us(at_ns - self.zero_ns)),
            dur: None,
            args: serde_json::Map::from_iter([(unit.to_owned(), value.into())]),
        })
    }

    /// The track `id` of a process begins or ends a slice; slices of a track nest.
    pub fn nested(
        &mut self,
        begin: bool,
        process: u32,
        id: u64,
        name: &str,
        at_ns: i128,
        args: impl Serialize,
    ) -> Result<()> {
        self.put(&Event {
            ph: if begin { "b" } else { "e" },
            name,
            cat: Some("request"),
            id: None,
            bp: None,
            id2: Some(Id {
                local: format!("0x{id:x}"),
            }),
            pid: process,
            tid: None,
            ts: Some(us(at_ns - self.zero_ns)),
            dur: None,
            args,
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
