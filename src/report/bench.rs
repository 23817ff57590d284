//! Results of `bench`, as `--format json` and `--format jsonl` write them.

use crate::bench::Kind;
use crate::bench::row::{self, EXPECTED, VERSION};
use crate::error::{Error, Result};
use crate::quote;
use serde::Serialize;
use std::ops::Deref;
use std::path::Path;

/// The launch way that nobody schedules in: a step's graph, launched again and again.
pub const BARE: &str = "bare";

/// One result, and what it is called.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The name of its file.
    pub file: String,
    /// The way to launch by its name in `--launch`, or `cpu` where nothing is launched, and what else makes it another way than others of that name.
    pub way: String,
    #[serde(flatten)]
    row: row::Row,
}

impl Deref for Row {
    type Target = row::Row;

    fn deref(&self) -> &row::Row {
        &self.row
    }
}

/// What [`Row::way`] is of a first run.
fn named_way(row: &row::Row) -> String {
    let mut way = row
        .choice
        .launch
        .clone()
        .unwrap_or_else(|| "cpu".to_owned());
    for (count, what) in [
        (row.setting.replicas, "replicas"),
        (row.setting.stage_devices, "GPUs in stages"),
    ] {
        if count > 1 {
            way += &format!(", {count} {what}");
        }
    }
    way
}

impl Row {
    /// What it was measured on.
    pub fn device(&self) -> &str {
        let names = [&self.subject.gpu_info, &self.subject.cpu_info];
        let found = names.into_iter().find_map(Option::as_deref);
        found.unwrap_or("a CPU that does not say its name")
    }

    /// Whether two results are runs of the same.
    fn same(&self, other: &row::Row) -> bool {
        self.measured() == other.measured()
    }

    /// Whether two results would be the same point of a chart.
    pub fn same_place(&self, other: &Self) -> bool {
        self.way == other.way && self.same(other)
    }

    /// What makes it of no use, in words.
    fn wrong(&self) -> Option<String> {
        let (schema, kind, batch) = (self.subject.schema, self.workload.kind, self.workload.batch);
        if schema != VERSION {
            return Some(format!("found schema {schema}, expected {VERSION}"));
        }
        let steps = kind == Kind::Decode;
        let timed = |ms: Option<f64>| ms.is_some_and(|ms| ms > 0.0);
        let untimed = steps && !(timed(self.step.median) && timed(self.step.p99));
        if batch == 0 || self.throughput.avg_ts <= 0.0 || untimed {
            let (name, way) = (kind.name(), quote::text(&self.way));
            return Some(format!(
                "found a {name} of {batch} by {way}, which took no time"
            ));
        }
        None
    }
}

/// Reads a file of results, which is called `file`. What was measured again is another run of its way.
///
/// # Errors
/// The file holds something else.
pub fn read(path: &Path, file: &str) -> Result<Vec<Row>> {
    let mut rows: Vec<Row> = vec![];
    for mut row in row::read(path)? {
        // Repeats one by one are for `compare`.
        row.samples.clear();
        row.throughput.samples_ns.clear();
        row.throughput.samples_ts.clear();
        let mut way = named_way(&row);
        match rows.iter().filter(|earlier| earlier.same(&row)).count() {
            0 => {}
            runs => way += &format!(", run {}", runs + 1),
        }
        let row = Row {
            file: file.to_owned(),
            way,
            row,
        };
        if let Some(message) = row.wrong() {
            return Err(Error::file(path, format!("{message}, expected {EXPECTED}")));
        }
        rows.push(row);
    }
    Ok(rows)
}
