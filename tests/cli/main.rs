//! Behaviour through the binary: results on standard output, everything else on standard error, exit codes.

mod bench;
mod generate;
mod interrupted;
mod pages;
mod replay;
mod run;
mod schema;
mod score;
mod usage;
