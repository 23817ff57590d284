//! Which entries of a file serve a GPU and a model that it has none of its own for: first the nearest shapes, then of these the
//! nearest GPU's. Shapes decide how many rows an expert has, and what fits at all; GPUs of one architecture have the same kernels, and
//! differ in how deep their queues should be.

use super::KernelFile;
use super::entry::write_variant;
use super::section::{DTYPES, Section, of_shape, table_of};
use crate::backend::cuda::tuning::class::GpuClass;
use crate::backend::cuda::tuning::shape::Shape;
use crate::backend::cuda::tuning::variants::Entry;
use crate::model::DType;
use serde_json::{Value, json};
use std::fmt::{self, Write};

/// Where the entries come from that serve a GPU and a model in one type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Origin {
    /// Whose they are; `None`: the file does not say.
    pub gpu: Option<GpuClass>,
    /// Whether that is the one that is served.
    pub own_gpu: bool,
    /// The product of the ratios between the two GPUs; 1 where they are the same.
    pub gpu_ratio: Option<f64>,
    /// The shape of the models that they are for.
    pub shape: Shape,
    /// Whether these are those of the model that is served.
    pub own_shape: bool,
    /// The product of the ratios between the two shapes; 1 where they are the same.
    pub shape_ratio: f64,
}

impl Origin {
    /// The origin in JSON output.
    pub fn json(self) -> Value {
        json!({
            "gpu": self.gpu.map(|gpu| gpu.to_string()),
            "own_gpu": self.own_gpu,
            "gpu_ratio": self.gpu_ratio,
            "shape": self.shape.to_string(),
            "own_shape": self.own_shape,
            "shape_ratio": self.shape_ratio,
        })
    }
}

impl KernelFile {
    /// The shapes that some GPU has entries for, each once, in the order in which they are looked through: [`Shape::BASE`], then ascending.
    fn shapes(&self) -> Vec<Shape> {
        let mut shapes: Vec<Shape> = self.all().map(|(_, shape, ..)| shape).collect();
        shapes.sort_unstable_by_key(|&shape| (shape != Shape::BASE, shape));
        shapes.dedup();
        shapes
    }

    /// The section of the nearest GPU among those with entries for exactly this shape and type; the first of several.
    fn nearest_gpu(&self, gpu: GpuClass, dtype: DType, shape: Shape) -> Option<&Section> {
        let there = |section: &&Section| !section.entries(shape, dtype).is_empty();
        let near = |a: &&Section, b: &&Section| a.distance(gpu).total_cmp(&b.distance(gpu));
        self.sections().filter(there).min_by(near)
    }

    /// Where the entries come from that serve models of `shape` on `gpu`; `None` where nobody has any of the type.
    pub fn origin(&self, gpu: GpuClass, dtype: DType, shape: Shape) -> Option<Origin> {
        let shapes = self.shapes().into_iter();
        let there = shapes.filter_map(|of| Some((of, self.nearest_gpu(gpu, dtype, of)?)));
        let (of, section) =
            there.min_by(|(a, _), (b, _)| a.distance(shape).total_cmp(&b.distance(shape)))?;
        Some(Origin {
            gpu: section.gpu,
            own_gpu: section.gpu.is_some_and(|of| of.is_like(gpu)),
            gpu_ratio: section.gpu.map(|of| of.distance(gpu).exp()),
            shape: of,
            own_shape: of == shape,
            shape_ratio: of.distance(shape).exp(),
        })
    }

    /// The entries of one type that an origin tells of.
    pub fn entries_of(&self, origin: Origin, dtype: DType) -> &[Entry] {
        let mut sections = self.sections();
        let section = sections.find(|section| section.gpu == origin.gpu);
        section.map_or(&[], |section| section.entries(origin.shape, dtype))
    }

    /// The name of their table.
    pub(super) fn table(&self, origin: Origin, dtype: DType) -> String {
        let table = table_of(origin.shape, dtype);
        match origin.gpu.filter(|_| origin.gpu != self.plain.gpu) {
            None => table,
            Some(gpu) => format!("gpu.{gpu}.{table}"),
        }
    }

    /// What a run on `gpu` depends on, as the architecture and 16 digits: the same where the variants are that serve it, whatever was
    /// measured, and whatever serves others.
    pub fn name(&self, gpu: GpuClass) -> String {
        // FNV-1a
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut text = self.architecture.name().to_owned();
        for shape in self.shapes() {
            for dtype in DTYPES {
                let section = self.nearest_gpu(gpu, dtype, shape);
                let entries = section.map_or(&[][..], |section| section.entries(shape, dtype));
                for entry in entries {
                    let (of, variant) = (of_shape(shape), write_variant(entry.variant));
                    let _ = write!(text, ";{of}{}.{}:{variant}", dtype.name(), entry.rows);
                }
            }
        }
        for byte in text.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        format!("{}-{hash:016x}", self.architecture.name())
    }
}

/// Writes the origin for people.
impl fmt::Display for Origin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.gpu, self.gpu_ratio) {
            (Some(gpu), _) if self.own_gpu => write!(out, "this GPU's ({gpu})")?,
            (Some(gpu), Some(ratio)) => {
                write!(
                    out,
                    "those of {gpu}, the nearest GPU, {ratio:.2} times apart"
                )?;
            }
            _ => write!(out, "of no GPU that the file names")?,
        }
        let Self {
            shape, shape_ratio, ..
        } = self;
        if self.own_shape {
            write!(out, ", for these shapes ({shape})")
        } else {
            write!(
                out,
                ", for {shape}, the nearest shapes, {shape_ratio:.2} times apart"
            )
        }
    }
}
