//! The options of both tools, as of their releases 2025.3.

use crate::cli::args::profile::{ComputeArgs, ProfileArgs, Range, SystemsArgs, Tool};
use crate::telemetry::nvtx::DOMAIN;
use std::path::Path;

/// What the tool is told, up to the program it starts.
pub fn words(args: &ProfileArgs, output: &Path) -> Vec<String> {
    match args.tool {
        Tool::Systems => systems(&args.systems, output),
        Tool::Compute => compute(&args.compute, output),
    }
}

fn systems(args: &SystemsArgs, output: &Path) -> Vec<String> {
    let mut words = vec!["profile".to_owned(), "--trace=cuda,nvtx,osrt".to_owned()];
    // Graphs that the device launches are traced as wholes only.
    words.push(match args.nodes {
        true => "--cuda-graph-trace=node".into(),
        false => "--cuda-graph-trace=graph:host-and-device".into(),
    });
    if args.system_wide {
        words.push("--sample=system-wide".into());
        words.push("--cpuctxsw=system-wide".into());
    }
    // Ranges begin a recording only under registered names, which all of ours are; NSYS_NVTX_PROFILER_REGISTER_ONLY may
    // stay as it is.
    let (from, end) = match args.range {
        Range::Run => (Some("load"), "none"),
        Range::Serve => (Some("serve"), "stop"),
        Range::All => (None, "none"),
    };
    if let Some(from) = from {
        words.push("--capture-range=nvtx".into());
        words.push(format!("--nvtx-capture={from}@{DOMAIN}"));
        words.push(format!("--capture-range-end={end}"));
        // The end of the recording is not the program's.
        words.push("--kill=none".into());
    }
    words.push("--force-overwrite=true".into());
    words.push(format!("--output={}", output.display()));
    words
}

fn compute(args: &ComputeArgs, output: &Path) -> Vec<String> {
    let mut words: Vec<String> = [
        "--nvtx",
        "--nvtx-include",
        &range(args),
        "--graph-profiling",
        "node",
        // The clocks are the machine's business; a kernel alone on a GPU is timed as it would run.
        "--clock-control",
        "none",
        "--set",
        &args.set,
        "--launch-skip",
        &args.skip.to_string(),
        "--launch-count",
        &args.launches.to_string(),
    ]
    .map(str::to_owned)
    .to_vec();
    if let Some(kernel) = &args.kernel {
        words.push("--kernel-name".into());
        words.push(format!("regex:{kernel}"));
    }
    words.push("--force-overwrite".into());
    words.push("--export".into());
    words.push(output.display().to_string());
    words
}

/// The step's range as a filter takes it: `domain@range/`, the slash for ranges that a thread pushes and pops.
fn range(args: &ComputeArgs) -> String {
    let ComputeArgs {
        stage,
        kind,
        bucket,
        ..
    } = args;
    format!("{DOMAIN}@stage {stage} {} {bucket}/", kind.name())
}

/// The command line that prints the report as text.
pub(super) fn summary(tool: Tool, program: &Path, report: &Path) -> String {
    let (program, report) = (program.display().to_string(), report.display().to_string());
    let words: &[&str] = match tool {
        Tool::Systems => &[
            &program,
            "stats",
            "--report",
            "nvtx_sum,cuda_gpu_kern_sum,cuda_api_sum",
            &report,
        ],
        Tool::Compute => &[&program, "--import", &report, "--page", "details"],
    };
    quoted(words)
}

/// Words as a shell reads them.
pub fn quoted<S: AsRef<str>>(words: &[S]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_@%+=:,./-".contains(c);
    let quote = |word: &str| match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    };
    let words: Vec<String> = words.iter().map(|word| quote(word.as_ref())).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::StepKind;

    #[test]
    fn words_survive_a_shell() {
        assert_eq!(
            quoted(&["a-b", "two words", "it's", "", "$x"]),
            r"a-b 'two words' 'it'\''s' '' '$x'"
        );
    }

    /// The names are those that [`crate::telemetry::nvtx::names`] and `program::step_name` register.
    #[test]
    fn steps_are_found_by_their_ranges() {
        let args = ComputeArgs {
            stage: 2,
            kind: StepKind::Mixed,
            bucket: 512,
            kernel: None,
            launches: 1,
            skip: 0,
            set: "full".into(),
        };
        assert_eq!(range(&args), "tailgraph@stage 2 mixed 512/");
    }
}
