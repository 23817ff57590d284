//! Launching a kernel.
//!
//! cudarc's own launcher tracks what each array's last stream was, through events that a graph capture does
//! not take; here an argument is a number, and order is the caller's business. The same call launches at once
//! or, on a stream that is being captured, becomes a node of the graph.

use super::module::{Module, failed};
use super::tensor_map::TensorMap;
use crate::error::Result;
use crate::telemetry::launches::launched;
use cudarc::driver::{CudaStream, sys};
use std::ffi::c_void;
use std::sync::Arc;

/// Launches ask for a multiple of this many bytes of dynamic shared memory ...
const SHARED_UNIT_BYTES: u32 = 32;
/// ... and for so many more where the kernel is to leave a stamp (STAMP_SIGN_BYTES of kernels/common/stamps.cuh).
const STAMP_SIGN_BYTES: u32 = 16;

/// An address in device memory, or in pinned memory as the device sees it. 0 is no array.
pub type Address = u64;

/// One argument of a kernel, by value.
#[derive(Debug, Clone, Copy)]
pub enum Argument {
    Address(Address),
    U32(u32),
    U64(u64),
    F32(f32),
    TensorMap(TensorMap),
}

impl Argument {
    fn as_ptr(&self) -> *mut c_void {
        match self {
            Self::Address(value) | Self::U64(value) => std::ptr::from_ref(value).cast_mut().cast(),
            Self::U32(value) => std::ptr::from_ref(value).cast_mut().cast(),
            Self::F32(value) => std::ptr::from_ref(value).cast_mut().cast(),
            Self::TensorMap(map) => std::ptr::from_ref(&map.0).cast_mut().cast(),
        }
    }
}

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
    pub early: bool,
}

impl Launch {
    /// Blocks along x, without dynamic shared memory, after the kernels ahead.
    pub fn blocks(blocks: u32, threads: u32) -> Self {
        Self {
            grid: (blocks, 1, 1),
            threads,
            shared_bytes: 0,
            cluster: 1,
            early: false,
        }
    }
}

/// A kernel of a [`Module`], which it keeps loaded.
#[derive(Debug, Clone)]
pub struct Kernel {
    module: Arc<Module>,
    name: String,
    handle: sys::CUfunction,
}

// SAFETY: a function handle may be used from any thread; it is only read.
unsafe impl Send for Kernel {}
// SAFETY: likewise.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// `handle` is of `module`.
    pub(super) fn new(module: Arc<Module>, name: &str, handle: sys::CUfunction) -> Self {
        Self {
            module,
            name: name.to_owned(),
            handle,
        }
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
        // SAFETY: the handle is of a loaded module.
        unsafe { sys::cuFuncSetAttribute(self.handle, attribute, value) }
            .result()
            .map_err(|error| failed(&format!("{doing} {}", self.name), error))
    }

    /// What a launch that wants `bytes` of dynamic shared memory asks for.
    fn shared_bytes(&self, bytes: u32) -> u32 {
        let sign = u32::from(self.module.stamping()) * STAMP_SIGN_BYTES;
        bytes.next_multiple_of(SHARED_UNIT_BYTES) + sign
    }

    /// Queues a launch on `stream`.
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
        launch: Launch,
        arguments: &[Argument],
    ) -> Result<()> {
        let refused = |error| failed(&format!("launching {} as {launch:?}", self.name), error);
        stream.context().bind_to_thread().map_err(refused)?;
        let mut pointers: Vec<_> = arguments.iter().map(Argument::as_ptr).collect();
        let mut attributes = [sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue {
                programmaticStreamSerializationAllowed: i32::from(launch.early),
            },
        }; 2];
        let mut count = usize::from(launch.early);
        if launch.cluster > 1 {
            attributes[count] = sys::CUlaunchAttribute {
                id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                pad: [0; 4],
                value: sys::CUlaunchAttributeValue {
                    clusterDim: sys::CUlaunchAttributeValue_union__bindgen_ty_1 {
                        x: launch.cluster,
                        y: 1,
                        z: 1,
                    },
                },
            };
            count += 1;
        }
        let (x, y, z) = launch.grid;
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: launch.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared_bytes(launch.shared_bytes),
            hStream: stream.cu_stream(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: count as u32,
        };
        // SAFETY: the handle is of a loaded module, the driver copies configuration and arguments before it
        // returns, and the rest is the caller's promise.
        unsafe {
            sys::cuLaunchKernelEx(
                &config,
                self.handle,
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
