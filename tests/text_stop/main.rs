//! Stop strings against a search of the whole text.

mod bytes;
mod cases;
#[path = "../common/mod.rs"]
mod common;
mod decoders;
mod matcher;
