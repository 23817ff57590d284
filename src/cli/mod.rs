//! The commands. `inspect` and `doctor` print what the plan knows; tables are laid out by `table`.

pub mod doctor;
pub mod inspect;
mod table;
