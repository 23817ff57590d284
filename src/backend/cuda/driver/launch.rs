//! Launching a kernel.
//!
//! cudarc's own launcher tracks what each array's last stream was, through events that a graph capture does
//! not take; here an argument is a number, and order is the caller's business. The same call launches at once
//! or, on a stream that is being captured, becomes a node of the graph.

pub use crate::backend::cuda::driver::arguments::Argument;

use crate::backend::cuda::driver::arguments::{Value, values};
use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::driver::module::Module;
use crate::error::{Error, Result};
use crate::telemetry::launches::launched;
use cudarc::driver::{CudaStream, sys};
use std::sync::Arc;

/// The dynamic shared memory of a launch is a multiple of so many bytes.
const SHARED_UNIT_BYTES: u32 = 32;
/// A launch whose kernel is to leave a stamp has so many bytes more (STAMP_SIGN_BYTES of kernels/common/stamps.cuh).
const STAMP_SIGN_BYTES: u32 = 16;

/// How many blocks of how many threads, and how they start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// Blocks along x, y and z.
    pub grid: (u32, u32, u32),
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block. More than 48 KiB needs [`Kernel::allow_shared`] first.
    pub shared_bytes: u32,
    /// Blocks of a cluster, neighbours along x: they run at the same time and see each other's shared memory. More than 1
    /// needs a GPU of 9.0 or newer.
    pub cluster: u32,
    /// May start before the kernels ahead of it on the stream have ended (programmatic dependent launch).
    /// Every kernel here waits for them itself, before it touches what they write (kernels/common/pdl.cuh).
    pub pdl: bool,
}

impl Launch {
    /// Blocks along x, without dynamic shared memory, after the kernels ahead.
    pub fn blocks(blocks: u32, threads: u32) -> Self {
        Self {
            grid: (blocks, 1, 1),
            threads,
            shared_bytes: 0,
            cluster: 1,
            pdl: false,
        }
    }

    /// What it asks of the driver beside its size: the first so many of these.
    fn attributes(&self, cooperative: bool) -> ([sys::CUlaunchAttribute; 3], u32) {
        use sys::CUlaunchAttributeID as Id;
        use sys::CUlaunchAttributeValue as To;
        let attribute = |id, value| sys::CUlaunchAttribute {
            id,
            pad: [0; 4],
            value,
        };
        let none = attribute(Id::CU_LAUNCH_ATTRIBUTE_IGNORE, To { cooperative: 0 });
        let (mut attributes, mut count) = ([none; 3], 0);
        let mut ask = |id, value| {
            attributes[count] = attribute(id, value);
            count += 1;
        };
        if self.pdl {
            ask(
                Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                To {
                    programmaticStreamSerializationAllowed: 1,
                },
            );
        }
        if self.cluster > 1 {
            let (x, y, z) = (self.cluster, 1, 1);
            let cluster = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x, y, z };
            let cluster = To {
                clusterDim: cluster,
            };
            ask(Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, cluster);
        }
        if cooperative {
            ask(Id::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, To { cooperative: 1 });
        }
        (attributes, count as u32)
    }

    /// What a launch with a kernel of `module` asks for.
    fn shared_bytes_of(&self, module: &Module) -> u32 {
        let sign = u32::from(module.stamping()) * STAMP_SIGN_BYTES;
        self.shared_bytes.next_multiple_of(SHARED_UNIT_BYTES) + sign
    }
}

/// A kernel by name; of a [`Module`], which it keeps loaded, unless it was only looked up in this build's image.
#[derive(Debug, Clone)]
pub struct Kernel {
    name: Arc<str>,
    loaded: Option<Loaded>,
}

#[derive(Debug, Clone)]
struct Loaded {
    module: Arc<Module>,
    handle: sys::CUfunction,
}

// SAFETY: a function handle may be used from any thread; it is only read.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

impl Module {
    /// The `extern "C"` kernel of this name.
    ///
    /// # Errors
    /// This build has no such kernel.
    pub fn kernel(self: &Arc<Self>, name: &str) -> Result<Kernel> {
        let handle = self.function(name)?;
        let module = self.clone();
        Ok(Kernel {
            name: name.into(),
            loaded: Some(Loaded { module, handle }),
        })
    }
}

impl Kernel {
    /// A kernel to lower to, which no GPU has loaded: it cannot be launched.
    pub fn unloaded(name: &str) -> Self {
        Self {
            name: name.into(),
            loaded: None,
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    fn loaded(&self) -> Result<&Loaded> {
        self.loaded.as_ref().ok_or_else(|| {
            Error::Runtime(format!(
                "launching {}: no GPU has loaded it: this is a bug in tailgraph",
                self.name
            ))
        })
    }

    /// Lets launches ask for up to `bytes` of dynamic shared memory.
    ///
    /// # Errors
    /// The GPU has no such amount for a block.
    pub fn allow_shared(&self, bytes: u32) -> Result<()> {
        let bytes = bytes.next_multiple_of(SHARED_UNIT_BYTES);
        // A kernel that takes all there is has no room for the sign, and cannot be asked for a stamp.
        self.set_most_shared(bytes + STAMP_SIGN_BYTES)
            .or_else(|_| self.set_most_shared(bytes))
    }

    /// Prefers that of what an SM has for shared memory and its first-level cache blocks of this kernel have `percent` as
    /// shared memory, whatever the kernels before and behind prefer: loads to registers stand in that cache while they are on
    /// their way. A block that needs more gets more, but further blocks beside it do not.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn prefer_shared(&self, percent: u32) -> Result<()> {
        use sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT as PREFERRED;
        let doing = format!("preferring {percent}% of shared memory for");
        self.set(PREFERRED, percent as i32, &doing)
    }

    fn set_most_shared(&self, bytes: u32) -> Result<()> {
        use sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as MOST;
        let doing = format!("giving {bytes} bytes of shared memory to");
        self.set(MOST, bytes as i32, &doing)
    }

    fn set(&self, attribute: sys::CUfunction_attribute, value: i32, doing: &str) -> Result<()> {
        let Some(loaded) = &self.loaded else {
            return Ok(());
        };
        // SAFETY: the handle is of a loaded module.
        unsafe { sys::cuFuncSetAttribute(loaded.handle, attribute, value) }
            .result()
            .map_err(|error| failed(&format!("{doing} {}", self.name), error))
    }

    /// Queues a launch on `stream`.
    ///
    /// # Errors
    /// The arguments are not of the kernel's size; the driver refuses a tensor map or the launch. What the kernel itself does wrong, a later call reports.
    ///
    /// # Safety
    /// The arguments are those of the kernel's declaration, in order and type; what they point to holds what
    /// its comment says until the kernel has run, and nothing else writes it meanwhile.
    pub unsafe fn launch(
        &self,
        stream: &CudaStream,
        launch: Launch,
        arguments: &[Argument],
    ) -> Result<()> {
        let values = values(&self.name, arguments)?;
        // SAFETY: the caller's promise.
        unsafe { self.launch_with(stream, launch, &values, false) }
    }

    /// Launches blocks that are all on the GPU at once (cooperative): they may wait for one another.
    ///
    /// # Errors
    /// Fails as [`Self::launch`] does, and where the GPU has no room for all blocks at once.
    ///
    /// # Safety
    /// The caller keeps the promises of [`Self::launch`].
    pub unsafe fn launch_cooperative(
        &self,
        stream: &CudaStream,
        launch: Launch,
        arguments: &[Argument],
    ) -> Result<()> {
        let values = values(&self.name, arguments)?;
        // SAFETY: the caller's promise.
        unsafe { self.launch_with(stream, launch, &values, true) }
    }

    /// Hands a launch to `take` as a graph node's parameters.
    pub(super) fn with_node<T>(
        &self,
        launch: Launch,
        values: &[Value],
        take: impl FnOnce(&sys::CUDA_KERNEL_NODE_PARAMS) -> Result<T>,
    ) -> Result<T> {
        let Loaded { module, handle } = self.loaded()?;
        let mut pointers = Value::pointers(values);
        let (x, y, z) = launch.grid;
        take(&sys::CUDA_KERNEL_NODE_PARAMS {
            func: *handle,
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: launch.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared_bytes_of(module),
            kernelParams: pointers.as_mut_ptr(),
            extra: std::ptr::null_mut(),
            kern: std::ptr::null_mut(),
            ctx: std::ptr::null_mut(),
        })
    }

    /// `cooperative`: see [`Self::launch_cooperative`].
    ///
    /// # Safety
    /// The caller keeps the promises of [`Self::launch`].
    pub(super) unsafe fn launch_with(
        &self,
        stream: &CudaStream,
        launch: Launch,
        values: &[Value],
        cooperative: bool,
    ) -> Result<()> {
        let refused = |error| {
            let how = if cooperative {
                ", all blocks at once"
            } else {
                ""
            };
            failed(
                &format!("launching {} as {launch:?}{how}", self.name),
                error,
            )
        };
        let Loaded { module, handle } = self.loaded()?;
        stream.context().bind_to_thread().map_err(refused)?;
        let mut pointers = Value::pointers(values);
        let (mut attributes, count) = launch.attributes(cooperative);
        let (x, y, z) = launch.grid;
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: launch.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared_bytes_of(module),
            hStream: stream.cu_stream(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: count,
        };
        // SAFETY: the handle is of a loaded module, the driver copies configuration and arguments before it
        // returns, and the rest is the caller's promise.
        unsafe {
            sys::cuLaunchKernelEx(
                &config,
                *handle,
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }
        .result()
        .map_err(refused)?;
        launched();
        Ok(())
    }
}
