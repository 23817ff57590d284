//! Results as tables and JSON.

mod columns;

pub use columns::{Column, STARTS, compared, is_unsteady, over_bare, results};

use crate::command::summary::counted;
use crate::quote;
use clap::ValueEnum;
use serde_json::Value;
use std::fmt::Write;

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Tables for people
    Md,
    /// A line a result, without the values of single repeats
    Csv,
    /// An array of all results
    Json,
    /// A line of JSON a result
    Jsonl,
}

/// Characters of a table's line where no terminal says how many it has room for.
pub const TABLE_WIDTH: usize = 120;

/// What was measured on what, above the tables.
pub fn heading(rows: &[Value]) -> String {
    let Some(first) = rows.first() else {
        return String::new();
    };
    let name = |field: &str| quote::visible(first[field].as_str().unwrap_or("unknown"));
    let device = match first["gpu_info"].as_str() {
        Some(_) => format!("{}, host {}", name("gpu_info"), name("cpu_info")),
        None => name("cpu_info"),
    };
    let floor = match first["floor_source"].as_str() {
        Some(source) => format!(" Floors by the bandwidth of: {source}."),
        None => String::new(),
    };
    format!(
        "{} on {device} ({} cores), {} build of tailgraph {}, {} after {} warm-up, {}.{floor}\n",
        name("model_filename"),
        first["host_cores"],
        name("build_profile"),
        name("build_version"),
        counted(first["repeats"].as_u64().unwrap_or(0), "repeat"),
        first["warm_up"],
        name("test_time"),
    )
}

/// Takes out the settings that all of `rows` share; they are the text that comes back.
pub fn shared(rows: &[Value], columns: &mut Vec<Column>) -> String {
    let mut shared = Vec::new();
    columns.retain(|column| {
        let mut cells = rows.iter().map(|row| column.cell(row));
        let first = cells.next().flatten();
        let is_shared = column.is_setting && cells.all(|cell| cell == first);
        // No load is no news.
        if let Some(cell) = first.filter(|cell| is_shared && cell != "0") {
            shared.push(format!("{} {}", column.title, quote::visible(cell)));
        }
        !is_shared
    });
    shared.join(", ")
}

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

impl<'a> Filled<'a> {
    /// `None` where no row has a cell.
    fn of(column: &'a Column, rows: &[Value]) -> Option<Self> {
        let cells: Vec<_> = rows.iter().map(|row| column.cell(row)).collect();
        cells.iter().flatten().next()?;
        let text = |cell: Option<String>| {
            let text = cell.unwrap_or_else(|| "-".to_owned());
            quote::visible(text).replace('|', "\\|")
        };
        let cells: Vec<String> = cells.into_iter().map(text).collect();
        let texts = cells.iter().map(String::as_str).chain([column.title]);
        let width = texts.map(|text| text.chars().count()).max();
        Some(Self {
            column,
            cells,
            width: width.unwrap_or(0).max(2),
        })
    }
}

/// Takes columns out until a line has at most `width` characters; how many those are.
fn cut_to(filled: &mut Vec<Filled<'_>>, width: usize) -> usize {
    let all = filled.len();
    // Each has " | " or the line's own ends around it.
    while filled.iter().map(|column| column.width + 3).sum::<usize>() + 1 > width {
        // The last of several columns of one rank goes first.
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
    let filled = columns.iter().filter_map(|column| Filled::of(column, rows));
    let mut filled: Vec<Filled<'_>> = filled.collect();
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

/// A CSV field by RFC 4180.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// Four digits that matter, in plain notation.
pub fn number(value: f64) -> String {
    digits(value, 4)
}

fn digits(value: f64, count: i32) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    let magnitude = value.abs().log10().floor() as i32;
    let decimals = (count - 1 - magnitude).clamp(0, 9) as usize;
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Kind;
    use crate::bench::row::Row;
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
            json!({"kind": "decode", "batch": 1, "launch": null, "avg_ts": 10.0, "stddev_ts": 0.5, "clocks_unsteady": true}),
            json!({"kind": "decode", "batch": 32, "cpu_load": 0}),
        ];
        let mut columns = results(Kind::Decode.columns());
        assert_eq!(shared(&rows[..1], &mut columns), "kind decode, batch 1");
        columns = results(Kind::Decode.columns());
        assert_eq!(shared(&rows, &mut columns), "kind decode");
        let text = text(&rows, Format::Md, &columns, TABLE_WIDTH);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        assert_eq!(lines[0], "| batch | cpu load | t/s (mean ± sd) |");
        assert_eq!(lines[2], "|     1 |        - | 10.00 ± 0.5000* |");
        assert_eq!(lines[3], "|    32 |        0 |               - |");
    }

    /// What a newcomer looks for has room on the narrowest of terminals.
    #[test]
    fn eighty_characters_have_room_for_what_matters_most() {
        let mut row = json!(Row::default());
        for (name, value) in row.as_object_mut().unwrap() {
            if name.ends_with("_ms") {
                let is_median = name.starts_with("median");
                *value = json!(if is_median { 123.4 } else { 1234.5 });
            } else if value.is_f64() || name == "floor_fraction" {
                *value = json!(0.1234);
            }
        }
        row["launch"] = "host-graph-ahead".into();
        let mut other = row.clone();
        (row["request_rate"], other["request_rate"]) = (json!(10.5), json!(20.5));
        let steps = ["t/s (mean ± sd)", "step ms p50", "p99", "of floor"];
        let prompts = ["t/s (mean ± sd)", "TTFT ms p50", "p99", "of floor"];
        let requests = ["req/s", "t/s out", "TTFT ms", "TPOT ms", "ITL ms", "E2E ms"];
        for (kind, wanted) in [
            (Kind::Decode, &steps[..]),
            (Kind::Prefill, &prompts),
            (Kind::Serve, &requests),
        ] {
            let rows = [row.clone(), other.clone()];
            let mut columns = results(kind.columns());
            let caption = shared(&rows, &mut columns);
            assert!(caption.contains("launch host-graph-ahead"), "{caption}");
            let text = text(&rows, Format::Md, &columns, 80);
            let lines: Vec<&str> = text.lines().collect();
            assert!(
                lines[..4].iter().all(|line| line.chars().count() <= 80),
                "{text}"
            );
            for title in wanted {
                assert!(lines[0].contains(&format!(" {title} |")), "{title}: {text}");
            }
            assert!(text.ends_with(" with --wide\n"), "{text}");
        }
    }

    #[test]
    fn csv_quotes() {
        let rows = [json!({"command": "a \"b\", c", "n": 1, "samples": [1], "none": null})];
        assert_eq!(
            text(&rows, Format::Csv, &[], TABLE_WIDTH),
            "command,n,none\n\"a \"\"b\"\", c\",1,\n"
        );
    }
}
