//! Two files of results, held against each other: for each figure the ratio, and whether the repeats show a difference.
//! Two versions should run by turns: a file then has several results of the same thing, whose repeats count together.
//!
//! The test is Welch's on the logarithms of the repeats' values. Of all figures of a comparison together, Holm's rule
//! keeps the chance that any is called different by accident at 5%.

use super::Kind;
use super::row::{Choice, Row, Workload};
use super::stats::{LEAST_REPEATS, Ratio, geometric_mean, holm, welch};
use crate::error::{Error, Result};
use crate::quote;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// What was measured: results of the same are runs of the same thing.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Thing {
    model: String,
    /// Devices that run the whole model each, and those that share its stages out.
    replicas: usize,
    stage_devices: usize,
    #[serde(flatten)]
    choice: Choice,
    #[serde(flatten)]
    workload: Workload,
}

impl Row {
    pub fn measured(&self) -> Thing {
        Thing {
            model: self.subject.model_filename.clone(),
            replicas: self.setting.replicas,
            stage_devices: self.setting.stage_devices,
            choice: self.choice.clone(),
            workload: Workload {
                // Older results do not say so.
                logits_on_device: Some(self.workload.logits_on_device == Some(true)),
                ..self.workload.clone()
            },
        }
    }
}

/// A figure of a thing that both files have.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    thing: &'a Thing,
    figure: &'static str,
    more_is_better: bool,
    /// Geometric means.
    a: f64,
    b: f64,
    repeats_a: usize,
    repeats_b: usize,
    /// Without a test it is that of the means alone.
    #[serde(flatten)]
    ratio: Ratio,
    verdict: String,
}

/// The results of each thing as one, in the order of their first: the values of all repeats of each figure.
fn pooled(rows: &[Row]) -> Vec<(Thing, BTreeMap<String, Vec<f64>>)> {
    let mut pooled: Vec<(Thing, BTreeMap<String, Vec<f64>>)> = Vec::new();
    for row in rows {
        let thing = row.measured();
        match pooled.iter_mut().find(|(other, _)| *other == thing) {
            Some((_, samples)) => {
                for (figure, values) in &row.samples {
                    samples.entry(figure.clone()).or_default().extend(values);
                }
            }
            None => pooled.push((thing, row.samples.clone())),
        }
    }
    pooled
}

/// The figures that tell how fast a kind is, and whether more is better.
fn figures(kind: Kind) -> &'static [(&'static str, bool)] {
    match kind {
        Kind::Decode => &[
            ("tokens_per_s", true),
            ("median_itl_ms", false),
            ("p99_itl_ms", false),
        ],
        Kind::Prefill => &[("tokens_per_s", true), ("median_ttft_ms", false)],
        Kind::Score => &[("tokens_per_s", true)],
        Kind::Serve => &[
            ("output_throughput", true),
            ("median_ttft_ms", false),
            ("p99_ttft_ms", false),
            ("median_tpot_ms", false),
            ("median_e2el_ms", false),
        ],
    }
}

/// A line for each figure of each thing that both have results of.
///
/// # Errors
/// [`Error::Usage`] where nothing is in both.
pub fn compare(a: &[Row], b: &[Row]) -> Result<Vec<Value>> {
    let (left, right) = (pooled(a), pooled(b));
    let mut lines = Vec::new();
    for (thing, of_a) in &left {
        let Some((_, of_b)) = right.iter().find(|(other, _)| other == thing) else {
            continue;
        };
        for &(figure, more_is_better) in figures(thing.workload.kind) {
            let (Some(x), Some(y)) = (of_a.get(figure), of_b.get(figure)) else {
                continue;
            };
            let (Some(a), Some(b)) = (geometric_mean(x), geometric_mean(y)) else {
                continue;
            };
            let untested = Ratio {
                ratio: b / a,
                ..Ratio::default()
            };
            lines.push(Line {
                thing,
                figure,
                more_is_better,
                a,
                b,
                repeats_a: x.len(),
                repeats_b: y.len(),
                ratio: welch(x, y).unwrap_or(untested),
                verdict: String::new(),
            });
        }
    }
    if lines.is_empty() {
        return Err(Error::Usage(
            "bench compare: the two files have no result of the same kind, model, launch, dtype, buckets, batch, lengths, rate, load and devices"
                .to_owned(),
        ));
    }
    let tested: Vec<f64> = lines.iter().filter_map(|line| line.ratio.p).collect();
    let mut shown = holm(&tested).into_iter();
    for line in &mut lines {
        line.verdict = line.verdict(line.ratio.p.and_then(|_| shown.next()));
    }
    Ok(lines.iter().map(|line| json!(line)).collect())
}

impl Line<'_> {
    /// `different`: whether a difference is shown, where that was tested.
    fn verdict(&self, different: Option<bool>) -> String {
        let fewest = self.repeats_a.min(self.repeats_b);
        let is_more = self.ratio.ratio > 1.0;
        match different {
            None if fewest < LEAST_REPEATS => {
                return format!("too few repeats: {fewest} of {LEAST_REPEATS}");
            }
            None => "no test: a value is not above 0, or none differs",
            Some(false) => "no difference shown",
            Some(true) if is_more == self.more_is_better => "B better",
            Some(true) => "B worse",
        }
        .to_owned()
    }
}

/// What else differs between the files, where it may explain a difference.
pub fn differences(a: &[Row], b: &[Row]) -> Vec<String> {
    type Field = fn(&Row) -> Option<&String>;
    let fields: [(&str, Field); 4] = [
        ("processor", |row| row.subject.cpu_info.as_ref()),
        ("GPU", |row| row.subject.gpu_info.as_ref()),
        ("build profile", |row| Some(&row.subject.build_profile)),
        ("choice of kernels", |row| {
            row.setting.kernel_variants.as_ref()
        }),
    ];
    let mut found = Vec::new();
    for (name, field) in fields {
        let all = |rows: &[Row]| -> BTreeSet<String> {
            let texts = rows.iter().map(field);
            texts
                .map(|text| text.cloned().unwrap_or_default())
                .collect()
        };
        let (left, right) = (all(a), all(b));
        if left != right {
            let show = |side: BTreeSet<String>| side.into_iter().collect::<Vec<_>>().join(", ");
            found.push(format!(
                "the {name} differs: A '{}', B '{}'",
                quote::text(show(left)),
                quote::text(show(right))
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(batch: u32, tokens_per_s: &[f64], itl_ms: &[f64]) -> Row {
        let samples = [("tokens_per_s", tokens_per_s), ("median_itl_ms", itl_ms)];
        let mut row = Row::default();
        row.workload.batch = batch;
        row.subject.model_filename = "m".into();
        row.subject.build_profile = "release".into();
        row.samples = samples
            .map(|(name, values)| (name.to_owned(), values.to_vec()))
            .into();
        row
    }

    fn compared(a: &Row, b: &Row) -> Vec<Value> {
        compare(std::slice::from_ref(a), std::slice::from_ref(b)).unwrap()
    }

    #[test]
    fn verdicts_follow_the_noise() {
        let base = entry(1, &[100.0, 101.0, 99.0, 100.5], &[10.0, 10.1, 9.9, 10.05]);
        let faster = entry(1, &[120.0, 121.0, 119.0, 120.5], &[8.0, 8.1, 7.9, 8.05]);
        let noisy = entry(1, &[60.0, 180.0, 90.0, 150.0], &[5.0, 16.0, 7.0, 11.0]);
        let few = entry(1, &[120.0, 121.0], &[8.0, 8.1]);
        for (a, b, verdict) in [
            (&base, &base, "no difference shown"),
            (&base, &faster, "B better"),
            (&faster, &base, "B worse"),
            (&base, &noisy, "no difference shown"),
            (&base, &few, "too few repeats: 2 of 3"),
        ] {
            let found = compared(a, b);
            assert_eq!([&found[0]["verdict"], &found[1]["verdict"]], [verdict; 2]);
        }
    }

    #[test]
    fn the_ratio_is_that_of_the_means_shown() {
        let base = entry(1, &[1.0, 2.0, 4.0], &[1.0; 3]);
        // The last two are without a test.
        for (values, mean, ratio) in [
            (&[1.0, 4.0, 16.0][..], 4.0, 2.0),
            (&[1.0, 4.0], 2.0, 1.0),
            (&[0.0, 1.0, 4.0], 0.0, 0.0),
        ] {
            let line = &compared(&base, &entry(1, values, &[3.0; 3]))[0];
            for (key, expected) in [("a", 2.0), ("b", mean), ("ratio", ratio)] {
                let found = line[key].as_f64().unwrap();
                assert!((found - expected).abs() < 1e-12, "{key}: {found}");
            }
        }
    }

    /// Runs by turns leave several results of the same thing in a file.
    #[test]
    fn results_of_the_same_thing_count_together() {
        let run = |&value: &f64| entry(1, &[value], &[1.0 / value]);
        let a: Vec<Row> = [100.0, 101.0, 99.0, 100.5].iter().map(run).collect();
        let b: Vec<Row> = [120.0, 121.0, 119.0].iter().map(run).collect();
        let lines = compare(&a, &b).unwrap();
        assert_eq!(lines.len(), 2);
        for line in lines {
            assert_eq!(line["verdict"], "B better");
            assert_eq!([&line["repeats_a"], &line["repeats_b"]], [4, 3]);
        }
    }

    #[test]
    fn results_of_other_models_and_devices_are_kept_apart() {
        let of = |model: &str, replicas: usize, value: f64| {
            let mut row = entry(1, &[value, value, 2.0 * value], &[1.0; 3]);
            row.subject.model_filename = model.into();
            row.setting.replicas = replicas;
            row
        };
        let both = [of("m", 1, 1.0), of("n", 1, 10.0), of("n", 2, 100.0)];
        let faster = [of("n", 2, 400.0), of("n", 1, 30.0), of("m", 1, 2.0)];
        let lines = compare(&both, &faster).unwrap();
        for (line, ratio) in lines.iter().step_by(2).zip([2.0, 3.0, 4.0]) {
            let found = line["ratio"].as_f64().unwrap();
            assert!((found - ratio).abs() < 1e-12, "{found}");
        }
        assert!(compare(&both[..1], &[of("o", 1, 1.0)]).is_err());
        assert!(compare(&both[..1], &[of("m", 2, 1.0)]).is_err());
    }

    #[test]
    fn what_is_not_in_both_is_left_out_or_refused() {
        let [one, two] = [1, 2].map(|batch| entry(batch, &[1.0; 3], &[1.0; 3]));
        let both = [one.clone(), two.clone()];
        assert_eq!(compare(&both, &both[..1]).unwrap().len(), 2);
        assert!(compare(&both[..1], &both[1..]).is_err());
        let mut other = one.clone();
        other.subject.build_profile = "debug".into();
        assert_eq!(
            differences(&[one], &[other]),
            ["the build profile differs: A 'release', B 'debug'"]
        );
    }
}
