//! Rows of JSON as they are written: as such, as CSV, or as a Markdown table of chosen fields.

use clap::{Args, ValueEnum};
use serde_json::Value;
use std::path::PathBuf;
use tailgraph::error::{Error, Result};

/// A column's title, and its field.
pub type Column = (&'static str, &'static str);

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
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
    /// Writes the rows. A table of `columns` stands under `heading`; the other formats have all fields.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, rows: &[Value], heading: &str, columns: &[Column]) -> Result<()> {
        let text = match self.format {
            Format::Md => format!("{heading}\n\n{}", markdown(rows, columns)),
            Format::Csv => csv(rows),
            Format::Json => format!("{:#}\n", Value::from(rows)),
            Format::Jsonl => rows.iter().map(|row| format!("{row}\n")).collect(),
        };
        match &self.output {
            Some(path) => std::fs::write(path, text).map_err(|error| Error::file(path, error.to_string())),
            None => {
                print!("{text}");
                Ok(())
            }
        }
    }
}

/// A value as a table shows it: numbers with four digits, `-` for none.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(holds) => if *holds { "yes" } else { "NO" }.to_owned(),
        Value::Number(number) if number.is_f64() => {
            let value = number.as_f64().unwrap_or_default();
            let digits = value.abs().max(1e-9).log10().floor();
            format!("{value:.*}", (3.0 - digits).clamp(0.0, 9.0) as usize)
        }
        other => other.to_string(),
    }
}

/// Markdown; a column in which all rows have none or 0 is left out.
fn markdown(rows: &[Value], columns: &[Column]) -> String {
    let says = |(_, field): &&Column| rows.iter().any(|row| !row[field].is_null() && row[field] != 0);
    let columns: Vec<_> = columns.iter().filter(says).collect();
    let width = |&&(title, field): &&Column| {
        let cells = rows.iter().map(|row| cell(&row[field]).len());
        cells.max().unwrap_or(0).max(title.len())
    };
    let widths: Vec<usize> = columns.iter().map(width).collect();
    let line = |cell_of: &dyn Fn(&Column) -> String| {
        let cells = columns.iter().zip(&widths);
        let cells: Vec<_> = cells.map(|(column, width)| format!("{:>width$}", cell_of(column))).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let rule: Vec<_> = widths.iter().map(|width| format!("{}:", "-".repeat(width - 1))).collect();
    let head = line(&|column| column.0.to_owned()) + &format!("| {} |\n", rule.join(" | "));
    rows.iter().fold(head, |text, row| text + &line(&|column| cell(&row[column.1])))
}

/// The fields of the first row.
fn csv(rows: &[Value]) -> String {
    let Some(first) = rows.first().and_then(Value::as_object) else {
        return String::new();
    };
    let quoted = |text: String| if text.contains([',', '"', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text };
    let line = |cells: Vec<String>| cells.into_iter().map(quoted).collect::<Vec<_>>().join(",") + "\n";
    let plain = |value: &Value| match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let head = line(first.keys().cloned().collect());
    rows.iter().fold(head, |text, row| text + &line(first.keys().map(|name| plain(&row[name])).collect()))
}
