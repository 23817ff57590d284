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

impl abi::tg_sequence {
    /// The rest of a sequence that neither starts from a shared prefix nor computes one.
    pub const UNSHARED: Self = Self {
        slot: 0,
        first_row: 0,
        rows: 0,
        first_position: 0,
        sample: abi::TG_NONE,
        flags: 0,
        from: abi::TG_NONE,
        from_page: abi::TG_NONE,
        computes: abi::TG_NONE,
        border_page: abi::TG_NONE,
    };
}
