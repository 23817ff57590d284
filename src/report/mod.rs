//! One HTML page of measurements and timelines. Or a picture and a table for a README.
//!
//! - [`input`]: what kind of file it is; [`mod@bench`]: results of `bench`, which [`group`] puts together by what they
//!   measured; [`launching`]: results of every way to launch small kernels; [`trace`]: a trace, read event by event
//! - `page/`: the page, a template that the files' numbers are written into as JSON, and whose script draws them with the
//!   library that lies beside it
//! - [`lineup`]: launch ways side by side for a README, which [`picture`] draws and [`markdown`] lists

pub mod bench;
pub mod group;
pub mod input;
pub mod launching;
pub mod lineup;
pub mod markdown;
pub mod picture;
pub mod trace;

use bench::Row;
use input::Input;
use serde_json::{Value, json};

const TEMPLATE: &str = include_str!("page/page.html");
/// The library that draws the charts, and its style, which every page carries.
const LIBRARY_STYLE: &str = include_str!("page/uPlot.min.css");
const LIBRARY: &str = concat!(
    "/*!\n",
    include_str!("page/uPlot.LICENSE"),
    "*/\n",
    include_str!("page/uPlot.iife.min.js"),
);

/// The page. Results of `bench` are together, where the first file of them is.
pub fn page(title: &str, inputs: &[Input]) -> String {
    let mut parts: Vec<Value> = vec![];
    let mut benched = Some(benched(inputs));
    for input in inputs {
        match input {
            Input::Benched(_) => {
                let rows = benched.take().unwrap_or_default();
                let groups = group::groups(&rows).into_iter();
                parts.extend(groups.map(|rows| json!({ "rows": rows })));
            }
            Input::Launched(rows) => {
                let alike = group::by(rows, |a, b| a.place() == b.place());
                let part = |rows: &Vec<_>| json!({ "rows": rows, "techniques": true });
                parts.extend(alike.iter().map(part));
            }
            Input::Traced(traced) => parts.push(json!({ "trace": traced })),
        }
    }
    let data = json!({
        "title": title,
        "version": env!("CARGO_PKG_VERSION"),
        "files": inputs.len(),
        "parts": parts,
    });
    // No text of a file can end the element that the data stands in.
    let data = data.to_string().replace('<', "\\u003c");
    // The data comes last: it may hold the marks of the others.
    TEMPLATE
        .replacen("/*{library style}*/", LIBRARY_STYLE, 1)
        .replacen("/*{library}*/", LIBRARY, 1)
        .replacen("/*{data}*/", &data, 1)
}

/// Results of `bench`, of all files together.
fn benched(inputs: &[Input]) -> Vec<Row> {
    let benched = inputs.iter().filter_map(|input| match input {
        Input::Benched(rows) => Some(rows.as_slice()),
        _ => None,
    });
    benched.flatten().cloned().collect()
}

/// `a`, `a and b`, `a, b and c`.
fn listed(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [before @ .., last] => format!("{} and {last}", before.join(", ")),
    }
}

/// `1 sequence`, `8 sequences`.
fn sequences(batch: u32) -> String {
    format!("{batch} sequence{}", if batch == 1 { "" } else { "s" })
}

/// A number to four figures, also where the last are 0.
pub fn exact(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    if !(1e-6..1e15).contains(&value.abs()) {
        return format!("{value:.3e}").replace('-', "\u{2212}");
    }
    let digits = (3 - value.abs().log10().floor() as i32).clamp(0, 6) as usize;
    format!("{value:.digits$}").replace('-', "\u{2212}")
}

/// The same, without zeros at its end.
pub fn figure(value: f64) -> String {
    let text = exact(value);
    if text.contains('.') && !text.contains('e') {
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    text
}
