//! `profiles/results/decode-speed*.json`: what was measured before `bench` had all of it.

use super::floor::roofline;
use super::startup::Startup;
use super::steps::{BARE, Beside, Host, Latency, Point, Series, Source, Steps, What};
use crate::error::{Error, Result};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

#[derive(Deserialize)]
struct DecodeSpeed {
    command: String,
    gpu: String,
    host_cores: usize,
    model: String,
    dtype: String,
    prompt_tokens: u32,
    new_tokens: u32,
    /// By sequences.
    bare_ms: BTreeMap<u32, f64>,
    ways: BTreeMap<String, Way>,
}

#[derive(Deserialize)]
struct Way {
    load_ms: f64,
    capture_ms: f64,
    host_idle: Vec<Batch>,
    host_busy: Option<Vec<Batch>>,
}

#[derive(Deserialize)]
struct Batch {
    sequences: u32,
    steps: usize,
    p50_ms: f64,
    p99_ms: f64,
    p99_9_ms: f64,
    least_ms: f64,
    turn_us: Option<f64>,
}

impl Batch {
    fn adapt(&self) -> Point {
        Point {
            sequences: self.sequences,
            step: Latency {
                count: Some(self.steps),
                median: self.p50_ms,
                p90: None,
                p99: Some(self.p99_ms),
                p99_9: Some(self.p99_9_ms),
            },
            least_ms: Some(self.least_ms),
            // Each sequence gets one a step.
            tokens_per_s: f64::from(self.sequences) / self.p50_ms * 1e3,
            tokens_per_s_sd: None,
            itl: None,
            tpot: None,
            ttft: None,
            beside: Beside {
                turn_us: self.turn_us,
                ..Beside::default()
            },
        }
    }
}

/// The bare graph, of which the median alone is known.
fn bare(sequences: u32, ms: f64) -> Point {
    Point {
        sequences,
        step: Latency {
            count: None,
            median: ms,
            p90: None,
            p99: None,
            p99_9: None,
        },
        least_ms: None,
        tokens_per_s: f64::from(sequences) / ms * 1e3,
        tokens_per_s_sd: None,
        itl: None,
        tpot: None,
        ttft: None,
        beside: Beside::default(),
    }
}

impl DecodeSpeed {
    fn adapt(self, file: &str) -> Steps {
        let mut series = vec![];
        let mut startup = vec![];
        let mut add = |way: &str, host, mut points: Vec<Point>| {
            points.sort_by_key(|point| point.sequences);
            let way = way.to_owned();
            series.push(Series { way, host, points });
        };
        for (name, way) in &self.ways {
            add(
                name,
                Host::Idle,
                way.host_idle.iter().map(Batch::adapt).collect(),
            );
            if let Some(busy) = &way.host_busy {
                let points = busy.iter().map(Batch::adapt).collect();
                add(name, Host::Busy(None), points);
            }
            startup.push(Startup {
                name: name.clone(),
                phases: vec![
                    ("weights to the device", way.load_ms),
                    ("capture, instantiate, upload", way.capture_ms),
                ],
            });
        }
        if !self.bare_ms.is_empty() {
            let points = self.bare_ms.iter().map(|(&n, &ms)| bare(n, ms)).collect();
            add(BARE, Host::Idle, points);
        }
        let mut steps = Steps {
            sources: vec![Source {
                file: file.to_owned(),
                command: self.command,
            }],
            device: self.gpu,
            host_cores: self.host_cores,
            days: vec![],
            build: None,
            repeats: 1,
            what: What::Decode {
                model: self.model,
                dtype: self.dtype,
                prompt_tokens: self.prompt_tokens,
                new_tokens: self.new_tokens,
            },
            series,
            roofline: None,
            startup,
        };
        steps.roofline = roofline(&steps);
        steps
    }
}

/// # Errors
/// The file is not of this kind, or not all of it.
pub fn read(path: &Path, file: &str, expected: &str) -> Result<Steps> {
    let wrong = |message: String| Error::file(path, format!("{message}, expected {expected}"));
    let text = std::fs::read_to_string(path).map_err(|error| Error::io(path, error))?;
    let found: DecodeSpeed =
        serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    let steps = found.adapt(file);
    let points = || steps.series.iter().flat_map(|series| &series.points);
    let odd = points().find(|point| {
        let Latency {
            median, p99, p99_9, ..
        } = point.step;
        let times = [Some(median), p99, p99_9, point.least_ms];
        let mut times = times.into_iter().flatten();
        point.sequences == 0 || times.any(|ms| !ms.is_finite() || ms <= 0.0)
    });
    match odd {
        Some(point) => Err(wrong(format!("found {point:?}, which took no time"))),
        None if points().next().is_none() => Err(wrong("found no measurement".into())),
        None => Ok(steps),
    }
}
