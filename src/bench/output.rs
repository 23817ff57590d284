//! Results as tables and JSON.

mod columns;

pub use columns::{COMPARED, GEMM, HANDOVER, LIMITS, QUEUE, RESULTS, STARTS, TECHNIQUES};

use crate::quote;
use serde_json::Value;
use std::fmt::Write;

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Tables for people.
    Md,
    /// A line a result, without the values of single repeats.
    Csv,
    /// An array of all results.
    Json,
    /// A line of JSON a result.
    Jsonl,
}

/// A column of a table: its title, and the cell that a result has in it. A column where no result has one is left out.
pub struct Column {
    pub title: &'static str,
    pub cell: fn(&Value) -> Option<String>,
    /// Where there is no room for all columns, those of the highest rank go first; 0 stays.
    rank: u8,
}

/// Characters of a table's line, unless more are asked for.
pub const TABLE_WIDTH: usize = 100;

/// Prints `rows`; tables in at most `width` characters a line, if those of rank 0 have room there.
pub fn text(rows: &[Value], format: Format, columns: &[Column], width: usize) -> String {
    match format {
        Format::Md => table(rows, columns, width),
        Format::Csv => csv(rows),
        Format::Json => format!(
            "{}\n",
            serde_json::to_string_pretty(rows).expect("values always serialise")
        ),
        Format::Jsonl => rows.iter().fold(String::new(), |mut text, row| {
            let _ = writeln!(text, "{row}");
            text
        }),
    }
}

/// A column that has cells.
struct Filled<'a> {
    column: &'a Column,
    cells: Vec<String>,
    width: usize,
}

/// Takes columns out until a line has at most `width` characters; how many those are.
fn cut_to(filled: &mut Vec<Filled<'_>>, width: usize) -> usize {
    let all = filled.len();
    // Each has " | " or the line's own ends around it.
    while filled.iter().map(|column| column.width + 3).sum::<usize>() + 1 > width {
        // Of one rank the last.
        let most = (0..filled.len()).max_by_key(|&at| (filled[at].column.rank, at));
        match most {
            Some(at) if filled[at].column.rank > 0 => drop(filled.remove(at)),
            _ => break,
        }
    }
    all - filled.len()
}

/// Markdown: numbers to the right.
fn table(rows: &[Value], columns: &[Column], width: usize) -> String {
    let mut filled: Vec<Filled<'_>> = columns
        .iter()
        .map(|column| (column, rows.iter().map(column.cell).collect::<Vec<_>>()))
        .filter(|(_, cells)| cells.iter().any(Option::is_some))
        .map(|(column, cells)| {
            let text = cells
                .into_iter()
                .map(|cell| cell.unwrap_or_else(|| "-".to_owned()));
            let cells: Vec<String> = text
                .map(|cell| quote::visible(cell).replace('|', "\\|"))
                .collect();
            let longest = cells.iter().map(|cell| cell.chars().count()).max();
            let title = column.title.chars().count();
            let width = longest.unwrap_or(0).max(title).max(2);
            Filled {
                column,
                cells,
                width,
            }
        })
        .collect();
    let left_out = cut_to(&mut filled, width);
    let mut text = String::new();
    let mut line = |cell: &dyn Fn(&Filled<'_>) -> String| {
        let cells: Vec<String> = filled.iter().map(cell).collect();
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    };
    line(&|column| format!("{:>w$}", column.column.title, w = column.width));
    line(&|column| format!("{}:", "-".repeat(column.width - 1)));
    for row in 0..rows.len() {
        line(&|column| format!("{:>w$}", column.cells[row], w = column.width));
    }
    if left_out > 0 {
        let columns = if left_out == 1 { "column" } else { "columns" };
        let _ = writeln!(text, "\n{left_out} more {columns} with --wide");
    }
    text
}

/// Fields that are neither arrays nor objects, as the first row names them.
fn csv(rows: &[Value]) -> String {
    let plain = |value: &Value| !value.is_array() && !value.is_object();
    let Some(Value::Object(first)) = rows.first() else {
        return String::new();
    };
    let names: Vec<&String> = first
        .iter()
        .filter(|(_, value)| plain(value))
        .map(|(name, _)| name)
        .collect();
    let mut text = String::new();
    let header: Vec<String> = names.iter().map(|name| quoted(name)).collect();
    let _ = writeln!(text, "{}", header.join(","));
    for row in rows {
        let cells = names.iter().map(|name| match &row[name.as_str()] {
            Value::Null => String::new(),
            Value::String(text) => quoted(text),
            value => value.to_string(),
        });
        let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join(","));
    }
    text
}

/// As RFC 4180 has it.
fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

/// Four digits that matter, in plain notation.
pub fn number(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    let magnitude = value.abs().log10().floor() as i32;
    let decimals = (3 - magnitude).clamp(0, 9) as usize;
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_keep_four_digits() {
        for (value, expected) in [
            (0.0, "0"),
            (1234.56, "1235"),
            (12.3456, "12.35"),
            (0.001_234_56, "0.001235"),
            (1e-12, "0.000000000"),
        ] {
            assert_eq!(number(value), expected);
        }
    }

    #[test]
    fn tables_leave_out_what_nobody_has() {
        let rows = [
            json!({"kind": "decode", "batch": 1, "launch": null, "avg_ts": 10.0, "stddev_ts": 0.5}),
            json!({"kind": "decode", "batch": 32}),
        ];
        let text = text(&rows, Format::Md, RESULTS, TABLE_WIDTH);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        assert_eq!(lines[0], "|   kind | batch | t/s (mean ± sd) |");
        assert_eq!(lines[2], "| decode |     1 |  10.00 ± 0.5000 |");
        assert_eq!(lines[3], "| decode |    32 |               - |");
    }

    #[test]
    fn a_line_has_room_for_what_matters_most() {
        for columns in [RESULTS, STARTS, COMPARED] {
            let mut row =
                json!({"verdict": "too few repeats: 2 of 3", "figure": "output_throughput"});
            // Every column has a cell, as wide as numbers are.
            for name in names_in(columns) {
                row[name] = json!(1234.5);
            }
            for (name, text) in [
                ("kind", "prefill"),
                ("launch", "host-graph-ahead"),
                ("dtype", "bf16"),
            ] {
                row[name] = json!(text);
            }
            let lines = |width| -> Vec<String> {
                let text = text(&[row.clone()], Format::Md, columns, width);
                text.lines().map(str::to_owned).collect()
            };
            let (all, cut) = (lines(usize::MAX), lines(TABLE_WIDTH));
            assert_eq!(all.len(), 3);
            assert!(all[0].chars().count() > TABLE_WIDTH, "{}", all[0]);
            assert!(
                cut[..3]
                    .iter()
                    .all(|line| line.chars().count() <= TABLE_WIDTH),
                "{cut:#?}"
            );
            assert!(cut[4].ends_with(" with --wide"), "{cut:#?}");
        }
    }

    /// Fields that the columns' cells read: those without which a cell changes.
    fn names_in(columns: &[Column]) -> Vec<&'static str> {
        const NAMES: &[&str] = &[
            "kind",
            "launch",
            "dtype",
            "batch",
            "n_prompt",
            "n_gen",
            "max_concurrency",
            "cpu_load",
            "avg_ts",
            "stddev_ts",
            "median_ts",
            "request_throughput",
            "duration",
            "median_ttft_ms",
            "p99_ttft_ms",
            "median_tpot_ms",
            "median_itl_ms",
            "p90_itl_ms",
            "p99_itl_ms",
            "p99.9_itl_ms",
            "median_e2el_ms",
            "median_step_ms",
            "median_turn_us",
            "experts_hit_mean",
            "expert_share_max",
            "floor_ms",
            "floor_fraction",
            "launches_per_token",
            "host_cpu_s_per_1k_tokens",
            "energy_j_per_token",
            "max_seqs",
            "startup_model_ms",
            "startup_load_ms",
            "startup_graphs_ms",
            "startup_capture_ms",
            "startup_instantiate_ms",
            "startup_upload_ms",
            "startup_engine_ms",
            "startup_first_token_ms",
            "a",
            "b",
            "ratio",
            "low",
            "high",
        ];
        let full: Value = NAMES
            .iter()
            .map(|&name| (name.to_owned(), json!(1.5)))
            .collect();
        let cells = |row: &Value| {
            columns
                .iter()
                .map(|column| (column.cell)(row))
                .collect::<Vec<_>>()
        };
        let read = |name: &&&str| {
            let mut without = full.clone();
            without[**name] = Value::Null;
            cells(&without) != cells(&full)
        };
        NAMES.iter().filter(read).copied().collect()
    }

    #[test]
    fn csv_quotes() {
        let rows = [json!({"command": "a \"b\", c", "n": 1, "samples": [1], "none": null})];
        assert_eq!(
            text(&rows, Format::Csv, RESULTS, TABLE_WIDTH),
            "command,n,none\n\"a \"\"b\"\", c\",1,\n"
        );
    }
}
