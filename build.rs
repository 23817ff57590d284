//! Builds what is not Rust: the scheduler core (always, with cc) and, by feature, the kernels and the bindings.

#[cfg(feature = "cuda")]
#[path = "kernels/build/cubin.rs"]
mod cubin;
#[cfg(feature = "cuda")]
#[path = "kernels/build/nvcc.rs"]
mod nvcc;

#[cfg(feature = "cuda")]
use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=kernels/abi.h");
    println!("cargo::rerun-if-changed=kernels/sched");
    version();
    scheduler_core();
    if let Err(error) = kernels() {
        let message = error.to_string();
        println!("cargo::error={}", message.replace('\n', "\ncargo::error="));
    }
    #[cfg(feature = "bindgen")]
    bindings();
}

/// Tells the crate its version, TAILGRAPH_VERSION, and the commit that it is of, TAILGRAPH_COMMIT: in release builds from a
/// checkout, so that a result says which code it is of. Other builds would be made anew with each commit for it.
fn version() {
    let mut version = std::env::var("CARGO_PKG_VERSION").expect("cargo sets it");
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    // In a folder of another checkout the commit would be of that.
    let is_checkout = || git(&["rev-parse", "--show-prefix"]).is_none();
    let commit = git(&["rev-parse", "--short=12", "HEAD"]);
    if let Some(mut commit) = commit.filter(|_| is_release && is_checkout()) {
        // The log of HEAD has each commit; what is compiled says whether the rest is as in that.
        if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
            println!("cargo::rerun-if-changed={log}");
        }
        println!("cargo::rerun-if-changed=src");
        if git(&["status", "--porcelain", "--untracked-files=no"]).is_some() {
            commit.push_str("-modified");
        }
        println!("cargo::rustc-env=TAILGRAPH_COMMIT={commit}");
        version = format!("{version} ({commit})");
    }
    println!("cargo::rustc-env=TAILGRAPH_VERSION={version}");
}

/// What git says of this checkout; `None` where it says nothing.
fn git(arguments: &[&str]) -> Option<String> {
    let said = std::process::Command::new("git")
        .args(arguments)
        .output()
        .ok()?;
    let text = String::from_utf8(said.stdout).ok()?.trim().to_owned();
    (said.status.success() && !text.is_empty()).then_some(text)
}

/// Compiles `kernels/sched/sched.c` for the host. Always optimised: property tests take millions of turns through it.
fn scheduler_core() {
    let source = Path::new("kernels/sched/sched.c");
    cc::Build::new()
        .file(source)
        .include("kernels")
        .std("c11")
        .opt_level(2)
        .flag("-ffreestanding")
        .warnings(true)
        .extra_warnings(true)
        .warnings_into_errors(true)
        .compile("tailgraph_sched");
}

/// Compiles `kernels/*/*.cu`, the laboratory's with the feature `lab` alone: their images one after the other in `OUT_DIR/kernels.fatbin`, and
/// the tables of src/backend/cuda/driver/image.rs in `OUT_DIR/kernels.rs`. Spills are warnings; with TAILGRAPH_DENY_SPILLS=1 they are errors.
#[cfg(feature = "cuda")]
fn kernels() -> Result<(), Box<dyn Error + Send + Sync>> {
    println!("cargo::rerun-if-changed=kernels");
    for variable in [
        "NVCC",
        "CUDA_HOME",
        "TAILGRAPH_ARCH",
        "TAILGRAPH_DENY_SPILLS",
        "TAILGRAPH_KERNEL_OBJECTS",
    ] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let denies_spills = std::env::var_os("TAILGRAPH_DENY_SPILLS").is_some_and(|set| set == "1");
    let out_dir = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let (mut images, mut kernels, mut constants) = (vec![], BTreeMap::new(), BTreeMap::new());
    for image in nvcc::build(&nvcc::find()?, Path::new(&out_dir))? {
        for line in fs_err::read_to_string(image.file("log"))?.lines() {
            if line.contains("spilled") && denies_spills {
                println!("cargo::error={line}: use fewer registers or smaller tiles");
            } else if line.contains("warning") {
                println!("cargo::warning={line}");
            }
        }
        let [cubin, fat_binary] = ["cubin", "fatbin"].map(|name| fs_err::read(image.file(name)));
        let cubin = cubin?;
        let named = |error| format!("{}: {error}", image.file("cubin").display());
        let file = object::File::parse(&*cubin).map_err(|error| named(error.to_string()))?;
        let (architecture, image_at) = (image.architecture, images.len());
        for kernel in cubin::kernels(&file).map_err(|error| named(error.to_string()))? {
            let cubin::Kernel {
                name,
                registers,
                argument_bytes,
            } = kernel;
            let built = format!(
                "BuiltKernel {{ name: {name:?}, architecture: {architecture:?}, registers: {registers}, \
                 argument_bytes: {argument_bytes}, image_at: {image_at} }},"
            );
            if kernels
                .insert((name.clone(), architecture), built)
                .is_some()
            {
                return Err(named(format!("{name} stands in another unit too")).into());
            }
        }
        for (name, values) in cubin::constants(&file).map_err(|error| named(error.to_string()))? {
            let built = format!("({name:?}, &{values:?}),");
            let before = constants.insert(name.clone(), built.clone());
            if before.is_some_and(|before| before != built) {
                let message = format!("{name} is {values:?}, and something else in another image");
                return Err(named(message).into());
            }
        }
        images.extend(fat_binary?);
        // The driver reads an image in place and wants it aligned like a section of its own.
        images.resize(images.len().next_multiple_of(64), 0);
    }
    let kernels: String = kernels.into_values().collect();
    let constants: String = constants.into_values().collect();
    write_kernels(&images, &nvcc::architectures()?, &kernels, &constants)
}

/// No kernels, for all architectures.
#[cfg(not(feature = "cuda"))]
fn kernels() -> Result<(), Box<dyn Error + Send + Sync>> {
    write_kernels(&[], &["sm_80", "sm_90a", "sm_100"], "", "")
}

/// Writes what src/backend/cuda/driver/image.rs includes.
fn write_kernels(
    images: &[u8],
    architectures: &[&str],
    kernels: &str,
    constants: &str,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let out_dir = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let tables = format!(
        "pub static ARCHITECTURES: &[&str] = &{architectures:?};\n\
         static KERNELS: &[BuiltKernel] = &[{kernels}];\n\
         static CONSTANTS: &[(&str, &[u32])] = &[{constants}];\n"
    );
    for (name, content) in [
        ("kernels.fatbin", images),
        ("kernels.rs", tables.as_bytes()),
    ] {
        let path = Path::new(&out_dir).join(name);
        std::fs::write(&path, content).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// Structs of kernels' arguments are handed to the driver as bytes: none of them may be padding.
#[cfg(feature = "bindgen")]
#[derive(Debug)]
struct WithoutPadding;

#[cfg(feature = "bindgen")]
impl bindgen::callbacks::ParseCallbacks for WithoutPadding {
    fn add_derives(&self, info: &bindgen::callbacks::DeriveInfo<'_>) -> Vec<String> {
        if info.name.ends_with("_args") {
            vec!["bytemuck::NoUninit".to_owned()]
        } else {
            vec![]
        }
    }
}

/// What kernels are launched with: `args.h` of each family that has one, sorted.
#[cfg(feature = "bindgen")]
fn argument_headers() -> Vec<String> {
    println!("cargo::rerun-if-changed=kernels");
    let families = std::fs::read_dir("kernels").expect("kernels could not be read");
    let mut found: Vec<String> = families
        .map(|family| {
            family
                .expect("kernels could not be read")
                .path()
                .join("args.h")
        })
        .filter(|header| header.is_file())
        .map(|header| header.to_string_lossy().into_owned())
        .collect();
    found.sort();
    found
}

/// Regenerates `src/sys/abi.rs` from `kernels/abi.h` and `kernels/*/args.h`.
#[cfg(feature = "bindgen")]
fn bindings() {
    let checked_in = Path::new("src/sys/abi.rs");
    println!("cargo::rerun-if-changed={}", checked_in.display());
    let made = bindgen::Builder::default()
        .header("kernels/abi.h")
        .headers(argument_headers())
        .clang_arg("-Ikernels")
        .parse_callbacks(Box::new(WithoutPadding))
        .allowlist_item("(tg|TG)_.*")
        .allowlist_recursively(false)
        .use_core()
        .derive_default(true)
        .derive_eq(true)
        .default_macro_constant_type(bindgen::MacroTypeVariation::Unsigned)
        .layout_tests(false)
        .formatter(bindgen::Formatter::Rustfmt)
        .rust_edition(bindgen::RustEdition::Edition2024)
        .raw_line("// Made by bindgen from kernels/abi.h and kernels/*/args.h; do not edit. To make it again: cargo build --features bindgen")
        .generate()
        .expect("bindgen could not read kernels/abi.h and kernels/*/args.h")
        .to_string();
    // Written only where it differs: a new time stamp alone would build everything again.
    if std::fs::read_to_string(checked_in).ok().as_ref() != Some(&made) {
        std::fs::write(checked_in, made).expect("src/sys/abi.rs could not be written");
    }
}
