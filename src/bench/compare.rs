//! Two files of results, held against each other: for each figure the ratio, and whether the repeats show a difference.
//! Two versions should run by turns: a file then has several results of the same thing, whose repeats count together.
//!
//! The test is Welch's on the logarithms of the repeats' values. Of all figures of a comparison together, Holm's rule
//! keeps the chance that any is called different by accident at 5%.

use super::Kind;
use super::stats::{LEAST_REPEATS, geometric_mean, holm, welch};
use crate::error::{Error, Result};
use crate::json;
use crate::quote;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// What of a result is compared, and what must be the same for two results to be of the same thing.
#[derive(Debug, Clone, Deserialize)]
pub struct Entry {
    kind: Kind,
    launch: Option<String>,
    dtype: String,
    bucket_file: Option<String>,
    kernel_file: Option<String>,
    kernel_variants: Option<String>,
    batch: u32,
    n_prompt: u32,
    n_gen: u32,
    request_rate: Value,
    /// These, gpu_load and the devices are missing in older results, which had no such thing.
    #[serde(default)]
    n_prompt_min: Option<u32>,
    #[serde(default)]
    n_prompt_max: Option<u32>,
    #[serde(default)]
    max_concurrency: Option<u32>,
    #[serde(default)]
    logits_on_device: Option<bool>,
    cpu_load: u32,
    #[serde(default)]
    gpu_load: u32,
    #[serde(default)]
    replicas: Option<u32>,
    #[serde(default)]
    stage_devices: Option<u32>,
    samples: BTreeMap<String, Vec<f64>>,
    model_filename: String,
    cpu_info: Option<String>,
    gpu_info: Option<String>,
    build_profile: String,
}

impl Entry {
    /// What two files may differ in as wholes, such as one GPU against two.
    fn subject(&self) -> [(&'static str, Value); 3] {
        let devices = |count: Option<u32>| json!(count.filter(|&count| count > 1));
        [
            ("model", json!(self.model_filename)),
            ("replicas", devices(self.replicas)),
            ("stage_devices", devices(self.stage_devices)),
        ]
    }

    /// Of two entries with the same, the figures are comparable. Of [`Self::subject`] it has what is in `apart`.
    fn key(&self, apart: &[&str]) -> Value {
        let mut key = json!({
            "kind": self.kind,
            "launch": self.launch,
            "dtype": self.dtype,
            "bucket_file": self.bucket_file,
            "kernel_file": self.kernel_file,
            "batch": self.batch,
            "n_prompt": self.n_prompt,
            "n_gen": self.n_gen,
            "request_rate": self.request_rate,
            "n_prompt_min": self.n_prompt_min,
            "n_prompt_max": self.n_prompt_max,
            "max_concurrency": self.max_concurrency,
            "logits_on_device": self.logits_on_device == Some(true),
            "cpu_load": self.cpu_load,
            "gpu_load": self.gpu_load,
        });
        for (name, value) in self.subject() {
            if apart.contains(&name) {
                key[name] = value;
            }
        }
        key
    }
}

/// Of [`Entry::subject`], what a file has several of.
fn several(entries: &[Entry]) -> Vec<&'static str> {
    let subjects: Vec<_> = entries.iter().map(Entry::subject).collect();
    let neighbours = subjects.windows(2);
    let pairs = neighbours.flat_map(|pair| pair[0].iter().zip(&pair[1]));
    let other = pairs.filter(|(one, next)| one != next);
    other.map(|(one, _)| one.0).collect()
}

/// The results of each thing as one, by its key, in the order of their first.
fn pooled(entries: &[Entry], apart: &[&str]) -> Vec<(Value, Entry)> {
    let mut pooled: Vec<(Value, Entry)> = Vec::new();
    for entry in entries {
        let key = entry.key(apart);
        match pooled.iter_mut().find(|(other, _)| *other == key) {
            Some((_, of)) => {
                for (figure, values) in &entry.samples {
                    let all = of.samples.entry(figure.clone()).or_default();
                    all.extend(values);
                }
            }
            None => pooled.push((key, entry.clone())),
        }
    }
    pooled
}

/// Reads results as `--format json` and `--format jsonl` write them.
///
/// # Errors
/// The file cannot be read, or holds something else.
pub fn read(path: &Path) -> Result<Vec<Entry>> {
    json::rows(path, "results of `bench --format json` or `--format jsonl`")
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
pub fn compare(a: &[Entry], b: &[Entry]) -> Result<Vec<Value>> {
    let mut lines = Vec::new();
    let mut tests = Vec::new();
    let apart = [several(a), several(b)].concat();
    let others = pooled(b, &apart);
    for (key, left) in pooled(a, &apart) {
        let Some((_, right)) = others.iter().find(|(other, _)| *other == key) else {
            continue;
        };
        for &(figure, more_is_better) in figures(left.kind) {
            let (Some(x), Some(y)) = (left.samples.get(figure), right.samples.get(figure)) else {
                continue;
            };
            let ratio = welch(x, y);
            tests.push(ratio.map(|ratio| ratio.p));
            let mut line = key.clone();
            let (mean_x, mean_y) = (geometric_mean(x), geometric_mean(y));
            line["figure"] = json!(figure);
            line["more_is_better"] = json!(more_is_better);
            line["a"] = json!(mean_x);
            line["b"] = json!(mean_y);
            line["repeats_a"] = json!(x.len());
            line["repeats_b"] = json!(y.len());
            // Without a test the ratio of the means is all there is.
            let plain = mean_x.zip(mean_y).map(|(x, y)| y / x);
            line["ratio"] = json!(ratio.map(|ratio| ratio.ratio).or(plain));
            line["low"] = json!(ratio.map(|ratio| ratio.low));
            line["high"] = json!(ratio.map(|ratio| ratio.high));
            line["p"] = json!(ratio.map(|ratio| ratio.p));
            lines.push(line);
        }
    }
    if lines.is_empty() {
        return Err(Error::Usage(
            "bench compare: the two files have no result of the same kind, model, launch, dtype, buckets, batch, lengths, rate, load and devices"
                .to_owned(),
        ));
    }
    let p: Vec<f64> = tests.iter().filter_map(|&p| p).collect();
    let mut shown = holm(&p).into_iter();
    for (line, p) in lines.iter_mut().zip(tests) {
        let different = p.map(|_| shown.next().unwrap_or(false));
        line["verdict"] = json!(verdict(line, different));
    }
    Ok(lines)
}

fn verdict(line: &Value, different: Option<bool>) -> String {
    let (ratio, more) = (
        line["ratio"].as_f64().unwrap_or(1.0),
        line["more_is_better"] == json!(true),
    );
    match different {
        None => {
            let fewest = line["repeats_a"]
                .as_u64()
                .min(line["repeats_b"].as_u64())
                .unwrap_or(0);
            match fewest < LEAST_REPEATS as u64 {
                true => format!("too few repeats: {fewest} of {LEAST_REPEATS}"),
                false => "no test: a value is not above 0".to_owned(),
            }
        }
        Some(false) => "no difference shown".to_owned(),
        Some(true) if (ratio > 1.0) == more => "B better".to_owned(),
        Some(true) => "B worse".to_owned(),
    }
}

/// What else differs between the files, where it may explain a difference.
pub fn differences(a: &[Entry], b: &[Entry]) -> Vec<String> {
    type Field = fn(&Entry) -> String;
    let fields: [(&str, Field); 5] = [
        ("model", |e| e.model_filename.clone()),
        ("processor", |e| e.cpu_info.clone().unwrap_or_default()),
        ("GPU", |e| e.gpu_info.clone().unwrap_or_default()),
        ("build profile", |e| e.build_profile.clone()),
        ("choice of kernels", |e| {
            e.kernel_variants.clone().unwrap_or_default()
        }),
    ];
    let mut found = Vec::new();
    for (name, field) in fields {
        let all = |entries: &[Entry]| entries.iter().map(field).collect::<BTreeSet<_>>();
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

    fn entry(batch: u32, tokens_per_s: &[f64], itl_ms: &[f64]) -> Entry {
        let samples = [("tokens_per_s", tokens_per_s), ("median_itl_ms", itl_ms)];
        Entry {
            kind: Kind::Decode,
            launch: None,
            dtype: "f32".into(),
            bucket_file: None,
            kernel_file: None,
            kernel_variants: None,
            batch,
            n_prompt: 32,
            n_gen: 16,
            request_rate: Value::Null,
            n_prompt_min: None,
            n_prompt_max: None,
            max_concurrency: None,
            logits_on_device: None,
            cpu_load: 0,
            gpu_load: 0,
            replicas: None,
            stage_devices: None,
            samples: samples
                .into_iter()
                .map(|(name, values)| (name.to_owned(), values.to_vec()))
                .collect(),
            model_filename: "m".into(),
            cpu_info: None,
            gpu_info: None,
            build_profile: "release".into(),
        }
    }

    fn verdicts(a: Entry, b: Entry) -> Vec<String> {
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
        let of = |b: Entry| compare(&[entry(1, &[1.0, 2.0, 4.0], &[1.0; 3])], &[b]).unwrap();
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
        let runs = |values: &[f64]| -> Vec<Entry> {
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
        let of = |model: &str, replicas: u32, value: f64| Entry {
            model_filename: model.into(),
            replicas: Some(replicas),
            ..entry(1, &[value; 3], &[1.0; 3])
        };
        let ratios = |a: &[Entry], b: &[Entry]| -> Vec<f64> {
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
        other.build_profile = "debug".into();
        assert_eq!(
            differences(&[one], &[other]),
            ["the build profile differs: A 'release', B 'debug'"]
        );
    }
}
