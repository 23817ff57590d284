//! The image loaded into a GPU, and its kernels as things to launch.
//!
//! cudarc's own launcher tracks what each array's last stream was, through events that a graph capture does
//! not take; here an argument is a number, and order is the caller's business.

use super::image;
use crate::error::{Error, Result};
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::{CudaContext, CudaStream, sys};
use std::ffi::{CString, c_void};
use std::sync::Arc;

/// All kernels of this build in one GPU's memory.
#[derive(Debug)]
pub struct Module {
    context: Arc<CudaContext>,
    handle: sys::CUmodule,
}

// SAFETY: a module handle may be used from any thread that has its context bound, which every method does.
unsafe impl Send for Module {}
// SAFETY: likewise; no method changes the module.
unsafe impl Sync for Module {}

impl Module {
    /// # Errors
    /// The driver refuses the image, as it does where the image has no code for the GPU's architecture.
    pub fn load(context: &Arc<CudaContext>) -> Result<Arc<Self>> {
        let refused = |error| failed("loading the kernels", error);
        context.bind_to_thread().map_err(refused)?;
        // SAFETY: the image is a whole fat binary, aligned, and never freed.
        let handle = unsafe { result::module::load_data(image::image().as_ptr().cast()) };
        Ok(Arc::new(Self {
            context: context.clone(),
            handle: handle.map_err(refused)?,
        }))
    }

    /// The `extern "C"` kernel of this name.
    ///
    /// # Errors
    /// This build has no such kernel.
    pub fn kernel(self: &Arc<Self>, name: &str) -> Result<Kernel> {
        let refused = |error| failed(&format!("finding kernel {name}"), error);
        self.context.bind_to_thread().map_err(refused)?;
        let symbol = CString::new(name)
            .map_err(|_| Error::Runtime(format!("kernel name {name:?} holds a zero byte")))?;
        // SAFETY: the module is loaded until it is dropped.
        let handle = unsafe { result::module::get_function(self.handle, symbol) };
        Ok(Kernel {
            _module: self.clone(),
            name: name.to_owned(),
            handle: handle.map_err(refused)?,
        })
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

/// One argument of a kernel, by value.
#[derive(Debug, Clone, Copy)]
pub enum Argument {
    /// An address in device memory, or in pinned memory as the device sees it.
    Address(u64),
    U32(u32),
    F32(f32),
}

impl Argument {
    fn as_ptr(&self) -> *mut c_void {
        match self {
            Self::Address(value) => std::ptr::from_ref(value).cast_mut().cast(),
            Self::U32(value) => std::ptr::from_ref(value).cast_mut().cast(),
            Self::F32(value) => std::ptr::from_ref(value).cast_mut().cast(),
        }
    }
}

/// A kernel of a [`Module`], which it keeps loaded.
#[derive(Debug, Clone)]
pub struct Kernel {
    _module: Arc<Module>,
    name: String,
    handle: sys::CUfunction,
}

// SAFETY: a function handle may be used from any thread; it is only read.
unsafe impl Send for Kernel {}
// SAFETY: likewise.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// Queues a launch of `blocks` blocks of `threads` threads on `stream`.
    ///
    /// # Errors
    /// The driver refuses the launch. What the kernel itself does wrong, a later call reports.
    ///
    /// # Safety
    /// The arguments are those of the kernel's declaration, in order and type; what they point to holds what
    /// its comment says until the kernel has run, and nothing else writes it meanwhile.
    pub unsafe fn launch(
        &self,
        stream: &CudaStream,
        blocks: u32,
        threads: u32,
        arguments: &[Argument],
    ) -> Result<()> {
        let refused = |error| failed(&format!("launching {}", self.name), error);
        stream.context().bind_to_thread().map_err(refused)?;
        let mut pointers: Vec<_> = arguments.iter().map(Argument::as_ptr).collect();
        // SAFETY: the handle is of a loaded module, the driver copies the arguments before it returns, and
        // the rest is the caller's promise.
        unsafe {
            result::launch_kernel(
                self.handle,
                (blocks, 1, 1),
                (threads, 1, 1),
                0,
                stream.cu_stream(),
                &mut pointers,
            )
        }
        .map_err(refused)
    }
}

fn failed(what: &str, error: DriverError) -> Error {
    Error::Runtime(format!("{what}: the driver answered {:?}", error.0))
}
