//! Files of kernel variants: which kernels serve each decode bucket, per type, on GPUs of one architecture. Those in
//! `graphs/sm_*.toml` are built in; `--kernel-file` names another. `tailgraph tune` writes them.

mod entry;
mod reading;

use super::shape::Shape;
use super::variants::{Architecture, Choice, Entry};
use crate::error::{Error, Result};
use crate::model::DType;
use crate::plan::graphs::{parse_toml, read_toml};
use entry::write_variant;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::Value;

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

const DTYPES: [DType; 3] = [DType::BF16, DType::F16, DType::F32];

/// Ascending in rows, by [`DTYPES`].
type Entries = [Vec<Entry>; 3];

/// The contents of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelFile {
    /// Where it came from, for messages.
    pub path: PathBuf,
    pub architecture: Architecture,
    /// Names and values of `[measured]`, in the file's order.
    pub measured: Vec<(String, String)>,
    /// For [`Shape::BASE`], and all that no other is nearer to.
    entries: Entries,
    /// Of other shapes, ascending.
    shapes: Vec<(Shape, Entries)>,
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
            entries: Entries::default(),
            shapes: Vec::new(),
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

    /// Those for models of [`Shape::BASE`].
    pub fn entries(&self, dtype: DType) -> &[Entry] {
        of_type(&self.entries, dtype)
    }

    /// The shapes that the file has entries for, each with all of them.
    pub fn all(&self) -> impl Iterator<Item = (Shape, DType, &[Entry])> {
        let base = std::iter::once((Shape::BASE, &self.entries));
        let shapes = self.shapes.iter().map(|(shape, entries)| (*shape, entries));
        base.chain(shapes).flat_map(|(shape, entries)| {
            let each = DTYPES.into_iter().zip(entries);
            each.map(move |(dtype, entries)| (shape, dtype, &entries[..]))
        })
    }

    /// The shape whose entries of a type serve a model of `shape`: its own, or the nearest that has any.
    pub fn nearest(&self, dtype: DType, shape: Shape) -> Shape {
        let there = self
            .all()
            .filter(|&(_, of, entries)| of == dtype && !entries.is_empty())
            .map(|(of, ..)| of);
        let near = |a: &Shape, b: &Shape| a.distance(shape).total_cmp(&b.distance(shape));
        there.min_by(near).unwrap_or(Shape::BASE)
    }

    /// Those of one type for a model of `shape`, of which [`Choice`] takes the one for a bucket.
    pub fn choice<'a>(&'a self, dtype: DType, shape: Shape, named: Option<&'a Path>) -> Choice<'a> {
        let nearest = self.nearest(dtype, shape);
        let mut all = self.all();
        let found = all.find(|&(of, of_type, _)| of == nearest && of_type == dtype);
        Choice {
            entries: found.map_or(&[], |(.., entries)| entries),
            dtype,
            named,
        }
    }

    /// Puts `entry` in the place of the one for models of `shape` and as many rows.
    pub fn set(&mut self, shape: Shape, dtype: DType, entry: Entry) {
        let Some(at) = DTYPES.iter().position(|of| *of == dtype) else {
            return;
        };
        let entries = match self.shapes.binary_search_by_key(&shape, |(of, _)| *of) {
            _ if shape == Shape::BASE => &mut self.entries,
            Ok(place) => &mut self.shapes[place].1,
            Err(place) => {
                self.shapes.insert(place, (shape, Entries::default()));
                &mut self.shapes[place].1
            }
        };
        let entries = &mut entries[at];
        match entries.binary_search_by_key(&entry.rows, |entry| entry.rows) {
            Ok(place) => entries[place] = entry,
            Err(place) => entries.insert(place, entry),
        }
    }

    /// Gives models of `shape` entries of their own of a type: until they are [`KernelFile::set`], those that serve them now.
    pub fn adopt(&mut self, shape: Shape, dtype: DType) {
        if self.nearest(dtype, shape) != shape {
            for entry in self.choice(dtype, shape, None).entries.to_vec() {
                self.set(shape, dtype, entry);
            }
        }
    }

    /// What a run with it depends on, as the architecture and 16 digits: the same where the variants are, whatever was measured.
    pub fn name(&self) -> String {
        // FNV-1a
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut text = self.architecture.name().to_owned();
        for (shape, dtype, entries) in self.all() {
            let (of, name) = (table_of(shape), dtype.name());
            for entry in entries {
                let variant = write_variant(entry.variant);
                let _ = write!(text, ";{of}{name}.{}:{variant}", entry.rows);
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
        for (shape, dtype, entries) in self.all() {
            let (of, name) = (table_of(shape), dtype.name());
            if !entries.is_empty() {
                writeln!(out, "\n[{of}decode.{name}]")?;
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

fn of_type(entries: &Entries, dtype: DType) -> &[Entry] {
    let at = DTYPES.iter().position(|of| *of == dtype);
    at.map_or(&[], |at| &entries[at])
}

/// What stands before `decode` in the name of a shape's tables.
fn table_of(shape: Shape) -> String {
    match shape {
        Shape::BASE => String::new(),
        shape => format!("shape.{shape}."),
    }
}
