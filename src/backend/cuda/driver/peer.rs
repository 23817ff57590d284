//! GPUs that reach each other's memory.

use crate::backend::cuda::driver::errors::failed;
use crate::error::Result;
use cudarc::driver::{CudaContext, sys};
use std::sync::Arc;

/// Whether kernels on `from` may reach the memory of `to`. Of one GPU always.
///
/// # Errors
/// The driver does not say.
pub fn reaches(from: &CudaContext, to: &CudaContext) -> Result<bool> {
    if from.ordinal() == to.ordinal() {
        return Ok(true);
    }
    let mut can = 0;
    // SAFETY: the driver writes the one word.
    unsafe { sys::cuDeviceCanAccessPeer(&mut can, from.cu_device(), to.cu_device()) }
        .result()
        .map_err(|error| failed("asking whether GPUs reach each other", error))?;
    Ok(can != 0)
}

/// Whether kernels on `from` may do atomics in the memory of `to`, as they may over NVLink. Of one GPU always.
///
/// # Errors
/// The driver does not say.
pub fn does_atomics(from: &CudaContext, to: &CudaContext) -> Result<bool> {
    if from.ordinal() == to.ordinal() {
        return Ok(true);
    }
    if !reaches(from, to)? {
        return Ok(false);
    }
    let native = sys::CUdevice_P2PAttribute_enum::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
    let mut can = 0;
    // SAFETY: the driver writes the one word.
    unsafe { sys::cuDeviceGetP2PAttribute(&mut can, native, from.cu_device(), to.cu_device()) }
        .result()
        .map_err(|error| {
            failed(
                "asking whether GPUs do atomics in each other's memory",
                error,
            )
        })?;
    Ok(can != 0)
}

/// From now on kernels on `from` reach what is allocated on `to`.
///
/// # Errors
/// The driver refuses.
pub fn open(from: &Arc<CudaContext>, to: &Arc<CudaContext>) -> Result<()> {
    if from.ordinal() == to.ordinal() {
        return Ok(());
    }
    let refused = |error| {
        let what = format!("GPU {} and GPU {}", from.ordinal(), to.ordinal());
        failed(&format!("letting {what} reach each other"), error)
    };
    from.bind_to_thread().map_err(refused)?;
    // SAFETY: both contexts are alive.
    match unsafe { sys::cuCtxEnablePeerAccess(to.cu_ctx(), 0) } {
        sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
        answer => answer.result().map_err(refused),
    }
}
