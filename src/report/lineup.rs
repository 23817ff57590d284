//! Launch ways side by side, batch by batch, as a README shows them: what [`super::picture`] draws.

use super::bench::{BARE, Row, by, groups};
use super::input::Input;
use super::{benched, listed};
use crate::bench::Kind;
use crate::error::{Error, Result};
use std::collections::BTreeSet;

/// The lineup of one set of steps. Times are in ms.
pub struct Lineup {
    /// What was measured, and on what and when.
    pub subject: String,
    /// Names in `--launch`, in the order of the files, without the bare graph.
    pub ways: Vec<String>,
    /// Threads that spun where there were most; `None` where the host always was idle.
    pub busy: Option<u32>,
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
    /// The median with an idle host.
    pub p50: Option<f64>,
    pub p99: Option<f64>,
    /// The 99th percentile with a busy one.
    pub busy_p99: Option<f64>,
}

impl Cell {
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
    let mut groups = groups(&rows);
    groups.retain(|group| group[0].workload.kind == Kind::Decode);
    let expected = "expected results of `bench decode`";
    match &groups[..] {
        [] => Err(Error::Usage(format!(
            "--svg: found no steps in these files, {expected}"
        ))),
        [group] if group.iter().all(|row| row.way == BARE) => Err(Error::Usage(format!(
            "--svg: found the bare graph alone, {expected} by some way to launch"
        ))),
        [group] => Ok(Lineup::of(group)),
        groups => Err(Error::Usage(format!(
            "--svg: found {}; expected steps of one model, type, machine, build, bucket and kernel file, each way and batch once: name only files that belong together",
            found(groups)
        ))),
    }
}

/// What steps are of.
fn of_what(row: &Row) -> String {
    format!(
        "decode steps of {} in {} ({} + {} tokens a sequence)",
        row.subject.model_filename, row.choice.dtype, row.workload.n_prompt, row.workload.n_gen
    )
}

/// The days that results are of, each once.
fn days(group: &[&Row]) -> Vec<String> {
    let times = group
        .iter()
        .filter_map(|row| row.subject.test_time.as_deref());
    let days: BTreeSet<&str> = times.filter_map(|time| time.split('T').next()).collect();
    days.into_iter().map(str::to_owned).collect()
}

/// Several sets of steps, each in words.
fn found(groups: &[Vec<&Row>]) -> String {
    let words = |group: &Vec<&Row>| {
        let first = group[0];
        let mut words = vec![
            format!("{} on {}", of_what(first), first.device()),
            format!("a {} build", first.subject.build_profile),
        ];
        words.extend(days(group));
        let mut files: Vec<String> = group.iter().map(|row| row.file.clone()).collect();
        files.dedup();
        format!("{} in {}", words.join(", "), listed(&files))
    };
    listed(&groups.iter().map(words).collect::<Vec<_>>())
}

impl Lineup {
    fn of(group: &[&Row]) -> Self {
        let first = group[0];
        let scheduled = group.iter().copied().filter(|row| row.way != BARE);
        let ways = by(&scheduled.clone().collect::<Vec<_>>(), |row| &row.way);
        let ways: Vec<String> = ways.iter().map(|rows| rows[0].way.clone()).collect();
        let busy = scheduled.map(|row| row.workload.cpu_load).max();
        let busy = busy.filter(|&threads| threads > 0);
        let at = |way: &str, threads: u32, batch: u32| {
            let mut rows = group.iter();
            rows.find(|row| {
                row.workload.batch == batch && row.workload.cpu_load == threads && row.way == way
            })
        };
        let cell = |way: &String, batch: u32| {
            let idle = at(way, 0, batch);
            Cell {
                p50: idle.and_then(|row| row.step.median),
                p99: idle.and_then(|row| row.step.p99),
                busy_p99: busy.and_then(|busy| at(way, busy, batch)?.step.p99),
            }
        };
        let floor = |batch: u32| {
            let mut rows = group.iter().filter(|row| row.workload.batch == batch);
            rows.find_map(|row| row.floor.floor_ms)
        };
        let batches: BTreeSet<u32> = group.iter().map(|row| row.workload.batch).collect();
        let batch = |sequences: u32| Batch {
            sequences,
            floor: floor(sequences),
            bare: at(BARE, 0, sequences).and_then(|row| row.step.median),
            cells: ways.iter().map(|way| cell(way, sequences)).collect(),
        };
        let batches = batches.into_iter().map(batch).collect();
        let what = of_what(first);
        let mut about = vec![format!("on {}", named(first.device()))];
        about.extend(days(group));
        if first.subject.build_profile != "release" {
            about.push(format!("a {} build", first.subject.build_profile));
        }
        Self {
            subject: format!(
                "{}{}, {}",
                what[..1].to_uppercase(),
                &what[1..],
                about.join(", ")
            ),
            busy,
            batches,
            ways,
        }
    }

    /// What the host was doing where it was busiest.
    pub fn beside(&self) -> Option<String> {
        Some(match self.busy? {
            1 => "beside a busy thread".to_owned(),
            threads => format!("beside {threads} busy threads"),
        })
    }
}

/// A device's name as people say it: without its number here, and without what stands in brackets.
fn named(device: &str) -> &str {
    let name = device.split(" (").next().unwrap_or(device);
    match name.split_once(' ') {
        Some((number, rest)) if number.starts_with("cuda:") => rest,
        _ => name,
    }
}
