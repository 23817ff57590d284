//! One HTML page of measurements and timelines. Or a picture for a README.
//!
//! - [`input`]: what kind of file it is; [`mod@bench`]: results of `bench`, put together by what they measured; [`trace`]: a
//!   trace, read event by event
//! - `page/`: the page, a template that the files' numbers are written into as JSON, and whose script draws them with the
//!   library that lies beside it
//! - [`lineup`]: launch ways side by side for a README, which [`picture`] draws

pub mod bench;
pub mod input;
pub mod lineup;
pub mod picture;
pub mod trace;

use bench::Row;
use input::{Input, Launched};
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
                let groups = bench::groups(&benched.take().unwrap_or_default()).into_iter();
                parts.extend(groups.map(|rows| json!({ "rows": rows })));
            }
            Input::Launched(rows) => {
                let rows: Vec<&Launched> = rows.iter().collect();
                let alike = bench::by(&rows, |row| (row.get("gpu_info"), row.get("kernels")));
                let part = |rows| json!({ "rows": rows, "techniques": true });
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
fn benched(inputs: &[Input]) -> Vec<&Row> {
    let benched = inputs.iter().filter_map(|input| match input {
        Input::Benched(rows) => Some(rows),
        _ => None,
    });
    benched.flatten().collect()
}

/// `a`, `a and b`, `a, b and c`.
fn listed(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [before @ .., last] => format!("{} and {last}", before.join(", ")),
    }
}
