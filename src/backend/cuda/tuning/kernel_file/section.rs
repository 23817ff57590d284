//! The entries of a kernel file that are of one GPU, by shapes and types.

use super::entry::write_variant;
use crate::backend::cuda::tuning::class::GpuClass;
use crate::backend::cuda::tuning::shape::Shape;
use crate::backend::cuda::tuning::variants::Entry;
use crate::model::DType;
use std::fmt::{self, Write};
use toml::Value;

pub(super) const DTYPES: [DType; 3] = [DType::BF16, DType::F16, DType::F32];

/// The entries by [`DTYPES`], ascending in rows.
type Entries = [Vec<Entry>; 3];

/// A name and a value of `[measured]`.
pub type Measured = (String, String);

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Section {
    /// `None`: nobody says which.
    pub gpu: Option<GpuClass>,
    /// What was measured, in the file's order.
    pub measured: Vec<Measured>,
    /// For [`Shape::BASE`].
    base: Entries,
    /// Entries for other shapes, ascending.
    shapes: Vec<(Shape, Entries)>,
}

impl Section {
    pub fn of(gpu: GpuClass) -> Self {
        Self {
            gpu: Some(gpu),
            ..Self::default()
        }
    }

    /// From its GPU to `gpu`: one that is named is nearer than one that is not.
    pub fn distance(&self, gpu: GpuClass) -> f64 {
        self.gpu.map_or(f64::INFINITY, |of| of.distance(gpu))
    }

    /// Its shapes, each with all types.
    pub fn all(&self) -> impl Iterator<Item = (Shape, DType, &[Entry])> {
        let base = std::iter::once((Shape::BASE, &self.base));
        let shapes = self.shapes.iter().map(|(shape, entries)| (*shape, entries));
        base.chain(shapes).flat_map(|(shape, entries)| {
            let each = DTYPES.into_iter().zip(entries);
            each.map(move |(dtype, entries)| (shape, dtype, &entries[..]))
        })
    }

    /// The entries for exactly this shape and type.
    pub fn entries(&self, shape: Shape, dtype: DType) -> &[Entry] {
        let mut all = self.all();
        let found = all.find(|&(of, of_type, _)| (of, of_type) == (shape, dtype));
        found.map_or(&[], |(.., entries)| entries)
    }

    /// Puts `entry` in the place of the one for models of `shape` and as many rows.
    pub fn set(&mut self, shape: Shape, dtype: DType, entry: Entry) {
        if let Some(entries) = self.entries_mut(shape, dtype) {
            match entries.binary_search_by_key(&entry.rows, |entry| entry.rows) {
                Ok(place) => entries[place] = entry,
                Err(place) => entries.insert(place, entry),
            }
        }
    }

    /// Adds an entry where there is none of its rows.
    pub fn add(&mut self, shape: Shape, dtype: DType, entry: Entry) {
        let there = self.entries(shape, dtype).iter();
        if !there.clone().any(|there| there.rows == entry.rows) {
            self.set(shape, dtype, entry);
        }
    }

    fn entries_mut(&mut self, shape: Shape, dtype: DType) -> Option<&mut Vec<Entry>> {
        let at = DTYPES.iter().position(|of| *of == dtype)?;
        let entries = match self.shapes.binary_search_by_key(&shape, |(of, _)| *of) {
            _ if shape == Shape::BASE => &mut self.base,
            Ok(place) => &mut self.shapes[place].1,
            Err(place) => {
                self.shapes.insert(place, (shape, Entries::default()));
                &mut self.shapes[place].1
            }
        };
        Some(&mut entries[at])
    }

    pub fn forget_times(&mut self) {
        let shapes = self.shapes.iter_mut().map(|(_, entries)| entries);
        let all = std::iter::once(&mut self.base).chain(shapes).flatten();
        all.flatten().for_each(|entry| entry.ms = None);
    }

    /// Its tables, with `of` before their names.
    pub fn write(&self, of: &str, out: &mut dyn Write) -> fmt::Result {
        if !self.measured.is_empty() {
            writeln!(out, "\n[{of}measured]")?;
        }
        for (name, text) in &self.measured {
            writeln!(out, "{name} = {}", Value::String(text.clone()))?;
        }
        for (shape, dtype, entries) in self.all() {
            if !entries.is_empty() {
                writeln!(out, "\n[{of}{}]", table_of(shape, dtype))?;
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

/// A table's name in its section.
pub(super) fn table_of(shape: Shape, dtype: DType) -> String {
    format!("{}decode.{}", of_shape(shape), dtype.name())
}

/// What stands before `decode` in the names of a shape's tables.
pub(super) fn of_shape(shape: Shape) -> String {
    match shape {
        Shape::BASE => String::new(),
        shape => format!("shape.{shape}."),
    }
}
