//! Rows of JSON lines, asked and answered.

use serde_json::{Value, json};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use tailgraph::io::unpacked::Unpacked;

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Rows of mixed lengths, some of which end by a stop id; `more` adds to each by its number.
pub fn mixed_input(more: impl Fn(u32, &mut Value)) -> String {
    let row = |i: u32| {
        let ids: Vec<u32> = (0..1 + i * 29 % 90)
            .map(|j| 8 + (i * 37 + j * 11) % 250)
            .collect();
        let mut row = json!({"id": i, "input_ids": ids, "max_new_tokens": 1 + i * 7 % 30});
        more(i, &mut row);
        if i.is_multiple_of(5) {
            row["stop_ids"] = json!((0..16).map(|j| 8 + (i + j * 16) % 250).collect::<Vec<_>>());
        }
        row.to_string() + "\n"
    };
    (0..24).map(row).collect()
}

pub fn rows(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect()
}

/// The text of a file, which may be compressed.
pub fn read_text(path: &Path) -> String {
    let mut text = String::new();
    let mut file = Unpacked::new(File::open(path).unwrap());
    file.read_to_string(&mut text).unwrap();
    text
}

/// Without what may differ between two runs: times, and which tokens were another row's.
pub fn without_timing(mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => {
            fields.retain(|name, _| name != "timing" && name != "cached_tokens");
            for field in fields.values_mut() {
                *field = without_timing(field.take());
            }
        }
        Value::Array(items) => {
            for item in items {
                *item = without_timing(item.take());
            }
        }
        _ => {}
    }
    value
}

/// The rows of a file, without what may differ between two runs.
pub fn rows_without_timing(path: &Path) -> Vec<Value> {
    let rows = rows(&read_text(path)).into_iter();
    rows.map(without_timing).collect()
}
