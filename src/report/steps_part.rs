//! The part of a page about measured steps.

use super::charts::{Axes, Line, both, lines};
use super::html::Page;
use super::startup;
use super::steps::{Host, Latency, Point, Series, Steps, What, color};
use super::svg::{exact, figure};
use super::{NEUTRAL, round, short, ways};

/// `model_ms`: what loading the model took, where that is known apart.
pub fn write(page: &mut Page, steps: &Steps, model_ms: Option<f64>) {
    let device = short(&steps.device);
    let title = match &steps.what {
        What::Decode { model, dtype, .. } => format!("Decode: {model} in {dtype} on {device}"),
        What::Launch { kernels } => format!("Launching {kernels} small kernels on {device}"),
    };
    let files: Vec<String> = steps.sources.iter().map(|s| s.file.clone()).collect();
    page.part(&title, &super::listed(&files));
    words(page, steps);
    latency(page, steps);
    if let What::Decode { .. } = steps.what {
        throughput(page, steps);
    }
    ways::over_bare(page, steps);
    ways::tails(page, steps);
    if let What::Decode { .. } = steps.what {
        tokens(page, steps);
    }
    numbers(page, steps);
    beside(page, steps);
    startup::write(page, &steps.startup, model_ms);
}

fn words(page: &mut Page, steps: &Steps) {
    let counts = || {
        let points = steps.scheduled().flat_map(|s| &s.points);
        points.filter_map(|p| p.step.count)
    };
    let (least, most) = (counts().min().unwrap_or(0), counts().max().unwrap_or(0));
    let cores = steps.host_cores;
    let what = match &steps.what {
        What::Decode {
            model,
            dtype,
            prompt_tokens,
            new_tokens,
        } => format!(
            "Decode steps of {model} with {dtype} matrices on {}; the host has {cores} cores. Each sequence has a prompt of {prompt_tokens} tokens and makes {new_tokens} new ones.",
            steps.device
        ),
        What::Launch { kernels } => format!(
            "Steps of {kernels} kernels with next to nothing to do on {}; the host has {cores} cores. So what is seen is what launching and scheduling cost by themselves.",
            steps.device
        ),
    };
    let runs = match steps.repeats {
        0 | 1 => "one run, so how much they differ from run to run is not known from this file"
            .to_owned(),
        n => super::runs(n),
    };
    let range = match least == most {
        true => format!("{most}"),
        false => format!("{least} to {most}"),
    };
    page.text(&format!(
        "{what} A batch's figures are over {range} steps of {runs}."
    ));
    if let What::Decode { model, .. } = &steps.what
        && model.starts_with("random:")
    {
        page.text("The weights are random numbers in the model's shape: times are those of the shape, and experts are chosen as random weights choose them.");
    }
    for source in &steps.sources {
        page.command(&format!("{}, made by", source.file), &source.command);
    }
}

fn line(series: &Series, value: impl Fn(&Point) -> Option<f64>) -> Line {
    let at = |p: &Point| Some((f64::from(p.sequences), value(p)?));
    Line {
        name: series.way.clone(),
        color: color(&series.way),
        dashed: false,
        points: series.points.iter().filter_map(at).collect(),
    }
}

fn latency(page: &mut Page, steps: &Steps) {
    page.head("Time of a step by batch");
    let unit = steps.unit();
    let median = |s| line(s, |p| Some(unit.of(p.step.median)));
    let all: Vec<Line> = steps.with(Host::Idle).map(median).collect();
    if all.is_empty() {
        page.note("There is no measurement with an idle host.");
        return;
    }
    let apart = steps.batches().into_iter().filter_map(|batch| {
        let series = steps.with(Host::Idle);
        let at: Vec<f64> = series
            .filter_map(|s| Some(s.at(batch)?.step.median))
            .collect();
        let (least, most) = (
            at.iter().fold(f64::MAX, |a, &b| a.min(b)),
            at.iter().fold(0.0, |a: f64, &b| a.max(b)),
        );
        (at.len() > 1).then_some((most / least - 1.0, batch))
    });
    if let Some((most, batch)) = apart.max_by(|a, b| a.0.total_cmp(&b.0)) {
        page.text(&format!(
            "Median over steps, host idle. The launch ways are furthest apart at {}: by {}%.",
            super::steps::sequences(batch),
            figure(round(most * 100.0))
        ));
    }
    let axes = Axes {
        label: &format!(
            "Median time of a step in {} by sequences, for each launch way",
            unit.name
        ),
        x: "sequences in the batch",
        y: &format!("{} per step, median", unit.name),
    };
    page.chart(&both(|width| lines(&axes, false, &all, width)));
}

fn throughput(page: &mut Page, steps: &Steps) {
    let title = match &steps.roofline {
        Some(_) => "Tokens per second by batch, against the roofline",
        None => "Tokens per second by batch",
    };
    page.head(title);
    let rate = |s| line(s, |p| Some(p.tokens_per_s));
    let mut all: Vec<Line> = steps.with(Host::Idle).map(rate).collect();
    if all.is_empty() {
        page.note("There is no measurement with an idle host.");
        return;
    }
    let how = match steps.repeats {
        0 | 1 => "Sequences over the median time of a step.",
        _ => {
            "Tokens of the steps that all sequences are in, over the time of these steps: the mean of the runs."
        }
    };
    if let Some(roofline) = &steps.roofline {
        let point = |(&n, &ms): (&u32, &f64)| (f64::from(n), f64::from(n) / ms * 1e3);
        all.push(Line {
            name: "roofline".to_owned(),
            color: NEUTRAL,
            dashed: true,
            points: roofline.ms.iter().map(point).collect(),
        });
        let best = steps.with(Host::Idle).find(|s| s.way == "device-graph");
        if let Some(series) = best.or(steps.with(Host::Idle).next()) {
            let share = |p: &Point| {
                let share = roofline.ms.get(&p.sequences)? / p.step.median;
                Some(format!(
                    "{}% at {}",
                    figure(round(share * 100.0)),
                    p.sequences
                ))
            };
            let shares: Vec<String> = series.points.iter().filter_map(share).collect();
            page.text(&format!(
                "{how} Of the roofline {} reaches {}.",
                series.way,
                shares.join(", ")
            ));
        }
    } else {
        page.text(how);
    }
    let axes = Axes {
        label: "Tokens per second by sequences, for each launch way, and the roofline where it is known",
        x: "sequences in the batch",
        y: "tokens per second",
    };
    page.chart(&both(|width| lines(&axes, true, &all, width)));
    page.note(match &steps.roofline {
        Some(roofline) => &roofline.note,
        None => "No roofline: the model's shape or the device's rates are not known here.",
    });
}

/// What a reader of the output sees: the first token, and from one to the next.
fn tokens(page: &mut Page, steps: &Steps) {
    type Value = fn(&Point) -> Option<Latency>;
    let shown: [(&str, &str, Value); 2] = [
        ("From one token of a sequence to its next", "itl", |p| p.itl),
        ("From a request to its first token", "ttft", |p| p.ttft),
    ];
    for (title, name, value) in shown {
        let with = |series: &Series, dashed: bool| {
            let pick = |l: Latency| if dashed { l.p99 } else { Some(l.median) };
            let mut line = line(series, |p| pick(value(p)?));
            line.dashed = dashed;
            if dashed {
                line.name += " p99";
            }
            line
        };
        let all: Vec<Line> = steps
            .with(Host::Idle)
            .flat_map(|s| [with(s, false), with(s, true)])
            .filter(|line| !line.points.is_empty())
            .collect();
        if all.is_empty() {
            continue;
        }
        page.head(&format!("{title}, by batch"));
        page.text(match name {
            "itl" => "Median, and p99 dashed, over all tokens of all runs, host idle, by the clock of whoever schedules.",
            _ => "Median, and p99 dashed, host idle. All sequences of a batch are sent at once, and their prompts share steps.",
        });
        let axes = Axes {
            label: "Median and p99 in ms by sequences, for each launch way",
            x: "sequences in the batch",
            y: "ms",
        };
        page.chart(&both(|width| lines(&axes, true, &all, width)));
    }
}

/// A cell of a table: a dash of what is not known.
pub fn or_dash(value: Option<f64>) -> String {
    value.map_or("\u{2013}".to_owned(), exact)
}

type Cell<'a> = Box<dyn Fn(&Point) -> Option<String> + 'a>;

/// A column: its head, and what a point has in it. One that no point has is left out.
struct Column<'a> {
    head: &'a str,
    cell: Cell<'a>,
}

fn column<'a>(head: &'a str, value: impl Fn(&Point) -> Option<f64> + 'a) -> Column<'a> {
    Column {
        head,
        cell: Box::new(move |point| value(point).map(exact)),
    }
}

/// A row a series and batch.
fn table(page: &mut Page, steps: &Steps, columns: Vec<Column<'_>>) {
    let points = || {
        let at = |batch| {
            let series = steps.series.iter();
            series.filter_map(move |series| Some((series, series.at(batch)?)))
        };
        steps.batches().into_iter().flat_map(at)
    };
    let some = |column: &Column<'_>| points().any(|(_, point)| (column.cell)(point).is_some());
    let columns: Vec<Column<'_>> = columns.into_iter().filter(some).collect();
    if columns.is_empty() {
        return;
    }
    let mut heads = vec!["launch", "host", "sequences"];
    heads.extend(columns.iter().map(|column| column.head));
    // A row of nothing but dashes says nothing.
    let row = |(series, point): (&Series, &Point)| {
        let cells: Vec<Option<String>> = columns.iter().map(|c| (c.cell)(point)).collect();
        if cells.iter().all(Option::is_none) {
            return None;
        }
        let mut row = vec![
            series.way.clone(),
            series.host.name(),
            point.sequences.to_string(),
        ];
        let dash = || "\u{2013}".to_owned();
        row.extend(cells.into_iter().map(|cell| cell.unwrap_or_else(dash)));
        Some(row)
    };
    let rows: Vec<Vec<String>> = points().filter_map(row).collect();
    page.table(2, &heads, &rows);
}

fn numbers(page: &mut Page, steps: &Steps) {
    page.head("The numbers");
    let floor = |p: &Point| steps.roofline.as_ref()?.ms.get(&p.sequences).copied();
    let rates = matches!(steps.what, What::Decode { .. });
    let unit = steps.unit();
    let heads = ["p50", "p90", "p99", "p99.9"].map(|name| format!("{name} {}", unit.name));
    let times: [fn(&Point) -> Option<f64>; 4] = [
        |p| Some(p.step.median),
        |p| p.step.p90,
        |p| p.step.p99,
        |p| p.step.p99_9,
    ];
    let mut columns = vec![Column {
        head: "steps",
        cell: Box::new(|p| p.step.count.map(|n| n.to_string())),
    }];
    for (head, value) in heads.iter().zip(times) {
        columns.push(column(head, move |p| value(p).map(|ms| unit.of(ms))));
    }
    if rates {
        columns.push(column("tokens/s", |p| Some(p.tokens_per_s)));
        columns.push(column("\u{b1} sd", |p| p.tokens_per_s_sd));
        columns.push(column("roofline ms", floor));
        columns.push(Column {
            head: "of roofline",
            cell: Box::new(move |p| {
                let share = floor(p)? / p.step.median * 100.0;
                Some(format!("{}%", figure(round(share))))
            }),
        });
    }
    table(page, steps, columns);
    if !rates {
        return;
    }
    let columns = vec![
        column("token to token p50 ms", |p| Some(p.itl?.median)),
        column("p90 ms", |p| p.itl?.p90),
        column("p99 ms", |p| p.itl?.p99),
        column("p99.9 ms", |p| p.itl?.p99_9),
        column("a request's mean (TPOT) p50 ms", |p| Some(p.tpot?.median)),
        column("p99 ms", |p| p.tpot?.p99),
        column("first token (TTFT) p50 ms", |p| Some(p.ttft?.median)),
        column("p99 ms", |p| p.ttft?.p99),
    ];
    table(page, steps, columns);
}

fn beside(page: &mut Page, steps: &Steps) {
    let any = steps
        .series
        .iter()
        .flat_map(|series| &series.points)
        .any(|point| point.beside != Default::default());
    if !any {
        return;
    }
    page.head("What a token takes beside time");
    let columns = vec![
        column("scheduler's turn us, median", |p| p.beside.turn_us),
        column("launches by the host per token", |p| {
            p.beside.launches_per_token
        }),
        column("host CPU s per 1000 tokens", |p| {
            p.beside.host_cpu_s_per_1k_tokens
        }),
        column("J per token", |p| p.beside.energy_j_per_token),
        column("experts hit a layer, mean", |p| p.beside.experts_hit),
        column("... were routing even", |p| p.beside.experts_expected),
    ];
    table(page, steps, columns);
}
