//! What several sets of steps are of, and in what they differ, in words: there is no lineup of them together.

use super::of_what;
use crate::report::group::Group;
use crate::report::listed;
use crate::report::steps::{Point, Series, Steps, sequences};

/// A set of steps, and what two that belong together share.
pub struct Set {
    pub steps: Steps,
    /// What, device, cores, build, buckets, kernels.
    of: [String; 6],
}

impl Set {
    pub fn of_group(group: &Group<'_>) -> Self {
        let first = group.first();
        let file = |path: &Option<String>, option: &str, built_in: &str| match path {
            Some(path) => format!("{option} {path}"),
            None => format!("the built-in {built_in}"),
        };
        let buckets = file(&first.bucket_file, "--bucket-file", "buckets");
        let kernels = file(&first.kernel_file, "--kernel-file", "kernels");
        let steps = group.steps();
        let of = [
            of_what(&steps),
            format!("on {}", steps.device),
            format!("{} cores", steps.host_cores),
            format!("a {} build", steps.build),
            buckets,
            kernels,
        ];
        Self { steps, of }
    }

    fn files(&self) -> String {
        let sources = self.steps.sources.iter();
        let mut files: Vec<String> = sources.map(|source| source.file.clone()).collect();
        files.dedup();
        listed(&files)
    }

    fn points(&self) -> impl Iterator<Item = (&Series, &Point)> {
        let series = self.steps.series.iter();
        series.flat_map(|series| series.points.iter().map(move |point| (series, point)))
    }

    /// The first way and batch that `other` has too.
    fn also_in(&self, other: &Self) -> Option<String> {
        let has = |series: &Series, point: &Point| {
            let mut points = other.points();
            points.any(|(s, p)| {
                (&s.way, s.host, p.sequences) == (&series.way, series.host, point.sequences)
            })
        };
        let mut points = self.points();
        let (series, point) = points.find(|(series, point)| has(series, point))?;
        let host = series.host.words();
        Some(format!(
            "{} of {}{host}",
            series.way,
            sequences(point.sequences)
        ))
    }
}

/// Of more sets, so many are named.
const MOST_NAMED: usize = 4;

/// As after `found`.
pub fn found(sets: &[Set]) -> String {
    let Some(first) = sets.first() else {
        return String::new();
    };
    let differs = |n: usize| sets.iter().any(|set| set.of[n] != first.of[n]);
    let days = sets.iter().any(|set| set.steps.days != first.steps.days);
    let each = |set: &Set| {
        let differing = (0..set.of.len()).filter(|&n| differs(n));
        let mut words: Vec<String> = differing.map(|n| set.of[n].clone()).collect();
        if days && !set.steps.days.is_empty() {
            words.push(format!("of {}", listed(&set.steps.days)));
        }
        let gap = if words.is_empty() { "" } else { " " };
        format!("{}{gap}in {}", words.join(", "), set.files())
    };
    let what = match differs(0) {
        true => String::new(),
        false => format!("{}: ", first.of[0]),
    };
    let mut named: Vec<String> = sets.iter().take(MOST_NAMED).map(each).collect();
    if sets.len() > MOST_NAMED {
        named.push(format!("{} more", sets.len() - MOST_NAMED));
    }
    let mut text = format!("{what}{}", listed(&named));
    let pairs = sets
        .iter()
        .enumerate()
        .flat_map(|(n, a)| sets[n + 1..].iter().map(move |b| (a, b)));
    let mut alike = pairs.filter(|(a, b)| a.of == b.of);
    if let Some((a, b, twice)) = alike.find_map(|(a, b)| Some((a, b, a.also_in(b)?))) {
        text += &format!("; {} and {} both have {twice}", a.files(), b.files());
    }
    text
}
