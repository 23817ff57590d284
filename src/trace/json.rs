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

    fn put(&mut self, event: &impl Serialize) -> Result<()> {
        let first = std::mem::replace(&mut self.empty, false);
        self.text(if first { START } else { ",\n" })?;
        serde_json::to_writer(&mut self.out, event)
            .map_err(|error| Error::io(&self.path, error.into()))
    }

    /// The time of an event at `at_ns` of the scheduler's clock.
    fn ts(&self, at_ns: i128) -> f64 {
        us(at_ns - self.zero_ns)
    }

    /// Names a process; viewers put it at place `order`.
    ///
    /// # Errors
    /// The file cannot be written; so everywhere below.
    pub fn process(&mut self, pid: u32, name: &str, order: u32) -> Result<()> {
        let args = json!({ "name": name });
        self.put(&json!({ "ph": "M", "name": "process_name", "pid": pid, "args": args }))?;
        let args = json!({ "sort_index": order });
        self.put(&json!({ "ph": "M", "name": "process_sort_index", "pid": pid, "args": args }))
    }

    /// Names a track; viewers order them by their numbers.
    pub fn thread(&mut self, track: Track, name: &str) -> Result<()> {
        let (pid, tid) = (track.process, track.thread);
        for (what, args) in [
            ("thread_name", json!({ "name": name })),
            ("thread_sort_index", json!({ "sort_index": tid })),
        ] {
            self.put(&json!({ "ph": "M", "name": what, "pid": pid, "tid": tid, "args": args }))?;
        }
        Ok(())
    }

    /// From `from_ns` to `to_ns` of the scheduler's clock.
    pub fn slice(
        &mut self,
        track: Track,
        name: &str,
        (from_ns, to_ns): (i128, i128),
        args: impl Serialize,
    ) -> Result<()> {
        self.put(&Slice {
            ph: "X",
            name,
            pid: track.process,
            tid: track.thread,
            ts: self.ts(from_ns),
            dur: us(to_ns - from_ns),
            args,
        })
    }

    /// An arrow between two slices: each of its times is within one of its track. No other has this `id`.
    pub fn arrow(&mut self, id: u64, from: (Track, i128), to: (Track, i128)) -> Result<()> {
        for (ph, (track, at_ns)) in [("s", from), ("f", to)] {
            let mut event = json!({
                "ph": ph,
                "name": "hand-over",
                "cat": "hand-over",
                "id": id,
                "pid": track.process,
                "tid": track.thread,
                "ts": self.ts(at_ns),
                "args": {},
            });
            if ph == "f" {
                // It ends at the slice that is open there.
                event["bp"] = "e".into();
            }
            self.put(&event)?;
        }
        Ok(())
    }

    /// A counter of a process has this value from here on.
    pub fn counter(
        &mut self,
        pid: u32,
        name: &str,
        unit: &str,
        at_ns: i128,
        value: u64,
    ) -> Result<()> {
        let (ts, args) = (self.ts(at_ns), json!({ unit: value }));
        self.put(&json!({ "ph": "C", "name": name, "pid": pid, "ts": ts, "args": args }))
    }

    /// The track `id` of a process has a slice; slices of a track nest, the outer one written first.
    pub fn nested(
        &mut self,
        (pid, id): (u32, u64),
        name: &str,
        (from_ns, to_ns): (u64, u64),
        args: impl Serialize,
        inside: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        // Perfetto shows a track without a process outside of all.
        let mut event = json!({
            "ph": "b",
            "name": name,
            "cat": "request",
            "id2": { "local": format!("0x{id:x}") },
            "pid": pid,
            "ts": self.ts(from_ns.into()),
            "args": args,
        });
        self.put(&event)?;
        inside(self)?;
        event["ph"] = "e".into();
        event["ts"] = self.ts(to_ns.into()).into();
        event["args"] = json!({});
        self.put(&event)
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
