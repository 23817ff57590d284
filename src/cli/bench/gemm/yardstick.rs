//! cuBLASLt as the yardstick of a table's dense products, where there is one.

use crate::bench::products::Dense;
use crate::error::Result;
use crate::model::DType;
use crate::session::Target;
#[cfg(feature = "cuda")]
use crate::telemetry::warn;
#[cfg(feature = "cuda")]
use std::collections::HashMap;

#[cfg(feature = "cuda")]
pub(super) type Library = crate::bench::cublaslt::CublasLt;

/// Nothing here could call it.
#[cfg(not(feature = "cuda"))]
pub(super) enum Library {}

/// cuBLASLt, where the target is a GPU and the machine has it.
#[cfg(feature = "cuda")]
pub(super) fn library(target: &Target) -> Result<Option<Library>> {
    let Target::Gpu(device) = target else {
        return Ok(None);
    };
    let found = Library::open(&device.gpu.context)?;
    if found.is_none() {
        warn(
            "cuBLASLt: found no libcublasLt.so on this machine, so the table has no column of it; put the lib folder of a CUDA 13 \
             toolkit, or that of the PyPI package nvidia-cublas, in LD_LIBRARY_PATH",
        );
    }
    Ok(found)
}

#[cfg(not(feature = "cuda"))]
pub(super) fn library(_: &Target) -> Result<Option<Library>> {
    Ok(None)
}

/// What the library takes, each shape once.
pub(super) struct Yardstick {
    #[cfg(feature = "cuda")]
    library: Option<Library>,
    #[cfg(feature = "cuda")]
    dtype: DType,
    #[cfg(feature = "cuda")]
    known: HashMap<Dense, Option<f64>>,
}

impl Yardstick {
    #[cfg(feature = "cuda")]
    pub(super) fn new(library: Option<Library>, dtype: DType) -> Self {
        Self {
            library,
            dtype,
            known: HashMap::new(),
        }
    }

    #[cfg(not(feature = "cuda"))]
    pub(super) fn new(_: Option<Library>, _: DType) -> Self {
        Self {}
    }

    /// One product in us; `None` where the library is not there, or has none of this shape.
    ///
    /// # Errors
    /// The library or the driver refuses.
    #[cfg(feature = "cuda")]
    pub(super) fn us(&mut self, dense: Dense) -> Result<Option<f64>> {
        let Some(library) = &self.library else {
            return Ok(None);
        };
        if let Some(&us) = self.known.get(&dense) {
            return Ok(us);
        }
        let us = library.best_us(dense, self.dtype)?;
        self.known.insert(dense, us);
        Ok(us)
    }

    /// There is none.
    #[cfg(not(feature = "cuda"))]
    pub(super) fn us(&mut self, _: Dense) -> Result<Option<f64>> {
        Ok(None)
    }
}
