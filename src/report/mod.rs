//! One HTML page of measurements and timelines: charts with their numbers, and in words what was measured on what.
//!
//! - [`input`]: files of every kind, adapted to one shape; [`trace`]: a trace, read event by event
//! - `measured`, `traced`: what a page says of each
//! - `floor`: the roofline of what was measured
//! - [`charts`], [`time`]: kinds of charts; [`svg`]: marks, scales, numbers; `html`: the page
//!
//! A title states a finding only where the numbers show it. Uses the plan for rooflines; the command line uses it.

pub mod charts;
mod floor;
mod html;
pub mod input;
mod measured;
pub mod svg;
pub mod time;
pub mod trace;
mod traced;

use html::Page;
use input::Input;

/// The page.
pub fn page(title: &str, inputs: &[Input]) -> String {
    let mut page = Page::new(title);
    for input in inputs {
        match input {
            Input::Measured(measured) => measured::write(&mut page, measured),
            Input::Traced(traced) => traced::write(&mut page, traced),
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
