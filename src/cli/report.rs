//! The `report` command.

use super::Exit;
use super::args::ReportArgs;
use super::paths::{Other, is_stdio, keep_journal_apart, keep_outputs_apart};
use crate::error::Result;
use crate::files::{Out, Unfinished};
use crate::report::{input, lineup, markdown, page, picture};
use std::path::PathBuf;

pub fn run(args: &ReportArgs) -> Result<Exit> {
    check_paths(args)?;
    let open = |path: &Option<PathBuf>| -> Result<Option<Out>> {
        let path = path.as_deref();
        path.map(
            |path| match is_stdio(path) && args.table.as_deref() == Some(path) {
                true => Out::stdout(),
                false => Out::open(path, Unfinished::Removed),
            },
        )
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

/// No file is written over an input, nor over another.
fn check_paths(args: &ReportArgs) -> Result<()> {
    let outputs = [
        ("--output", &args.output),
        ("--svg", &args.svg),
        ("--table", &args.table),
    ];
    let given = || {
        let given = outputs.iter();
        given.filter_map(|&(flag, path)| Some((flag, path.as_deref()?)))
    };
    let inputs: Vec<Other<'_>> = args
        .inputs
        .iter()
        .map(|input| (Some(input.as_path()), "input"))
        .collect();
    for (n, (flag, output)) in given().enumerate() {
        keep_journal_apart(flag, output, &inputs)?;
        let earlier = given().take(n);
        let earlier: Vec<Other<'_>> = earlier.map(|(flag, path)| (Some(path), flag)).collect();
        keep_outputs_apart(flag, output, &earlier)?;
        keep_journal_apart(flag, output, &earlier)?;
    }
    Ok(())
}
