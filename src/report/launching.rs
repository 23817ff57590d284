//! Every way of launching a step side by side: results of `bench launch --launch all`.

use super::charts::{Axes, Range, both, ranges};
use super::html::Page;
use super::svg::exact;
use crate::error::{Error, Result};
use crate::json;
use serde::Deserialize;
use std::io::Read;
use std::path::Path;

/// What the first object of such a file begins with.
pub const KEY: &str = "launch_schema";

/// One way beside one load.
#[derive(Debug, Clone, Deserialize)]
pub struct Launched {
    launch_schema: u32,
    command: String,
    gpu_info: Option<String>,
    technique: String,
    kernels: u32,
    cpu_load: u32,
    gpu_load: u32,
    timed_steps: u64,
    p50_step_us: f64,
    p99_step_us: f64,
    #[serde(rename = "p99.9_step_us")]
    p999_step_us: Option<f64>,
    host_cpu_us_per_step: f64,
    host_launches_per_step: f64,
    device_mib: f64,
    startup_ms: f64,
    /// The file that it is of.
    #[serde(skip)]
    file: String,
}

/// Whether a list in this file is of such results.
pub fn is_list_of(path: &Path) -> Result<bool> {
    let mut head = vec![];
    std::fs::File::open(path)
        .and_then(|file| file.take(256).read_to_end(&mut head))
        .map_err(|error| Error::io(path, error))?;
    let text = String::from_utf8_lossy(&head);
    let first = text.trim_start_matches(['[', ' ', '\n', '\r', '\t', '{']);
    Ok(first.starts_with(&format!("\"{KEY}\"")))
}

/// Reads results as `--format json` and `--format jsonl` write them.
///
/// # Errors
/// The file cannot be read, or holds something else.
pub fn read(path: &Path, name: &str) -> Result<Vec<Launched>> {
    let mut rows: Vec<Launched> = json::rows(path, "results of `bench launch --launch all`")?;
    if let Some(row) = rows.iter().find(|row| row.launch_schema != 1) {
        let found = row.launch_schema;
        return Err(Error::file(
            path,
            format!(
                "found {KEY} {found}, expected 1: measure again, or use the version that wrote it"
            ),
        ));
    }
    for row in &mut rows {
        name.clone_into(&mut row.file);
    }
    Ok(rows)
}

impl Launched {
    /// Of the part of the page that it stands in.
    fn place(&self) -> (String, u32) {
        let device = self.gpu_info.clone();
        let device = device.unwrap_or_else(|| "a GPU that does not say its name".to_owned());
        (device, self.kernels)
    }

    fn beside(&self) -> String {
        let many = |count: u32, what: &str| match count {
            0 => None,
            1 => Some(format!("1 {what}")),
            n => Some(format!(
                "{n} {what}{}",
                if what.ends_with('s') { "es" } else { "s" }
            )),
        };
        let loads = [
            many(self.cpu_load, "busy thread"),
            many(self.gpu_load, "process"),
        ];
        let loads: Vec<String> = loads.into_iter().flatten().collect();
        match loads.is_empty() {
            true => "idle".to_owned(),
            false => format!("beside {}", loads.join(" and ")),
        }
    }

    fn color(&self) -> usize {
        match self.technique.split('-').next() {
            Some("graph") => 0,
            Some("device") => 1,
            Some("conditional") => 2,
            Some("persistent") => 3,
            Some("cdp") => 4,
            _ => super::NEUTRAL,
        }
    }
}

/// A part for each GPU and number of kernels.
pub fn write(page: &mut Page, rows: &[Launched]) {
    let mut places: Vec<(String, u32)> = vec![];
    for row in rows {
        if !places.contains(&row.place()) {
            places.push(row.place());
        }
    }
    for place in places {
        let rows: Vec<&Launched> = rows.iter().filter(|row| row.place() == place).collect();
        let title = format!("Every way of launching a step of {} small kernels", place.1);
        page.part(&title, &rows[0].file);
        page.text(&format!("On {}, by the GPU's clock.", place.0));
        part(page, &rows);
    }
}

fn part(page: &mut Page, rows: &[&Launched]) {
    let mut groups: Vec<(String, Vec<Range>)> = vec![];
    for row in rows {
        let range = Range {
            name: row.technique.clone(),
            color: row.color(),
            values: [
                Some(row.p50_step_us),
                Some(row.p99_step_us),
                row.p999_step_us,
            ]
            .into_iter()
            .flatten()
            .collect(),
        };
        match groups
            .iter_mut()
            .find(|(beside, _)| *beside == row.beside())
        {
            Some((_, ranges)) => ranges.push(range),
            None => groups.push((row.beside(), vec![range])),
        }
    }
    let axes = Axes {
        label: "Median, p99 and p99.9 of a step's time, for each way of launching and each load",
        x: "us per step: median (mark), p99 and p99.9 (ticks)",
        y: "",
    };
    page.chart(&both(|width| ranges(&axes, &groups, width)));
    let heads = [
        "way",
        "beside",
        "p50, us",
        "p99",
        "p99.9",
        "CPU us/step",
        "launches/step",
        "MiB",
        "start, ms",
        "steps",
    ];
    let cells = rows.iter().map(|row| {
        vec![
            row.technique.clone(),
            row.beside(),
            exact(row.p50_step_us),
            exact(row.p99_step_us),
            row.p999_step_us.map_or("\u{2013}".to_owned(), exact),
            exact(row.host_cpu_us_per_step),
            exact(row.host_launches_per_step),
            exact(row.device_mib),
            exact(row.startup_ms),
            row.timed_steps.to_string(),
        ]
    });
    page.table(2, &heads, &cells.collect::<Vec<_>>());
    page.command(&format!("{}, made by", rows[0].file), &rows[0].command);
}
