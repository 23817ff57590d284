//! The part of a page about requests that arrive over time (`bench serve`): how long they take under that load.

use super::bench::{Arrivals, Row};
use super::charts::{Axes, Line, Range, both, lines, ranges};
use super::group::Group;
use super::html::Page;
use super::steps::{Host, color};
use super::steps_part::or_dash;
use super::svg::{exact, figure};
use super::{short, startup};

pub fn write(page: &mut Page, group: &Group<'_>) {
    let first = group.first();
    let device = short(first.device());
    let (model, dtype) = (&first.model_filename, &first.dtype);
    page.part(
        &format!("Serving: {model} in {dtype} on {device}"),
        &group.files(),
    );
    let lengths = match group
        .rows
        .iter()
        .all(|row| row.arrivals() == Arrivals::File)
    {
        true => "with lengths as the file of arrivals has them".to_owned(),
        false => format!(
            "each with a prompt of {} tokens and {} new ones",
            first.prompt(),
            first.n_gen
        ),
    };
    let closed = group.rows.iter().any(|row| row.max_concurrency.is_some());
    let closed = match closed {
        true => {
            " Where only so many are in flight, the next one is sent when one ends, and its times begin there."
        }
        false => "",
    };
    page.text(&format!(
        "Requests arrive at {model} in {dtype} on {}, {lengths}; the host has {} cores. A rate is a Poisson process: requests come whether or not earlier ones are done. Times begin when a request is due, so waiting for a slot is in them; they are over all requests of {}.{closed}",
        first.device(),
        first.host_cores,
        super::runs(first.repeats)
    ));
    for source in group.sources() {
        page.command(&format!("{}, made by", source.file), &source.command);
    }
    for (title, name) in [
        ("From a request to its first token", "ttft"),
        ("From one token of a request to its next", "itl"),
        ("From a request to its end", "e2el"),
    ] {
        latency(page, group, title, name);
    }
    numbers(page, group);
    startup::write(page, &startup::of_rows(&group.rows), group.model_ms());
}

/// The name of a row's series beside others with the host in the same state.
fn name(group: &Group<'_>, row: &Row) -> String {
    let sizes = group.rows.iter().any(|other| other.batch != row.batch);
    let slots = match sizes {
        true => format!(", {} at once", row.batch),
        false => String::new(),
    };
    let closed = row
        .max_concurrency
        .map(|most| format!(", {most} in flight"));
    format!("{}{slots}{}", row.way(), closed.unwrap_or_default())
}

/// By rate, median and p99, with the host in this state.
fn curves(group: &Group<'_>, host: Host, latency: &str) -> Vec<Line> {
    let mut all: Vec<Line> = vec![];
    for row in group.rows.iter().filter(|row| row.host() == host) {
        let (Arrivals::Rate(rate), Some(found)) = (row.arrivals(), row.latency(latency)) else {
            continue;
        };
        let series = name(group, row);
        for (name, value, dashed) in [
            (series.clone(), Some(found.median), false),
            (format!("{series} p99"), found.p99, true),
        ] {
            let Some(value) = value else { continue };
            match all.iter_mut().find(|line| line.name == name) {
                Some(line) => line.points.push((rate, value)),
                None => all.push(Line {
                    name,
                    color: color(&row.way()),
                    dashed,
                    points: vec![(rate, value)],
                }),
            }
        }
    }
    for line in &mut all {
        line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    all
}

/// Curves over rates where there are some, a chart for each state of the host; else ranges.
fn latency(page: &mut Page, group: &Group<'_>, title: &str, latency: &str) {
    let mut hosts: Vec<Host> = vec![];
    for row in &group.rows {
        if !hosts.contains(&row.host()) {
            hosts.push(row.host());
        }
    }
    let charts: Vec<(Host, Vec<Line>)> = hosts
        .into_iter()
        .map(|host| (host, curves(group, host, latency)))
        .collect();
    let curved = |(_, lines): &(Host, Vec<Line>)| lines.iter().any(|line| line.points.len() > 1);
    if !charts.iter().any(curved) {
        return spread(page, group, title, latency);
    }
    for (host, all) in charts.iter().filter(|chart| curved(chart)) {
        page.head(&format!("{title}, by rate of arrival{}", host.words()));
        page.text("Median, and p99 dashed.");
        let axes = Axes {
            label: "Median and p99 in ms by requests a second, for each launch way",
            x: "requests a second that arrive",
            y: "ms",
        };
        page.chart(&both(|width| lines(&axes, true, all, width)));
        let at_once: Vec<String> = group
            .rows
            .iter()
            .filter(|row| row.host() == *host && row.arrivals() == Arrivals::AtOnce)
            .filter_map(|row| {
                let median = row.latency(latency)?.median;
                Some(format!("{} {} ms", name(group, row), figure(median)))
            })
            .collect();
        if !at_once.is_empty() {
            page.note(&format!(
                "Not drawn, the median where all arrive at once: {}.",
                super::listed(&at_once)
            ));
        }
    }
}

/// Ranges, where rates are too few for curves.
fn spread(page: &mut Page, group: &Group<'_>, title: &str, latency: &str) {
    let mut groups: Vec<(String, Vec<Range>)> = vec![];
    for row in &group.rows {
        let Some(found) = row.latency(latency) else {
            continue;
        };
        let range = Range {
            name: format!("{}{}", name(group, row), row.host().suffix()),
            color: color(&row.way()),
            values: [Some(found.median), found.p90, found.p99]
                .into_iter()
                .flatten()
                .collect(),
        };
        let arrivals = format!("requests a second: {}", row.arrivals().name());
        match groups.iter_mut().find(|(name, _)| *name == arrivals) {
            Some((_, ranges)) => ranges.push(range),
            None => groups.push((arrivals, vec![range])),
        }
    }
    if groups.is_empty() {
        return;
    }
    page.head(title);
    let axes = Axes {
        label: "Median, p90 and p99 in ms, for each launch way",
        x: "ms: median (mark), p90 and p99 (ticks)",
        y: "",
    };
    page.chart(&both(|width| ranges(&axes, &groups, width)));
}

fn numbers(page: &mut Page, group: &Group<'_>) {
    page.head("The numbers");
    let heads = [
        "launch",
        "host",
        "requests/s asked",
        "... served",
        "at once, at most",
        "tokens/s out",
        "first token p50 ms",
        "p99 ms",
        "token to token p50 ms",
        "p99 ms",
        "to the end p50 ms",
        "p99 ms",
    ];
    let row = |row: &&Row| {
        let mut cells = vec![
            row.way(),
            row.host().name(),
            row.arrivals().name(),
            exact(row.request_throughput),
            row.batch.to_string(),
            exact(row.output_throughput),
        ];
        for name in ["ttft", "itl", "e2el"] {
            let latency = row.latency(name);
            cells.push(or_dash(latency.map(|l| l.median)));
            cells.push(or_dash(latency.and_then(|l| l.p99)));
        }
        cells
    };
    let rows: Vec<Vec<String>> = group.rows.iter().map(row).collect();
    page.table(3, &heads, &rows);
}
