//! The `report` command.

use super::args::ReportArgs;
use super::paths::{Other, is_stdio, keep_apart, keep_outputs_apart};
use super::{Exit, print};
use crate::error::{Error, Result};
use crate::report::{input, lineup, markdown, page, picture};

pub fn run(args: &ReportArgs) -> Result<Exit> {
    check_paths(args)?;
    let names = input::names(&args.inputs);
    let inputs: Vec<_> = args
        .inputs
        .iter()
        .zip(names)
        .map(|(path, name)| input::read(path, name))
        .collect::<Result<_>>()?;
    // All are made before any is written.
    let mut all = vec![];
    if let Some(path) = &args.output {
        all.push((path, page(&args.title, &inputs)));
    }
    if args.svg.is_some() || args.table.is_some() {
        let lineup = lineup::of(&inputs)?;
        if let Some(path) = &args.svg {
            all.push((path, picture::svg(&lineup)));
        }
        if let Some(path) = &args.table {
            all.push((path, markdown::table(&lineup)));
        }
    }
    for (path, text) in all {
        match args.table.as_ref().is_some_and(|table| table == path) && is_stdio(path) {
            true => print(text.as_bytes())?,
            false => std::fs::write(path, text).map_err(|error| Error::create(path, &error))?,
        }
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
        keep_apart(flag, output, &inputs)?;
        let earlier = given().take(n);
        let earlier: Vec<Other<'_>> = earlier.map(|(flag, path)| (Some(path), flag)).collect();
        keep_outputs_apart(flag, output, &earlier)?;
    }
    Ok(())
}
