//! The kernels as the build script left them: machine code for every architecture, and what each kernel takes.

use crate::error::{Error, Result};

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

#[repr(C, align(64))]
struct Aligned<Bytes: ?Sized>(Bytes);

static IMAGES: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/kernels.fatbin")));

/// Whether this build has kernels: the feature `cuda` compiles them.
pub const HAS_KERNELS: bool = cfg!(feature = "cuda");

/// One kernel on one architecture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuiltKernel {
    pub name: &'static str,
    /// An element of [`ARCHITECTURES`].
    pub architecture: &'static str,
    pub registers: u32,
    /// Bytes of all of its arguments.
    pub argument_bytes: u32,
    /// Where the image of its unit begins among all images.
    pub(super) image_at: usize,
}

impl BuiltKernel {
    /// The image that holds it, as `cuModuleLoadData` takes it: a fat binary, which says itself where it ends.
    pub(super) fn image(&self) -> &'static [u8] {
        &IMAGES.0[self.image_at..]
    }
}

/// All kernels, by name and architecture; an architecture that a kernel is not for has none of its name.
pub fn kernels() -> &'static [BuiltKernel] {
    KERNELS
}

/// The architecture, as nvcc names it, whose code GPUs of this compute capability run.
///
/// # Errors
/// This build has no kernels for it.
pub fn architecture((major, minor): (u32, u32)) -> Result<&'static str> {
    let found = match (major, minor) {
        (8, _) => "sm_80",
        (9, 0) => "sm_90a",
        (10, _) => "sm_100",
        _ => "",
    };
    let found = ARCHITECTURES.iter().find(|name| **name == found);
    found.copied().ok_or_else(|| {
        Error::Runtime(format!(
            "this build has no kernels for compute capability {major}.{minor}; it is for {}",
            ARCHITECTURES.join(", ")
        ))
    })
}

/// The kernel of this name for an architecture.
///
/// # Errors
/// This build has no such kernel.
pub fn kernel(name: &str, architecture: &str) -> Result<&'static BuiltKernel> {
    let key = |kernel: &BuiltKernel| (kernel.name, kernel.architecture);
    let found = KERNELS.binary_search_by_key(&(name, architecture), key);
    let found = found.map(|at| &KERNELS[at]);
    found.map_err(|_| {
        Error::Runtime(format!(
            "this build has no kernel {name} for {architecture}; it is for {}",
            ARCHITECTURES.join(", ")
        ))
    })
}

/// Bytes of all arguments of the kernel of this name, which are the same for all architectures.
///
/// # Errors
/// This build has no such kernel.
pub fn argument_bytes(name: &str) -> Result<u32> {
    let at = KERNELS.partition_point(|kernel| kernel.name < name);
    let found = KERNELS.get(at).filter(|kernel| kernel.name == name);
    let found = found.map(|kernel| kernel.argument_bytes);
    found.ok_or_else(|| Error::Runtime(format!("this build has no kernel {name}")))
}

/// What a kernel tells its launcher: the numbers of this name (`LAUNCH_CONSTANTS` of kernels/common/launch.cuh), as an array or
/// a struct of them.
///
/// # Errors
/// This build has no such numbers, or not as many.
pub fn constants<T: bytemuck::AnyBitPattern>(name: &str) -> Result<T> {
    let found = CONSTANTS.binary_search_by_key(&name, |(name, _)| name);
    let found = found.map_or(&[][..], |at| CONSTANTS[at].1);
    bytemuck::try_pod_read_unaligned(bytemuck::cast_slice(found)).map_err(|_| {
        let (found, expected) = (found.len(), size_of::<T>() / size_of::<u32>());
        Error::Runtime(format!(
            "this build has {found} launch constants of {name}, expected {expected}: build again"
        ))
    })
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_there_for_the_architectures_that_they_are_for() {
        let architectures = |name| {
            let of_name = kernels().iter().filter(|kernel| kernel.name == name);
            of_name
                .map(|kernel| kernel.architecture)
                .collect::<Vec<_>>()
        };
        let built = |all: &[&'static str]| {
            let built = all.iter().filter(|name| ARCHITECTURES.contains(*name));
            built.copied().collect::<Vec<_>>()
        };
        let all = ["sm_100", "sm_80", "sm_90a"];
        for (name, expected) in [
            ("tg_rmsnorm_bf16", &all[..]),
            ("tg_embed_f16", &all),
            ("tg_dispatch", &all),
            ("tg_dispatch_claims", &all),
            ("tg_dispatch_tail", &all),
            ("tg_skinny_project_bf16", &["sm_100", "sm_90a"]),
            ("tg_bf16x3_rows", &["sm_90a"]),
        ] {
            assert_eq!(architectures(name), built(expected), "{name}");
        }
        for kernel in kernels() {
            assert!(kernel.registers > 0, "{kernel:?}");
            let found = argument_bytes(kernel.name).unwrap();
            assert_eq!(found, kernel.argument_bytes, "{kernel:?}");
            assert_eq!(
                super::kernel(kernel.name, kernel.architecture).unwrap(),
                kernel
            );
        }
        let error = super::kernel("tg_bf16x3_rows", "sm_80").unwrap_err();
        assert!(
            error.to_string().contains("tg_bf16x3_rows for sm_80"),
            "{error}"
        );
    }

    #[test]
    fn kernels_tell_their_launchers_their_tiles() {
        let tile: [u32; 4] = constants("tg_tiled_bf16_r64_tile").unwrap();
        let [outputs, rows, threads, shared_bytes] = tile;
        assert_eq!((outputs, rows), (64, 64));
        assert!(threads.is_multiple_of(32) && shared_bytes > 0);
        let error = constants::<[u32; 3]>("tg_tiled_bf16_r64_tile").unwrap_err();
        assert!(error.to_string().contains("4 launch constants"), "{error}");
        assert!(constants::<[u32; 4]>("tg_nothing_tile").is_err());
    }

    #[test]
    fn images_are_aligned_fat_binaries() {
        for kernel in kernels() {
            let image = kernel.image();
            assert_eq!(image.as_ptr() as usize % 64, 0, "{kernel:?}");
            let magic = 0xBA55_ED50_u32.to_le_bytes();
            assert_eq!(image[..4], magic, "{kernel:?}: a fat binary's magic number");
        }
    }
}
