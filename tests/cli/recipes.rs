//! The recipes in profiles/ over an nsys and an ncu that note what they are told and leave small reports.

use crate::common::program::{Ended, end, recipe};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use tempfile::TempDir;

/// Leaves the report asked for; of it, `stats` makes a database with three launches of two graphs.
const NSYS: &str = r#"#!/bin/sh
case $1 in
  profile)
    for word; do
      case $word in --output=*) echo made >"${word#--output=}.nsys-rep" ;; esac
    done
    printf '%s ' "$@" >>"$TOLD"; echo >>"$TOLD" ;;
  stats)
    for word; do report=$word; done
    echo "stats: $*"
    rm -f "${report%.nsys-rep}.sqlite"
    python3 - "${report%.nsys-rep}.sqlite" <<'END'
import sqlite3, sys
base = sqlite3.connect(sys.argv[1])
base.execute('CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INT, "end" INT, graphId INT, deviceId INT)')
rows = [(0, 2000000, 7, 0), (0, 4000000, 7, 0), (0, 1000, 9, 1)]
base.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (?, ?, ?, ?)", rows)
base.execute("CREATE TABLE NVTX_EVENTS (start INT, globalTid INT, text TEXT, textId INT)")
base.execute("CREATE TABLE StringIds (id INT, value TEXT)")
if "stages" in sys.argv[1]:
    base.executemany("INSERT INTO NVTX_EVENTS VALUES (0, 1, ?, ?)", [("load", None), (None, 3), (None, 4)])
    base.executemany("INSERT INTO StringIds VALUES (?, ?)", [(3, "launch stage 0 on cuda:0"), (4, "stage 1 on cuda:1")])
# Two threads capture a node each at a time; nodes 20 and 21 are copies of 10 and 11, and node 30 of 20.
base.execute("CREATE TABLE CUDA_GRAPH_NODE_EVENTS (start INT, globalTid INT, graphNodeId INT, originalGraphNodeId INT)")
base.execute('CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, "end" INT, graphNodeId INT)')
marks = [(100, 1, "node of stage 0 decode 8: embed", None), (102, 2, None, 5), (104, 1, "node of a later one", None)]
base.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?)", marks)
base.execute("INSERT INTO StringIds VALUES (5, 'node of stage 0 decode 16: layer 3 attention')")
made = [(103, 1, 10, None), (103, 2, 11, None), (110, 1, 20, 10), (110, 2, 21, 11), (120, 1, 30, 20)]
base.executemany("INSERT INTO CUDA_GRAPH_NODE_EVENTS VALUES (?, ?, ?, ?)", made)
runs = [(0, 1000, 30), (0, 3000, 30), (0, 9000, 21), (0, 500, 99), (0, 70000, None)]
base.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?)", runs)
base.commit()
END
    ;;
esac
"#;

const NCU: &str = r#"#!/bin/sh
if [ "$1" = --import ]; then
  echo '"ID","Kernel Name","gpu__time_duration.sum","dram__bytes_read.sum","launch__grid_size"'
  echo '"","","nsecond","byte",""'
  echo '"0","tg_embed_bf16(void)","1,500","2000000","8"'
  exit
fi
printf '%s ' "$@" >>"$TOLD"; echo >>"$TOLD"
while [ "$1" != --export ]; do shift; done
echo made >"$2.ncu-rep"
"#;

struct Recipe {
    folder: TempDir,
}

impl Recipe {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, script) in [("nsys", NSYS), ("ncu", NCU)] {
            let file = folder.path().join(name);
            fs::write(&file, script).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, script: &str, settings: &[(&str, &str)]) -> Ended {
        let paths = std::env::var("PATH").unwrap();
        let mut command = recipe(script, &self.path("out"));
        command
            .env("PATH", format!("{}:{paths}", self.folder.path().display()))
            .env("TOLD", self.path("told"))
            .env("SYSTEM_WIDE", "0")
            .envs(settings.iter().copied());
        end(&mut command, "")
    }

    /// What the tool was told, a line for each time.
    fn told(&self) -> Vec<String> {
        let told = fs::read_to_string(self.path("told")).unwrap();
        told.lines().map(str::to_owned).collect()
    }
}

#[test]
fn systems_records_each_way() {
    let recipe = Recipe::new();
    let ended = recipe.run("systems.sh", &[("PROMPTS", "3"), ("TOKENS", "5")]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let told = recipe.told();
    let ways = ["host-kernels", "host-graph", "device-graph"];
    assert_eq!(told.len(), ways.len(), "{told:?}");
    for (told, way) in told.iter().zip(ways) {
        for part in [
            "--cuda-graph-trace=graph:host-and-device",
            "--nvtx-capture=load@tailgraph",
            &format!("generate --model random:tiny --device cuda --dtype bf16 --launch {way} "),
            "--max-seqs 3 --max-new-tokens 5 ",
        ] {
            assert!(told.contains(part), "{told} lacks {part}");
        }
        let text = fs::read_to_string(recipe.path(&format!("out/systems-{way}.txt"))).unwrap();
        for part in [
            &format!("--launch {way}: 3 prompts"),
            "--report nvtx_sum,cuda_gpu_kern_sum,cuda_api_sum",
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE: 3 launches",
        ] {
            assert!(text.contains(part), "{text} lacks {part}");
        }
        let line: Vec<&str> = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .find(|words| words.first() == Some(&"7"))
            .unwrap();
        assert_eq!(line, ["7", "2", "3000.00", "2000.00", "4000.00", "6.00"]);
    }
    let rows = fs::read_to_string(recipe.path("out/prompts.jsonl")).unwrap();
    assert_eq!(rows.lines().count(), 3);
}

/// Copies of a captured node are named by the mark of the thread that captured it.
#[test]
fn systems_names_kernels_in_graphs_by_layer() {
    let recipe = Recipe::new();
    let settings = [("NODES", "1"), ("WAYS", "host-graph"), ("PROMPTS", "2")];
    let ended = recipe.run("systems.sh", &settings);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let told = recipe.told();
    for part in [
        "--cuda-graph-trace=node ",
        "--env-var=TAILGRAPH_NAME_NODES=1 ",
    ] {
        assert!(told[0].contains(part), "{told:?}");
    }
    let text = fs::read_to_string(recipe.path("out/systems-host-graph.txt")).unwrap();
    let last: Vec<String> = text
        .lines()
        .rev()
        .take(3)
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(
        last,
        [
            "not named 1 0.50 0.00",
            "stage 0 decode 8: embed 2 2.00 0.00",
            "stage 0 decode 16: layer 3 attention 1 9.00 0.01",
        ]
    );
}

/// Each graph is shown with the stage, and the GPU, that ran it.
#[test]
fn systems_names_the_stages_of_several_gpus() {
    let recipe = Recipe::new();
    let settings = [
        ("DEVICES", "cuda:0,1"),
        ("WAYS", "device-graph"),
        ("PROMPTS", "2"),
    ];
    let ended = recipe.run("systems.sh", &settings);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let told = recipe.told();
    assert!(
        told[0].contains("--device cuda:0,1 --parallel stages --dtype bf16 "),
        "{told:?}"
    );
    let text = fs::read_to_string(recipe.path("out/systems-stages-device-graph.txt")).unwrap();
    for (graph, stage) in [("7", "stage 0 on cuda:0"), ("9", "stage 1 on cuda:1")] {
        let line = text
            .lines()
            .find(|line| line.trim_start().starts_with(graph));
        assert!(line.is_some_and(|line| line.ends_with(stage)), "{text}");
    }
}

/// Engines on the host in the place of GPUs.
#[test]
fn gpus_holds_several_devices_against_one() {
    let recipe = Recipe::new();
    let settings = [
        ("DEVICES", "cpu:0,1"),
        ("DTYPE", "f32"),
        ("DTYPES", "f32"),
        ("PROMPTS", "40"),
        ("FEW_PROMPTS", "20"),
        ("SEQUENCES", "2"),
        ("TOKENS", "8"),
        ("ROWS", "12"),
        ("STOPPED_ROWS", "48"),
        ("STOPPED_TOKENS", "100"),
        ("STOPPED_SECONDS", "1"),
        ("REPEATS", "1"),
    ];
    let ended = recipe.run("gpus.sh", &settings);
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    let read = |name: &str| fs::read_to_string(recipe.path(name)).unwrap();
    let bits = read("out/gpus-bits.txt");
    assert!(bits.contains("VALID"), "{bits}");
    assert_eq!(bits.matches(" requests: equal\n").count(), 3, "{bits}");
    let stopped = read("out/gpus-stopped.txt");
    assert_eq!(
        stopped.matches(" requests: equal\n").count(),
        3,
        "{stopped}"
    );
    assert_eq!(
        stopped.matches("... its host stopped for 1 s: ").count(),
        2,
        "{stopped}"
    );
    let table = read("out/gpus.txt");
    let cells: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let told: Vec<_> = cells[1..]
        .iter()
        .map(|row| (row[0], row[row.len() - 4], row[row.len() - 3]))
        .collect();
    assert_eq!(
        told,
        [
            ("score", "1", "40"),
            ("score", "1", "20"),
            ("score", "2-replicas", "40"),
            ("score", "2-replicas", "20"),
            ("score", "2-stages", "40"),
            ("score", "2-stages", "20"),
            ("serve", "1", "2"),
            ("serve", "1", "4"),
            ("serve", "2-replicas", "4"),
            ("serve", "2-stages", "4"),
            ("serve", "1", "1"),
            ("serve", "2-replicas", "1"),
            ("serve", "2-stages", "1")
        ]
    );
    for row in &cells[1..] {
        let ratio: f64 = row[row.len() - 1].parse().unwrap();
        assert!(
            ratio > 0.0 && (row[row.len() - 4] != "1" || ratio == 1.0),
            "{table}"
        );
    }
    let refused = recipe.run("gpus.sh", &[("DEVICES", "cpu:0")]);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
}

#[test]
fn compute_makes_a_table_of_kernels() {
    let recipe = Recipe::new();
    let ended = recipe.run("compute.sh", &[("BUCKET", "4"), ("KERNEL", "tg_embed.*")]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let told = recipe.told();
    assert_eq!(told.len(), 2, "{told:?}");
    for (told, way) in told.iter().zip(["host-kernels", "host-graph"]) {
        for part in [
            "--nvtx-include tailgraph@stage 0 decode 4/ ",
            "--kernel-name regex:tg_embed.* ",
            &format!("--launch {way} --max-seqs 4 "),
        ] {
            assert!(told.contains(part), "{told} lacks {part}");
        }
        let text = fs::read_to_string(recipe.path(&format!("out/compute-{way}.txt"))).unwrap();
        let last: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(last, ["tg_embed_bf16", "1.50", "2", "8"], "{text}");
    }
    let refused = recipe.run("compute.sh", &[("KIND", "score")]);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert!(refused.stderr.contains("expected decode or mixed"));
}

#[test]
fn mixed_steps_are_of_one_long_prompt() {
    let recipe = Recipe::new();
    let settings = [("KIND", "mixed"), ("BUCKET", "512"), ("WAYS", "host-graph")];
    let ended = recipe.run("compute.sh", &settings);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let told = recipe.told();
    assert!(told[0].contains("tailgraph@stage 0 mixed 512/"), "{told:?}");
    assert!(told[0].contains("--step-tokens 512"), "{told:?}");
    let rows = fs::read_to_string(recipe.path("out/compute.jsonl")).unwrap();
    assert_eq!(rows.lines().count(), 1);
    // More than the half of a bucket, so that no smaller one holds it, and less than all of it.
    assert!((257..512).contains(&(rows.matches("row ").count() * 4)));
}
