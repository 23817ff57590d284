//! Kubernetes: the manifest is one, by the schemas of a Kubernetes that is told, and runs the command that it says.

use crate::common::program::{end, run};
use crate::common::python::jobs_interpreter;
use crate::{Job, MODEL, script};
use std::process::Command;

/// Reads a manifest and prints its container's command as JSON.
const COMMAND: &str = "import json, sys, yaml
spec = yaml.safe_load(open(sys.argv[1]))['spec']
container = spec['template']['spec']['containers'][0]
print(json.dumps([spec['completions'], container['command']]))";

#[test]
fn the_manifest_is_one_and_its_command_runs() {
    let Some(python) = jobs_interpreter("Kubernetes") else {
        return;
    };
    let manifest = script("kubernetes.yaml");
    let check = |path: &std::path::Path| {
        let mut check = Command::new(python.with_file_name("kubernetes-validate"));
        end(check.args(["--strict", "-k", "1.33"]).arg(path), "")
    };
    check(&manifest).good();
    let text = std::fs::read_to_string(&manifest).unwrap();
    let job = Job::new(2);
    for (right, wrong) in [
        ("completions: 8", "completions: eight"),
        ("backoffLimitPerIndex", "backoffLimitPerIndices"),
    ] {
        let path = job.at("wrong.yaml");
        std::fs::write(&path, text.replace(right, wrong)).unwrap();
        assert_ne!(check(&path).code, 0, "{wrong}");
    }

    // What Kubernetes would run as index 1, with this model and these rows.
    let said = end(
        Command::new(&python).args(["-c", COMMAND]).arg(&manifest),
        "",
    )
    .good();
    let (completions, words): (u32, Vec<String>) = serde_json::from_str(&said).unwrap();
    assert_eq!(words[0], "tailgraph");
    let folder = job.dir.path().to_str().unwrap();
    let words: Vec<String> = words[1..]
        .iter()
        .map(|word| {
            let word = word.replace("$(JOB_COMPLETION_INDEX)", "1");
            let word = word.replace("$(SHARDS)", &completions.to_string());
            word.replace("LiquidAI/LFM2-8B-A1B", MODEL)
                .replace("/jobs", folder)
        })
        .collect();
    run(&words.iter().map(String::as_str).collect::<Vec<_>>()).good();
    assert_eq!(
        std::fs::read_to_string(job.shard(1))
            .unwrap()
            .lines()
            .count(),
        1
    );
}
