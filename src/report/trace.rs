//! A trace, read event by event: what a page shows of it, whatever its length.

use crate::error::{Error, Result};
use crate::quote;
use crate::trace::About;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

/// Steps that are drawn one by one.
const FIRST_STEPS: usize = 28;
/// Requests that are drawn one by one.
const FIRST_REQUESTS: usize = 24;

/// What is kept of a trace, and shown.
#[derive(Debug, Clone, Serialize)]
pub struct Traced {
    pub about: About,
    /// The rest, as the page's script reads it. `buckets`, `requests`: times by name; `first_steps`, `first_turns`,
    /// `first_requests`: what is drawn one by one; `counters`: by name, `[us, value]` where it changes, and those of them whose
    /// points are `thinned`; `from_us` to `to_us`: from the first turn's start to the last one's end.
    #[serde(flatten)]
    rest: Value,
}

/// Times of one thing. A percentile is null where there are too few to tell it from the longest.
fn times(name: &str, mut ms: Vec<f32>) -> Value {
    ms.sort_by(f32::total_cmp);
    json!({
        "name": name,
        "count": ms.len(),
        "sum_ms": ms.iter().map(|&ms| f64::from(ms)).sum::<f64>(),
        "least_ms": ms.first(),
        "p50_ms": percentile(&ms, 0.5),
        "p90_ms": percentile(&ms, 0.9),
        "p99_ms": percentile(&ms, 0.99),
        "longest_ms": ms.last(),
    })
}

/// The value that `share` of the values do not exceed: nearest rank. `None` where there are too few to tell it from the
/// largest.
fn percentile(sorted: &[f32], share: f64) -> Option<f32> {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    let enough = sorted.len() as f64 * (1.0 - share) >= 1.0 - 1e-9;
    (enough && rank >= 1).then(|| sorted[rank - 1])
}

/// Steps of one kind and bucket: `decode 8`.
#[derive(Default)]
struct Bucket {
    ms: Vec<f32>,
    rows: u64,
    bucket_rows: u64,
}

#[derive(Default, Serialize)]
struct Request {
    name: String,
    /// Name, from and to in us.
    phases: Vec<(String, f64, f64)>,
}

/// A counter as a line of steps, thinned as it grows: no more than twice `KEPT` points, each the largest of its
/// neighbours.
#[derive(Default)]
struct Counter {
    points: Vec<(f64, f64)>,
    /// How often points were halved: each stands for two to the power of this.
    halved: u32,
    /// Values in the last point.
    held: u64,
}

impl Counter {
    const KEPT: usize = 512;

    fn push(&mut self, at: f64, value: f64) {
        match self.points.last_mut() {
            Some((_, last)) if self.held < 1 << self.halved => {
                *last = last.max(value);
                self.held += 1;
            }
            _ => {
                self.points.push((at, value));
                self.held = 1;
            }
        }
        if self.points.len() >= 2 * Self::KEPT {
            let pairs = self.points.chunks(2);
            let largest =
                |pair: &[(f64, f64)]| pair.iter().map(|&(_, value)| value).fold(0.0, f64::max);
            self.points = pairs.map(|pair| (pair[0].0, largest(pair))).collect();
            self.halved += 1;
        }
    }
}

/// The identity of a request's track.
#[derive(Default, Deserialize)]
struct Id {
    local: String,
}

/// An event, as far as it is looked at.
#[derive(Deserialize)]
struct Event {
    ph: String,
    name: String,
    #[serde(default)]
    tid: u32,
    #[serde(default)]
    id2: Id,
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
    #[serde(default)]
    args: HashMap<String, Value>,
}

impl Event {
    fn arg(&self, key: &str) -> Option<u64> {
        self.args.get(key).and_then(Value::as_u64)
    }

    /// What a page draws of it.
    fn slice(&self, tracks: &HashMap<u32, String>) -> Value {
        json!({
            "name": self.name,
            "track": tracks.get(&self.tid),
            "from_us": self.ts,
            "to_us": self.ts + self.dur,
            "rows": self.arg("rows"),
        })
    }
}

/// What has been seen so far.
#[derive(Default)]
struct Seen {
    buckets: BTreeMap<String, Bucket>,
    turns_us: Vec<f32>,
    first_steps: Vec<Value>,
    first_turns: Vec<Value>,
    first_requests: Vec<Request>,
    /// Begun and not ended: the outer begin, the phases, and the open phase's begin.
    open: HashMap<String, (f64, Request, f64)>,
    ttft_ms: Vec<f32>,
    queued_ms: Vec<f32>,
    total_ms: Vec<f32>,
    counters: BTreeMap<String, Counter>,
    tracks: HashMap<u32, String>,
    span: Option<(f64, f64)>,
}

impl Seen {
    fn event(&mut self, event: Event) {
        match event.ph.as_str() {
            "M" if event.name == "thread_name" => {
                let name = event.args.get("name").and_then(Value::as_str);
                let name = name.unwrap_or_default().to_owned();
                self.tracks.insert(event.tid, name);
            }
            "X" if event.arg("step").is_some() => self.step(event),
            "X" if event.args.contains_key("turn") => {
                let to = event.ts + event.dur;
                self.span = Some((self.span.map_or(event.ts, |(from, _)| from), to));
                self.turns_us.push(event.dur as f32);
                if self.first_turns.len() <= FIRST_STEPS {
                    self.first_turns.push(event.slice(&self.tracks));
                }
            }
            "C" => {
                if let Some(value) = event.args.values().next().and_then(Value::as_f64) {
                    let counter = self.counters.entry(event.name).or_default();
                    counter.push(event.ts, value);
                }
            }
            "b" | "e" => self.request(event),
            _ => {}
        }
    }

    fn step(&mut self, event: Event) {
        if event.arg("step") < Some(FIRST_STEPS as u64) {
            self.first_steps.push(event.slice(&self.tracks));
        }
        // Where stages work side by side, the way through all of them: stages' own slices have no prompt_rows.
        if event.args.contains_key("prompt_rows") && !event.args.contains_key("unfinished") {
            let (rows, bucket_rows) = (event.arg("rows"), event.arg("bucket"));
            let bucket = self.buckets.entry(event.name).or_default();
            bucket.ms.push((event.dur / 1e3) as f32);
            bucket.rows += rows.unwrap_or(0);
            bucket.bucket_rows += bucket_rows.unwrap_or(0);
        }
    }

    /// A slice of a request's track begins or ends: its outer one, or a phase within that.
    fn request(&mut self, event: Event) {
        let outer = event.name.starts_with("request ");
        let track = event.id2.local;
        if event.ph == "b" {
            if !outer {
                if let Some((_, _, from)) = self.open.get_mut(&track) {
                    *from = event.ts;
                }
            } else if !event.args.contains_key("unfinished") {
                let request = Request {
                    name: event.name,
                    phases: vec![],
                };
                self.open.insert(track, (event.ts, request, event.ts));
            }
        } else if !outer {
            if let Some((_, request, from)) = self.open.get_mut(&track) {
                request.phases.push((event.name, *from, event.ts));
            }
        } else if let Some((seen, request, _)) = self.open.remove(&track) {
            let ms = |from: f64, to: f64| ((to - from) / 1e3) as f32;
            let prefill = request.phases.iter().find(|(phase, ..)| phase == "prefill");
            if let Some((_, from, to)) = prefill {
                self.ttft_ms.push(ms(seen, *to));
                self.queued_ms.push(ms(seen, *from));
            }
            self.total_ms.push(ms(seen, event.ts));
            if self.first_requests.len() < FIRST_REQUESTS {
                self.first_requests.push(request);
            }
        }
    }
}

/// The file's object: its events are looked at one by one, and not kept.
#[derive(Deserialize)]
struct Whole {
    #[serde(rename = "traceEvents")]
    seen: Seen,
    #[serde(rename = "otherData")]
    about: Option<About>,
}

impl<'de> Deserialize<'de> for Seen {
    fn deserialize<D: Deserializer<'de>>(input: D) -> std::result::Result<Self, D::Error> {
        input.deserialize_seq(Self::default())
    }
}

impl<'de> Visitor<'de> for Seen {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("trace events")
    }

    fn visit_seq<A: SeqAccess<'de>>(
        mut self,
        mut events: A,
    ) -> std::result::Result<Self, A::Error> {
        while let Some(event) = events.next_element()? {
            self.event(event);
        }
        Ok(self)
    }
}

/// Reads a trace, which is called `file`.
///
/// # Errors
/// The file is no trace of this version.
pub fn read(path: &Path, file: String) -> Result<Traced> {
    let expected = "what `tailgraph trace` writes";
    let wrong = |message: String| Error::file(path, format!("{message}, expected {expected}"));
    let input = File::open(path).map_err(|error| Error::open(path, &error, expected))?;
    let whole = serde_json::from_reader(BufReader::with_capacity(1 << 18, input));
    let Whole { mut seen, about } = whole.map_err(|error| wrong(quote::message(error)))?;
    let about = about.ok_or_else(|| wrong("found no otherData".into()))?;
    let (from_us, to_us) = seen.span.ok_or_else(|| wrong("found no turn".into()))?;
    let mut buckets: Vec<(String, Bucket)> = seen.buckets.into_iter().collect();
    buckets.sort_by_key(|(name, _)| {
        let (kind, rows) = name.split_once(' ').unwrap_or((name, "0"));
        (kind.to_owned(), rows.parse().unwrap_or(0u32))
    });
    let bucket = |(name, bucket): (String, Bucket)| {
        let mut of = times(&name, bucket.ms);
        of["fill"] = json!(bucket.rows as f64 / bucket.bucket_rows.max(1) as f64);
        of
    };
    let requests = [
        times("waiting for a slot", seen.queued_ms),
        times("to the first token", seen.ttft_ms),
        times("to the end", seen.total_ms),
    ];
    let thinned = seen.counters.iter().filter(|(_, line)| line.halved > 0);
    let thinned: Vec<&String> = thinned.map(|(name, _)| name).collect();
    let counters = seen.counters.iter();
    let counters = counters.map(|(name, line)| (name, &line.points));
    seen.turns_us.sort_by(f32::total_cmp);
    let rest = json!({
        "file": file,
        "buckets": buckets.into_iter().map(bucket).collect::<Vec<_>>(),
        "turn_p50_us": percentile(&seen.turns_us, 0.5),
        "first_steps": seen.first_steps,
        "first_turns": seen.first_turns,
        "first_requests": seen.first_requests,
        "requests": requests,
        "counters": counters.collect::<BTreeMap<_, _>>(),
        "thinned": thinned,
        "from_us": from_us,
        "to_us": to_us,
    });
    Ok(Traced { about, rest })
}
