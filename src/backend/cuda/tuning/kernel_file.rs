//! Files of kernel variants: which kernels serve each decode bucket, per type, on GPUs of one architecture. Those in
//! `graphs/sm_*.toml` are built in; `--kernel-file` names another. `tailgraph tune` writes them.

mod entry;
mod nearest;
mod reading;
mod section;
mod served;

pub use nearest::Origin;
pub use section::Measured;
pub use served::{KernelChoice, Served};

use super::class::GpuClass;
use super::shape::Shape;
use super::variants::{Architecture, Entry};
use crate::error::{Error, Result};
use crate::model::DType;
use crate::plan::graphs::{parse_toml, read_toml};
use section::Section;
use std::path::{Path, PathBuf};

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

/// The contents of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelFile {
    /// Where it came from, for messages.
    pub path: PathBuf,
    pub architecture: Architecture,
    /// The tables that name no GPU: of the one that `for_gpu` names, or of nobody knows which.
    plain: Section,
    /// The sections of `[gpu.NAME]`, ascending, no two of them like each other or like the plain ones'.
    gpus: Vec<Section>,
}

impl KernelFile {
    /// Makes a file without entries.
    pub fn new(path: &Path, architecture: Architecture) -> Self {
        Self {
            path: path.to_owned(),
            architecture,
            plain: Section::default(),
            gpus: Vec::new(),
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

    fn parse(path: &Path, text: &str) -> Result<Self> {
        let table = parse_toml(path, text)?;
        Self::from_table(path, &table).map_err(|message| Error::file(path, message))
    }

    /// The entries of tables that name neither a GPU nor a shape.
    pub fn entries(&self, dtype: DType) -> &[Entry] {
        self.plain.entries(Shape::BASE, dtype)
    }

    /// The plain tables first.
    fn sections(&self) -> impl Iterator<Item = &Section> {
        std::iter::once(&self.plain).chain(&self.gpus)
    }

    /// The section of a GPU's own; `None` where there is none.
    fn own(&self, gpu: GpuClass) -> Option<&Section> {
        let like = |section: &&Section| section.gpu.is_some_and(|of| of.is_like(gpu));
        self.sections()
            .filter(like)
            .min_by(|a, b| a.distance(gpu).total_cmp(&b.distance(gpu)))
    }

    /// The section of `gpu` itself, made where it is missing.
    fn own_mut(&mut self, gpu: GpuClass) -> &mut Section {
        let own = self.own(gpu).and_then(|section| section.gpu);
        if own.is_some() && own == self.plain.gpu {
            return &mut self.plain;
        }
        let gpu = own.unwrap_or(gpu);
        let place = match self
            .gpus
            .binary_search_by_key(&Some(gpu), |section| section.gpu)
        {
            Ok(place) => place,
            Err(place) => {
                self.gpus.insert(place, Section::of(gpu));
                place
            }
        };
        &mut self.gpus[place]
    }

    /// Where the times of a GPU's own entries come from.
    pub fn measured(&self, gpu: GpuClass) -> &[Measured] {
        self.own(gpu).map_or(&[], |section| &section.measured)
    }

    /// All of its tables: `None` is a GPU that the file does not name.
    pub fn all(&self) -> impl Iterator<Item = (Option<GpuClass>, Shape, DType, &[Entry])> {
        self.sections().flat_map(|section| {
            let all = section.all();
            all.map(|(shape, dtype, entries)| (section.gpu, shape, dtype, entries))
        })
    }

    /// Puts `entry` in the place of the one for models of `shape` and as many rows in the plain tables.
    pub fn set(&mut self, shape: Shape, dtype: DType, entry: Entry) {
        self.plain.set(shape, dtype, entry);
    }

    /// This file with what was measured on `gpu` for models of `shape`. Types and shapes that the GPU had no entries of its own for
    /// begin as those that serve it now; times of its other entries are of another measurement, and go. What is there for other
    /// GPUs stays as it is.
    #[must_use]
    pub fn tuned(
        &self,
        gpu: GpuClass,
        shape: Shape,
        found: &[(DType, Entry)],
        measured: Vec<Measured>,
    ) -> Self {
        let mut file = self.clone();
        file.own_mut(gpu).forget_times();
        for &(dtype, entry) in found {
            let origin = self.origin(gpu, dtype, shape);
            if let Some(origin) = origin.filter(|origin| !(origin.own_gpu && origin.own_shape)) {
                for &borrowed in self.entries_of(origin, dtype) {
                    // What was measured already is the GPU's own by now.
                    file.own_mut(gpu).add(
                        shape,
                        dtype,
                        Entry {
                            ms: None,
                            ..borrowed
                        },
                    );
                }
            }
            file.own_mut(gpu).set(shape, dtype, entry);
        }
        file.own_mut(gpu).measured = measured;
        file
    }
}

/// Writes what [`KernelFile::read`] takes, with the times beside.
impl std::fmt::Display for KernelFile {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let architecture = self.architecture.name();
        writeln!(out, "{HEAD}\narchitecture = \"{architecture}\"")?;
        if let Some(gpu) = self.plain.gpu {
            writeln!(out, "for_gpu = \"{gpu}\"")?;
        }
        self.plain.write("", out)?;
        for section in &self.gpus {
            let gpu = section.gpu.map_or_else(String::new, |gpu| gpu.to_string());
            section.write(&format!("gpu.{gpu}."), out)?;
        }
        Ok(())
    }
}
