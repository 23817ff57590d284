//! Completions and manual pages, made of the clap definition.

use super::args::Cli;
use super::{Exit, print};
use crate::error::{Error, Result};
use clap::CommandFactory;

pub fn completions(shell: clap_complete::Shell) -> Result<Exit> {
    let mut out = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tailgraph", &mut out);
    print(&out)?;
    Ok(Exit::Done)
}

/// The page of the program, or of one of its commands.
pub fn man(page: Option<&str>) -> Result<Exit> {
    let mut command = Cli::command();
    // Gives every command its full name and the flags it inherits.
    command.build();
    if let Some(name) = page {
        let names: Vec<String> = command
            .get_subcommands()
            .map(|sub| sub.get_name().to_owned())
            .collect();
        command = command
            .find_subcommand(name)
            .cloned()
            .ok_or_else(|| {
                Error::Usage(format!(
                    "man {name}: there is no such command, expected one of {}",
                    names.join(", ")
                ))
            })?
            .display_name(format!("tailgraph-{name}"));
    }
    let mut out = Vec::new();
    clap_mangen::Man::new(command)
        .render(&mut out)
        .map_err(|error| Error::io("the manual page", error))?;
    print(&out)?;
    Ok(Exit::Done)
}
