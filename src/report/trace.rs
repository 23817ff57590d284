//! A trace, read event by event: what a page shows of it, whatever its length.

use crate::error::{Error, Result};
use crate::quote;
use crate::trace::About;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

/// Steps that are drawn one by one.
const FIRST_STEPS: usize = 28;
/// Requests that are drawn one by one.
const FIRST_REQUESTS: usize = 24;

/// What is kept of a trace.
#[derive(Debug, Clone)]
pub struct Traced {
    pub file: String,
    pub about: About,
    /// Step times in ms by kind and bucket: `decode 8`.
    pub buckets: BTreeMap<String, Bucket>,
    /// Scheduler turns that composed or collected something, in us.
    pub turns_us: Vec<f32>,
    pub first_steps: Vec<Slice>,
    pub first_turns: Vec<Slice>,
    pub first_requests: Vec<Request>,
    /// In ms, of requests that came to their end.
    pub ttft_ms: Vec<f32>,
    pub queued_ms: Vec<f32>,
    pub total_ms: Vec<f32>,
    /// Over the run: by name, where it changes.
    pub counters: BTreeMap<String, Steps>,
    /// From the first turn's start to the last turn's end, in us.
    pub from_us: f64,
    pub to_us: f64,
}

/// Steps of one kind and bucket.
#[derive(Debug, Clone, Default)]
pub struct Bucket {
    pub ms: Vec<f32>,
    pub rows: u64,
    pub bucket_rows: u64,
}

#[derive(Debug, Clone)]
pub struct Slice {
    pub name: String,
    pub track: String,
    pub from_us: f64,
    pub to_us: f64,
    pub rows: u64,
}

#[derive(Debug, Clone, Default)]
pub struct Request {
    pub name: String,
    pub phases: Vec<(String, f64, f64)>,
}

/// A counter as a line of steps, thinned as it grows: no more than twice `KEPT` points, each the largest of its
/// neighbours.
#[derive(Debug, Clone)]
pub struct Steps {
    pub points: Vec<(f64, f64)>,
    every: usize,
    /// Of the next point: how many values are in it.
    held: usize,
}

impl Default for Steps {
    fn default() -> Self {
        Self {
            points: vec![],
            every: 1,
            held: 0,
        }
    }
}

impl Steps {
    const KEPT: usize = 512;

    fn push(&mut self, at: f64, value: f64) {
        match self.points.last_mut() {
            Some((_, last)) if self.held < self.every => {
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
            self.points = pairs
                .map(|pair| {
                    (
                        pair[0].0,
                        pair.iter().fold(0.0, |most, &(_, v)| v.max(most)),
                    )
                })
                .collect();
            self.every *= 2;
        }
    }

    /// Whether points stand for several values.
    pub fn thinned(&self) -> bool {
        self.every > 1
    }
}

/// Of a request's track.
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
    args: HashMap<String, serde_json::Value>,
}

impl Event {
    fn arg(&self, key: &str) -> Option<u64> {
        self.args.get(key).and_then(serde_json::Value::as_u64)
    }
}

/// What has been seen so far.
#[derive(Default)]
struct Seen {
    buckets: BTreeMap<String, Bucket>,
    turns_us: Vec<f32>,
    first_steps: Vec<Slice>,
    first_turns: Vec<Slice>,
    first_requests: Vec<Request>,
    /// Begun and not ended: the outer begin, the phases, and the open phase's begin.
    open: HashMap<String, (f64, Request, f64)>,
    ttft_ms: Vec<f32>,
    queued_ms: Vec<f32>,
    total_ms: Vec<f32>,
    counters: BTreeMap<String, Steps>,
    tracks: HashMap<u32, String>,
    span: Option<(f64, f64)>,
}

impl Seen {
    fn event(&mut self, event: Event) {
        match event.ph.as_str() {
            "M" if event.name == "thread_name" => {
                let name = event.args.get("name").and_then(|name| name.as_str());
                self.tracks
                    .insert(event.tid, name.unwrap_or_default().to_owned());
            }
            "X" if event.arg("step").is_some() => self.step(&event),
            "X" if event.args.contains_key("turn") => {
                let to = event.ts + event.dur;
                let (from, _) = *self.span.get_or_insert((event.ts, to));
                self.span = Some((from, to));
                self.turns_us.push(event.dur as f32);
                if self.first_turns.len() <= FIRST_STEPS {
                    let slice = self.slice(&event);
                    self.first_turns.push(slice);
                }
            }
            "C" => {
                if let Some(value) = event.args.values().next().and_then(|v| v.as_f64()) {
                    self.counters
                        .entry(event.name)
                        .or_default()
                        .push(event.ts, value);
                }
            }
            "b" | "e" => self.request(&event),
            _ => {}
        }
    }

    fn slice(&self, event: &Event) -> Slice {
        Slice {
            name: event.name.clone(),
            track: self.tracks.get(&event.tid).cloned().unwrap_or_default(),
            from_us: event.ts,
            to_us: event.ts + event.dur,
            rows: event.arg("rows").unwrap_or(0),
        }
    }

    fn step(&mut self, event: &Event) {
        if event.arg("step") < Some(FIRST_STEPS as u64) {
            let slice = self.slice(event);
            self.first_steps.push(slice);
        }
        // Of stages that work side by side, the way through all of them: stages' own slices have no prompt_rows.
        if event.args.contains_key("prompt_rows") && !event.args.contains_key("unfinished") {
            let bucket = self.buckets.entry(event.name.clone()).or_default();
            bucket.ms.push((event.dur / 1e3) as f32);
            bucket.rows += event.arg("rows").unwrap_or(0);
            bucket.bucket_rows += event.arg("bucket").unwrap_or(0);
        }
    }

    fn request(&mut self, event: &Event) {
        let begin = event.ph == "b";
        let outer = event.name.starts_with("request ");
        match (begin, outer) {
            (true, true) => {
                if event.args.contains_key("unfinished") {
                    return;
                }
                let request = Request {
                    name: event.name.clone(),
                    phases: vec![],
                };
                self.open
                    .insert(event.id2.local.clone(), (event.ts, request, event.ts));
            }
            (true, false) => {
                if let Some((_, _, from)) = self.open.get_mut(&event.id2.local) {
                    *from = event.ts;
                }
            }
            (false, false) => {
                if let Some((_, request, from)) = self.open.get_mut(&event.id2.local) {
                    request.phases.push((event.name.clone(), *from, event.ts));
                }
            }
            (false, true) => {
                let Some((seen, request, _)) = self.open.remove(&event.id2.local) else {
                    return;
                };
                let phase = |name: &str| request.phases.iter().find(|(phase, ..)| phase == name);
                let ms = |from: f64, to: f64| ((to - from) / 1e3) as f32;
                if let Some((_, from, to)) = phase("prefill") {
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
}

/// The file's object: events go to [`Seen`] one by one.
struct Whole<'a>(&'a mut Seen);

impl<'de> Visitor<'de> for Whole<'_> {
    type Value = Option<About>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with traceEvents and otherData")
    }

    fn visit_map<A: MapAccess<'de>>(
        self,
        mut map: A,
    ) -> std::result::Result<Self::Value, A::Error> {
        let mut about = None;
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "traceEvents" => map.next_value_seed(Events(self.0))?,
                "otherData" => about = Some(map.next_value()?),
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(about)
    }
}

struct Events<'a>(&'a mut Seen);

impl<'de> DeserializeSeed<'de> for Events<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> std::result::Result<(), D::Error> {
        input.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Events<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("trace events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut events: A) -> std::result::Result<(), A::Error> {
        while let Some(event) = events.next_element()? {
            self.0.event(event);
        }
        Ok(())
    }
}

fn open(path: &Path, expected: &str) -> Result<BufReader<File>> {
    let file = File::open(path).map_err(|error| Error::open(path, &error, expected))?;
    Ok(BufReader::with_capacity(1 << 18, file))
}

/// How a file begins.
pub enum Beginning {
    /// As an object with this key first.
    Object(String),
    List,
    Other,
}

/// Looks at a file's first bytes.
///
/// # Errors
/// It cannot be read.
pub fn beginning(path: &Path, expected: &str) -> Result<Beginning> {
    let mut head = vec![];
    open(path, expected)?
        .take(256)
        .read_to_end(&mut head)
        .map_err(|error| Error::open(path, &error, expected))?;
    let head = String::from_utf8_lossy(&head);
    let head = head.trim_start();
    if head.starts_with('[') {
        return Ok(Beginning::List);
    }
    let key = head.strip_prefix('{').map(str::trim_start);
    let key = key.and_then(|rest| rest.strip_prefix('"')?.split_once('"'));
    Ok(key.map_or(Beginning::Other, |(key, _)| {
        Beginning::Object(key.to_owned())
    }))
}

/// # Errors
/// The file is no trace of this version.
pub fn read(path: &Path, file: String) -> Result<Traced> {
    let expected = "what `tailgraph trace` writes";
    let wrong = |message: String| Error::file(path, format!("{message}, expected {expected}"));
    let mut seen = Seen::default();
    let mut input = serde_json::Deserializer::from_reader(open(path, expected)?);
    let about = input
        .deserialize_map(Whole(&mut seen))
        .map_err(|error| wrong(quote::message(error)))?
        .ok_or_else(|| wrong("found no otherData".into()))?;
    let (from_us, to_us) = seen.span.ok_or_else(|| wrong("found no turn".into()))?;
    Ok(Traced {
        file,
        about,
        buckets: seen.buckets,
        turns_us: seen.turns_us,
        first_steps: seen.first_steps,
        first_turns: seen.first_turns,
        first_requests: seen.first_requests,
        ttft_ms: seen.ttft_ms,
        queued_ms: seen.queued_ms,
        total_ms: seen.total_ms,
        counters: seen.counters,
        from_us,
        to_us,
    })
}
