//! A GPU to run on: its context, with this build's kernels loaded.

use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::driver::image::HAS_KERNELS;
use crate::backend::cuda::driver::machine::{self, Missing};
use crate::backend::cuda::driver::module::Module;
use crate::backend::cuda::tuning::{Architecture, KernelChoice, Served};
use crate::error::{Error, Result};
use cudarc::driver::{CudaContext, result};
use std::sync::Arc;

/// An opened GPU.
#[derive(Debug, Clone)]
pub struct OpenGpu {
    pub info: machine::Gpu,
    pub context: Arc<CudaContext>,
    pub module: Arc<Module>,
    /// Which of them serve which bucket.
    pub kernels: KernelChoice,
}

/// Asks this build for kernels, which `what` wants.
///
/// # Errors
/// [`Error::Usage`]: it has none.
pub fn expect_kernels(what: &str) -> Result<()> {
    if HAS_KERNELS {
        return Ok(());
    }
    Err(Error::Usage(format!("{what}: {}", Missing::Kernels)))
}

impl From<Missing> for Error {
    fn from(missing: Missing) -> Self {
        match missing {
            Missing::Kernels | Missing::Ordinal { .. } => Self::Usage(missing.to_string()),
            _ => Self::Runtime(missing.to_string()),
        }
    }
}

impl OpenGpu {
    /// # Errors
    /// What of [`Missing`] there is; [`Error::Runtime`] where the driver refuses a context or the kernels.
    pub fn new(ordinal: u32) -> Result<Self> {
        let info = machine::probe()?.gpu(ordinal)?.clone();
        let context = CudaContext::new(ordinal as usize)
            .map_err(|error| failed(&format!("opening {info}"), error))?;
        // SAFETY: memory and order are this backend's own business; it has no array that cudarc would track.
        unsafe { context.disable_event_tracking() };
        let module = Module::new(&context)?;
        Ok(Self {
            info,
            context,
            module,
            kernels: KernelChoice::default(),
        })
    }

    /// The same GPU, its buckets served by what `kernels` says.
    #[must_use]
    pub fn served_by(&self, kernels: KernelChoice) -> Self {
        Self {
            kernels,
            ..self.clone()
        }
    }

    /// What says which kernels serve which bucket.
    ///
    /// # Errors
    /// [`KernelChoice::for_gpu`]'s.
    pub fn kernel_file(&self) -> Result<Served> {
        let info = &self.info;
        self.kernels.for_gpu(info.compute_capability, info.class)
    }

    /// Memory that can be allocated now.
    ///
    /// # Errors
    /// The driver does not say.
    pub fn free_bytes(&self) -> Result<u64> {
        let refused = |error| failed("asking for free memory", error);
        self.context.bind_to_thread().map_err(refused)?;
        let (free, _) = result::mem_get_info().map_err(refused)?;
        Ok(free as u64)
    }

    /// Whether kernels can start while those ahead of them end (programmatic dependent launch).
    pub fn overlaps_launches(&self) -> bool {
        Architecture::of(self.info.compute_capability).is_some_and(Architecture::overlaps_launches)
    }
}
