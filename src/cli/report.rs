//! The `report` command.

use super::Exit;
use super::args::ReportArgs;
use super::paths::{Files, open_asked};
use crate::error::Result;
use crate::report::{input, lineup, page, picture};

pub fn run(args: &ReportArgs) -> Result<Exit> {
    Files::default()
        .reads("input", &args.inputs)
        .writes("--output", args.output.as_deref())
        .writes("--svg", args.svg.as_deref())
        .keep_apart()?;
    // Before anything is read.
    let output = open_asked(args.output.as_deref())?;
    let svg = open_asked(args.svg.as_deref())?;
    let names = input::names(&args.inputs);
    let inputs = args.inputs.iter().zip(names);
    let inputs = inputs.map(|(path, name)| input::read(path, name));
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    // All are made before any is written.
    let mut all = vec![];
    if let Some(output) = output {
        all.push((output, page(&args.title, &inputs)));
    }
    if let Some(svg) = svg {
        all.push((svg, picture::svg(&lineup::of(&inputs)?)));
    }
    for (out, text) in all {
        out.finish_with(text.as_bytes())?;
    }
    Ok(Exit::Done)
}
