//! Results of `bench`, as `--format json` and `--format jsonl` write them.

use crate::bench::Kind;
use crate::bench::row::{self, EXPECTED, VERSION};
use crate::error::{Error, Result};
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
    let launch = row.choice.launch.as_deref();
    let mut way = launch.unwrap_or("cpu").to_owned();
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

    /// Whether two results would be the same point of a chart.
    fn same_place(&self, other: &Self) -> bool {
        self.way == other.way && self.measured() == other.measured()
    }

    /// What results have in common that one part of a page shows: machine and model, and lengths and files of what generates.
    fn shared(&self) -> impl PartialEq {
        let (subject, choice, workload) = (&self.subject, &self.choice, &self.workload);
        let generates = matches!(workload.kind, Kind::Decode | Kind::Serve);
        let files = (&choice.bucket_file, &choice.kernel_file);
        let lengths = (workload.n_prompt, workload.n_gen);
        (
            (self.device(), subject.host_cores, &subject.build_profile),
            (workload.kind, &subject.model_filename),
            generates.then_some((&choice.dtype, files, lengths)),
        )
    }
}

/// Reads a file of results, which is called `file`. What was measured again is another run of its way.
///
/// # Errors
/// The file holds something else.
pub fn read(path: &Path, file: &str) -> Result<Vec<Row>> {
    let mut rows: Vec<Row> = vec![];
    for mut row in row::read(path)? {
        let schema = row.subject.schema;
        if schema != VERSION {
            let message = format!("found schema {schema}, expected {VERSION}: {EXPECTED}");
            return Err(Error::file(path, message));
        }
        // Repeats one by one are for `compare`.
        row.samples.clear();
        row.throughput.samples_ns.clear();
        row.throughput.samples_ts.clear();
        let mut way = named_way(&row);
        let earlier = rows
            .iter()
            .filter(|earlier| earlier.measured() == row.measured());
        match earlier.count() {
            0 => {}
            runs => way += &format!(", run {}", runs + 1),
        }
        let file = file.to_owned();
        rows.push(Row { file, way, row });
    }
    Ok(rows)
}

/// Items of one key together, in the order of each key's first.
pub fn by<T: Copy, K: PartialEq>(items: &[T], key: impl Fn(T) -> K) -> Vec<Vec<T>> {
    let mut all: Vec<Vec<T>> = vec![];
    for &item in items {
        match all.iter_mut().find(|with| key(with[0]) == key(item)) {
            Some(with) => with.push(item),
            None => all.push(vec![item]),
        }
    }
    all
}

/// Results as the parts of a page that show them, each of at least one, in the order of the files. Files are shown together where they
/// measured different things of the same; where two of them measured the same thing, each stands for itself.
pub fn groups<'a>(rows: &[&'a Row]) -> Vec<Vec<&'a Row>> {
    let mut groups = vec![];
    for group in by(rows, Row::shared) {
        let again = |n: usize| group[..n].iter().any(|row| row.same_place(group[n]));
        if (1..group.len()).any(again) {
            groups.extend(by(&group, |row| &row.file));
        } else {
            groups.push(group);
        }
    }
    groups
}
