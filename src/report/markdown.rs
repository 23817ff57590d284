//! A lineup of launch ways as a table for a README.

use super::lineup::{Batch, Cell, Lineup};
use super::sequences;
use crate::bench::output::number;
use crate::quote;
use std::fmt::Write;

/// What came from a file, so that Markdown makes nothing of it.
fn plain(text: &str) -> String {
    let special = |c: char| "\\`*_[]<>|&#~".contains(c);
    let mut plain = String::new();
    for c in quote::visible(text).chars() {
        plain.extend(special(c).then_some('\\'));
        plain.push(c);
    }
    plain
}

/// `p50 (p99 → p99 with a busy host)`, as far as these were measured.
fn cell(cell: &Cell) -> String {
    let busy = cell
        .busy_p99
        .map(|busy| format!("\u{2192} {}", number(busy)));
    let slow: Vec<String> = cell.p99.map(number).into_iter().chain(busy).collect();
    let slow = (!slow.is_empty()).then(|| format!("({})", slow.join(" ")));
    let parts: Vec<String> = cell.p50.map(number).into_iter().chain(slow).collect();
    parts.join(" ")
}

/// A line on what is listed, and a row a batch. A column that nothing was measured of is left out; a cell is left empty.
pub fn table(lineup: &Lineup) -> String {
    let how = match lineup.beside() {
        Some(beside) => format!("p50 (p99 with an idle host \u{2192} p99 {beside})"),
        None => "p50 (p99)".to_owned(),
    };
    let mut text = format!("{}; ms a step: {how}.\n\n", plain(&lineup.subject));
    let batches = || lineup.batches.iter();
    let once = |name: &str, value: fn(&Batch) -> Option<f64>| {
        let text = |batch| value(batch).map_or(String::new(), number);
        (name.to_owned(), batches().map(text).collect())
    };
    let mut columns: Vec<(String, Vec<String>)> = vec![
        once("floor", |batch| batch.floor),
        once("bare graph", |batch| batch.bare),
    ];
    for (n, way) in lineup.ways.iter().enumerate() {
        let cells = batches().map(|batch| cell(&batch.cells[n])).collect();
        columns.push((plain(way), cells));
    }
    columns.retain(|(_, cells)| cells.iter().any(|cell| !cell.is_empty()));
    let mut line = |cells: Vec<&str>| {
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    };
    let heads = columns.iter().map(|(head, _)| head.as_str());
    line(std::iter::once("").chain(heads).collect());
    line(vec!["---:"; columns.len() + 1]);
    for (n, batch) in lineup.batches.iter().enumerate() {
        let name = sequences(batch.sequences);
        let cells = columns.iter().map(|(_, cells)| cells[n].as_str());
        line(std::iter::once(name.as_str()).chain(cells).collect());
    }
    text
}
