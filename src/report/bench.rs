//! Results of `bench`, as `--format json` and `--format jsonl` write them.

use crate::bench::Kind;
use crate::bench::row::VERSION;
use crate::error::{Error, Result};
use crate::json;
use crate::quote;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::path::Path;

/// The launch way that nobody schedules in: a step's graph, launched again and again.
pub const BARE: &str = "bare";

/// One result. What is used here has a field; a page has all of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The name of its file.
    #[serde(skip_deserializing)]
    pub file: String,
    /// As in `--launch`, or `cpu` where nothing is launched, and what else makes it another way than others of that name.
    #[serde(skip_deserializing)]
    pub way: String,
    schema: u32,
    pub kind: Kind,
    pub command: String,
    /// UTC, RFC 3339.
    pub test_time: Option<String>,
    /// `debug` or `release`.
    pub build_profile: String,
    pub model_filename: String,
    pub cpu_info: Option<String>,
    pub gpu_info: Option<String>,
    pub host_cores: usize,
    /// As in `--launch`; `None` on the CPU.
    launch: Option<String>,
    pub dtype: String,
    pub bucket_file: Option<String>,
    pub kernel_file: Option<String>,
    pub batch: u32,
    pub n_prompt: u32,
    pub n_gen: u32,
    /// Threads that spin beside the run.
    pub cpu_load: u32,
    /// Processes on the same GPU; older results have no such field.
    #[serde(default)]
    pub gpu_load: u32,
    avg_ts: f64,
    pub floor_ms: Option<f64>,
    pub median_step_ms: Option<f64>,
    pub p99_step_ms: Option<f64>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// What was measured: kind, sizes, names, and the rest.
type Combination<'a> = (Kind, [u32; 5], [Option<&'a str>; 4], [Option<&'a Value>; 6]);

impl Row {
    /// What [`Row::way`] is of a first run.
    fn named_way(&self) -> String {
        let mut way = self.launch.clone().unwrap_or_else(|| "cpu".to_owned());
        let number = |key: &str| self.rest.get(key).and_then(Value::as_u64).unwrap_or(0);
        let more = [
            (
                u64::from(self.gpu_load),
                1,
                "process beside",
                "processes beside",
            ),
            (number("replicas"), 2, "", "replicas"),
            (number("stage_devices"), 2, "", "GPUs in stages"),
        ];
        for (count, from, one, several) in more {
            if count >= from {
                way += &format!(", {count} {}", if count == 1 { one } else { several });
            }
        }
        way
    }

    /// What it was measured on.
    pub fn device(&self) -> &str {
        let names = [&self.gpu_info, &self.cpu_info];
        let found = names.into_iter().find_map(Option::as_deref);
        found.unwrap_or("a CPU that does not say its name")
    }

    /// Two results of one combination are runs of the same.
    fn combination(&self) -> Combination<'_> {
        let (bucket, kernel) = (self.bucket_file.as_deref(), self.kernel_file.as_deref());
        let rest = |key| self.rest.get(key);
        (
            self.kind,
            [
                self.batch,
                self.cpu_load,
                self.gpu_load,
                self.n_prompt,
                self.n_gen,
            ],
            [self.launch.as_deref(), Some(&self.dtype), bucket, kernel],
            [
                rest("n_prompt_min"),
                rest("max_concurrency"),
                rest("logits_on_device"),
                rest("request_rate"),
                rest("replicas"),
                rest("stage_devices"),
            ],
        )
    }

    /// Whether two results would be the same point of a chart.
    pub fn same_place(&self, other: &Self) -> bool {
        self.way == other.way && self.combination() == other.combination()
    }

    /// What makes it of no use, in words.
    fn wrong(&self) -> Option<String> {
        if self.schema != VERSION {
            let schema = self.schema;
            return Some(format!("found schema {schema}, expected {VERSION}"));
        }
        let steps = self.kind == Kind::Decode;
        let timed = |ms: Option<f64>| ms.is_some_and(|ms| ms > 0.0);
        let untimed = steps && !(timed(self.median_step_ms) && timed(self.p99_step_ms));
        if self.batch == 0 || self.avg_ts <= 0.0 || untimed {
            let (name, way) = (self.kind.name(), quote::text(&self.way));
            let batch = self.batch;
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
    const EXPECTED: &str = "results of `bench --format json` or `--format jsonl`";
    let mut rows: Vec<Row> = json::rows(path, EXPECTED)?;
    for n in 0..rows.len() {
        let (earlier, rest) = rows.split_at_mut(n);
        let row = &mut rest[0];
        file.clone_into(&mut row.file);
        row.way = row.named_way();
        match earlier
            .iter()
            .filter(|earlier| earlier.combination() == row.combination())
            .count()
        {
            0 => {}
            runs => row.way += &format!(", run {}", runs + 1),
        }
        if let Some(message) = row.wrong() {
            return Err(Error::file(path, format!("{message}, expected {EXPECTED}")));
        }
    }
    for row in &mut rows {
        // Repeats one by one are for `compare`.
        row.rest
            .retain(|_, value| !value.is_array() && !value.is_object());
    }
    Ok(rows)
}
