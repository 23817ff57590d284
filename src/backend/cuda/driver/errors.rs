//! What the driver answers, as errors of this program.

use crate::error::Error;
use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;

/// A driver call that failed while doing `what`.
pub fn failed(what: &str, error: DriverError) -> Error {
    Error::Runtime(format!("{what}: the driver answered {:?}", error.0))
}

/// What went wrong while doing `what` to a graph, where it is not for want of memory: `other`.
pub fn memory_or(what: &str, error: DriverError, other: impl FnOnce() -> Error) -> Error {
    match error.0 {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => Error::Memory(format!(
            "{what}: the driver answered {:?}, expected memory left for the graphs: lower `memory_limit`, or name fewer \
             buckets in `bucket_file`",
            error.0
        )),
        _ => other(),
    }
}
