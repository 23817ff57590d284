//! What engines did before their first token.

use super::{json_of, measured, number, page, same, table_rows};
use serde_json::{Value, json};

/// What the columns behind an engine's name are; `rest` is what nothing else has.
pub const BESIDE: [&str; 7] = [
    "load",
    "graphs",
    "rest",
    "first_token",
    "capture",
    "instantiate",
    "upload",
];
/// ... where graphs were made one after the other.
const IN_TURN: [&str; 6] = [
    "load",
    "capture",
    "instantiate",
    "upload",
    "rest",
    "first_token",
];

/// The row of the engine of `result`, which has these columns with what the result says.
#[track_caller]
pub fn holds<'a>(tables: &'a [Vec<String>], result: &Value, columns: &[&str]) -> &'a [String] {
    let way = result["launch"].as_str().unwrap();
    // Steps may have a row of as many cells, which says how busy the host was.
    let start = tables
        .iter()
        .find(|row| row[0] == way && row.len() == 1 + columns.len() && row[1] != "idle");
    let start = start.unwrap_or_else(|| panic!("no start of {way}"));
    for (cell, key) in start[1..].iter().zip(columns) {
        if *key != "rest" {
            same(cell, &result[format!("startup_{key}_ms")]);
        }
    }
    start
}

/// What threads do side by side is in the table, but only the whole of it is a phase among the others.
#[test]
fn graphs_made_by_several_threads_are_one_phase() {
    let folder = tempfile::tempdir().unwrap();
    let mut rows = json_of(&measured());
    rows.as_array_mut().unwrap().truncate(1);
    let row = &mut rows[0];
    for (key, ms) in [
        ("load", 100.0),
        ("graphs", 20.0),
        ("capture", 15.0),
        ("instantiate", 18.0),
        ("upload", 4.0),
        ("engine", 150.0),
        ("first_token", 7.0),
    ] {
        row[format!("startup_{key}_ms")] = json!(ms);
    }
    let path = folder.path().join("threads.json");
    std::fs::write(&path, rows.to_string()).unwrap();
    let html = page(folder.path(), &[&path]);
    let tables = table_rows(&html);
    let start = holds(&tables, &rows[0], &BESIDE);
    assert_eq!(number(&start[3]), 150.0 - 100.0 - 20.0);
    let rest: Vec<f64> = start[4..].iter().map(|cell| number(cell)).collect();
    assert_eq!(rest, [7.0, 15.0, 18.0, 4.0]);
    assert!(html.contains("these overlap: capture, instantiate, upload."));
}

/// Results of before there were threads have no time of all graphs: what was done then was done in turn.
#[test]
fn graphs_made_one_after_the_other_are_three_phases() {
    let folder = tempfile::tempdir().unwrap();
    let mut rows = json_of(&measured());
    rows.as_array_mut().unwrap().truncate(1);
    rows[0]["startup_graphs_ms"] = json!(null);
    let path = folder.path().join("in-turn.json");
    std::fs::write(&path, rows.to_string()).unwrap();
    let html = page(folder.path(), &[&path]);
    holds(&table_rows(&html), &rows[0], &IN_TURN);
    assert!(!html.contains("these overlap"));
}
