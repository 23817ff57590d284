//! Results as tables and JSON.

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
}

/// Prints `rows`.
pub fn text(rows: &[Value], format: Format, columns: &[Column]) -> String {
    match format {
        Format::Md => table(rows, columns),
        Format::Csv => csv(rows),
        Format::Json => format!(
            "{}\n",
            serde_json::to_string_pretty(rows).unwrap_or_default()
        ),
        Format::Jsonl => rows.iter().fold(String::new(), |mut text, row| {
            let _ = writeln!(text, "{row}");
            text
        }),
    }
}

/// Markdown: numbers to the right.
fn table(rows: &[Value], columns: &[Column]) -> String {
    let filled: Vec<(&Column, Vec<String>)> = columns
        .iter()
        .map(|column| (column, rows.iter().map(column.cell).collect::<Vec<_>>()))
        .filter(|(_, cells)| cells.iter().any(Option::is_some))
        .map(|(column, cells)| {
            let text = cells
                .into_iter()
                .map(|cell| cell.unwrap_or_else(|| "-".to_owned()));
            (column, text.map(|cell| cell.replace('|', "\\|")).collect())
        })
        .collect();
    let mut text = String::new();
    let mut line = |cells: Vec<String>| {
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    };
    let widths: Vec<usize> = filled
        .iter()
        .map(|(column, cells)| {
            let longest = cells.iter().map(|cell| cell.chars().count()).max();
            longest
                .unwrap_or(0)
                .max(column.title.chars().count())
                .max(2)
        })
        .collect();
    line(
        filled
            .iter()
            .zip(&widths)
            .map(|((column, _), &w)| format!("{:>w$}", column.title))
            .collect(),
    );
    line(
        widths
            .iter()
            .map(|&w| format!("{}:", "-".repeat(w - 1)))
            .collect(),
    );
    for row in 0..rows.len() {
        line(
            filled
                .iter()
                .zip(&widths)
                .map(|((_, cells), &w)| format!("{:>w$}", cells[row]))
                .collect(),
        );
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

fn cell(row: &Value, name: &str) -> Option<String> {
    match &row[name] {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Number(value) if value.is_f64() => value.as_f64().map(number),
        value => Some(value.to_string()),
    }
}

fn per_cent(row: &Value, name: &str) -> Option<String> {
    Some(format!("{:.1}%", row[name].as_f64()? * 100.0))
}

macro_rules! field {
    ($title:literal, $name:literal) => {
        Column {
            title: $title,
            cell: |row| cell(row, $name),
        }
    };
}

/// Of results.
pub const RESULTS: &[Column] = &[
    field!("kind", "kind"),
    field!("launch", "launch"),
    field!("dtype", "dtype"),
    field!("buckets", "bucket_file"),
    field!("kernel file", "kernel_file"),
    field!("batch", "batch"),
    field!("n_prompt", "n_prompt"),
    field!("n_gen", "n_gen"),
    field!("kernels", "n_kernels"),
    field!("req/s asked", "request_rate"),
    field!("cpu load", "cpu_load"),
    Column {
        title: "t/s (mean ± sd)",
        cell: |row| {
            let (mean, sd) = (row["avg_ts"].as_f64()?, row["stddev_ts"].as_f64()?);
            Some(format!("{} ± {}", number(mean), number(sd)))
        },
    },
    field!("t/s median", "median_ts"),
    field!("req/s", "request_throughput"),
    field!("s", "duration"),
    Column {
        title: "valid",
        cell: |row| {
            Some(
                if row["valid"].as_bool()? {
                    "VALID"
                } else {
                    "INVALID"
                }
                .to_owned(),
            )
        },
    },
    Column {
        title: "top-1",
        cell: |row| {
            Some(format!(
                "{}/{}",
                row["top1_agreeing"].as_u64()?,
                row["top1_total"].as_u64()?
            ))
        },
    },
    field!("TTFT ms p50", "median_ttft_ms"),
    field!("p99", "p99_ttft_ms"),
    field!("TPOT ms p50", "median_tpot_ms"),
    field!("ITL ms p50", "median_itl_ms"),
    field!("p90", "p90_itl_ms"),
    field!("p99", "p99_itl_ms"),
    field!("p99.9", "p99.9_itl_ms"),
    field!("E2E ms p50", "median_e2el_ms"),
    field!("step ms p50", "median_step_ms"),
    field!("by trace", "median_traced_step_ms"),
    field!("turn us", "median_turn_us"),
    field!("experts/layer", "experts_hit_mean"),
    Column {
        title: "most chosen",
        cell: |row| per_cent(row, "expert_share_max"),
    },
    field!("floor ms", "floor_ms"),
    Column {
        title: "of floor",
        cell: |row| per_cent(row, "floor_fraction"),
    },
    field!("launches/token", "launches_per_token"),
    field!("CPU s/1k tokens", "host_cpu_s_per_1k_tokens"),
    field!("J/token", "energy_j_per_token"),
];

/// Of how engines started.
pub const STARTS: &[Column] = &[
    field!("launch", "launch"),
    field!("dtype", "dtype"),
    field!("buckets", "bucket_file"),
    field!("kernel file", "kernel_file"),
    field!("max seqs", "max_seqs"),
    field!("model ms", "startup_model_ms"),
    field!("load ms", "startup_load_ms"),
    field!("capture ms", "startup_capture_ms"),
    field!("instantiate ms", "startup_instantiate_ms"),
    field!("upload ms", "startup_upload_ms"),
    field!("engine ms", "startup_engine_ms"),
    field!("first token ms", "startup_first_token_ms"),
];

/// Of a comparison.
pub const COMPARED: &[Column] = &[
    field!("kind", "kind"),
    field!("launch", "launch"),
    field!("dtype", "dtype"),
    field!("batch", "batch"),
    field!("n_prompt", "n_prompt"),
    field!("n_gen", "n_gen"),
    field!("kernels", "n_kernels"),
    field!("req/s asked", "request_rate"),
    field!("cpu load", "cpu_load"),
    field!("figure", "figure"),
    field!("A (geomean)", "a"),
    field!("B (geomean)", "b"),
    field!("B / A", "ratio"),
    Column {
        title: "95% interval",
        cell: |row| {
            Some(format!(
                "{} to {}",
                number(row["low"].as_f64()?),
                number(row["high"].as_f64()?)
            ))
        },
    },
    field!("verdict", "verdict"),
];

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
        let text = text(&rows, Format::Md, RESULTS);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        assert_eq!(lines[0], "|   kind | batch | t/s (mean ± sd) |");
        assert_eq!(lines[2], "| decode |     1 |  10.00 ± 0.5000 |");
        assert_eq!(lines[3], "| decode |    32 |               - |");
    }

    #[test]
    fn csv_quotes() {
        let rows = [json!({"command": "a \"b\", c", "n": 1, "samples": [1], "none": null})];
        assert_eq!(
            text(&rows, Format::Csv, RESULTS),
            "command,n,none\n\"a \"\"b\"\", c\",1,\n"
        );
    }
}
