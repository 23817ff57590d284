//! A kernel file's tables as values.

use super::entry::read_entry;
use super::{KernelFile, table_of};
use crate::backend::cuda::tuning::shape::Shape;
use crate::backend::cuda::tuning::variants::{Architecture, Entry};
use crate::model::DType;
use crate::plan::graphs::describe;
use crate::quote;
use std::path::Path;
use toml::{Table, Value};

/// What a file says of how it came about, each a line of text.
const MEASURED: [&str; 6] = ["model", "gpu", "driver", "date", "commit", "command"];
/// Rows of an entry, at most.
const MOST_ENTRY_ROWS: u32 = crate::plan::MAX_SEQS;

impl KernelFile {
    pub(super) fn from_table(path: &Path, table: &Table) -> std::result::Result<Self, String> {
        let of = table.get("architecture").ok_or_else(|| {
            "architecture: missing, expected \"sm_80\", \"sm_90\" or \"sm_100\"".to_owned()
        })?;
        let named = Architecture::ALL
            .into_iter()
            .find(|architecture| of.as_str() == Some(architecture.name()));
        let architecture = named.ok_or_else(|| {
            format!(
                "architecture: found {}, expected \"sm_80\", \"sm_90\" or \"sm_100\"",
                describe(of)
            )
        })?;
        let mut file = Self::new(path, architecture);
        for (key, value) in table {
            match key.as_str() {
                "architecture" => {}
                "measured" => file.measured = read_measured(value)?,
                "decode" => file.read_decode(Shape::BASE, value)?,
                "shape" => file.read_shapes(value)?,
                _ => {
                    return Err(format!(
                        "unknown key '{}': expected architecture, [measured], [decode.TYPE] or [shape.NAME.decode.TYPE]",
                        quote::text(key)
                    ));
                }
            }
        }
        Ok(file)
    }

    fn read_shapes(&mut self, value: &Value) -> std::result::Result<(), String> {
        for (name, value) in of_table("shape", value)? {
            let shape = Shape::parse(name).filter(|&shape| shape != Shape::BASE);
            let shape = shape.ok_or_else(|| {
                format!(
                    "shape: found '{}', expected hidden size, experts and their width as in h2048-e64-f1536; entries for {} are those of \
                     [decode.TYPE]",
                    quote::text(name),
                    Shape::BASE
                )
            })?;
            for (key, value) in of_table(&format!("shape.{shape}"), value)? {
                match key.as_str() {
                    "decode" => self.read_decode(shape, value)?,
                    _ => {
                        return Err(format!(
                            "shape.{shape}: unknown key '{}': expected [shape.{shape}.decode.TYPE]",
                            quote::text(key)
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    fn read_decode(&mut self, shape: Shape, value: &Value) -> std::result::Result<(), String> {
        let of = format!("{}decode", table_of(shape));
        for (name, value) in of_table(&of, value)? {
            let dtype = DType::by_name(name).ok_or_else(|| {
                format!(
                    "{of}: unknown type '{}': expected bf16, f16 or f32",
                    quote::text(name)
                )
            })?;
            for (key, value) in of_table(&format!("{of}.{name}"), value)? {
                let wrong = |message| format!("{of}.{name}.{}: {message}", quote::text(key));
                let rows = key
                    .parse()
                    .ok()
                    .filter(|rows| (1..=MOST_ENTRY_ROWS).contains(rows));
                let rows = rows.ok_or_else(|| {
                    wrong(format!(
                        "expected the rows of a bucket, 1 to {MOST_ENTRY_ROWS}, as the key"
                    ))
                })?;
                let (variant, ms) = read_entry(value).map_err(wrong)?;
                variant
                    .check(self.architecture, dtype, rows)
                    .map_err(wrong)?;
                self.set(shape, dtype, Entry { rows, variant, ms });
            }
        }
        Ok(())
    }
}

fn read_measured(value: &Value) -> std::result::Result<Vec<(String, String)>, String> {
    let mut measured = Vec::new();
    for name in of_table("measured", value)?.keys() {
        if !MEASURED.contains(&name.as_str()) {
            return Err(format!(
                "measured: unknown key '{}': expected {}",
                quote::text(name),
                MEASURED.join(", ")
            ));
        }
    }
    for name in MEASURED {
        let Some(value) = value.get(name) else {
            continue;
        };
        let text = value
            .as_str()
            .ok_or_else(|| format!("measured.{name}: found {}, expected text", describe(value)))?;
        measured.push((name.to_owned(), text.to_owned()));
    }
    Ok(measured)
}

fn of_table<'a>(key: &str, value: &'a Value) -> std::result::Result<&'a Table, String> {
    value
        .as_table()
        .ok_or_else(|| format!("{key}: found {}, expected a table", describe(value)))
}
