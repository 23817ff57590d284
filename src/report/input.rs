//! What a report is made of: files as they are written elsewhere, adapted to one shape. A new kind of file is a serde
//! struct here, an arm in [`read`] and a way into [`Measured`]; charts and tables know nothing of files.

use super::trace::{self, Traced};
use crate::error::{Error, Result};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// One input, adapted.
pub enum Input {
    Measured(Box<Measured>),
    Traced(Box<Traced>),
}

/// Decode steps of one model on one machine, by launch way and batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    pub file: String,
    /// What made it.
    pub command: String,
    /// The device, as its driver names it.
    pub device: String,
    pub host_cores: Option<usize>,
    pub model: String,
    pub dtype: String,
    pub prompt_tokens: u32,
    pub new_tokens: u32,
    /// In the order of the file.
    pub series: Vec<Series>,
    /// A step's graph without a scheduler, launched again and again: ms by sequences.
    pub bare_ms: BTreeMap<u32, f64>,
    pub startup: Vec<Startup>,
}

/// One way to launch, with the host in one state.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// As in `--launch`.
    pub way: String,
    pub host: Host,
    /// By sequences, ascending.
    pub points: Vec<Point>,
}

/// What else the host was doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Host {
    Idle,
    /// Threads that spin on every core.
    Busy,
}

/// Steps of one batch, in ms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    pub sequences: u32,
    pub steps: usize,
    pub least_ms: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub p99_9_ms: f64,
}

impl Point {
    /// Tokens per second: each sequence gets one a step.
    pub fn tokens_per_s(&self) -> f64 {
        f64::from(self.sequences) / self.p50_ms * 1e3
    }
}

/// What a way needs before its first step, in ms.
#[derive(Debug, Clone, PartialEq)]
pub struct Startup {
    pub way: String,
    pub load_ms: f64,
    pub capture_ms: f64,
}

impl Measured {
    /// With the host in this state.
    pub fn with(&self, host: Host) -> impl Iterator<Item = &Series> {
        self.series.iter().filter(move |series| series.host == host)
    }

    /// Every batch that was measured, ascending.
    pub fn batches(&self) -> Vec<u32> {
        let points = self.series.iter().flat_map(|series| &series.points);
        let mut all: Vec<u32> = points.map(|point| point.sequences).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

impl Series {
    pub fn at(&self, sequences: u32) -> Option<&Point> {
        self.points
            .iter()
            .find(|point| point.sequences == sequences)
    }
}

/// `profiles/decode-speed*.json`, as profiles/decode_speed.rs prints it.
#[derive(Deserialize)]
struct DecodeSpeed {
    command: String,
    gpu: String,
    host_cores: usize,
    model: String,
    dtype: String,
    prompt_tokens: u32,
    new_tokens: u32,
    bare_ms: BTreeMap<u32, f64>,
    ways: BTreeMap<String, DecodeWay>,
}

#[derive(Deserialize)]
struct DecodeWay {
    load_ms: f64,
    capture_ms: f64,
    host_idle: Vec<DecodeBatch>,
    host_busy: Option<Vec<DecodeBatch>>,
}

#[derive(Deserialize)]
struct DecodeBatch {
    sequences: u32,
    steps: usize,
    p50_ms: f64,
    p99_ms: f64,
    p99_9_ms: f64,
    least_ms: f64,
}

impl DecodeSpeed {
    fn adapt(self, file: String) -> Measured {
        let mut series = vec![];
        let mut startup = vec![];
        for (name, way) in self.ways {
            let hosts = [
                (Host::Idle, Some(way.host_idle)),
                (Host::Busy, way.host_busy),
            ];
            for (host, batches) in hosts {
                let Some(batches) = batches else { continue };
                let mut points: Vec<Point> = batches
                    .iter()
                    .map(|batch| Point {
                        sequences: batch.sequences,
                        steps: batch.steps,
                        least_ms: batch.least_ms,
                        p50_ms: batch.p50_ms,
                        p99_ms: batch.p99_ms,
                        p99_9_ms: batch.p99_9_ms,
                    })
                    .collect();
                points.sort_by_key(|point| point.sequences);
                series.push(Series {
                    way: name.clone(),
                    host,
                    points,
                });
            }
            startup.push(Startup {
                way: name,
                load_ms: way.load_ms,
                capture_ms: way.capture_ms,
            });
        }
        Measured {
            file,
            command: self.command,
            device: self.gpu,
            host_cores: Some(self.host_cores),
            model: self.model,
            dtype: self.dtype,
            prompt_tokens: self.prompt_tokens,
            new_tokens: self.new_tokens,
            series,
            bare_ms: self.bare_ms,
            startup,
        }
    }
}

/// Reads a file of any kind that is known here, told by its first key.
///
/// # Errors
/// There is no such file, or it is of no kind that is known, or not all of its kind.
pub fn read(path: &Path) -> Result<Input> {
    let expected = "JSON of `tailgraph trace`, or of the measurements in profiles/";
    let name = path.file_name().unwrap_or(path.as_os_str());
    let name = name.to_string_lossy().into_owned();
    let wrong = |message: String| Error::file(path, format!("{message}, expected {expected}"));
    let kind = trace::first_key(path, expected)?;
    match kind.as_deref() {
        Some("traceEvents") => {
            trace::read(path, name).map(|traced| Input::Traced(Box::new(traced)))
        }
        Some(_) => {
            let text = std::fs::read_to_string(path).map_err(|error| Error::io(path, error))?;
            let measured: DecodeSpeed =
                serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
            let measured = measured.adapt(name);
            let odd = measured.series.iter().flat_map(|s| &s.points).find(|p| {
                let times = [p.p50_ms, p.p99_ms, p.p99_9_ms, p.least_ms];
                p.sequences == 0 || times.iter().any(|ms| !ms.is_finite() || *ms <= 0.0)
            });
            match odd {
                Some(point) => Err(wrong(format!("found {point:?}, which took no time"))),
                None if measured.batches().is_empty() => Err(wrong("found no measurement".into())),
                None => Ok(Input::Measured(Box::new(measured))),
            }
        }
        None => Err(wrong("found no JSON object".into())),
    }
}
