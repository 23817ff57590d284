//! Results of `bench` of all files together, as parts of a page: those that belong side by side in one.

use super::bench::Row;
use super::startup::of_rows;
use super::steps::{Roofline, Series, Source, Steps, What};
use crate::bench::Kind;
use std::collections::{BTreeMap, BTreeSet};

/// Results of one kind on one machine that one part shows; their other fields make its axes and series.
pub struct Group<'a> {
    pub kind: Kind,
    pub rows: Vec<&'a Row>,
}

/// In the order of the files. Files are shown together where they measured different things of the same; where two of
/// them measured the same thing, each stands for itself.
pub fn groups(rows: &[Row]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = vec![];
    for row in rows {
        match groups.iter_mut().find(|group| together(group.rows[0], row)) {
            Some(group) => group.rows.push(row),
            None => groups.push(Group {
                kind: row.kind,
                rows: vec![row],
            }),
        }
    }
    groups.into_iter().flat_map(Group::apart).collect()
}

/// Whether two results are of the same machine, model and lengths.
fn together(a: &Row, b: &Row) -> bool {
    let alike = |value: fn(&Row) -> (Kind, &str, usize, &str, &str)| value(a) == value(b);
    let subject = alike(|row| {
        (
            row.kind,
            row.device(),
            row.host_cores,
            &row.build_profile,
            &row.model_filename,
        )
    });
    let same = match a.kind {
        Kind::Decode | Kind::Serve => {
            a.dtype == b.dtype
                && a.bucket_file == b.bucket_file
                && a.kernel_file == b.kernel_file
                && (a.n_prompt, a.n_gen) == (b.n_prompt, b.n_gen)
        }
        Kind::Prefill | Kind::Score => true,
        Kind::Launch => a.n_kernels == b.n_kernels,
    };
    subject && same
}

impl<'a> Group<'a> {
    /// By file, where two results are of the same combination.
    fn apart(self) -> Vec<Self> {
        let twice = |n: usize| {
            self.rows[..n]
                .iter()
                .any(|row| row.same_place(self.rows[n]))
        };
        if !(1..self.rows.len()).any(twice) {
            return vec![self];
        }
        let mut files: Vec<Self> = vec![];
        for row in self.rows {
            match files.iter_mut().find(|file| file.rows[0].file == row.file) {
                Some(file) => file.rows.push(row),
                None => files.push(Group {
                    kind: self.kind,
                    rows: vec![row],
                }),
            }
        }
        files
    }

    pub fn first(&self) -> &'a Row {
        self.rows[0]
    }

    /// Each once.
    pub fn sources(&self) -> Vec<Source> {
        let mut sources: Vec<Source> = vec![];
        for row in &self.rows {
            if !sources.contains(&row.source()) {
                sources.push(row.source());
            }
        }
        sources
    }

    /// When they were measured.
    fn days(&self) -> Vec<String> {
        let times = self.rows.iter().filter_map(|row| row.test_time.as_deref());
        let days: BTreeSet<&str> = times.filter_map(|time| time.split('T').next()).collect();
        days.into_iter().map(str::to_owned).collect()
    }

    /// Their names.
    pub fn files(&self) -> String {
        let mut files: Vec<String> = self.sources().into_iter().map(|s| s.file).collect();
        files.dedup();
        super::listed(&files)
    }

    /// What its model took to load, where one did.
    pub fn model_ms(&self) -> Option<f64> {
        let models: Vec<f64> = self
            .rows
            .iter()
            .filter_map(|r| r.startup_model_ms)
            .collect();
        let ran = self.rows.iter().any(|row| row.startup_engine_ms.is_some());
        (ran && !models.is_empty()).then(|| models.iter().sum::<f64>() / models.len() as f64)
    }

    /// Of `decode` and `launch`.
    pub fn steps(&self) -> Steps {
        let first = self.first();
        let mut series: Vec<Series> = vec![];
        for row in &self.rows {
            let Some(point) = row.point() else { continue };
            let (way, host) = (row.way(), row.host());
            match series.iter_mut().find(|s| s.way == way && s.host == host) {
                Some(series) => series.points.push(point),
                None => series.push(Series {
                    way,
                    host,
                    points: vec![point],
                }),
            }
        }
        for series in &mut series {
            series.points.sort_by_key(|point| point.sequences);
        }
        let floors = self
            .rows
            .iter()
            .filter_map(|row| Some((row.batch, row.floor_ms?)));
        let ms: BTreeMap<u32, f64> = floors.collect();
        let source = self.rows.iter().find_map(|row| row.floor_source.as_deref());
        let roofline = (!ms.is_empty()).then(|| Roofline {
            ms,
            note: floor_note(source),
        });
        Steps {
            sources: self.sources(),
            device: first.device().to_owned(),
            host_cores: first.host_cores,
            days: self.days(),
            build: first.build_profile.clone(),
            repeats: self.rows.iter().map(|row| row.repeats).min().unwrap_or(1),
            what: match first.n_kernels {
                Some(kernels) => What::Launch { kernels },
                None => What::Decode {
                    model: first.model_filename.clone(),
                    dtype: first.dtype.clone(),
                    prompt_tokens: first.n_prompt,
                    new_tokens: first.n_gen,
                },
            },
            series,
            roofline,
            startup: of_rows(&self.rows),
        }
    }
}

/// What a floor of `bench` is.
pub fn floor_note(source: Option<&str>) -> String {
    format!(
        "Roofline: what the plan says must at least cross the memory bus, or be multiplied, whichever takes longer at the device's rates ({}). It takes for granted that experts are chosen evenly; launches and waits are not in it.",
        source.unwrap_or("not said")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Of a file: way, batch and dtype.
    fn row(file: &str, launch: &str, batch: u32, dtype: &str) -> Row {
        let mut row: Row = serde_json::from_value(json!({
            "schema": 1, "kind": "decode", "command": "tailgraph bench", "build_profile": "release",
            "model_filename": "m", "host_cores": 8, "launch": launch, "dtype": dtype, "max_seqs": 8,
            "batch": batch, "n_prompt": 32, "n_gen": 8, "request_rate": null, "cpu_load": 0, "repeats": 2,
            "avg_ts": 10.0, "stddev_ts": 1.0, "duration": 1.0, "request_throughput": 1.0,
            "output_throughput": 1.0, "median_step_ms": 2.0, "p99_step_ms": 3.0, "p99.9_step_ms": 3.0,
        }))
        .unwrap();
        row.file = file.to_owned();
        row
    }

    fn sizes(rows: &[Row]) -> Vec<usize> {
        groups(rows).iter().map(|group| group.rows.len()).collect()
    }

    #[test]
    fn files_are_shown_together_where_they_say_different_things() {
        let one = [
            row("a", "host-graph", 1, "bf16"),
            row("a", "host-graph", 8, "bf16"),
            row("b", "device-graph", 1, "bf16"),
            row("b", "device-graph", 1, "f32"),
        ];
        assert_eq!(sizes(&one), [3, 1]);
        let steps = groups(&one)[0].steps();
        assert_eq!(steps.sources.len(), 2);
        assert_eq!(steps.series.len(), 2);
        assert_eq!(steps.series[0].points.len(), 2);
        assert!(steps.roofline.is_none());
        let again = [&one[..], &[row("b", "host-graph", 8, "bf16")]].concat();
        assert_eq!(sizes(&again), [2, 2, 1]);
    }

    #[test]
    fn a_series_is_a_way_and_a_load_and_ascends() {
        let mut rows = [
            row("a", "bare", 8, "bf16"),
            row("a", "bare", 1, "bf16"),
            row("a", "host-graph", 1, "bf16"),
            row("a", "host-graph", 1, "bf16"),
        ];
        rows[3].cpu_load = 32;
        let steps = groups(&rows)[0].steps();
        let names: Vec<String> = steps.series.iter().map(Series::name).collect();
        assert_eq!(names, ["bare", "host-graph", "host-graph, 32 busy"]);
        assert_eq!(steps.series[0].points[0].sequences, 1);
        assert_eq!(steps.scheduled().count(), 2);
        assert_eq!(steps.bare_ms(8), Some(2.0));
        assert_eq!(steps.batches(), [1, 8]);
    }
}
