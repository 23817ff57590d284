//! Launch ways side by side: what each adds to a bare graph, and their slow steps with an idle and a busy host.

use super::charts::{Axes, Bar, Range, bars, both, ranges};
use super::html::Page;
use super::listed;
use super::round;
use super::steps::{Host, Steps, What, color, sequences};
use super::svg::figure;

pub fn over_bare(page: &mut Page, steps: &Steps) {
    let group = |batch: u32| {
        let bare = steps.bare_ms(batch)?;
        let bar = |series: &super::steps::Series| {
            Some(Bar {
                name: series.way.clone(),
                color: color(&series.way),
                value: round((series.at(batch)?.step.median - bare) * 1e3),
            })
        };
        let bars: Vec<Bar> = steps.with(Host::Idle).filter_map(bar).collect();
        let (unit, batch) = (steps.unit(), sequences(batch));
        let name = format!("{batch}, bare {} {}", figure(unit.of(bare)), unit.name);
        (!bars.is_empty()).then_some((name, bars))
    };
    let groups: Vec<(String, Vec<Bar>)> = steps.batches().into_iter().filter_map(group).collect();
    if groups.is_empty() {
        return;
    }
    page.head("What each way of launching adds to a bare graph");
    let axes = Axes {
        label: "Median time of a step less the bare graph's, in microseconds",
        x: "us over the bare graph, median, host idle",
        y: "",
    };
    page.chart(&both(|width| bars(&axes, &groups, width)));
    page.note(match steps.what {
        What::Decode { .. } => "Bare: the same step's graph without a scheduler, launched again and again by the host with nothing in between. It repeats single steps of a run, while the others are medians over all of its steps, whose contexts grow and which differ in the experts they read, so small differences, and those below 0, say little.",
        What::Launch { .. } => "Bare: the graph without a scheduler, launched again and again by the host with nothing in between.",
    });
}

/// How p99 with a busy host compares with p99 with an idle one: the largest of a way's batches.
fn worst(steps: &Steps, way: &str) -> Option<f64> {
    let idle = steps.with(Host::Idle).find(|s| s.way == way)?;
    let busy = steps
        .scheduled()
        .filter(|s| s.way == way && s.host != Host::Idle);
    let ratios = busy
        .flat_map(|series| &series.points)
        .filter_map(|p| Some(p.step.p99? / idle.at(p.sequences)?.step.p99?));
    ratios.max_by(f64::total_cmp)
}

/// p99 with a busy host over p99 with an idle one, of each way that both were measured of.
fn ratios(steps: &Steps) -> Vec<(&str, f64)> {
    let names = steps.with(Host::Idle).map(|s| s.way.as_str());
    names
        .filter_map(|way| Some((way, worst(steps, way)?)))
        .collect()
}

/// What a busy host does to which ways, where it does it to some and not to others.
pub fn finding(steps: &Steps) -> Option<String> {
    let ratios = ratios(steps);
    let of = |keep: &dyn Fn(f64) -> bool| -> Vec<String> {
        let kept = ratios.iter().filter(|(_, r)| keep(*r));
        kept.map(|(way, _)| (*way).to_owned()).collect()
    };
    // What 5% more could be chance; what half as much again is not.
    let (calm, late) = (of(&|r| r <= 1.05), of(&|r| r >= 1.5));
    (!calm.is_empty() && !late.is_empty()).then(|| {
        format!(
            "A busy host makes steps of {} late, and not those of {}",
            listed(&late),
            listed(&calm)
        )
    })
}

pub fn tails(page: &mut Page, steps: &Steps) {
    let ratios = ratios(steps);
    page.head(&match (finding(steps), ratios.is_empty()) {
        (Some(finding), _) => finding,
        (None, true) => "The slow steps".to_owned(),
        (None, false) => "The slow steps, with an idle and a busy host".to_owned(),
    });
    if !ratios.is_empty() {
        let list: Vec<String> = ratios
            .iter()
            .map(|(way, r)| format!("{way} {r:.2}"))
            .collect();
        page.text(&format!(
            "p99 with a busy host over p99 with an idle one, in the batch where that is largest: {}. Busy: threads that spin, beside the run.",
            list.join(", ")
        ));
    }
    let unit = steps.unit();
    let ranges_of = |batch: u32| {
        let range = |series: &super::steps::Series| {
            let step = series.at(batch)?.step;
            Some(Range {
                name: series.name(),
                color: color(&series.way),
                values: [Some(step.median), step.p99, step.p99_9]
                    .into_iter()
                    .flatten()
                    .map(|ms| unit.of(ms))
                    .collect(),
            })
        };
        let all: Vec<Range> = steps.scheduled().filter_map(range).collect();
        (!all.is_empty()).then(|| (sequences(batch), all))
    };
    let groups: Vec<(String, Vec<Range>)> =
        steps.batches().into_iter().filter_map(ranges_of).collect();
    let axes = Axes {
        label: "Median, p99 and p99.9 of a step's time, for each launch way and batch",
        x: &format!(
            "{} per step: median (mark), p99 and p99.9 (ticks)",
            unit.name
        ),
        y: "",
    };
    page.chart(&both(|width| ranges(&axes, &groups, width)));
    page.note("p99.9 of fewer than 1000 steps is the slowest step or close to it.");
}
