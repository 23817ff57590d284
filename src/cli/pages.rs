//! Completions and manual pages, made of the clap definition and of what stands here besides.

use super::args::{Cli, EXIT_CODES};
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
    roff.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in EXITS {
        roff.control("TP", []);
        roff.text([bold(*code)]);
        roff.text([roman(*meaning)]);
    }
    roff.control("SH", ["ENVIRONMENT"]);
    for (name, meaning) in ENVIRONMENT {
        roff.control("TP", []);
        roff.text([bold(*name)]);
        roff.text([roman(*meaning)]);
    }
    let examples: Vec<_> = EXAMPLES
        .iter()
        .filter(|(of, _, _)| name.is_none_or(|name| name == *of))
        .collect();
    if !examples.is_empty() {
        roff.control("SH", ["EXAMPLES"]);
    }
    for (_, what, line) in examples {
        roff.control("PP", []);
        roff.text([roman(*what)]);
        roff.control("RS", []);
        roff.control("nf", []);
        roff.text([bold(*line)]);
        roff.control("fi", []);
        roff.control("RE", []);
    }
    roff.to_writer(out)?;
    match has_version {
        true => man.render_version_section(out),
        false => Ok(()),
    }
}

const EXITS: &[(&str, &str)] = &[
    ("0", "All was done; every row was served."),
    (
        "1",
        "A fatal error, which the last line on standard error names; or a problem that doctor found.",
    ),
    ("2", "Wrong usage."),
    ("3", "Some rows failed; the others were served."),
    ("4", "score --expect or replay disagreed."),
    ("129, 130, 143", "Ended by SIGHUP, SIGINT or SIGTERM."),
];

const ENVIRONMENT: &[(&str, &str)] = &[
    (
        "CUDA_VISIBLE_DEVICES",
        "The GPUs that the driver shows, and in which order: cuda:0 is the first of these.",
    ),
    (
        "HF_HOME, HF_HUB_CACHE",
        "Where models of the Hugging Face hub are kept, unless it is ~/.cache/huggingface. These and the next ones, older names of them too, are read as by Python's huggingface_hub.",
    ),
    (
        "HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH",
        "The address of the hub, and who asks it.",
    ),
    (
        "HF_HUB_OFFLINE",
        "1: nothing is asked of the hub; its models come from the cache alone.",
    ),
    (
        "SSL_CERT_FILE, SSL_CERT_DIR, REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE",
        "Certificates to trust in place of the system's.",
    ),
    (
        "RAYON_NUM_THREADS",
        "Threads that the CPU computes with, unless it is all of its cores.",
    ),
    (
        "PATH, CUDA_HOME, CUDA_PATH",
        "Where profile looks for Nsight's programs.",
    ),
    ("TZ", "The time zone of dates that a chat template shows."),
];

/// Of which command, what it does, and its line.
const EXAMPLES: &[(&str, &str, &str)] = &[
    (
        "generate",
        "An answer to a question:",
        "tailgraph generate -m LFM2-8B-A1B \"Why is the sky blue?\"",
    ),
    (
        "generate",
        "A file of rows, which can be interrupted and gone on with:",
        "tailgraph generate -m LFM2-8B-A1B -i rows.jsonl -o answers.jsonl --resume",
    ),
    (
        "generate",
        "A text of prompts, one a line:",
        "tailgraph generate -m LFM2-8B-A1B --lines -i prompts.txt.gz -o answers.jsonl",
    ),
    (
        "score",
        "How likely given tokens are:",
        "tailgraph score -m LFM2-8B-A1B -i tokens.npy --logprobs",
    ),
    (
        "bench",
        "Decode steps over several batches:",
        "tailgraph bench decode -m random:lfm2-8b-a1b -b 1,8,32 --format json -o decode.json",
    ),
    (
        "bench",
        "Each product by rows, beside cuBLASLt where that is there:",
        "tailgraph bench kernel -m random:lfm2-8b-a1b -o kernels.json",
    ),
    (
        "inspect",
        "A model's operations and the least time that they take:",
        "tailgraph inspect -m random:lfm2-8b-a1b --gpu h200",
    ),
    (
        "tune",
        "The fastest kernels of this GPU, for --kernel-file:",
        "tailgraph tune -m LFM2-8B-A1B -o kernels.toml",
    ),
    (
        "profile",
        "A timeline by Nsight Systems:",
        "tailgraph profile -- generate -m random:tiny \"Where does the time go?\"",
    ),
    (
        "synth",
        "A small checkpoint to try things with:",
        "tailgraph synth -m random:tiny -o tiny",
    ),
    (
        "merge",
        "Three shards of a job in one file:",
        "tailgraph merge answers.0.jsonl answers.1.jsonl answers.2.jsonl -o answers.jsonl",
    ),
    (
        "replay",
        "The schedule of a run once more:",
        "tailgraph replay -m random:tiny --record run.jsonl",
    ),
    (
        "trace",
        "A timeline for ui.perfetto.dev:",
        "tailgraph trace -m random:tiny -o trace.json \"Where does the time go?\"",
    ),
    (
        "report",
        "Measurements and a timeline as one page:",
        "tailgraph report decode.json trace.json -o report.html",
    ),
    (
        "doctor",
        "Whether a model fits here:",
        "tailgraph doctor -m random:lfm2-8b-a1b",
    ),
    (
        "completions",
        "Completions for this session of a shell:",
        "source <(tailgraph completions bash)",
    ),
    (
        "man",
        "A command's page:",
        "tailgraph man generate | man -l -",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_of_commands_and_their_options() {
        for (of, _, line) in EXAMPLES {
            let words: Vec<&str> = line.split_whitespace().collect();
            let Some(begin) = line.strip_prefix("tailgraph ") else {
                assert!(words.contains(of), "{line}");
                continue;
            };
            let words = begin.split(" | ").next().unwrap_or_default();
            // Quotes stand around the last argument alone.
            let (before, quoted) = words.split_once('"').unwrap_or((words, ""));
            let mut all = vec!["tailgraph"];
            all.extend(before.split_whitespace());
            all.extend((!quoted.is_empty()).then_some(quoted.trim_end_matches('"')));
            let parsed = Cli::command().try_get_matches_from(&all);
            let found = parsed.unwrap_or_else(|error| panic!("{line}: {error}"));
            assert_eq!(found.subcommand_name(), Some(*of), "{line}");
        }
        let commands = Cli::command();
        for command in commands.get_subcommands() {
            let name = command.get_name();
            assert!(
                EXAMPLES.iter().any(|(of, _, _)| *of == name),
                "{name} has no example"
            );
        }
    }
}
