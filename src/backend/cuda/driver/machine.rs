//! Finds the driver and its GPUs, without creating a context or touching any GPU's memory.

use super::image::{self, HAS_KERNELS};
use crate::backend::cuda::tuning::GpuClass;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use std::fmt;

/// The oldest CUDA the driver may speak, as `cuDriverGetVersion` counts (1000 major + 10 minor).
const OLDEST_VERSION: i32 = 13_000;

/// A driver that this build can use, with at least one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Driver {
    /// The newest CUDA it speaks: (major, minor).
    pub version: (u32, u32),
    /// The GPUs in the driver's order: the numbers of `--device cuda:N`. Not all need be usable, see [`Gpu::usable`].
    pub gpus: Vec<Gpu>,
}

/// One GPU as the driver describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    pub ordinal: u32,
    pub name: String,
    /// (major, minor)
    pub compute_capability: (u32, u32),
    /// By which kernel files have entries of its own.
    pub class: GpuClass,
    pub memory_bytes: u64,
}

impl Gpu {
    /// Whether this build has kernels for it; otherwise what is wrong, in one line.
    pub fn usable(&self) -> Result<(), Missing> {
        let architecture = image::architecture(self.compute_capability);
        architecture.map_or_else(|_| Err(Missing::Architecture(self.clone())), |_| Ok(()))
    }
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.compute_capability;
        let memory_gib = self.memory_bytes as f64 / f64::from(1 << 30);
        write!(
            f,
            "cuda:{} {} (compute capability {major}.{minor}, {} SMs, {memory_gib:.1} GiB)",
            self.ordinal, self.name, self.class.multiprocessors
        )
    }
}

/// Why there is no GPU to run on, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    #[error("this build has no kernels: build it with `cargo build --release --features cuda`")]
    Kernels,
    #[error("no NVIDIA driver found (libcuda.so.1 cannot be loaded): install driver 580 or newer")]
    Library,
    #[error(
        "the NVIDIA driver speaks CUDA {}.{}, expected 13.0 or newer: update it to 580 or newer",
        .found.0, .found.1
    )]
    Version {
        /// (major, minor)
        found: (u32, u32),
    },
    #[error(
        "the NVIDIA driver is there but shows no GPU: check nvidia-smi and CUDA_VISIBLE_DEVICES (in a container, \
         that it was given the GPUs)"
    )]
    Gpu,
    #[error("cuda:{asked} does not exist, the driver shows {}: name one of these", ordinals(*.gpus))]
    Ordinal { asked: u32, gpus: usize },
    #[error(
        "{0}: expected compute capability {built}, which is what this build has kernels for: choose another \
         GPU",
        built = capabilities()
    )]
    Architecture(Gpu),
    #[error("the NVIDIA driver refused {call} with {code}: check that nvidia-smi works")]
    Call {
        call: &'static str,
        /// The driver's name for the error, as in `CUDA_ERROR_SYSTEM_DRIVER_MISMATCH`.
        code: String,
    },
}

/// What this build has kernels for.
fn capabilities() -> String {
    let each = image::ARCHITECTURES.iter().map(|name| match *name {
        "sm_80" => "8.x",
        "sm_90a" => "9.0",
        _ => "10.x",
    });
    let each = each.collect::<Vec<_>>().join(", ");
    each.rsplit_once(", ")
        .map_or(each.clone(), |(first, last)| format!("{first} or {last}"))
}

fn ordinals(gpus: usize) -> String {
    match gpus {
        1 => "cuda:0 alone".to_owned(),
        _ => format!("cuda:0 to cuda:{}", gpus - 1),
    }
}

/// Asks the machine for its driver and GPUs.
///
/// # Errors
/// [`Missing`] says what there is not: kernels, the library, a new enough version, any GPU, or an answer.
pub fn probe() -> Result<Driver, Missing> {
    if !HAS_KERNELS {
        return Err(Missing::Kernels);
    }
    // SAFETY: loads libcuda as the first driver call would, to learn whether it can be loaded; its
    // initialisers have no precondition.
    if !unsafe { sys::is_culib_present() } {
        return Err(Missing::Library);
    }
    let mut version = 0;
    // SAFETY: the library is there, the pointer is valid, and this call may come before cuInit.
    refused("cuDriverGetVersion", unsafe {
        sys::cuDriverGetVersion(&mut version).result()
    })?;
    let found = (version as u32 / 1000, version as u32 % 1000 / 10);
    if version < OLDEST_VERSION {
        return Err(Missing::Version { found });
    }
    match result::init() {
        Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => return Err(Missing::Gpu),
        other => refused("cuInit", other)?,
    }
    let count = refused("cuDeviceGetCount", result::device::get_count())?;
    if count == 0 {
        return Err(Missing::Gpu);
    }
    let gpus = (0..count).map(describe).collect::<Result<_, _>>()?;
    Ok(Driver {
        version: found,
        gpus,
    })
}

impl Driver {
    /// The GPU of `--device cuda:ordinal`.
    ///
    /// # Errors
    /// [`Missing::Ordinal`] or [`Missing::Architecture`].
    pub fn gpu(&self, ordinal: u32) -> Result<&Gpu, Missing> {
        let gpu = self.gpus.get(ordinal as usize).ok_or(Missing::Ordinal {
            asked: ordinal,
            gpus: self.gpus.len(),
        })?;
        gpu.usable()?;
        Ok(gpu)
    }
}

fn describe(ordinal: i32) -> Result<Gpu, Missing> {
    use sys::CUdevice_attribute as Attribute;
    let device = refused("cuDeviceGet", result::device::get(ordinal))?;
    let attribute = |attribute| {
        // SAFETY: `device` came from cuDeviceGet.
        let value = unsafe { result::device::get_attribute(device, attribute) };
        refused("cuDeviceGetAttribute", value).map(|value| value as u32)
    };
    Ok(Gpu {
        ordinal: ordinal as u32,
        name: refused("cuDeviceGetName", result::device::get_name(device))?,
        compute_capability: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        class: GpuClass::of_driver(
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?,
        ),
        // SAFETY: `device` came from cuDeviceGet.
        memory_bytes: refused("cuDeviceTotalMem", unsafe {
            result::device::total_mem(device)
        })? as u64,
    })
}

/// Names the driver call that failed.
fn refused<T>(call: &'static str, result: Result<T, DriverError>) -> Result<T, Missing> {
    result.map_err(|error| Missing::Call {
        call,
        code: format!("{:?}", error.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(compute_capability: (u32, u32)) -> Gpu {
        Gpu {
            ordinal: 0,
            name: "NVIDIA A100".to_owned(),
            compute_capability,
            class: GpuClass::parse("m108-b2039").unwrap(),
            memory_bytes: 80 << 30,
        }
    }

    #[test]
    fn takes_the_generations_it_has_kernels_for() {
        for usable in [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3)] {
            assert_eq!(gpu(usable).usable(), Ok(()));
        }
        for other in [(7, 5), (9, 1), (11, 0), (12, 0)] {
            assert!(matches!(gpu(other).usable(), Err(Missing::Architecture(_))));
        }
    }

    #[test]
    fn an_ordinal_out_of_range_names_the_range() {
        let driver = Driver {
            version: (13, 0),
            gpus: vec![gpu((8, 0)), gpu((7, 5))],
        };
        assert_eq!(driver.gpu(0), Ok(&driver.gpus[0]));
        assert!(matches!(driver.gpu(1), Err(Missing::Architecture(_))));
        let message = driver.gpu(2).unwrap_err().to_string();
        assert!(
            message.contains("cuda:2") && message.contains("cuda:0 to cuda:1"),
            "{message}"
        );
    }

    /// Holds on every machine: either there are GPUs, or the reason is one line that says what to do.
    #[test]
    fn probing_never_panics() {
        match probe() {
            Ok(driver) => {
                assert!(driver.version >= (13, 0) && !driver.gpus.is_empty());
                assert!(driver.gpus.iter().all(|gpu| gpu.memory_bytes > 0));
            }
            Err(missing) => {
                let message = missing.to_string();
                assert!(
                    message.contains(": ") && !message.contains('\n'),
                    "{message}"
                );
            }
        }
    }
}
