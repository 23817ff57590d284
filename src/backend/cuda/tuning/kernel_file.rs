//! Files of kernel variants: which kernels serve each decode bucket, per type, on GPUs of one architecture. Those in
//! `graphs/sm_*.toml` are built in; `--kernel-file` names another. `tailgraph tune` writes them.

mod entry;

use super::variants::{Architecture, Choice, Entry};
use crate::error::{Error, Result};
use crate::model::DType;
use crate::plan::graphs::{describe, parse_toml, read_toml};
use crate::quote;
use entry::{read_entry, write_variant};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::{Table, Value};

const BUILT_IN: [(Architecture, &str, &str); 3] = [
    (
        Architecture::Sm80,
        "graphs/sm_80.toml (built in)",
        include_str!("../../../../graphs/sm_80.toml"),
    ),
    (
        Architecture::Sm90,
        "graphs/sm_90.toml (built in)",
        include_str!("../../../../graphs/sm_90.toml"),
    ),
    (
        Architecture::Sm100,
        "graphs/sm_100.toml (built in)",
        include_str!("../../../../graphs/sm_100.toml"),
    ),
];

/// What every file begins with.
const HEAD: &str = include_str!("../../../../graphs/kernels.txt");

/// What a file says of how it came about, each a line of text.
const MEASURED: [&str; 6] = ["model", "gpu", "driver", "date", "commit", "command"];
const DTYPES: [DType; 3] = [DType::BF16, DType::F16, DType::F32];
/// Rows of an entry, at most.
const MOST_ENTRY_ROWS: u32 = crate::plan::MAX_SEQS;

/// The contents of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelFile {
    /// Where it came from, for messages.
    pub path: PathBuf,
    pub architecture: Architecture,
    /// Names and values of `[measured]`, in the file's order.
    pub measured: Vec<(String, String)>,
    /// By [`DTYPES`], ascending in rows.
    entries: [Vec<Entry>; 3],
}

/// Which file a run goes by.
#[derive(Debug, Clone, Default)]
pub enum KernelChoice {
    /// The one that is built in for the GPU's architecture.
    #[default]
    BuiltIn,
    /// One that was named, and is taken at its word: see [`Choice::decode`].
    File(Arc<KernelFile>),
}

impl KernelChoice {
    /// The file at `path`, or what is built in.
    ///
    /// # Errors
    /// [`KernelFile::read`]'s.
    pub fn open(path: Option<&Path>) -> Result<Self> {
        path.map_or(Ok(Self::BuiltIn), |path| {
            Ok(Self::File(Arc::new(KernelFile::read(path)?)))
        })
    }

    /// The file for a GPU of this compute capability.
    ///
    /// # Errors
    /// [`Error::File`]: the file that was named is for others; [`Error::Usage`]: nothing is built in for such a one.
    pub fn for_gpu(&self, capability: (u32, u32)) -> Result<Arc<KernelFile>> {
        let (major, minor) = capability;
        let Some(architecture) = Architecture::of(capability) else {
            return Err(Error::Usage(format!(
                "a GPU of compute capability {major}.{minor}: no kernels are built for it, expected 8.x, 9.0 or 10.x"
            )));
        };
        match self {
            Self::BuiltIn => Ok(Arc::new(KernelFile::built_in(architecture)?)),
            Self::File(file) if file.architecture == architecture => Ok(file.clone()),
            Self::File(file) => Err(Error::file(
                &file.path,
                format!(
                    "architecture: found {}, expected {} for a GPU of compute capability {major}.{minor}",
                    file.architecture.name(),
                    architecture.name()
                ),
            )),
        }
    }

    /// What [`Choice::named`] says.
    pub fn named(&self) -> Option<&Path> {
        match self {
            Self::BuiltIn => None,
            Self::File(file) => Some(&file.path),
        }
    }
}

impl KernelFile {
    /// Without entries.
    pub fn new(path: &Path, architecture: Architecture) -> Self {
        Self {
            path: path.to_owned(),
            architecture,
            measured: Vec::new(),
            entries: [vec![], vec![], vec![]],
        }
    }

    /// # Errors
    /// Never in a released build: a test reads the files.
    pub fn built_in(architecture: Architecture) -> Result<Self> {
        let found = BUILT_IN.into_iter().find(|(of, ..)| *of == architecture);
        let (_, name, text) = found.expect("every architecture has one");
        Self::parse(Path::new(name), text)
    }

    /// # Errors
    /// [`Error::File`]: it cannot be read, or names the entry, what it holds and what it should.
    pub fn read(path: &Path) -> Result<Self> {
        let expected = "a TOML file of kernel variants, as `tailgraph tune` writes it";
        Self::parse(path, &read_toml(path, expected)?)
    }

    pub fn entries(&self, dtype: DType) -> &[Entry] {
        let at = DTYPES.iter().position(|of| *of == dtype);
        at.map_or(&[], |at| &self.entries[at])
    }

    /// Those of one type, of which [`Choice`] takes the one for a bucket.
    pub fn choice<'a>(&'a self, dtype: DType, named: Option<&'a Path>) -> Choice<'a> {
        Choice {
            entries: self.entries(dtype),
            dtype,
            named,
        }
    }

    /// Puts `entry` in the place of the one for as many rows.
    pub fn set(&mut self, dtype: DType, entry: Entry) {
        let Some(at) = DTYPES.iter().position(|of| *of == dtype) else {
            return;
        };
        let entries = &mut self.entries[at];
        match entries.binary_search_by_key(&entry.rows, |entry| entry.rows) {
            Ok(place) => entries[place] = entry,
            Err(place) => entries.insert(place, entry),
        }
    }

    /// What a run with it depends on, as the architecture and 16 digits: the same where the variants are, whatever was measured.
    pub fn name(&self) -> String {
        // FNV-1a
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut text = self.architecture.name().to_owned();
        for (dtype, entries) in DTYPES.iter().zip(&self.entries) {
            let name = dtype.name();
            for entry in entries {
                let variant = write_variant(entry.variant);
                let _ = write!(text, ";{name}.{}:{variant}", entry.rows);
            }
        }
        for byte in text.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        format!("{}-{hash:016x}", self.architecture.name())
    }

    fn parse(path: &Path, text: &str) -> Result<Self> {
        let table = parse_toml(path, text)?;
        Self::from_table(path, &table).map_err(|message| Error::file(path, message))
    }

    fn from_table(path: &Path, table: &Table) -> std::result::Result<Self, String> {
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
                "decode" => file.read_decode(value)?,
                _ => {
                    return Err(format!(
                        "unknown key '{}': expected architecture, [measured] or [decode.TYPE]",
                        quote::text(key)
                    ));
                }
            }
        }
        Ok(file)
    }

    fn read_decode(&mut self, value: &Value) -> std::result::Result<(), String> {
        for (name, value) in of_table("decode", value)? {
            let dtype = DType::by_name(name).ok_or_else(|| {
                format!(
                    "decode: unknown type '{}': expected bf16, f16 or f32",
                    quote::text(name)
                )
            })?;
            for (key, value) in of_table(&format!("decode.{name}"), value)? {
                let wrong = |message| format!("decode.{name}.{}: {message}", quote::text(key));
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
                self.set(dtype, Entry { rows, variant, ms });
            }
        }
        Ok(())
    }
}

/// As [`KernelFile::read`] takes it, with the times beside.
impl std::fmt::Display for KernelFile {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "{HEAD}\narchitecture = \"{}\"\n",
            self.architecture.name()
        )?;
        if !self.measured.is_empty() {
            writeln!(out, "\n[measured]")?;
        }
        for (name, text) in &self.measured {
            writeln!(out, "{name} = {}", Value::String(text.clone()))?;
        }
        for (dtype, entries) in DTYPES.iter().zip(&self.entries) {
            let name = dtype.name();
            if !entries.is_empty() {
                writeln!(out, "\n[decode.{name}]")?;
            }
            for entry in entries {
                let ms = entry.ms.map(|ms| format!(", ms = {ms:.4}"));
                let (variant, ms) = (write_variant(entry.variant), ms.unwrap_or_default());
                writeln!(out, "{} = {{ {variant}{ms} }}", entry.rows)?;
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
