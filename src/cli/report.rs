//! The `report` command.

use super::Exit;
use super::args::ReportArgs;
use crate::error::{Error, Result};

pub fn run(args: &ReportArgs) -> Result<Exit> {
    let _ = args;
    Err(Error::Usage(String::new()))
}
