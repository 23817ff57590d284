//! What a GPU has that decides which kernels serve it and what sizes their launches.

use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::driver::image;
use crate::backend::cuda::driver::launch::Kernel;
use crate::backend::cuda::driver::module::Module;
use crate::backend::cuda::tuning::GpuClass;
use crate::backend::cuda::tuning::variants::Architecture;
use crate::error::Result;
use crate::model::WeightFormat;
use crate::plan::Precision;
use bytemuck::AnyBitPattern;
use cudarc::driver::sys::CUdevice_attribute as Attribute;
use std::sync::Arc;

/// Dynamic shared memory that a block may have on every GPU that is served: what 8.6 and 8.9 grant, which have the least.
pub const SHARED_BYTES: u32 = 99 * 1024;

/// Static shared memory that a block of the kernels with a pipeline may have: barriers, and the scratch of a norm.
const STATIC_BYTES: u32 = 512;

/// What a launch may take of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub multiprocessors: u32,
    /// Dynamic shared memory of a block with a pipeline, at most.
    pub block_bytes: u32,
}

/// What of a GPU decides which kernels serve it, and sizes their launches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuShape {
    /// Compute capability.
    pub capability: (u32, u32),
    pub class: GpuClass,
    /// Shared memory that a block may ask for.
    pub block_bytes: u32,
}

impl GpuShape {
    /// Asks the GPU that has loaded the module.
    ///
    /// # Errors
    /// The driver refuses.
    fn of(module: &Module) -> Result<Self> {
        let asked = |attribute: Attribute| {
            let found = module.context().attribute(attribute);
            let refused = |error| failed(&format!("asking a GPU for {attribute:?}"), error);
            found.map(|found| found as u32).map_err(refused)
        };
        let major = asked(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = asked(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let multiprocessors = asked(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let memory_khz = asked(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?;
        let bus_bits = asked(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?;
        Ok(Self {
            capability: (major, minor),
            class: GpuClass::of_driver(multiprocessors, memory_khz, bus_bits),
            block_bytes: asked(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        })
    }

    pub fn limits(self) -> Limits {
        Limits {
            multiprocessors: self.class.multiprocessors,
            block_bytes: self.block_bytes.saturating_sub(STATIC_BYTES),
        }
    }

    /// Whether a kernel may begin before the one ahead of it has ended.
    pub fn overlaps_launches(self) -> bool {
        self.is(Architecture::overlaps_launches)
    }

    /// Whether its architecture is such a one.
    pub fn is(self, which: fn(Architecture) -> bool) -> bool {
        Architecture::of(self.capability).is_some_and(which)
    }
}

/// This build's kernels, for one GPU.
pub struct Library {
    pub gpu: GpuShape,
    /// What has loaded them; none: they are there to lower to, and not to launch.
    module: Option<Arc<Module>>,
}

impl Library {
    /// Loaded into a GPU.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn loaded(module: &Arc<Module>) -> Result<Self> {
        Ok(Self {
            gpu: GpuShape::of(module)?,
            module: Some(module.clone()),
        })
    }

    /// The kernels of this build for a GPU of this shape, which need not be there.
    pub fn unloaded(gpu: GpuShape) -> Self {
        Self { gpu, module: None }
    }

    /// The `extern "C"` kernel of this name.
    ///
    /// # Errors
    /// This build has no such kernel for the GPU.
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        if let Some(module) = &self.module {
            return module.kernel(name);
        }
        image::kernel(name, image::architecture(self.gpu.capability)?)?;
        Ok(Kernel::unloaded(name))
    }

    /// A kernel, with the numbers that it leaves for its launcher.
    ///
    /// # Errors
    /// This build has no such kernel, or it leaves others.
    pub fn with_constants<T: AnyBitPattern>(&self, name: &str) -> Result<(T, Kernel)> {
        let constants = image::constants(&format!("{name}_tile"))?;
        Ok((constants, self.kernel(name)?))
    }
}

/// What ends the names of kernels that [stream](Precision::is_streamed) weights: the type of rows, and weights in 8 bits.
pub(super) fn types(precision: Precision) -> String {
    let compute = precision.compute.name();
    match precision.weights {
        WeightFormat::E4M3 => format!("{compute}_e4m3"),
        _ => compute.to_owned(),
    }
}

/// Kernels for one pair of types that differ in their tiles, each of which is what its kernel was compiled for.
#[derive(Debug)]
pub struct Variants<Tile> {
    pub tiles: Vec<Tile>,
    kernels: Vec<Kernel>,
}

impl<Tile: AnyBitPattern> Variants<Tile> {
    /// The kernels of these names, whose blocks have up to so much dynamic shared memory.
    ///
    /// # Errors
    /// This build has no such kernels, or the driver refuses.
    pub fn load(
        library: &Library,
        names: impl IntoIterator<Item = String>,
        shared_bytes: impl Fn(&Tile) -> u32,
    ) -> Result<Self> {
        let (mut tiles, mut kernels) = (vec![], vec![]);
        for name in names {
            let (tile, kernel) = library.with_constants(&name)?;
            kernel.allow_shared(shared_bytes(&tile))?;
            tiles.push(tile);
            kernels.push(kernel);
        }
        Ok(Self { tiles, kernels })
    }

    pub fn of(&self, index: usize) -> (&Tile, &Kernel) {
        (&self.tiles[index], &self.kernels[index])
    }
}

impl Limits {
    #[cfg(test)]
    pub const H200: Self = Self {
        multiprocessors: 132,
        block_bytes: 227 * 1024 - STATIC_BYTES,
    };
}
