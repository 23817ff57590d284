//! What `--help` shows besides clap's own words: examples, where to read more, the flags that `--help-all` alone lists; and what flags
//! of other programs are called here.

use super::args::{Cli, EXIT_CODES};
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgAction, Command, CommandFactory};
use std::fmt::Write;

/// Flags that `--help` leaves out and `--help-all` lists.
const RARE: &[&str] = &[
    "strict",
    "record",
    "text-timeout",
    "now",
    "handover",
    "fp16",
    "activations",
    "step-timeout-ms",
    "bucket-file",
    "kernel-file",
    "min-p",
    "repetition-penalty",
    "presence-penalty",
    "frequency-penalty",
    "min-tokens",
    "stop-ids",
    "page-tokens",
    "step-tokens",
    "chunk-tokens",
    "chunk-align",
    "no-prefix-sharing",
    "in-order",
    "stages",
];

/// The command line. `all`: its help lists rare flags too.
pub fn command(all: bool) -> Command {
    Cli::command().mut_subcommands(|command| {
        let name = command.get_name().to_owned();
        documented(command, &name, all)
    })
}

fn documented(command: Command, name: &str, all: bool) -> Command {
    let is_rare = |arg: &Arg| {
        let in_list = arg.get_long().is_some_and(|long| RARE.contains(&long));
        in_list && !arg.is_required_set()
    };
    let has_rare = command.get_arguments().any(is_rare);
    let mut more = String::from("Examples:\n");
    for (what, line) in examples(Some(name)) {
        let _ = write!(more, "  {what}\n    {line}\n");
    }
    let _ = write!(more, "\nRead more: {}", read_more(name));
    let mut command = command;
    if has_rare {
        command = command.arg(
            Arg::new("help-all")
                .long("help-all")
                .action(ArgAction::HelpLong)
                .help_heading(None::<&str>)
                .help("Print help of all flags, the rarely used ones too"),
        );
    }
    if !all {
        command = command.mut_args(|arg| if is_rare(&arg) { arg.hide(true) } else { arg });
    }
    let exits = command.get_after_help().map(ToString::to_string);
    if exits.is_some_and(|text| text == EXIT_CODES) {
        let _ = write!(more, "\n\n{EXIT_CODES}");
    }
    command.after_long_help(more).mut_subcommands(|inner| {
        let name = format!("{name} {}", inner.get_name());
        documented(inner, &name, all)
    })
}

fn read_more(command: &str) -> &'static str {
    match command.split(' ').next().unwrap_or_default() {
        "generate" => "`tailgraph man generate`; src/io/README.md has the fields of rows",
        "serve" => "`tailgraph man serve`; src/io/README.md has the fields of bodies",
        "score" | "merge" => "`tailgraph man`; src/io/README.md has the files",
        "bench" | "tune" | "inspect" | "report" => "profiles/measuring.md",
        "profile" | "trace" | "replay" => {
            "profiles/measuring.md; src/README.md says what a step is"
        }
        _ => "README.md; `tailgraph man`",
    }
}

/// Flags of other programs, each list with what there is here instead.
const MEANT: &[(&[&str], &str)] = &[
    (
        &[
            "--tensor-parallel-size",
            "--pipeline-parallel-size",
            "--data-parallel-size",
            "-tp",
            "-pp",
            "-dp",
            "--tp",
            "--pp",
            "--dp",
            "--num-gpus",
        ],
        "--device cuda:0,1 takes several GPUs; --parallel says how they share",
    ),
    (
        &["--gpu-memory-utilization", "--mem-fraction-static"],
        "--memory-limit SIZE, such as 60GiB, bounds the memory",
    ),
    (
        &["--enforce-eager", "--disable-cuda-graph"],
        "--launch host-kernels launches kernel by kernel, without graphs",
    ),
    (
        &[
            "--batch-size",
            "--max-batch-size",
            "--max-running-requests",
            "--parallel-requests",
        ],
        "--max-seqs N is how many sequences run at once",
    ),
    (
        &["--ctx-size", "--context-length", "--n-ctx", "-c"],
        "--max-context TOKENS bounds prompt and new tokens of one sequence",
    ),
    (
        &[
            "--n-predict",
            "--max-length",
            "--num-predict",
            "--max-completion-tokens",
        ],
        "--max-new-tokens N is how many tokens are generated at most",
    ),
    (
        &["--max-num-batched-tokens", "--chunked-prefill-size"],
        "--step-tokens and --chunk-tokens bound the tokens of a step",
    ),
    (
        &["--quantization", "--load-in-8bit", "--load-in-4bit"],
        "--weights fp8 has weights in 8 bits",
    ),
    (
        &["--kv-cache-dtype"],
        "--dtype is the type of activations, keys and values: bf16, f16 or f32",
    ),
    (
        &["--n-gpu-layers", "--gpu-layers", "--device-map"],
        "--device cuda has all layers on the GPU, --device cpu none",
    ),
    (
        &["--threads", "-t"],
        "RAYON_NUM_THREADS=8 in the environment sets the threads of a CPU",
    ),
    (
        &["--prompt", "-p", "--prompt-file"],
        "a prompt needs no flag; --lines --input FILE reads a file of prompts",
    ),
    (
        &["--model-path", "--checkpoint", "--hf-repo"],
        "--model takes a folder, or ORG/NAME of the Hugging Face hub",
    ),
    (
        &["--tokenizer", "--trust-remote-code"],
        "the model's folder has the tokenizer, and no code in it is run",
    ),
    (
        &[
            "--served-model-name",
            "--disable-log-requests",
            "--uvicorn-log-level",
        ],
        "`serve` answers requests that name any model, and keeps no log of them",
    ),
    (
        &["--max-waiting-requests", "--max-queued-requests"],
        "--max-queue N is how many sequences of `serve` may wait",
    ),
];

/// What there is instead of a flag that is not known, where that is known.
pub fn meant(error: &clap::Error) -> Option<&'static str> {
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let typed = typed.split(['=', ' ']).next()?;
    let meant = MEANT.iter().find(|(names, _)| names.contains(&typed));
    meant.map(|(_, instead)| *instead)
}

/// What each example does, and its line: those of one command, or all.
pub fn examples(command: Option<&str>) -> impl Iterator<Item = (&'static str, &'static str)> {
    let begin = command.map_or("tailgraph ".to_owned(), |name| format!("tailgraph {name} "));
    let lines = || SERVE.lines().chain(EXAMPLES.lines());
    let pairs = lines().zip(lines().skip(1)).step_by(2);
    pairs.filter(move |(_, line)| line.starts_with(&begin))
}

/// Those of a command that a build may be without.
const SERVE: &str = if cfg!(feature = "server") {
    "\
The OpenAI interface at http://127.0.0.1:8000/v1:
tailgraph serve -m LiquidAI/LFM2-8B-A1B
For other machines, with a key, and batches in a folder:
tailgraph serve -m LiquidAI/LFM2-8B-A1B --host 0.0.0.0 --api-key secret --batches batches"
} else {
    ""
};

/// Pairs of lines: what it does, and what is typed.
const EXAMPLES: &str = "\
An answer to a question:
tailgraph generate -m LiquidAI/LFM2-8B-A1B \"Why is the sky blue?\"
A file of rows, which can be interrupted and gone on with:
tailgraph generate -m LiquidAI/LFM2-8B-A1B -i rows.jsonl -o answers.jsonl --resume
What it would take, and which rows would fail:
tailgraph generate -m LiquidAI/LFM2-8B-A1B -i rows.jsonl --dry-run
A text of prompts, one a line:
tailgraph generate -m LiquidAI/LFM2-8B-A1B --lines -i prompts.txt.gz -o answers.jsonl
How likely given tokens are:
tailgraph score -m LiquidAI/LFM2-8B-A1B -i tokens.npy --logprobs
The logits of each prompt's last token, in a file:
tailgraph score -m LiquidAI/LFM2-8B-A1B -i rows.jsonl --logits last -o logits.safetensors
Whether logits are those of another program:
tailgraph score -m LiquidAI/LFM2-8B-A1B -i tokens.npy --expect expected.safetensors
Decode steps over several batches:
tailgraph bench decode -m random:lfm2-8b-a1b -b 1,8,32 --format json -o decode.json
Prompts up to their first token, as a table for spreadsheets:
tailgraph bench prefill -m random:lfm2-8b-a1b -p 512,8192 -o prefill.csv
Logits of many prompts:
tailgraph bench score -m random:lfm2-8b-a1b --logits last
Whether the second of two measurements is faster:
tailgraph bench compare before.json after.json
Each matrix product in steps of 1 to 8192 tokens, beside cuBLASLt where that is there:
tailgraph bench kernel -m random:lfm2-8b-a1b -o kernels.json
Requests that arrive at a rate:
tailgraph bench serve -m random:lfm2-8b-a1b --request-rate 10
A model's operations and the least time that they take:
tailgraph inspect -m random:lfm2-8b-a1b --gpu h200
The kernels of a decode step of 8 sequences:
tailgraph inspect -m random:lfm2-8b-a1b --gpu h200 --calls --tokens 8
A picture of the plan for Graphviz:
tailgraph inspect -m random:tiny --format dot -o plan.dot
The fastest kernels of this GPU, for --kernel-file:
tailgraph tune -m LiquidAI/LFM2-8B-A1B -o kernels.toml
Those of small batches in bf16 alone:
tailgraph tune -m LiquidAI/LFM2-8B-A1B --dtype bf16 --bucket 1,2,4,8 -o kernels.toml
A timeline by Nsight Systems:
tailgraph profile -- generate -m random:tiny \"Where does the time go?\"
Counters of one kernel by Nsight Compute:
tailgraph profile --tool compute --kernel 'tg_route.*' -- bench -m random:tiny
The line that would be run:
tailgraph profile --print -- generate -m random:tiny \"Hello\"
A small checkpoint to try things with:
tailgraph synth -m random:tiny -o tiny
A large one, in files of 2 GB:
tailgraph synth -m random:lfm2-8b-a1b --shard-size 2GB -o large
Three shards of a job in one file:
tailgraph merge answers.0.jsonl answers.1.jsonl answers.2.jsonl -o answers.jsonl
The same, over an older file:
tailgraph merge answers.0.jsonl answers.1.jsonl answers.2.jsonl -o answers.jsonl --overwrite
The schedule of a run once more:
tailgraph replay -m random:tiny --record run.jsonl
The same, by the host's graphs on the second GPU:
tailgraph replay -m random:tiny --record run.jsonl --device cuda:1 --launch host-graph
A timeline for ui.perfetto.dev:
tailgraph trace -m random:tiny -o trace.json \"Where does the time go?\"
A timeline with each kernel:
tailgraph trace -m random:tiny --kernels -o trace.json \"Where does the time go?\"
The timeline of a run that was recorded:
tailgraph trace --from run.jsonl -o trace.json
Measurements and a timeline as one page:
tailgraph report decode.json trace.json -o report.html
A picture of the launch ways for a README:
tailgraph report decode.json --svg decode.svg
What this machine can do:
tailgraph doctor --device cuda
Whether a model fits here:
tailgraph doctor -m random:lfm2-8b-a1b
Whether it fits with 256 sequences of 8,192 tokens:
tailgraph doctor -m random:lfm2-8b-a1b --max-seqs 256 --max-context 8192
Completions for bash:
tailgraph completions bash > ~/.local/share/bash-completion/completions/tailgraph
Completions for fish:
tailgraph completions fish > ~/.config/fish/completions/tailgraph.fish
The manual page:
tailgraph man | man -l -
A command's page:
tailgraph man generate | man -l -";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_examples_that_it_takes() {
        for command in Cli::command().get_subcommands() {
            let name = command.get_name();
            assert!(
                examples(Some(name)).count() > 1,
                "{name} has too few examples"
            );
        }
        for (_, line) in examples(None) {
            let typed = line.split(['|', '>']).next().unwrap_or_default();
            let words = shlex::split(typed).unwrap();
            let parsed = Cli::command().try_get_matches_from(words);
            parsed.unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    #[test]
    fn rare_flags_are_flags_and_others_flags_are_none() {
        let command = command(true);
        let has = |flag: &str| {
            let mut commands = command.get_subcommands();
            commands.any(|command| {
                let mut names = command.get_arguments().flat_map(|arg| {
                    let others = arg.get_all_aliases().unwrap_or_default();
                    arg.get_long().into_iter().chain(others).collect::<Vec<_>>()
                });
                names.any(|name| name == flag)
            })
        };
        for flag in RARE {
            assert!(has(flag), "--{flag}");
        }
        for (names, instead) in MEANT {
            assert!(instead.len() <= 73, "80 columns have no room: {instead}");
            for name in names.iter().filter_map(|name| name.strip_prefix("--")) {
                assert!(!has(name), "--{name}");
            }
        }
    }
}
