//! The part of a page about a trace.

use super::charts::{Axes, Range, both, ranges};
use super::html::Page;
use super::roofline;
use super::svg::{exact, figure};
use super::time::{Piece, bands, tracks};
use super::trace::{Slice, Traced};
use crate::trace::about::HostClock;

const DECODE: usize = 0;
pub(super) const MIXED: usize = 1;
const SCORE: usize = 2;
const TURN: usize = 3;
const WAITING: usize = 9;

pub(super) fn color(name: &str) -> usize {
    match name.split(' ').next() {
        Some("decode") => DECODE,
        Some("mixed" | "prefill") => MIXED,
        Some("score") => SCORE,
        Some("queued") => WAITING,
        _ => TURN,
    }
}

/// The value that `share` of the values do not exceed: nearest rank. `None` where there are too few to tell it from the
/// largest.
pub fn percentile(sorted: &[f32], share: f64) -> Option<f64> {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    let enough = sorted.len() as f64 * (1.0 - share) >= 1.0 - 1e-9;
    (enough && rank >= 1).then(|| f64::from(sorted[rank - 1]))
}

fn sorted(values: &[f32]) -> Vec<f32> {
    let mut values = values.to_vec();
    values.sort_by(f32::total_cmp);
    values
}

fn or_dash(value: Option<f64>) -> String {
    value.map_or("\u{2013}".to_owned(), exact)
}

pub fn write(page: &mut Page, traced: &Traced) {
    let about = &traced.about;
    let launch = about
        .launch
        .as_deref()
        .map_or(String::new(), |way| format!(", {way}"));
    let title = format!(
        "Timeline: {} in {} on {}{launch}",
        about.model, about.dtype, about.device
    );
    page.part(&title, &traced.file);
    words(page, traced);
    steps(page, traced);
    if let Some(kernels) = &traced.about.kernels {
        roofline::write(page, kernels);
    }
    first_steps(page, traced);
    over_time(page, traced);
    requests(page, traced);
}

fn words(page: &mut Page, traced: &Traced) {
    let about = &traced.about;
    let seconds = (traced.to_us - traced.from_us) / 1e6;
    page.text(&format!(
        "{} requests in {} steps and {} turns of the scheduler, {} s from the first turn to the last; {} new tokens. Up to {} sequences ran at once. Times are by the clock of whoever schedules: {}.",
        about.requests, about.steps, about.turns, figure(seconds), about.tokens, about.engine.options.max_seqs, about.clock
    ));
    if !about.complete {
        page.text("The run did not come to its end: what is here is a part of it.");
    }
    page.note(&format!(
        "{}, from a {}. {}",
        traced.file,
        about.source,
        match &about.host_clock {
            HostClock::Absent => "A recording does not hold the host's times.".to_owned(),
            HostClock::Same => "The host's track is by the same clock.".to_owned(),
            HostClock::Unknown { .. } =>
                "The host's track was left out: nothing bounded its clock against the device's."
                    .to_owned(),
            HostClock::Measured { uncertainty_ns, .. } => format!(
                "The host's track stands beside the device's to within {} us, as measured.",
                figure(*uncertainty_ns as f64 / 1e3)
            ),
        }
    ));
}

fn steps(page: &mut Page, traced: &Traced) {
    page.head("How long steps took, by kind and bucket");
    if traced.buckets.is_empty() {
        page.note("No step came back.");
        return;
    }
    let mut buckets: Vec<(&String, _)> = traced.buckets.iter().collect();
    let place = |name: &str| {
        let (kind, rows) = name.split_once(' ').unwrap_or((name, "0"));
        (color(kind), rows.parse().unwrap_or(0u32))
    };
    buckets.sort_by_key(|(name, _)| place(name));
    let all_ms: f64 = traced
        .buckets
        .values()
        .flat_map(|b| &b.ms)
        .map(|&ms| f64::from(ms))
        .sum();
    if traced.about.engine.stages == 1 {
        let span_ms = (traced.to_us - traced.from_us) / 1e3;
        let turns = sorted(&traced.turns_us);
        page.text(&format!(
            "A step was under way {}% of the time between the first turn and the last; half of the turns took {} us or less.",
            figure((all_ms / span_ms * 1e3).round() / 10.0),
            or_dash(percentile(&turns, 0.5))
        ));
    }
    let mut group = vec![];
    let mut rows = vec![];
    for (name, bucket) in buckets {
        let ms = sorted(&bucket.ms);
        let (least, most) = (f64::from(ms[0]), f64::from(ms[ms.len() - 1]));
        let half = percentile(&ms, 0.5);
        let p99 = percentile(&ms, 0.99);
        group.push(Range {
            name: name.clone(),
            color: color(name),
            values: [half, p99, Some(most)].into_iter().flatten().collect(),
        });
        let fill = bucket.rows as f64 / bucket.bucket_rows.max(1) as f64;
        rows.push(vec![
            name.clone(),
            ms.len().to_string(),
            exact(least),
            or_dash(half),
            or_dash(p99),
            exact(most),
            format!("{}%", figure((fill * 1e3).round() / 10.0)),
        ]);
    }
    let axes = Axes {
        label: "Median, p99 and longest time of steps in ms, by kind and bucket",
        x: "ms per step: median (mark), p99 where there are 100 steps, longest (ticks)",
        y: "",
    };
    let narrow = Axes {
        x: "ms: median (mark), p99, longest (ticks)",
        ..axes
    };
    let groups = [("kind and rows of the bucket".to_owned(), group)];
    page.chart(&both(|width| {
        ranges(if width < 500.0 { &narrow } else { &axes }, &groups, width)
    }));
    let heads = [
        "bucket",
        "steps",
        "least ms",
        "p50 ms",
        "p99 ms",
        "longest ms",
        "rows of the bucket in use",
    ];
    page.table(1, &heads, &rows);
}

fn first_steps(page: &mut Page, traced: &Traced) {
    let Some(last) = traced.first_steps.iter().map(|s| s.to_us).reduce(f64::max) else {
        return;
    };
    page.head(&format!(
        "The first {} steps",
        traced
            .first_steps
            .iter()
            .filter(|s| s.track == traced.first_steps[0].track)
            .count()
    ));
    let kinds = [
        ("decode", "decode", DECODE),
        ("mixed", "mixed: prompts too", MIXED),
        ("score", "score", SCORE),
        ("turn", "scheduler's turn", TURN),
    ];
    let slices = || traced.first_steps.iter().chain(&traced.first_turns);
    let drawn = kinds
        .into_iter()
        .filter(|(kind, ..)| slices().any(|s| s.name.starts_with(kind)));
    let drawn: Vec<(&str, usize)> = drawn.map(|(_, name, color)| (name, color)).collect();
    page.key(&drawn);
    let piece = |slice: &Slice| Piece {
        name: slice.name.clone(),
        color: color(&slice.name),
        from: (slice.from_us - traced.from_us) / 1e3,
        to: (slice.to_us - traced.from_us) / 1e3,
    };
    let mut all: Vec<(String, Vec<Piece>)> = vec![];
    let turns = traced
        .first_turns
        .iter()
        .filter(|turn| turn.to_us <= last + 1e3);
    for slice in turns.chain(&traced.first_steps) {
        match all.iter_mut().find(|(name, _)| *name == slice.track) {
            Some((_, pieces)) => pieces.push(piece(slice)),
            None => all.push((slice.track.clone(), vec![piece(slice)])),
        }
    }
    let axes = Axes {
        label: "Scheduler's turns and steps of the run's begin over time",
        x: "ms since the first turn",
        y: "",
    };
    page.chart(&both(|width| tracks(&axes, &all, width)));
}

fn over_time(page: &mut Page, traced: &Traced) {
    let end = (traced.to_us - traced.from_us) / 1e6;
    let bands_of: Vec<(String, Vec<(f64, f64)>)> = [
        ("running", "sequences running"),
        ("queue depth", "requests waiting"),
        ("padding rows", "padding rows of the step"),
        ("free pages", "free pages"),
    ]
    .into_iter()
    .filter_map(|(counter, name)| {
        let points = &traced.counters.get(counter)?.points;
        let at = |&(us, value): &(f64, f64)| (((us - traced.from_us) / 1e6).max(0.0), value);
        Some((name.to_owned(), points.iter().map(at).collect()))
    })
    .collect();
    if bands_of.is_empty() {
        return;
    }
    page.head("Over the run");
    let axes = Axes {
        label: "Sequences running, requests waiting, padding rows and free pages over the run",
        x: "seconds since the first turn",
        y: "",
    };
    page.chart(&both(|width| bands(&axes, &bands_of, end, width)));
    if traced.counters.values().any(|steps| steps.thinned()) {
        page.note(
            "Lines with many changes are thinned: a point is the largest value of its stretch.",
        );
    }
}

fn requests(page: &mut Page, traced: &Traced) {
    if traced.total_ms.is_empty() {
        return;
    }
    page.head(&format!(
        "Requests, the first {} that ended",
        traced.first_requests.len()
    ));
    page.key(&[("queued", WAITING), ("prefill", MIXED), ("decode", DECODE)]);
    let all: Vec<(String, Vec<Piece>)> = traced
        .first_requests
        .iter()
        .map(|request| {
            let pieces = request.phases.iter().map(|(name, from, to)| Piece {
                name: format!("{}, {name}", request.name),
                color: color(name),
                from: (from - traced.from_us) / 1e3,
                to: (to - traced.from_us) / 1e3,
            });
            (request.name.clone(), pieces.collect())
        })
        .collect();
    let axes = Axes {
        label: "Requests over time: queued, prefill, decode",
        x: "ms since the first turn",
        y: "",
    };
    page.chart(&both(|width| tracks(&axes, &all, width)));
    let row = |name: &str, values: &[f32]| {
        let ms = sorted(values);
        let shares = [0.5, 0.9, 0.99].map(|share| or_dash(percentile(&ms, share)));
        let mut row = vec![name.to_owned(), ms.len().to_string()];
        row.extend(shares);
        row.push(or_dash(ms.last().map(|&ms| f64::from(ms))));
        row
    };
    let rows = [
        row("waiting for a slot", &traced.queued_ms),
        row("to the first token", &traced.ttft_ms),
        row("to the end", &traced.total_ms),
    ];
    page.table(
        1,
        &[
            "ms since the scheduler saw the request",
            "requests",
            "p50",
            "p90",
            "p99",
            "longest",
        ],
        &rows,
    );
    page.note("A dash: too few to tell the percentile from the longest.");
}

#[cfg(test)]
mod tests {
    use super::percentile;

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let values: Vec<f32> = (1..=100u8).map(f32::from).collect();
        assert_eq!(percentile(&values, 0.5), Some(50.0));
        assert_eq!(percentile(&values, 0.9), Some(90.0));
        assert_eq!(percentile(&values, 0.99), Some(99.0));
        assert_eq!(
            percentile(&values[..99], 0.99),
            None,
            "the largest is no p99"
        );
        assert_eq!(percentile(&values[..1], 0.5), None);
        assert_eq!(percentile(&values[..2], 0.5), Some(1.0));
        assert_eq!(percentile(&[], 0.5), None);
    }
}
