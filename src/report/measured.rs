//! The part of a page about measured decode steps.

use super::charts::{Axes, Bar, Line, Range, bars, both, lines, ranges};
use super::floor::Floor;
use super::html::Page;
use super::input::{Host, Measured, Point, Series};
use super::svg::{exact, figure};

/// The colour of a way, the same in every chart.
fn color(way: &str) -> usize {
    match way {
        "device-graph" => 0,
        "host-graph" => 1,
        "host-kernels" => 2,
        _ => 3,
    }
}

const NEUTRAL: usize = 9;

pub fn write(page: &mut Page, measured: &Measured) {
    let title = format!(
        "Decode: {} in {} on {}",
        measured.model,
        measured.dtype,
        short(&measured.device)
    );
    page.part(&title, &measured.file);
    words(page, measured);
    let floor = Floor::new(measured);
    latency(page, measured);
    throughput(page, measured, floor.as_ref());
    ways(page, measured);
    tails(page, measured);
    numbers(page, measured, floor.as_ref());
    startup(page, measured);
}

/// A device's name without what stands in brackets.
fn short(device: &str) -> &str {
    device.split(" (").next().unwrap_or(device)
}

fn words(page: &mut Page, measured: &Measured) {
    let steps = || {
        measured
            .series
            .iter()
            .flat_map(|s| &s.points)
            .map(|p| p.steps)
    };
    let (least, most) = (steps().min().unwrap_or(0), steps().max().unwrap_or(0));
    let cores = measured.host_cores.map_or(String::new(), |cores| {
        format!("; the host has {cores} cores")
    });
    page.text(&format!(
        "Decode steps of {} with {} matrices on {}{cores}. Each sequence has a prompt of {} tokens and makes {} new ones. A batch's figures are over {least} to {most} steps of one run, so how much they differ from run to run is not known from this file.",
        measured.model, measured.dtype, measured.device, measured.prompt_tokens, measured.new_tokens
    ));
    if measured.model.starts_with("random:") {
        page.text("The weights are random numbers in the model's shape: times are those of the shape, and experts are chosen as random weights choose them.");
    }
    page.command(&format!("{}, made by", measured.file), &measured.command);
}

fn line(series: &Series, value: impl Fn(&Point) -> f64) -> Line {
    Line {
        name: series.way.clone(),
        color: color(&series.way),
        dashed: false,
        points: series
            .points
            .iter()
            .map(|p| (f64::from(p.sequences), value(p)))
            .collect(),
    }
}

fn latency(page: &mut Page, measured: &Measured) {
    page.head("Time of a step by batch");
    let all: Vec<Line> = measured
        .with(Host::Idle)
        .map(|s| line(s, |p| p.p50_ms))
        .collect();
    if all.is_empty() {
        page.note("There is no measurement with an idle host.");
        return;
    }
    let apart = measured.batches().into_iter().filter_map(|batch| {
        let at = || {
            measured
                .with(Host::Idle)
                .filter_map(move |s| s.at(batch))
                .map(|p| p.p50_ms)
        };
        (at().count() > 1).then(|| {
            (
                at().fold(0.0, f64::max) / at().fold(f64::MAX, f64::min) - 1.0,
                batch,
            )
        })
    });
    if let Some((most, batch)) = apart.max_by(|a, b| a.0.total_cmp(&b.0)) {
        page.text(&format!(
            "Median over steps, host idle. The launch ways are furthest apart at {batch} sequence{}: by {}%.",
            if batch == 1 { "" } else { "s" },
            figure(round(most * 100.0))
        ));
    }
    let axes = Axes {
        label: "Median time of a decode step in ms by sequences, for each launch way",
        x: "sequences in the batch",
        y: "ms per step, median",
    };
    page.chart(&both(|width| lines(&axes, false, &all, width)));
}

/// To one decimal: what a percentage is good for here.
fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

fn throughput(page: &mut Page, measured: &Measured, floor: Option<&Floor>) {
    let title = match floor {
        Some(_) => "Tokens per second by batch, against the roofline",
        None => "Tokens per second by batch",
    };
    page.head(title);
    let mut all: Vec<Line> = measured
        .with(Host::Idle)
        .map(|s| line(s, Point::tokens_per_s))
        .collect();
    if all.is_empty() {
        page.note("There is no measurement with an idle host.");
        return;
    }
    if let Some(floor) = floor {
        let point = |(&n, &ms): (&u32, &f64)| (f64::from(n), f64::from(n) / ms * 1e3);
        all.push(Line {
            name: "roofline".to_owned(),
            color: NEUTRAL,
            dashed: true,
            points: floor.ms.iter().map(point).collect(),
        });
        let best = measured.with(Host::Idle).find(|s| s.way == "device-graph");
        if let Some(series) = best.or(measured.with(Host::Idle).next()) {
            let shares: Vec<String> = series
                .points
                .iter()
                .filter_map(|p| {
                    Some(format!(
                        "{}% at {}",
                        figure(round(floor.ms.get(&p.sequences)? / p.p50_ms * 100.0)),
                        p.sequences
                    ))
                })
                .collect();
            page.text(&format!(
                "Sequences over the median time of a step. Of the roofline {} reaches {}.",
                series.way,
                shares.join(", ")
            ));
        }
    } else {
        page.text("Sequences over the median time of a step.");
    }
    let axes = Axes {
        label: "Tokens per second by sequences, for each launch way, and the roofline where it is known",
        x: "sequences in the batch",
        y: "tokens per second",
    };
    page.chart(&both(|width| lines(&axes, true, &all, width)));
    match floor {
        Some(floor) => page.note(&format!(
            "Roofline: for each operation of the plan the longer of its bytes at {} TB/s and its FLOPs at the peak rate, one after the other, for sequences of {} tokens. The rates: {}. It takes for granted that experts are chosen evenly; launches and waits are not in it.",
            figure(floor.gpu.bytes_per_s / 1e12),
            floor.context,
            floor.gpu.source
        )),
        None => page.note("No roofline: the model's shape or the device's rates are not known here."),
    }
}

/// Launch ways side by side.
fn ways(page: &mut Page, measured: &Measured) {
    if measured.bare_ms.is_empty() {
        return;
    }
    page.head("What each way of launching adds to a bare graph");
    let groups: Vec<(String, Vec<Bar>)> = measured
        .bare_ms
        .iter()
        .filter_map(|(&batch, &bare)| {
            let bars: Vec<Bar> = measured
                .with(Host::Idle)
                .filter_map(|series| {
                    Some(Bar {
                        name: series.way.clone(),
                        color: color(&series.way),
                        value: round((series.at(batch)?.p50_ms - bare) * 1e3),
                    })
                })
                .collect();
            let name = format!(
                "{batch} sequence{}, bare {} ms",
                if batch == 1 { "" } else { "s" },
                figure(bare)
            );
            (!bars.is_empty()).then_some((name, bars))
        })
        .collect();
    let axes = Axes {
        label: "Median time of a step less the bare graph's, in microseconds",
        x: "us over the bare graph, median, host idle",
        y: "",
    };
    page.chart(&both(|width| bars(&axes, &groups, width)));
    page.note("Bare: the same step's graph without a scheduler, launched again and again by the host with nothing in between. It repeats one step of one context, while the others are medians over contexts that grow, so small differences, and those below 0, say little.");
}

/// How p99 with a busy host compares with p99 with an idle one: the largest of a way's batches.
fn worst(measured: &Measured, way: &str) -> Option<f64> {
    let of = |host| measured.with(host).find(|s| s.way == way);
    let (idle, busy) = (of(Host::Idle)?, of(Host::Busy)?);
    let ratios = busy
        .points
        .iter()
        .filter_map(|p| Some(p.p99_ms / idle.at(p.sequences)?.p99_ms));
    ratios.max_by(f64::total_cmp)
}

fn tails(page: &mut Page, measured: &Measured) {
    let names = measured.with(Host::Idle).map(|s| s.way.as_str());
    let ratios: Vec<(&str, f64)> = names
        .filter_map(|way| Some((way, worst(measured, way)?)))
        .collect();
    let of = |keep: &dyn Fn(f64) -> bool| -> Vec<&str> {
        ratios
            .iter()
            .filter(|(_, r)| keep(*r))
            .map(|(way, _)| *way)
            .collect()
    };
    // What 5% more could be chance; what half as much again is not.
    let (calm, late) = (of(&|r| r <= 1.05), of(&|r| r >= 1.5));
    page.head(
        &match (ratios.is_empty(), calm.is_empty() || late.is_empty()) {
            (true, _) => "The slow steps".to_owned(),
            (false, true) => "The slow steps, with an idle and a busy host".to_owned(),
            (false, false) => format!(
                "A busy host makes steps of {} late, and not those of {}",
                late.join(" and "),
                calm.join(" and ")
            ),
        },
    );
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
    let groups: Vec<(String, Vec<Range>)> = measured
        .batches()
        .into_iter()
        .map(|batch| {
            let ranges = measured.series.iter().filter_map(|series| {
                let point = series.at(batch)?;
                let busy = if series.host == Host::Busy {
                    ", busy"
                } else {
                    ""
                };
                Some(Range {
                    name: format!("{}{busy}", series.way),
                    color: color(&series.way),
                    values: vec![point.p50_ms, point.p99_ms, point.p99_9_ms],
                })
            });
            (
                format!("{batch} sequence{}", if batch == 1 { "" } else { "s" }),
                ranges.collect(),
            )
        })
        .collect();
    let axes = Axes {
        label: "Median, p99 and p99.9 of a step's time in ms, for each launch way and batch",
        x: "ms per step: median (mark), p99 and p99.9 (ticks)",
        y: "",
    };
    page.chart(&both(|width| ranges(&axes, &groups, width)));
    page.note("p99.9 of fewer than 1000 steps is the slowest step or close to it.");
}

fn numbers(page: &mut Page, measured: &Measured, floor: Option<&Floor>) {
    page.head("The numbers");
    let mut heads = vec![
        "launch",
        "host",
        "sequences",
        "steps",
        "least ms",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "tokens/s",
    ];
    if floor.is_some() {
        heads.extend(["roofline ms", "of roofline"]);
    }
    let mut rows = vec![];
    for batch in measured.batches() {
        for series in &measured.series {
            let Some(point) = series.at(batch) else {
                continue;
            };
            let host = if series.host == Host::Busy {
                "busy"
            } else {
                "idle"
            };
            let mut row = vec![
                series.way.clone(),
                host.to_owned(),
                batch.to_string(),
                point.steps.to_string(),
            ];
            let ms = [point.least_ms, point.p50_ms, point.p99_ms, point.p99_9_ms];
            row.extend(ms.map(exact));
            row.push(exact(point.tokens_per_s()));
            if let Some(ms) = floor.and_then(|floor| floor.ms.get(&batch)) {
                row.extend([
                    exact(*ms),
                    format!("{}%", figure(round(ms / point.p50_ms * 100.0))),
                ]);
            }
            rows.push(row);
        }
    }
    page.table(2, &heads, &rows);
}

fn startup(page: &mut Page, measured: &Measured) {
    if measured.startup.is_empty() {
        return;
    }
    page.head("Before the first step");
    let rows: Vec<Vec<String>> = measured
        .startup
        .iter()
        .map(|s| vec![s.way.clone(), exact(s.load_ms), exact(s.capture_ms)])
        .collect();
    page.table(
        1,
        &[
            "launch",
            "weights to the device, ms",
            "capture, instantiate, upload, ms",
        ],
        &rows,
    );
}
