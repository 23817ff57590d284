//! The `report` command.

use super::Exit;
use super::args::ReportArgs;
use crate::error::{Error, Result};
use crate::report::{input, page};

pub fn run(args: &ReportArgs) -> Result<Exit> {
    for path in &args.inputs {
        super::generate::keep_apart("--output", &args.output, path, "input")?;
    }
    let inputs: Vec<_> = args
        .inputs
        .iter()
        .map(|path| input::read(path))
        .collect::<Result<_>>()?;
    let html = page(&args.title, &inputs);
    std::fs::write(&args.output, html).map_err(|error| Error::create(&args.output, &error))?;
    Ok(Exit::Done)
}
