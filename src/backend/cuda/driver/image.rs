//! The kernels as the build script left them: machine code for every architecture, and what each kernel takes.

use crate::error::{Error, Result};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// The driver reads the image in place and wants it aligned like a section of its own.
#[repr(C, align(64))]
struct Aligned<Bytes: ?Sized>(Bytes);

static ALIGNED: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(
    env!("OUT_DIR"),
    "/tailgraph.fatbin"
)));

/// Whether this build has kernels: the feature `cuda` compiles them.
pub const HAS_KERNELS: bool = cfg!(feature = "cuda");

/// All kernels for all architectures, as `cuModuleLoadData` takes them, but for the laboratory's (profiles/lab).
pub fn image() -> &'static [u8] {
    &ALIGNED.0
}

/// What one kernel, or one device function that was not inlined, takes on one architecture.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelUsage {
    pub name: String,
    /// As in `sm_90a`.
    pub arch: String,
    pub registers: u32,
    /// Static shared memory of one block.
    pub shared_bytes: u32,
    pub stack_bytes: u32,
    pub spill_store_bytes: u32,
    pub spill_load_bytes: u32,
}

/// The build's table, by name and architecture.
///
/// # Errors
/// A table that is not what the build script writes.
pub fn kernels() -> Result<Vec<KernelUsage>> {
    let json = include_str!(concat!(env!("OUT_DIR"), "/kernels.json"));
    serde_json::from_str(json).map_err(|error| Error::file("kernels.json", error.to_string()))
}

/// Bytes of all arguments of the kernel of this name.
///
/// # Errors
/// This build has no such kernel.
pub fn argument_bytes(kernel: &str) -> Result<u32> {
    static ALL: LazyLock<std::result::Result<BTreeMap<String, u32>, String>> =
        LazyLock::new(|| {
            let json = include_str!(concat!(env!("OUT_DIR"), "/arguments.json"));
            serde_json::from_str(json).map_err(|error| error.to_string())
        });
    let all = ALL.as_ref();
    let all = all.map_err(|message| Error::file("arguments.json", message.clone()))?;
    let found = all.get(kernel).copied();
    found.ok_or_else(|| Error::Runtime(format!("this build has no kernel {kernel}")))
}

/// What a kernel tells its launcher: the `N` numbers of this name (`LAUNCH_CONSTANTS` of kernels/common/launch.cuh).
///
/// # Errors
/// This build has no such numbers, or others than `N`.
pub fn constants<const N: usize>(name: &str) -> Result<[u32; N]> {
    static ALL: LazyLock<std::result::Result<BTreeMap<String, Vec<u32>>, String>> =
        LazyLock::new(|| {
            let json = include_str!(concat!(env!("OUT_DIR"), "/constants.json"));
            serde_json::from_str(json).map_err(|error| error.to_string())
        });
    let all = ALL.as_ref();
    let all = all.map_err(|message| Error::file("constants.json", message.clone()))?;
    let found = all.get(name).map_or(&[][..], Vec::as_slice);
    found.try_into().map_err(|_| {
        let found = found.len();
        Error::Runtime(format!(
            "this build has {found} launch constants of {name}, expected {N}: build again"
        ))
    })
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_is_there_for_every_architecture_and_spills_nothing() {
        let mut architectures = BTreeMap::<String, Vec<String>>::new();
        for kernel in kernels().unwrap() {
            assert_eq!(
                (kernel.spill_store_bytes, kernel.spill_load_bytes),
                (0, 0),
                "{kernel:?}"
            );
            if kernel.name.starts_with("tg_") {
                assert!(
                    kernel.registers > 0,
                    "{kernel:?} was compiled but not linked"
                );
            }
            architectures
                .entry(kernel.name)
                .or_default()
                .push(kernel.arch);
        }
        for name in [
            "tg_rmsnorm_bf16",
            "tg_rmsnorm_sampled_f32",
            "tg_embed_f16",
            "tg_dispatch",
            "tg_dispatch_claims",
            "tg_dispatch_tail",
        ] {
            let found = architectures
                .get(name)
                .unwrap_or_else(|| panic!("no {name}"));
            assert_eq!(found, &["sm_100", "sm_80", "sm_90a"], "{name}");
        }
    }

    #[test]
    fn kernels_tell_their_launchers_their_tiles() {
        let [outputs, rows, threads, shared_bytes] = constants("tg_tiled_bf16_r64_tile").unwrap();
        assert_eq!((outputs, rows), (64, 64));
        assert!(threads.is_multiple_of(32) && shared_bytes > 0);
        let error = constants::<3>("tg_tiled_bf16_r64_tile").unwrap_err();
        assert!(error.to_string().contains("4 launch constants"), "{error}");
        assert!(constants::<4>("tg_nothing_tile").is_err());
    }

    #[test]
    fn the_image_is_an_aligned_fat_binary() {
        assert_eq!(image().as_ptr() as usize % 64, 0);
        assert_eq!(
            image()[..4],
            0xBA55_ED50_u32.to_le_bytes(),
            "a fat binary's magic number"
        );
    }
}
