//! One HTML page of measurements and timelines: charts with their numbers, and in words what was measured on what. Or a
//! picture and a table for a README.
//!
//! - [`input`]: what kind of file it is; [`mod@bench`]: results of `bench`, which [`group`] puts together by what they are of;
//!   [`trace`]: a trace, read event by event
//! - [`steps`]: decode and launch steps in one shape
//! - `steps_part` with `ways`, `prompts`, `serve`, `traced`: what a page says of each, of a trace with kernels also how near its
//!   operations come to what bounds them; [`startup`]: how engines came up
//! - [`launching`]: every way of launching small kernels
//! - [`lineup`]: launch ways side by side for a README, which [`picture`] draws and [`markdown`] lists
//! - [`charts`], [`time`]: kinds of charts; [`svg`]: marks, scales, numbers; `html`: the page; `style`: what both look like
//!
//! A title states a finding only where the numbers show it. Uses the plan for rooflines; the command line uses it.

pub mod bench;
pub mod charts;
pub mod group;
mod html;
pub mod input;
pub mod launching;
pub mod lineup;
pub mod markdown;
pub mod picture;
mod prompts;
mod serve;
pub mod startup;
pub mod steps;
mod steps_part;
mod style;
pub mod svg;
pub mod time;
pub mod trace;
mod traced;
mod ways;

use crate::bench::Kind;
use bench::Row;
use html::Page;
use input::Input;

/// The colour of what is there for comparison.
const NEUTRAL: usize = 9;

/// The page. Results of `bench` are together, where the first file of them is.
pub fn page(title: &str, inputs: &[Input]) -> String {
    let mut page = Page::new(title);
    let mut benched: Option<Vec<Row>> = Some(benched(inputs));
    for input in inputs {
        match input {
            Input::Benched(_) => results(&mut page, &benched.take().unwrap_or_default()),
            Input::Traced(traced) => traced::write(&mut page, traced),
            Input::Launched(rows) => launching::write(&mut page, rows),
        }
    }
    let files = match inputs.len() {
        1 => "one file".to_owned(),
        n => format!("{n} files"),
    };
    let version = env!("CARGO_PKG_VERSION");
    page.finish(&format!(
        "Made by tailgraph report {version} of {files}. Point at a mark for its numbers."
    ))
}

/// Results of `bench`, of all files together.
fn benched(inputs: &[Input]) -> Vec<Row> {
    let benched = inputs.iter().filter_map(|input| match input {
        Input::Benched(rows) => Some(rows.as_slice()),
        _ => None,
    });
    benched.flatten().cloned().collect()
}

fn results(page: &mut Page, rows: &[Row]) {
    for group in group::groups(rows) {
        match group.kind {
            Kind::Decode | Kind::Launch => {
                steps_part::write(page, &group.steps(), group.model_ms());
            }
            Kind::Prefill | Kind::Score => prompts::write(page, &group),
            Kind::Serve => serve::write(page, &group),
        }
    }
}

/// A device's name without what stands in brackets.
fn short(device: &str) -> &str {
    device.split(" (").next().unwrap_or(device)
}

/// To one decimal: what a percentage is good for here.
fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// Of `bench`, each of whose repeats starts an engine.
fn runs(repeats: u32) -> String {
    match repeats {
        0 | 1 => "one run".to_owned(),
        n => format!("{n} runs, each on an engine that was started anew"),
    }
}

/// `a`, `a and b`, `a, b and c`.
fn listed(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [before @ .., last] => format!("{} and {last}", before.join(", ")),
    }
}
