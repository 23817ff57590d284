//! cli
pub mod doctor;
pub mod inspect;
mod table;
