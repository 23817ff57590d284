//! The part of a page about prompts: how fast they are read (`bench prefill`) or scored (`bench score`), against the floor
//! of their bytes and FLOPs.

use super::bench::Row;
use super::charts::{Axes, Bar, bars, both};
use super::group::{Group, floor_note};
use super::html::Page;
use super::steps::color;
use super::steps_part::or_dash;
use super::svg::{exact, figure};
use super::{NEUTRAL, round, short, startup};
use crate::bench::Kind;

pub fn write(page: &mut Page, group: &Group<'_>) {
    let first = group.first();
    let (title, what) = match group.kind {
        Kind::Score => ("Score", "from the first prompt to the last one's logits"),
        _ => ("Prefill", "from the first prompt to the last first token"),
    };
    let device = short(first.device());
    page.part(
        &format!("{title}: {} on {device}", first.model_filename),
        &group.files(),
    );
    page.text(&format!(
        "Prompts of {} sent at once to {}; the host has {} cores. The rate is that of the prompts' tokens, {what}; over {}.",
        first.model_filename,
        first.device(),
        first.host_cores,
        super::runs(first.repeats)
    ));
    for source in group.sources() {
        page.command(&format!("{}, made by", source.file), &source.command);
    }
    rates(page, group);
    numbers(page, group);
    startup::write(page, &startup::of_rows(&group.rows), group.model_ms());
}

/// What tells jobs apart: type, bucket and kernel file, how many prompts and how long.
fn job(row: &Row) -> String {
    let files = [&row.bucket_file, &row.kernel_file].into_iter().flatten();
    let files: String = files.map(|file| format!(", {file}")).collect();
    let kept = match row.logits_on_device {
        Some(true) => ", logits left on the device",
        _ => "",
    };
    format!(
        "{} prompt{} of {} tokens, {}{kept}{files}",
        row.batch,
        if row.batch == 1 { "" } else { "s" },
        row.prompt(),
        row.dtype
    )
}

/// Tokens a second at the floor.
fn floor_rate(row: &Row) -> Option<f64> {
    let tokens = f64::from(row.batch) * f64::from(row.n_prompt);
    Some(tokens / row.floor_ms? * 1e3)
}

fn rates(page: &mut Page, group: &Group<'_>) {
    let mut jobs: Vec<(String, Vec<Bar>)> = vec![];
    for row in &group.rows {
        let name = job(row);
        let place = jobs.iter().position(|(job, _)| *job == name);
        let place = place.unwrap_or_else(|| {
            let floor = floor_rate(row).map(|rate| Bar {
                name: "roofline".to_owned(),
                color: NEUTRAL,
                value: rate,
            });
            jobs.push((name, floor.into_iter().collect()));
            jobs.len() - 1
        });
        jobs[place].1.push(Bar {
            name: format!("{}{}", row.way(), row.host().suffix()),
            color: color(&row.way()),
            value: row.avg_ts,
        });
    }
    let with_floor = group.rows.iter().find(|row| row.floor_ms.is_some());
    page.head(match with_floor {
        Some(_) => "Prompt tokens per second, against the roofline",
        None => "Prompt tokens per second",
    });
    let best = group
        .rows
        .iter()
        .filter_map(|row| Some((row, row.floor_fraction?)))
        .max_by(|a, b| a.1.total_cmp(&b.1));
    if let Some((row, share)) = best {
        page.text(&format!(
            "The most of the roofline is reached by {} at {}: {}%, {} prompts a second.",
            row.way(),
            job(row),
            figure(round(share * 100.0)),
            figure(samples_per_s(row))
        ));
    }
    let axes = Axes {
        label: "Prompt tokens per second for each job and launch way, and the roofline where it is known",
        x: "prompt tokens per second",
        y: "",
    };
    page.chart(&both(|width| bars(&axes, &jobs, width)));
    page.note(&match with_floor {
        Some(row) => floor_note(row.floor_source.as_deref()),
        None => "No roofline: the device's rates are not known here.".to_owned(),
    });
}

/// Prompts a second, as the rate has them.
fn samples_per_s(row: &Row) -> f64 {
    row.avg_ts / f64::from(row.n_prompt.max(1))
}

fn numbers(page: &mut Page, group: &Group<'_>) {
    page.head("The numbers");
    let ttft = group.rows.iter().any(|row| row.latency("ttft").is_some());
    let verdicts = group.rows.iter().any(|row| row.valid.is_some());
    let mut heads = vec![
        "launch",
        "host",
        "dtype",
        "prompts",
        "tokens each",
        "tokens/s",
        "\u{b1} sd",
        "prompts/s",
        "run s",
        "roofline ms",
        "bound by",
        "of roofline",
    ];
    if ttft {
        heads.extend(["first token p50 ms", "p99 ms"]);
    }
    if verdicts {
        heads.extend(["valid", "top-1"]);
    }
    let row = |row: &&Row| {
        let share = row.floor_fraction.map(|share| round(share * 100.0));
        let mut cells = vec![
            row.way(),
            row.host().name(),
            row.dtype.clone(),
            row.batch.to_string(),
            row.prompt(),
            exact(row.avg_ts),
            or_dash((row.repeats > 1).then_some(row.stddev_ts)),
            exact(samples_per_s(row)),
            exact(row.duration),
            or_dash(row.floor_ms),
            row.floor_bound.clone().unwrap_or("\u{2013}".to_owned()),
            share.map_or("\u{2013}".to_owned(), |share| format!("{}%", figure(share))),
        ];
        if ttft {
            let latency = row.latency("ttft");
            cells.push(or_dash(latency.map(|l| l.median)));
            cells.push(or_dash(latency.and_then(|l| l.p99)));
        }
        if verdicts {
            cells.push(match row.valid {
                Some(true) => "VALID".to_owned(),
                Some(false) => "INVALID".to_owned(),
                None => "\u{2013}".to_owned(),
            });
            let top1 = row.top1_agreeing.zip(row.top1_total);
            cells.push(top1.map_or("\u{2013}".to_owned(), |(n, of)| format!("{n}/{of}")));
        }
        cells
    };
    let rows: Vec<Vec<String>> = group.rows.iter().map(row).collect();
    page.table(3, &heads, &rows);
}
