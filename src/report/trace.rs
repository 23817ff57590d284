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

/// Points that a counter is drawn by.
const POINTS: usize = 1024;

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
}

#[derive(Serialize)]
struct Request {
    name: String,
    /// Name, from and to in us.
    phases: Vec<(String, f64, f64)>,
}

/// An event, as far as it is looked at.
#[derive(Deserialize)]
struct Event {
    ph: String,
    name: String,
    #[serde(default)]
    tid: u32,
    /// The identity of a request's track, its `local` one.
    #[serde(default)]
    id2: HashMap<String, String>,
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
    /// By kind and rows.
    buckets: BTreeMap<(String, u64), Bucket>,
    turns_us: Vec<f32>,
    first_steps: Vec<Value>,
    first_turns: Vec<Value>,
    first_requests: Vec<Request>,
    /// Begun and not ended, and when each was seen. The last phase's end is its begin until it is known.
    open: HashMap<String, (f64, Request)>,
    ttft_ms: Vec<f32>,
    queued_ms: Vec<f32>,
    total_ms: Vec<f32>,
    /// By name, us and value.
    counters: BTreeMap<String, Vec<(f64, f64)>>,
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
                    let points = self.counters.entry(event.name).or_default();
                    points.push((event.ts, value));
                    if points.len() >= 64 * POINTS {
                        *points = thinned(points);
                    }
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
            let of = |key| event.arg(key).unwrap_or(0);
            let kind = event.name.split(' ').next().unwrap_or_default();
            let bucket = (kind.to_owned(), of("bucket"));
            let bucket = self.buckets.entry(bucket).or_default();
            bucket.ms.push((event.dur / 1e3) as f32);
            bucket.rows += of("rows");
        }
    }

    /// A slice of a request's track begins or ends: its outer one, or a phase within that.
    fn request(&mut self, mut event: Event) {
        let (begins, at) = (event.ph == "b", event.ts);
        let track = event.id2.remove("local").unwrap_or_default();
        if event.name.starts_with("request ") {
            if !begins {
                self.ended(&track, at);
            } else if !event.args.contains_key("unfinished") {
                let (name, phases) = (event.name, vec![]);
                self.open.insert(track, (at, Request { name, phases }));
            }
        } else if let Some((_, request)) = self.open.get_mut(&track) {
            if begins {
                request.phases.push((event.name, at, at));
            } else if let Some(phase) = request.phases.last_mut() {
                phase.2 = at;
            }
        }
    }

    fn ended(&mut self, track: &str, end: f64) {
        let Some((seen, request)) = self.open.remove(track) else {
            return;
        };
        let ms = |to: f64| ((to - seen) / 1e3) as f32;
        let prefill = request.phases.iter().find(|(phase, ..)| phase == "prefill");
        if let Some((_, from, to)) = prefill {
            self.ttft_ms.push(ms(*to));
            self.queued_ms.push(ms(*from));
        }
        self.total_ms.push(ms(end));
        if self.first_requests.len() < FIRST_REQUESTS {
            self.first_requests.push(request);
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

/// The counter's points, thinned: each the largest of its neighbours.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let stretches = points.chunks(points.len().div_ceil(POINTS).max(1));
    let largest = |points: &[(f64, f64)]| points.iter().map(|point| point.1).fold(0.0, f64::max);
    stretches
        .map(|points| (points[0].0, largest(points)))
        .collect()
}

/// Reads a trace, which is called `file`, as the page's script takes it. `buckets`, `requests`: times by name; `first_steps`,
/// `first_turns`, `first_requests`: what is drawn one by one; `counters`: by name, `[us, value]` where it changes, and those of them
/// whose points are `thinned`; `from_us` to `to_us`: from the first turn's start to the last one's end.
///
/// # Errors
/// The file is no trace.
pub fn read(path: &Path, file: String) -> Result<Value> {
    let expected = "what `tailgraph trace` writes";
    let wrong = |message: String| Error::file(path, format!("{message}, expected {expected}"));
    let input = File::open(path).map_err(|error| Error::open(path, &error, expected))?;
    let whole = serde_json::from_reader(BufReader::with_capacity(1 << 18, input));
    let Whole { mut seen, about } = whole.map_err(|error| wrong(quote::message(error)))?;
    let about = about.ok_or_else(|| wrong("found no otherData".into()))?;
    let (from_us, to_us) = seen.span.ok_or_else(|| wrong("found no turn".into()))?;
    let bucket = |((kind, size), Bucket { ms, rows }): ((String, u64), Bucket)| {
        let fill = rows as f64 / (size as f64 * ms.len() as f64).max(1.0);
        let mut of = times(&format!("{kind} {size}"), ms);
        of["fill"] = json!(fill);
        of
    };
    let requests = [
        times("waiting for a slot", seen.queued_ms),
        times("to the first token", seen.ttft_ms),
        times("to the end", seen.total_ms),
    ];
    let counters = seen.counters.iter();
    let counters = counters.map(|(name, points)| (name, thinned(points)));
    let many = seen.counters.iter().filter(|(_, all)| all.len() > POINTS);
    seen.turns_us.sort_by(f32::total_cmp);
    Ok(json!({
        "about": about,
        "file": file,
        "buckets": seen.buckets.into_iter().map(bucket).collect::<Vec<_>>(),
        "turn_p50_us": percentile(&seen.turns_us, 0.5),
        "first_steps": seen.first_steps,
        "first_turns": seen.first_turns,
        "first_requests": seen.first_requests,
        "requests": requests,
        "counters": counters.collect::<BTreeMap<_, _>>(),
        "thinned": many.map(|(name, _)| name).collect::<Vec<_>>(),
        "from_us": from_us,
        "to_us": to_us,
    }))
}
