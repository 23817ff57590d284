//! Trace events as text. One event a line, so that a file that was cut off can still be read by eye; times are written
//! as microseconds with three decimals, counted from the trace's own zero.

use crate::error::{Error, Result};
use crate::files::{self, Unfinished};
use serde::Serialize;
use serde_json::{Value, json};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// The process of the device: its scheduler and its stages.
pub(super) const DEVICE: u32 = 1;
/// The process of requests' tracks.
pub(super) const REQUESTS: u32 = 2;

/// Where slices are drawn: a process, and a thread of it. Thread numbers are unique over all processes, and none is its
/// process's, since viewers take that one for the main thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Track(pub u32, pub u32);

/// Slices are most of a trace; other events are made as JSON values.
#[derive(Serialize)]
struct Slice<'a, A> {
    ph: &'static str,
    name: &'a str,
    pid: u32,
    tid: u32,
    ts: f64,
    dur: f64,
    args: A,
}

/// A trace file that is being written: FILE.partial until it is whole.
pub struct Out {
    out: BufWriter<files::Out>,
    path: PathBuf,
    empty: bool,
    /// Which time of the scheduler's clock is the trace's 0: to be said before the first event that has a time.
    pub zero_ns: Option<i128>,
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
            zero_ns: None,
        })
    }

    fn json(&mut self, before: &str, value: &impl Serialize) -> Result<()> {
        self.out
            .write_all(before.as_bytes())
            .and_then(|()| Ok(serde_json::to_writer(&mut self.out, value)?))
            .map_err(|error| Error::io(&self.path, error))
    }

    fn put(&mut self, event: &impl Serialize) -> Result<()> {
        let first = std::mem::replace(&mut self.empty, false);
        let before = if first { "{\"traceEvents\":[\n" } else { ",\n" };
        self.json(before, event)
    }

    /// The time of an event at `at_ns` of the scheduler's clock.
    fn ts(&self, at_ns: i128) -> f64 {
        us(at_ns - self.zero_ns.unwrap_or(0))
    }

    /// Names a process; viewers put it at place `order`.
    ///
    /// # Errors
    /// The file cannot be written; so everywhere below.
    pub fn process(&mut self, pid: u32, name: &str, order: u32) -> Result<()> {
        self.named("process", json!({ "pid": pid }), name, order)
    }

    /// Names a track; viewers order them by their numbers.
    pub fn thread(&mut self, Track(pid, tid): Track, name: &str) -> Result<()> {
        self.named("thread", json!({ "pid": pid, "tid": tid }), name, tid)
    }

    fn named(&mut self, what: &str, mut event: Value, name: &str, order: u32) -> Result<()> {
        event["ph"] = "M".into();
        event["name"] = format!("{what}_name").into();
        event["args"] = json!({ "name": name });
        self.put(&event)?;
        event["name"] = format!("{what}_sort_index").into();
        event["args"] = json!({ "sort_index": order });
        self.put(&event)
    }

    /// From `from_ns` to `to_ns` of the scheduler's clock.
    pub fn slice(
        &mut self,
        Track(pid, tid): Track,
        name: &str,
        (from_ns, to_ns): (i128, i128),
        args: impl Serialize,
    ) -> Result<()> {
        self.put(&Slice {
            ph: "X",
            name,
            pid,
            tid,
            ts: self.ts(from_ns),
            dur: us(to_ns - from_ns),
            args,
        })
    }

    /// An arrow between two slices: each of its times is within one of its track. No other has this `id`.
    pub fn arrow(&mut self, id: u64, from: (Track, i128), to: (Track, i128)) -> Result<()> {
        for (ph, (Track(pid, tid), at_ns)) in [("s", from), ("f", to)] {
            self.put(&json!({
                "ph": ph,
                "name": "hand-over",
                "cat": "hand-over",
                "id": id,
                "pid": pid,
                "tid": tid,
                "ts": self.ts(at_ns),
                // It ends at the slice that is open there.
                "bp": "e",
                "args": {},
            }))?;
        }
        Ok(())
    }

    /// A counter of the device has this value from here on.
    pub fn counter(&mut self, name: &str, unit: &str, at_ns: i128, value: u32) -> Result<()> {
        let (ts, args) = (self.ts(at_ns), json!({ unit: value }));
        self.put(&json!({ "ph": "C", "name": name, "pid": DEVICE, "ts": ts, "args": args }))
    }

    /// A slice in the track of request `id` begins (`b`) or ends (`e`) at this time; slices of a track nest.
    pub fn nested(&mut self, ph: &str, id: u64, name: &str, at_ns: u64, args: Value) -> Result<()> {
        self.put(&json!({
            "ph": ph,
            "name": name,
            "cat": "request",
            // Perfetto shows a track without a process outside of all.
            "id2": { "local": format!("0x{id:x}") },
            "pid": REQUESTS,
            "ts": self.ts(at_ns.into()),
            "args": args,
        }))
    }

    /// Ends the text; `about` goes where viewers show it. It comes last: Perfetto reads no further than a key that it
    /// does not know, and what it says is known only now. What comes back has yet to be given its name.
    pub fn end(mut self, about: &impl Serialize) -> Result<files::Out> {
        self.json("\n],\n\"otherData\":", about)?;
        self.out
            .write_all(b"}\n")
            .and_then(|()| self.out.into_inner().map_err(Into::into))
            .map_err(|error| Error::io(&self.path, error))
    }
}
