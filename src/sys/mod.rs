//! The C side as Rust sees it: structs and functions of `kernels/abi.h`, and the structs that kernels are
//! launched with (`kernels/*/args.h`), made by bindgen.
//!
//! Nothing here is safe to call on its own; `runtime::core` is the one safe wrapper.

#[allow(
    dead_code,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    clippy::all,
    clippy::pedantic
)]
pub mod abi;
