//! The image loaded into a GPU: its kernels by name.

use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::driver::image;
use crate::error::{Error, Result};
use cudarc::driver::result;
use cudarc::driver::{CudaContext, sys};
use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An image of kernels in one GPU's memory.
#[derive(Debug)]
pub struct Module {
    context: Arc<CudaContext>,
    handle: sys::CUmodule,
    stamping: AtomicBool,
}

// SAFETY: a module handle may be used from any thread that has its context bound, which every method does.
unsafe impl Send for Module {}
// SAFETY: as for `Send`; what `set_stamping` changes is read by kernels alone, and its caller sees to it that none does.
unsafe impl Sync for Module {}

impl Module {
    /// # Errors
    /// The driver refuses the image, as it does where the image has no code for the GPU's architecture.
    pub fn load(context: &Arc<CudaContext>) -> Result<Arc<Self>> {
        Self::of_image(context, "loading the kernels", image::image())
    }

    /// Kernels of another image: a whole fat binary, aligned to 64 bytes. `what` is being done, for messages.
    ///
    /// # Errors
    /// As for [`Self::load`].
    pub fn of_image(
        context: &Arc<CudaContext>,
        what: &str,
        image: &'static [u8],
    ) -> Result<Arc<Self>> {
        let refused = |error| failed(what, error);
        context.bind_to_thread().map_err(refused)?;
        // SAFETY: the image is a whole fat binary, aligned, and never freed.
        let handle = unsafe { result::module::load_data(image.as_ptr().cast()) };
        Ok(Arc::new(Self {
            context: context.clone(),
            handle: handle.map_err(refused)?,
            stamping: AtomicBool::new(false),
        }))
    }

    /// Of the GPU that the image is loaded into.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// The handle of the `extern "C"` kernel of this name, which is good as long as the module is loaded.
    pub(super) fn function(&self, name: &str) -> Result<sys::CUfunction> {
        let refused = |error| failed(&format!("finding kernel {name}"), error);
        self.context.bind_to_thread().map_err(refused)?;
        // SAFETY: the module is loaded until it is dropped.
        let handle = unsafe { result::module::get_function(self.handle, symbol(name)?) };
        handle.map_err(refused)
    }

    /// From now on kernels are launched, and captured, so that they leave stamps at `address` (kernels/common/stamps.cuh); 0:
    /// they leave none. No kernel that leaves any may run meanwhile.
    ///
    /// # Errors
    /// The driver refuses the copy.
    pub fn set_stamping(&self, address: Address) -> Result<()> {
        let name = "tg_stamping";
        let refused = |error| failed(&format!("setting constant {name}"), error);
        self.context.bind_to_thread().map_err(refused)?;
        // SAFETY: the module is loaded until it is dropped.
        let found = unsafe { result::module::get_global(self.handle, symbol(name)?) };
        let (at, bytes) = found.map_err(refused)?;
        if bytes != size_of::<Address>() {
            return Err(Error::Runtime(format!(
                "constant {name} has {bytes} bytes, expected {}: build again",
                size_of::<Address>()
            )));
        }
        // SAFETY: the constant lies at `at` and has as many bytes as an address.
        unsafe { result::memcpy_htod_sync(at, &[address]) }.map_err(refused)?;
        self.stamping.store(address != 0, Ordering::Release);
        Ok(())
    }

    /// Whether launches ask for stamps.
    pub(super) fn stamping(&self) -> bool {
        self.stamping.load(Ordering::Acquire)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // A failure here leaves the code in memory until the context goes, and there is nobody to tell.
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: loaded by `load`, unloaded once; kernels keep the module alive.
            let _ = unsafe { result::module::unload(self.handle) };
        }
    }
}

fn symbol(name: &str) -> Result<CString> {
    CString::new(name).map_err(|_| Error::Runtime(format!("symbol {name:?} holds a zero byte")))
}
