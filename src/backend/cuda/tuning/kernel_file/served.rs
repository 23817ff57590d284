//! A kernel file as one GPU goes by it, and which file that is.

use super::KernelFile;
use super::nearest::Origin;
use crate::backend::cuda::tuning::class::GpuClass;
use crate::backend::cuda::tuning::shape::Shape;
use crate::backend::cuda::tuning::variants::{Architecture, Choice};
use crate::error::{Error, Result};
use crate::model::DType;
use std::path::Path;
use std::sync::Arc;

/// Which file a run goes by, and as which GPU.
#[derive(Debug, Clone, Default)]
pub struct KernelChoice {
    /// One that somebody has named, and that is taken at its word (see [`Choice::decode`]); `None` for the one that is built in for
    /// the GPU's architecture.
    named: Option<Arc<KernelFile>>,
    /// The GPU whose entries serve; `None` for the one that runs.
    as_gpu: Option<GpuClass>,
}

/// A file, and the GPU that goes by it.
#[derive(Debug, Clone)]
pub struct Served {
    pub file: Arc<KernelFile>,
    pub gpu: GpuClass,
    named: bool,
}

impl From<KernelFile> for KernelChoice {
    fn from(file: KernelFile) -> Self {
        Self {
            named: Some(Arc::new(file)),
            as_gpu: None,
        }
    }
}

impl KernelChoice {
    /// The file at `path`, or what is built in.
    ///
    /// # Errors
    /// [`KernelFile::read`]'s.
    pub fn open(path: Option<&Path>) -> Result<Self> {
        path.map_or(Ok(Self::default()), |path| {
            KernelFile::read(path).map(Self::from)
        })
    }

    /// Takes the file as `gpu` goes by it, whichever GPU runs: all that share one model run the same kernels.
    #[must_use]
    pub fn as_gpu(self, gpu: GpuClass) -> Self {
        Self {
            as_gpu: Some(gpu),
            ..self
        }
    }

    /// The file for a GPU of this compute capability.
    ///
    /// # Errors
    /// [`Error::File`]: the file that was named is for others; [`Error::Usage`]: nothing is built in for such a one.
    pub fn for_gpu(&self, capability: (u32, u32), gpu: GpuClass) -> Result<Served> {
        let (major, minor) = capability;
        let Some(architecture) = Architecture::of(capability) else {
            return Err(Error::Usage(format!(
                "a GPU of compute capability {major}.{minor}: no kernels are built for it, expected 8.x, 9.0 or 10.x"
            )));
        };
        let file = match &self.named {
            None => Arc::new(KernelFile::built_in(architecture)?),
            Some(file) if file.architecture == architecture => file.clone(),
            Some(file) => {
                return Err(Error::file(
                    &file.path,
                    format!(
                        "architecture: found {}, expected {} for a GPU of compute capability {major}.{minor}",
                        file.architecture.name(),
                        architecture.name()
                    ),
                ));
            }
        };
        Ok(Served {
            file,
            gpu: self.as_gpu.unwrap_or(gpu),
            named: self.named.is_some(),
        })
    }
}

impl Served {
    /// Where the entries come from: see [`KernelFile::origin`].
    pub fn origin(&self, dtype: DType, shape: Shape) -> Option<Origin> {
        self.file.origin(self.gpu, dtype, shape)
    }

    /// The entries of one type for a model of `shape`, of which [`Choice`] takes the one for a bucket.
    pub fn choice(&self, dtype: DType, shape: Shape) -> Choice<'_> {
        let origin = self.origin(dtype, shape);
        Choice {
            entries: origin.map_or(&[], |origin| self.file.entries_of(origin, dtype)),
            table: origin.map_or_else(String::new, |origin| self.file.table(origin, dtype)),
            named: self.named.then_some(&self.file.path),
        }
    }

    /// The name of the file and its entries: see [`KernelFile::name`].
    pub fn name(&self) -> String {
        self.file.name(self.gpu)
    }
}
