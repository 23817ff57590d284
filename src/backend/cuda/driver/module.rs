//! The images loaded into a GPU: this build's kernels by name.

use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::driver::image::{self, BuiltKernel};
use crate::error::{Error, Result};
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::{CudaContext, sys};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// This build's kernels for one GPU. Each unit of kernels is an image of its own, which is loaded when the first of its kernels is asked
/// for: a model has kernels in few of them.
#[derive(Debug)]
pub struct Module {
    context: Arc<CudaContext>,
    /// Whose images the GPU runs.
    architecture: &'static str,
    /// By where an image begins among all.
    loaded: Mutex<BTreeMap<usize, sys::CUmodule>>,
    /// Where kernels leave stamps; 0: they leave none.
    stamping: AtomicU64,
}

// SAFETY: a module handle may be used from any thread that has its context bound, which every method does.
unsafe impl Send for Module {}
// SAFETY: as for `Send`; what `set_stamping` changes is read by kernels alone, and its caller sees to it that none does.
unsafe impl Sync for Module {}

impl Module {
    /// # Errors
    /// This build has no kernels for the GPU's architecture, or the driver does not tell it.
    pub fn new(context: &Arc<CudaContext>) -> Result<Arc<Self>> {
        let capability = context.compute_capability();
        let (major, minor) =
            capability.map_err(|error| failed("asking a GPU for its compute capability", error))?;
        Ok(Arc::new(Self {
            context: context.clone(),
            architecture: image::architecture((major as u32, minor as u32))?,
            loaded: Mutex::default(),
            stamping: AtomicU64::new(0),
        }))
    }

    /// The context of the GPU that the kernels are loaded into.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// The handle of the `extern "C"` kernel of this name, which is good as long as the module is there.
    pub(super) fn function(&self, name: &str) -> Result<sys::CUfunction> {
        let kernel = image::kernel(name, self.architecture)?;
        let refused = |error| failed(&format!("finding kernel {name}"), error);
        self.context.bind_to_thread().map_err(refused)?;
        let handle = self.image_of(kernel)?;
        // SAFETY: images stay loaded until the module is dropped.
        let handle = unsafe { result::module::get_function(handle, symbol(name)?) };
        handle.map_err(refused)
    }

    /// The image that holds a kernel, loaded. The context must be bound.
    fn image_of(&self, kernel: &BuiltKernel) -> Result<sys::CUmodule> {
        let mut loaded = self.loaded.lock();
        if let Some(image) = loaded.get(&kernel.image_at) {
            return Ok(*image);
        }
        // SAFETY: the image is a whole fat binary, aligned, and never freed.
        let image = unsafe { result::module::load_data(kernel.image().as_ptr().cast()) };
        let image =
            image.map_err(|error| failed(&format!("loading kernel {}", kernel.name), error))?;
        loaded.insert(kernel.image_at, image);
        let stamping = self.stamping.load(Ordering::Acquire);
        if stamping != 0 {
            stamp(image, stamping)?;
        }
        Ok(image)
    }

    /// From now on kernels are launched, and captured, so that they leave stamps at `address` (kernels/common/stamps.cuh); 0:
    /// they leave none. No kernel that leaves any may run meanwhile.
    ///
    /// # Errors
    /// The driver refuses the copy.
    pub fn set_stamping(&self, address: Address) -> Result<()> {
        let bound = self.context.bind_to_thread();
        bound.map_err(|error| failed("setting where kernels leave stamps", error))?;
        let loaded = self.loaded.lock();
        for image in loaded.values() {
            stamp(*image, address)?;
        }
        self.stamping.store(address, Ordering::Release);
        Ok(())
    }

    /// Whether launches ask for stamps.
    pub(super) fn stamping(&self) -> bool {
        self.stamping.load(Ordering::Acquire) != 0
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // A failure here leaves the code in memory until the context goes, and there is nobody to tell.
        if self.context.bind_to_thread().is_ok() {
            for image in self.loaded.get_mut().values() {
                // SAFETY: loaded by `image_of`, unloaded once; kernels keep the module alive.
                let _ = unsafe { result::module::unload(*image) };
            }
        }
    }
}

/// Sets where the kernels of an image leave stamps. The context must be bound.
fn stamp(image: sys::CUmodule, address: Address) -> Result<()> {
    let name = "tg_stamping";
    let refused = |error| failed(&format!("setting constant {name}"), error);
    // SAFETY: the image is loaded.
    let (at, bytes) = match unsafe { result::module::get_global(image, symbol(name)?) } {
        // None of its kernels is one of a step's.
        Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_FOUND)) => return Ok(()),
        found => found.map_err(refused)?,
    };
    if bytes != size_of::<Address>() {
        return Err(Error::Runtime(format!(
            "constant {name} has {bytes} bytes, expected {}: build again",
            size_of::<Address>()
        )));
    }
    // SAFETY: the constant lies at `at` and has as many bytes as an address.
    unsafe { result::memcpy_htod_sync(at, &[address]) }.map_err(refused)
}

fn symbol(name: &str) -> Result<CString> {
    CString::new(name).map_err(|_| Error::Runtime(format!("symbol {name:?} holds a zero byte")))
}
