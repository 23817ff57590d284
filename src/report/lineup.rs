//! Launch ways side by side, batch by batch, as a README shows them: what [`super::picture`] draws and
//! [`super::markdown`] lists.

mod several;

use super::input::Input;
use super::steps::{Host, Latency, Steps, What};
use super::{benched, group, listed};
use crate::bench::Kind;
use crate::error::{Error, Result};
use several::Set;

/// The lineup of one set of steps. Times are in [`Lineup::unit`].
pub struct Lineup {
    pub unit: &'static str,
    /// What was measured, on what and when.
    pub subject: String,
    /// What the numbers show, where they show it.
    pub finding: Option<String>,
    /// As in `--launch`, in the order of the files, without the bare graph.
    pub ways: Vec<String>,
    /// What the host was doing where it was busiest; `None` where it always was idle.
    pub busy: Option<Host>,
    /// Ascending.
    pub batches: Vec<Batch>,
}

/// Steps of one batch. What was not measured is `None`.
pub struct Batch {
    pub sequences: u32,
    /// The least that a step takes, and what its graph takes without a scheduler (median).
    pub floor: Option<f64>,
    pub bare: Option<f64>,
    /// One for each of the lineup's ways.
    pub cells: Vec<Cell>,
}

/// Steps of one batch in one way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cell {
    /// With an idle host.
    pub p50: Option<f64>,
    pub p99: Option<f64>,
    /// With a busy one.
    pub busy_p99: Option<f64>,
}

impl Cell {
    /// How much further the slow steps go with a busy host: p99 over p99.
    pub fn growth(self) -> Option<f64> {
        Some(self.busy_p99? / self.p99?)
    }

    pub fn is_empty(self) -> bool {
        self.p50.or(self.p99).or(self.busy_p99).is_none()
    }
}

/// The lineup of the steps that are in files.
///
/// # Errors
/// [`Error::Usage`] where there are none, or of several things.
pub fn of(inputs: &[Input]) -> Result<Lineup> {
    let rows = benched(inputs);
    let timed = |kind| matches!(kind, Kind::Decode | Kind::Launch);
    let groups = group::groups(&rows);
    let groups = groups.iter().filter(|group| timed(group.kind));
    let all: Vec<Set> = groups.map(Set::of_group).collect();
    let expected = "expected results of `bench decode` or `bench launch`";
    match &all[..] {
        [] => Err(Error::Usage(format!(
            "--svg and --table: found no steps in these files, {expected}"
        ))),
        [set] if set.steps.scheduled().next().is_none() => Err(Error::Usage(format!(
            "--svg and --table: found the bare graph alone, {expected} by some way to launch"
        ))),
        [set] => Ok(Lineup::of(&set.steps)),
        sets => Err(Error::Usage(format!(
            "--svg and --table: found {}; expected steps of one model, type, machine and build, each way and batch once: name only files that belong together",
            several::found(sets)
        ))),
    }
}

/// What steps are of, in words.
fn of_what(steps: &Steps) -> String {
    match &steps.what {
        What::Decode {
            model,
            dtype,
            prompt_tokens,
            new_tokens,
        } => format!(
            "decode steps of {model} in {dtype} ({prompt_tokens} + {new_tokens} tokens a sequence)"
        ),
        What::Launch { kernels } => format!("steps of {kernels} small kernels"),
    }
}

/// A device's name as people say it: without its number here, and without what stands in brackets.
fn named(device: &str) -> &str {
    let name = super::short(device);
    match name.split_once(' ') {
        Some((number, rest)) if number.starts_with("cuda:") => rest,
        _ => name,
    }
}

/// As a sentence begins.
fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

impl Lineup {
    fn of(steps: &Steps) -> Self {
        let unit = steps.unit();
        let mut ways: Vec<String> = vec![];
        for series in steps.scheduled() {
            if !ways.contains(&series.way) {
                ways.push(series.way.clone());
            }
        }
        let threads = |host: &Host| match host {
            Host::Idle => 0,
            Host::Busy(threads) => *threads,
        };
        let hosts = steps.scheduled().map(|series| series.host);
        let busy = hosts.filter(|host| *host != Host::Idle).max_by_key(threads);
        let at = |way: &str, host: Host, batch: u32| -> Option<Latency> {
            let mut series = steps.with(host);
            Some(series.find(|s| s.way == way)?.at(batch)?.step)
        };
        let cell = |way: &String, batch: u32| {
            let idle = at(way, Host::Idle, batch);
            let busy = busy.and_then(|host| at(way, host, batch));
            Cell {
                p50: idle.map(|step| unit.of(step.median)),
                p99: idle.and_then(|step| step.p99).map(|ms| unit.of(ms)),
                busy_p99: busy.and_then(|step| step.p99).map(|ms| unit.of(ms)),
            }
        };
        let roofline = steps.roofline.as_ref();
        let batch = |sequences: u32| Batch {
            sequences,
            floor: roofline
                .and_then(|roofline| roofline.ms.get(&sequences))
                .map(|&ms| unit.of(ms)),
            bare: steps.bare_ms(sequences).map(|ms| unit.of(ms)),
            cells: ways.iter().map(|way| cell(way, sequences)).collect(),
        };
        let mut about = vec![of_what(steps), format!("on {}", named(&steps.device))];
        if !steps.days.is_empty() {
            about.push(listed(&steps.days));
        }
        if steps.build != "release" {
            about.push(format!("a {} build", steps.build));
        }
        Self {
            unit: unit.name,
            subject: capital(&about.join(", ")),
            finding: super::ways::finding(steps),
            busy,
            batches: steps.batches().into_iter().map(batch).collect(),
            ways,
        }
    }

    /// What the host was doing where it was busiest, after a verb.
    pub fn beside(&self) -> Option<String> {
        let words = self.busy?.words();
        Some(words.trim_start_matches(", ").to_owned())
    }
}
