//! A kernel file's tables as values.

use super::KernelFile;
use super::entry::read_entry;
use super::section::{Measured, Section, of_shape};
use crate::backend::cuda::tuning::class::GpuClass;
use crate::backend::cuda::tuning::shape::Shape;
use crate::backend::cuda::tuning::variants::{Architecture, Entry};
use crate::model::DType;
use crate::plan::graphs::describe;
use crate::quote;
use std::path::Path;
use toml::{Table, Value};

/// What a file says of how a GPU's times came about, each a line of text.
const MEASURED: [&str; 6] = ["model", "gpu", "driver", "date", "commit", "command"];
/// Rows of an entry, at most.
const MOST_ENTRY_ROWS: u32 = crate::plan::MAX_SEQS;
/// What a GPU's name is.
const GPU_NAME: &str = "a GPU's multiprocessors and its memory's GB/s as in m132-b3352, which `tailgraph doctor` shows";

type Read<T> = std::result::Result<T, String>;

impl KernelFile {
    pub(super) fn from_table(path: &Path, table: &Table) -> Read<Self> {
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
        file.plain.gpu = table.get("for_gpu").map(read_for_gpu).transpose()?;
        for (key, value) in table {
            match key.as_str() {
                "architecture" | "for_gpu" => {}
                "gpu" => file.read_gpus(value)?,
                _ if read_key(&mut file.plain, architecture, "", key, value)? => {}
                _ => {
                    return Err(format!(
                        "unknown key '{}': expected architecture, for_gpu, [measured], [decode.TYPE], [shape.NAME.decode.TYPE] or the same \
                         tables of a GPU, [gpu.NAME. ... ]",
                        quote::text(key)
                    ));
                }
            }
        }
        Ok(file)
    }

    fn read_gpus(&mut self, value: &Value) -> Read<()> {
        for (name, value) in of_table("gpu", value)? {
            let gpu = GpuClass::parse(name).ok_or_else(|| {
                format!("gpu: found '{}', expected {GPU_NAME}", quote::text(name))
            })?;
            match self.own(gpu) {
                Some(section) if section.gpu == self.plain.gpu => {
                    return Err(format!(
                        "gpu.{gpu}: for_gpu names this GPU, expected its entries in [decode.TYPE] and [shape.NAME.decode.TYPE]"
                    ));
                }
                Some(section) => {
                    let other = section.gpu.unwrap_or(gpu);
                    return Err(format!(
                        "gpu.{gpu}: is the GPU of [gpu.{other}] too, expected its entries in one of them"
                    ));
                }
                None => {}
            }
            let of = format!("gpu.{gpu}.");
            let mut section = Section::of(gpu);
            for (key, value) in of_table(&format!("gpu.{gpu}"), value)? {
                if !read_key(&mut section, self.architecture, &of, key, value)? {
                    return Err(format!(
                        "gpu.{gpu}: unknown key '{}': expected [{of}measured], [{of}decode.TYPE] or [{of}shape.NAME.decode.TYPE]",
                        quote::text(key)
                    ));
                }
            }
            self.gpus.push(section);
            self.gpus.sort_unstable_by_key(|section| section.gpu);
        }
        Ok(())
    }
}

fn read_for_gpu(value: &Value) -> Read<GpuClass> {
    let gpu = value.as_str().and_then(GpuClass::parse);
    gpu.ok_or_else(|| format!("for_gpu: found {}, expected {GPU_NAME}", describe(value)))
}

/// Reads what a GPU's tables have; false for a key that none of them is. `of` stands before their names.
fn read_key(
    section: &mut Section,
    architecture: Architecture,
    of: &str,
    key: &str,
    value: &Value,
) -> Read<bool> {
    match key {
        "measured" => section.measured = read_measured(of, value)?,
        "decode" => read_decode(section, architecture, of, Shape::BASE, value)?,
        "shape" => read_shapes(section, architecture, of, value)?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn read_shapes(
    section: &mut Section,
    architecture: Architecture,
    of: &str,
    value: &Value,
) -> Read<()> {
    for (name, value) in of_table(&format!("{of}shape"), value)? {
        let shape = Shape::parse(name).filter(|&shape| shape != Shape::BASE);
        let shape = shape.ok_or_else(|| {
            format!(
                "{of}shape: found '{}', expected hidden size, experts and their width as in h2048-e64-f1536; entries for {} are those of \
                 [{of}decode.TYPE]",
                quote::text(name),
                Shape::BASE
            )
        })?;
        for (key, value) in of_table(&format!("{of}shape.{shape}"), value)? {
            match key.as_str() {
                "decode" => read_decode(section, architecture, of, shape, value)?,
                "gpu" => {
                    return Err(format!(
                        "{of}shape.{shape}: found 'gpu', expected the GPU before the shape, as in [gpu.NAME.shape.{shape}.decode.TYPE]"
                    ));
                }
                _ => {
                    return Err(format!(
                        "{of}shape.{shape}: unknown key '{}': expected [{of}shape.{shape}.decode.TYPE]",
                        quote::text(key)
                    ));
                }
            }
        }
    }
    Ok(())
}

fn read_decode(
    section: &mut Section,
    architecture: Architecture,
    of: &str,
    shape: Shape,
    value: &Value,
) -> Read<()> {
    let of = format!("{of}{}decode", of_shape(shape));
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
                    "expected a bucket in tokens, 1 to {MOST_ENTRY_ROWS}, as the key"
                ))
            })?;
            let (variant, ms) = read_entry(value).map_err(wrong)?;
            variant.check(architecture, dtype, rows).map_err(wrong)?;
            section.set(shape, dtype, Entry { rows, variant, ms });
        }
    }
    Ok(())
}

fn read_measured(of: &str, value: &Value) -> Read<Vec<Measured>> {
    let key = format!("{of}measured");
    let mut measured = Vec::new();
    for name in of_table(&key, value)?.keys() {
        if !MEASURED.contains(&name.as_str()) {
            return Err(format!(
                "{key}: unknown key '{}': expected {}",
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
            .ok_or_else(|| format!("{key}.{name}: found {}, expected text", describe(value)))?;
        measured.push((name.to_owned(), text.to_owned()));
    }
    Ok(measured)
}

fn of_table<'a>(key: &str, value: &'a Value) -> Read<&'a Table> {
    value
        .as_table()
        .ok_or_else(|| format!("{key}: found {}, expected a table", describe(value)))
}
