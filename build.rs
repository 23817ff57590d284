//! Builds what is not Rust: the scheduler core (always, with cc) and, by feature, the kernels and the bindings.

#[cfg(feature = "cuda")]
#[path = "kernels/build/constants.rs"]
mod constants;
#[cfg(feature = "cuda")]
#[path = "kernels/build/nvcc.rs"]
mod nvcc;
#[cfg(feature = "cuda")]
#[path = "kernels/build/ptxas.rs"]
mod ptxas;

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=kernels/abi.h");
    println!("cargo::rerun-if-changed=kernels/sched");
    version();
    scheduler_core();
    if let Err(message) = kernels() {
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

/// Compiles `kernels/*/*.cu` into `OUT_DIR/tailgraph.fatbin` and, with the feature `lab`, the laboratory's into `OUT_DIR/lab.fatbin` and `OUT_DIR/launching.fatbin`, with what each kernel takes in
/// `OUT_DIR/kernels.json`, the bytes of its arguments in `OUT_DIR/arguments.json` and what each tells its launcher in `OUT_DIR/constants.json`. Spills are warnings; with TAILGRAPH_DENY_SPILLS=1 they are errors.
#[cfg(feature = "cuda")]
fn kernels() -> Result<(), String> {
    println!("cargo::rerun-if-changed=kernels");
    for variable in [
        "NVCC",
        "CUDA_HOME",
        "TAILGRAPH_DENY_SPILLS",
        "TAILGRAPH_KERNEL_OBJECTS",
    ] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let out_dir = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let out_dir = Path::new(&out_dir);
    let built = nvcc::build(&nvcc::find()?, out_dir)?;
    for line in built
        .compile_log
        .lines()
        .filter(|line| line.contains("warning"))
    {
        println!("cargo::warning={line}");
    }
    let constants = constants::to_json(&constants::read(&built.objects)?);
    let table = ptxas::parse(&built.compile_log, &built.link_log)?;
    let arguments = ptxas::arguments_to_json(&ptxas::argument_bytes(&table)?);
    for (name, json) in [
        ("constants.json", constants),
        ("kernels.json", ptxas::to_json(&table)),
        ("arguments.json", arguments),
    ] {
        let path = out_dir.join(name);
        std::fs::write(&path, json).map_err(|error| format!("{}: {error}", path.display()))?;
    }

    let severity = match std::env::var_os("TAILGRAPH_DENY_SPILLS").is_some_and(|value| value == "1")
    {
        true => "error",
        false => "warning",
    };
    for ((name, arch), usage) in table.iter().filter(|(_, usage)| usage.spills()) {
        println!(
            "cargo::{severity}={name} on {arch} spills {} bytes of stores and {} of loads, and must spill none: \
             use fewer registers (it has {}) or smaller tiles",
            usage.spill_store_bytes, usage.spill_load_bytes, usage.registers
        );
    }
    Ok(())
}

/// An image without kernels, and tables of none.
#[cfg(not(feature = "cuda"))]
fn kernels() -> Result<(), String> {
    let out_dir = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    for (name, text) in [
        ("tailgraph.fatbin", ""),
        ("kernels.json", "[]"),
        ("arguments.json", "{}"),
        ("constants.json", "{}"),
    ] {
        let path = Path::new(&out_dir).join(name);
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
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
        match info.name.ends_with("_args") {
            true => vec!["bytemuck::NoUninit".to_owned()],
            false => vec![],
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
