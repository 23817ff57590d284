//! Builds what is not Rust: the scheduler core (always, with cc) and, by feature, the kernels and the bindings.

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=kernels/abi.h");
    println!("cargo::rerun-if-changed=kernels/sched");
    scheduler_core();
    #[cfg(feature = "bindgen")]
    bindings();
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

/// Regenerates `src/sys/abi.rs` from `kernels/abi.h`.
#[cfg(feature = "bindgen")]
fn bindings() {
    bindgen::Builder::default()
        .header("kernels/abi.h")
        .allowlist_item("(tg|TG)_.*")
        .allowlist_recursively(false)
        .use_core()
        .derive_default(true)
        .derive_eq(true)
        .default_macro_constant_type(bindgen::MacroTypeVariation::Unsigned)
        .layout_tests(true)
        .formatter(bindgen::Formatter::Rustfmt)
        .rust_edition(bindgen::RustEdition::Edition2024)
        .raw_line("// Made by bindgen from kernels/abi.h; do not edit. To make it again: cargo build --features bindgen")
        .generate()
        .expect("bindgen could not read kernels/abi.h")
        .write_to_file("src/sys/abi.rs")
        .expect("src/sys/abi.rs could not be written");
}
