//! Completions and manual pages, made of the clap definition and of what stands here besides.

use super::args::{Cli, EXIT_CODES};
use super::help::examples;
use super::{Exit, print};
use crate::error::{Error, Result};
use clap::CommandFactory;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::io::Write;

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
    write_page(command, page, &mut out).map_err(|error| Error::io("the manual page", error))?;
    print(&out)?;
    Ok(Exit::Done)
}

fn write_page(
    command: clap::Command,
    name: Option<&str>,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    // What help says last, beside the exit codes that have a section of their own.
    let more = command.get_after_help().map(ToString::to_string);
    let more = more.filter(|text| text != EXIT_CODES);
    let has_commands = command.has_subcommands();
    let has_version = command.get_version().is_some();
    let man = Man::new(command);
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    if has_commands {
        man.render_subcommands_section(out)?;
    }
    let mut roff = Roff::default();
    if let Some(more) = more {
        roff.control("SH", ["NOTES"]);
        roff.text([roman(more)]);
    }
    for (title, list) in [("EXIT STATUS", EXITS), ("ENVIRONMENT", ENVIRONMENT)] {
        roff.control("SH", [title]);
        for (name, meaning) in list.lines().filter_map(|line| line.split_once(": ")) {
            roff.control("TP", []);
            roff.text([bold(name)]);
            roff.text([roman(meaning)]);
        }
    }
    roff.control("SH", ["EXAMPLES"]);
    for (what, line) in examples(name) {
        roff.control("PP", []);
        roff.text([roman(what)]);
        roff.control("RS", []);
        roff.control("nf", []);
        roff.text([bold(line)]);
        roff.control("fi", []);
        roff.control("RE", []);
    }
    roff.to_writer(out)?;
    if has_version {
        man.render_version_section(out)
    } else {
        Ok(())
    }
}

const EXITS: &str = "\
0: All was done; every row was served.
1: A fatal error, which the last line on standard error names; or a problem that doctor found.
2: Wrong usage.
3: Some rows failed; the others were served.
4: score --expect or replay disagreed.
129, 130, 143: Ended by SIGHUP, SIGINT or SIGTERM.";

const ENVIRONMENT: &str = "\
CUDA_VISIBLE_DEVICES: The GPUs that the driver shows, and in which order: cuda:0 is the first of these.
HF_HOME, HF_HUB_CACHE: Where models of the Hugging Face hub are kept, unless it is ~/.cache/huggingface. These and the next ones, older names of them too, are read as by Python's huggingface_hub.
HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH: The address of the hub, and who asks it.
HF_HUB_OFFLINE: With the value 1, nothing is asked of the hub; its models come from the cache alone.
SSL_CERT_FILE, SSL_CERT_DIR: Certificates to trust in place of the system's.
RAYON_NUM_THREADS: Threads that the CPU computes with, unless it is all of its cores.
PATH, CUDA_HOME: Where profile looks for Nsight's programs.
TZ: The time zone of dates that a chat template shows.";
