//! What engines did before their first token.

use super::{json_of, measured, number, page, same, table_rows};
use serde_json::json;

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
    let way = rows[0]["launch"].as_str().unwrap();
    let tables = table_rows(&html);
    let start = tables.iter().find(|row| row[0] == way && row.len() == 8);
    let start = start.unwrap_or_else(|| panic!("no start of {way}"));
    same(&start[1], &rows[0]["startup_load_ms"]);
    same(&start[2], &rows[0]["startup_graphs_ms"]);
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
    let way = rows[0]["launch"].as_str().unwrap();
    let tables = table_rows(&html);
    // Steps have a row of as many cells, which says how busy the host was.
    let is_start = |row: &&Vec<String>| row[0] == way && row.len() == 7 && row[1] != "idle";
    let start = tables.iter().find(is_start);
    let start = start.unwrap_or_else(|| panic!("no start of {way}"));
    for (cell, key) in [
        (1, "load"),
        (2, "capture"),
        (3, "instantiate"),
        (4, "upload"),
        (6, "first_token"),
    ] {
        same(&start[cell], &rows[0][format!("startup_{key}_ms")]);
    }
    assert!(!html.contains("these overlap"));
}
