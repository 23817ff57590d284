//! What a GPU has that decides which kernels serve it and what sizes their launches.

use super::super::module::{Module, failed};
use crate::error::Result;
use cudarc::driver::sys::CUdevice_attribute as Attribute;

/// Static shared memory that a block of the kernels with a ring may have: barriers, and the scratch of a norm.
const STATIC_BYTES: u32 = 512;

/// What sizes a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub multiprocessors: u32,
    /// Dynamic shared memory of a block with a ring, at most.
    pub block_bytes: u32,
}

impl Limits {
    #[cfg(test)]
    pub const H200: Self = Self {
        multiprocessors: 132,
        block_bytes: 227 * 1024 - STATIC_BYTES,
    };

    /// Of the GPU that has loaded the module.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn of(module: &Module) -> Result<Self> {
        let most = Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        Ok(Self {
            multiprocessors: asked(module, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            block_bytes: asked(module, most)?.saturating_sub(STATIC_BYTES),
        })
    }
}

/// Whether the GPU has bulk copies to shared memory, as all from 9.0 on.
///
/// # Errors
/// The driver refuses.
pub fn has_bulk_copies(module: &Module) -> Result<bool> {
    Ok(major(module)? >= 9)
}

/// Whether the GPU has the matrix instructions of warpgroups, which are 9.0's alone.
///
/// # Errors
/// The driver refuses.
pub fn has_warpgroups(module: &Module) -> Result<bool> {
    Ok(major(module)? == 9)
}

/// The compute capability.
///
/// # Errors
/// The driver refuses.
pub fn capability(module: &Module) -> Result<(u32, u32)> {
    let minor = Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR;
    Ok((major(module)?, asked(module, minor)?))
}

fn major(module: &Module) -> Result<u32> {
    let major = Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
    asked(module, major)
}

fn asked(module: &Module, attribute: Attribute) -> Result<u32> {
    let found = module.context().attribute(attribute);
    let refused = |error| failed(&format!("asking a GPU for {attribute:?}"), error);
    Ok(found.map_err(refused)? as u32)
}
