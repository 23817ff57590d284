//! Rows of JSON as they are written: as such, as CSV, or as a Markdown table of chosen fields.

use clap::{Args, ValueEnum};
use serde_json::Value;
use std::path::PathBuf;
use tailgraph::error::{Error, Result};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Md,
    Csv,
    Json,
    Jsonl,
}

/// Where rows go, and how they look.
#[derive(Debug, Clone, Args)]
pub struct Output {
    /// The file to write [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// How to print the rows
    #[arg(long, value_enum, default_value = "md")]
    format: Format,
}

impl Output {
    /// Writes the rows. A table has these fields, which have spaces between, under `heading`; other formats have all.
    pub fn write(&self, rows: &[Value], heading: &str, fields: &str) -> Result<()> {
        let text = match self.format {
            Format::Md => format!("{heading}\n\n{}", markdown(rows, fields)),
            Format::Csv => csv(rows),
            Format::Json => format!("{:#}\n", Value::from(rows)),
            Format::Jsonl => rows.iter().map(|row| format!("{row}\n")).collect(),
        };
        let Some(path) = &self.output else {
            print!("{text}");
            return Ok(());
        };
        std::fs::write(path, &text).map_err(|error| {
            // What was measured is not lost.
            print!("{text}");
            Error::file(path, error.to_string())
        })
    }
}

/// A value as a table shows it: numbers with four digits, `-` for none.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => {
            let value = number.as_f64().unwrap_or_default();
            let magnitude = value.abs().max(1e-9).log10().floor();
            format!("{value:.*}", (3.0 - magnitude).clamp(0.0, 9.0) as usize)
        }
        other => other.to_string(),
    }
}

/// A field that all rows lack, or have as 0, has no column.
fn markdown(rows: &[Value], fields: &str) -> String {
    let says = |field: &&str| {
        rows.iter()
            .any(|row| !row[field].is_null() && row[field] != 0)
    };
    let columns: Vec<Vec<String>> = fields
        .split(' ')
        .filter(says)
        .map(|field| {
            let cells: Vec<_> = rows.iter().map(|row| cell(&row[field])).collect();
            let width = cells
                .iter()
                .map(String::len)
                .max()
                .unwrap_or(0)
                .max(field.len());
            let lines = [field.to_owned(), format!("{}:", "-".repeat(width - 1))];
            let lines = lines.into_iter().chain(cells);
            lines.map(|line| format!("{line:>width$}")).collect()
        })
        .collect();
    let line = |index: usize| {
        let cells: Vec<_> = columns
            .iter()
            .map(|column| column[index].as_str())
            .collect();
        format!("| {} |\n", cells.join(" | "))
    };
    (0..rows.len() + 2).map(line).collect()
}

/// All fields of all rows.
fn csv(rows: &[Value]) -> String {
    let quoted = |value: &Value| match value {
        Value::Null => String::new(),
        Value::String(text) => format!("\"{}\"", text.replace('"', "\"\"")),
        other => other.to_string(),
    };
    let mut names: Vec<String> = vec![];
    for name in rows
        .iter()
        .filter_map(Value::as_object)
        .flat_map(|row| row.keys())
    {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    let line = |row: &Value| {
        names
            .iter()
            .map(|name| quoted(&row[name]))
            .collect::<Vec<_>>()
    };
    let lines = rows.iter().map(|row| line(row).join(","));
    [names.join(",")]
        .into_iter()
        .chain(lines)
        .map(|line| line + "\n")
        .collect()
}
