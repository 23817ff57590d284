//! The `report` command.

use super::Exit;
use super::args::ReportArgs;
use super::paths::Files;
use crate::error::Result;
use crate::files::{Out, Unfinished};
use crate::report::{input, lineup, markdown, page, picture};
use std::path::PathBuf;

pub fn run(args: &ReportArgs) -> Result<Exit> {
    Files::default()
        .reads("input", args.inputs.iter().map(PathBuf::as_path))
        .writes("--output", args.output.as_deref())
        .writes("--svg", args.svg.as_deref())
        .writes("--table", args.table.as_deref())
        .keep_apart()?;
    let open = |path: &Option<PathBuf>| -> Result<Option<Out>> {
        let path = path.as_deref();
        path.map(|path| Out::open(path, Unfinished::Removed))
            .transpose()
    };
    // Before anything is read: what cannot be written is said at once.
    let (output, svg, table) = (open(&args.output)?, open(&args.svg)?, open(&args.table)?);
    let names = input::names(&args.inputs);
    let inputs: Vec<_> = args
        .inputs
        .iter()
        .zip(names)
        .map(|(path, name)| input::read(path, name))
        .collect::<Result<_>>()?;
    // All are made before any is written.
    let mut all = vec![];
    if let Some(output) = output {
        all.push((output, page(&args.title, &inputs)));
    }
    if svg.is_some() || table.is_some() {
        let lineup = lineup::of(&inputs)?;
        if let Some(svg) = svg {
            all.push((svg, picture::svg(&lineup)));
        }
        if let Some(table) = table {
            all.push((table, markdown::table(&lineup)));
        }
    }
    for (out, text) in all {
        out.finish_with(text.as_bytes())?;
    }
    Ok(Exit::Done)
}
