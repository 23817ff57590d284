//! Two files of results, held against each other: for each figure the ratio, and whether the repeats show a difference.
//! Two versions should run by turns: a file then has several results of the same thing, whose repeats count together.
//!
//! The test is Welch's on the logarithms of the repeats' values. Of all figures of a comparison together, Holm's rule
//! keeps the chance that any is called different by accident at 5%.

use super::Kind;
use super::row::{Choice, Row, Workload};
use super::stats::{LEAST_REPEATS, geometric_mean, holm, welch};
use crate::error::{Error, Result};
use crate::quote;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// A thing that was measured.
#[derive(PartialEq)]
struct Thing {
    choice: Choice,
    workload: Workload,
    /// What of [`subject`] is looked at.
    subject: Map<String, Value>,
}

/// A figure of a thing that both files have.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    choice: &'a Choice,
    #[serde(flatten)]
    workload: &'a Workload,
    #[serde(flatten)]
    subject: &'a Map<String, Value>,
    figure: &'static str,
    more_is_better: bool,
    /// Geometric means.
    a: Option<f64>,
    b: Option<f64>,
    repeats_a: usize,
    repeats_b: usize,
    /// With its 95% interval; without a test it is that of the means alone.
    ratio: Option<f64>,
    low: Option<f64>,
    high: Option<f64>,
    p: Option<f64>,
    verdict: String,
}

/// What two files may differ in as wholes, such as one GPU against two.
fn subject(row: &Row) -> [(&'static str, Value); 3] {
    let devices = |count: usize| json!(Some(count).filter(|&count| count > 1));
    [
        ("model", json!(row.subject.model_filename)),
        ("replicas", devices(row.setting.replicas)),
        ("stage_devices", devices(row.setting.stage_devices)),
    ]
}

/// What of [`subject`] a file has several of.
fn several(rows: &[Row]) -> Vec<&'static str> {
    let subjects: Vec<_> = rows.iter().map(subject).collect();
    let neighbours = subjects.windows(2);
    let pairs = neighbours.flat_map(|pair| pair[0].iter().zip(&pair[1]));
    let other = pairs.filter(|(one, next)| one != next);
    other.map(|(one, _)| one.0).collect()
}

/// The results of each thing as one, in the order of their first.
fn pooled(rows: &[Row], apart: &[&str]) -> Vec<(Thing, BTreeMap<String, Vec<f64>>)> {
    let mut pooled: Vec<(Thing, BTreeMap<String, Vec<f64>>)> = Vec::new();
    for row in rows {
        let (choice, workload) = row.measured();
        let told = subject(row).into_iter();
        let told = told.filter(|(name, _)| apart.contains(name));
        let thing = Thing {
            choice,
            workload,
            subject: told.map(|(name, value)| (name.to_owned(), value)).collect(),
        };
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

/// A line for each figure of each thing that both have results of. Where a file has several models, or counts of devices, only the same are compared.
///
/// # Errors
/// [`Error::Usage`] where nothing is in both.
pub fn compare(a: &[Row], b: &[Row]) -> Result<Vec<Value>> {
    let apart = [several(a), several(b)].concat();
    let (left, right) = (pooled(a, &apart), pooled(b, &apart));
    let mut lines = Vec::new();
    for (thing, of_a) in &left {
        let Some((_, of_b)) = right.iter().find(|(other, _)| other == thing) else {
            continue;
        };
        for &(figure, more_is_better) in figures(thing.workload.kind) {
            let (Some(x), Some(y)) = (of_a.get(figure), of_b.get(figure)) else {
                continue;
            };
            let (tested, a, b) = (welch(x, y), geometric_mean(x), geometric_mean(y));
            let plain = a.zip(b).map(|(a, b)| b / a);
            lines.push(Line {
                choice: &thing.choice,
                workload: &thing.workload,
                subject: &thing.subject,
                figure,
                more_is_better,
                a,
                b,
                repeats_a: x.len(),
                repeats_b: y.len(),
                ratio: tested.map(|ratio| ratio.ratio).or(plain),
                low: tested.map(|ratio| ratio.low),
                high: tested.map(|ratio| ratio.high),
                p: tested.map(|ratio| ratio.p),
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
    let tested: Vec<f64> = lines.iter().filter_map(|line| line.p).collect();
    let mut shown = holm(&tested).into_iter();
    for line in &mut lines {
        line.verdict = line.verdict(line.p.and_then(|_| shown.next()));
    }
    Ok(lines.iter().map(|line| json!(line)).collect())
}

impl Line<'_> {
    /// `different`: whether a difference is shown, where that was tested.
    fn verdict(&self, different: Option<bool>) -> String {
        let fewest = self.repeats_a.min(self.repeats_b);
        let is_more = self.ratio.unwrap_or(1.0) > 1.0;
        match different {
            None if fewest < LEAST_REPEATS => {
                return format!("too few repeats: {fewest} of {LEAST_REPEATS}");
            }
            None => "no test: a value is not above 0",
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
    let fields: [(&str, Field); 5] = [
        ("model", |row| Some(&row.subject.model_filename)),
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

    fn verdicts(a: Row, b: Row) -> Vec<String> {
        let lines = compare(&[a], &[b]).unwrap();
        lines
            .iter()
            .map(|line| line["verdict"].as_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn verdicts_follow_the_noise() {
        let base = || entry(1, &[100.0, 101.0, 99.0, 100.5], &[10.0, 10.1, 9.9, 10.05]);
        assert_eq!(verdicts(base(), base()), ["no difference shown"; 2]);
        let faster = entry(1, &[120.0, 121.0, 119.0, 120.5], &[8.0, 8.1, 7.9, 8.05]);
        assert_eq!(verdicts(base(), faster.clone()), ["B better"; 2]);
        assert_eq!(verdicts(faster, base()), ["B worse"; 2]);
        let noisy = entry(1, &[60.0, 180.0, 90.0, 150.0], &[5.0, 16.0, 7.0, 11.0]);
        assert_eq!(verdicts(base(), noisy), ["no difference shown"; 2]);
        let few = entry(1, &[120.0, 121.0], &[8.0, 8.1]);
        assert_eq!(verdicts(base(), few), ["too few repeats: 2 of 3"; 2]);
    }

    #[test]
    fn the_ratio_is_that_of_the_means_shown() {
        let of = |b: Row| compare(&[entry(1, &[1.0, 2.0, 4.0], &[1.0; 3])], &[b]).unwrap();
        let at = |line: &Value, key: &str| line[key].as_f64();
        let found = of(entry(1, &[1.0, 4.0, 16.0], &[3.0; 3]));
        for (key, expected) in [("a", 2.0), ("b", 4.0), ("ratio", 2.0)] {
            let found = at(&found[0], key).unwrap();
            assert!((found - expected).abs() < 1e-12, "{key}: {found}");
        }
        // Without a test too.
        let few = of(entry(1, &[1.0, 4.0], &[3.0; 2]));
        assert_eq!(at(&few[0], "ratio"), Some(1.0));
        let none = of(entry(1, &[0.0, 1.0, 4.0], &[3.0; 3]));
        assert_eq!(
            (at(&none[0], "b"), at(&none[0], "ratio")),
            (Some(0.0), Some(0.0))
        );
    }

    /// Runs by turns leave several results of the same thing in a file.
    #[test]
    fn results_of_the_same_thing_count_together() {
        let runs = |values: &[f64]| -> Vec<Row> {
            let run = |&value| entry(1, &[value], &[1.0 / value]);
            values.iter().map(run).collect()
        };
        let (a, b) = (
            runs(&[100.0, 101.0, 99.0, 100.5]),
            runs(&[120.0, 121.0, 119.0]),
        );
        let lines = compare(&a, &b).unwrap();
        assert_eq!(lines.len(), 2);
        for line in lines {
            assert_eq!(line["verdict"], "B better");
            assert_eq!(
                (&line["repeats_a"], &line["repeats_b"]),
                (&4.into(), &3.into())
            );
        }
    }

    #[test]
    fn results_of_other_models_and_devices_are_kept_apart() {
        let of = |model: &str, replicas: usize, value: f64| {
            let mut row = entry(1, &[value; 3], &[1.0; 3]);
            row.subject.model_filename = model.into();
            row.setting.replicas = replicas;
            row
        };
        let ratios = |a: &[Row], b: &[Row]| -> Vec<f64> {
            let lines = compare(a, b).unwrap();
            let shown = lines.iter().filter(|line| line["figure"] == "tokens_per_s");
            shown.map(|line| line["ratio"].as_f64().unwrap()).collect()
        };
        let both = [of("m", 1, 1.0), of("n", 1, 10.0), of("n", 2, 100.0)];
        let faster = [of("n", 2, 400.0), of("n", 1, 30.0), of("m", 1, 2.0)];
        for (found, expected) in ratios(&both, &faster).into_iter().zip([2.0, 3.0, 4.0]) {
            assert!((found - expected).abs() < 1e-12, "{found}");
        }
        // One model against another, and one device against two.
        assert_eq!(ratios(&both[..1], &[of("o", 2, 1.0)]).len(), 1);
        // Files name what they have, in whatever order.
        assert!(differences(&both, &faster).is_empty());
        assert_eq!(
            differences(&both, &faster[..2]),
            ["the model differs: A 'm, n', B 'n'"]
        );
        assert!(compare(&both, &[of("o", 1, 1.0)]).is_err());
    }

    #[test]
    fn what_is_not_in_both_is_left_out_or_refused() {
        let (one, two) = (
            entry(1, &[1.0; 3], &[1.0; 3]),
            entry(2, &[1.0; 3], &[1.0; 3]),
        );
        assert_eq!(
            compare(&[one.clone(), two.clone()], std::slice::from_ref(&one))
                .unwrap()
                .len(),
            2
        );
        assert!(compare(std::slice::from_ref(&one), &[two]).is_err());
        let mut other = one.clone();
        other.subject.build_profile = "debug".into();
        assert_eq!(
            differences(&[one], &[other]),
            ["the build profile differs: A 'release', B 'debug'"]
        );
    }
}
