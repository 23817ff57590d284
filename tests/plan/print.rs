//! What `inspect` and `doctor` print, through their clap definitions.

use crate::support::{BF16, F32, lfm2_8b_a1b, plan};
use clap::Parser;
use serde_json::Value;
use tailgraph::Error;
use tailgraph::cli::args::{DoctorArgs, InspectArgs};
use tailgraph::cli::doctor::{Asked, Subject};
use tailgraph::cli::inspect::document::Known;
use tailgraph::plan::{Budget, Limits, MemoryPlan, OpKind, Plan, WeightPlacement};

#[derive(Parser)]
struct Inspect {
    #[command(flatten)]
    args: InspectArgs,
}

#[derive(Parser)]
struct Doctor {
    #[command(flatten)]
    args: DoctorArgs,
}

fn inspect(plan: &Plan, flags: &str) -> Result<String, Error> {
    let words = std::iter::once("inspect").chain(flags.split_whitespace());
    let Inspect { args } = Inspect::try_parse_from(words).unwrap();
    let mut out = Vec::new();
    args.run(plan, BF16, Known::default(), &mut out)?;
    Ok(String::from_utf8(out).unwrap())
}

fn inspect_json(plan: &Plan, flags: &str) -> Value {
    serde_json::from_str(&inspect(plan, &format!("{flags} --format json")).unwrap()).unwrap()
}

#[test]
fn tables_fit_120_columns_and_name_every_operation() {
    for stages in [1, 3] {
        let plan = plan(lfm2_8b_a1b(), stages);
        for flags in [
            "",
            "--layers",
            "--kind mixed --context 1024",
            "--kind score --gpu a100",
            "--rows 1,2,4,8,16,32,64,128",
            "--roofline",
        ] {
            let text = inspect(&plan, flags).unwrap();
            for line in text.lines() {
                assert!(line.chars().count() <= 120, "{flags}: {line}");
            }
            for kind in OpKind::ALL {
                assert!(text.contains(kind.name()), "{flags}: no {}", kind.name());
            }
        }
    }
}

#[test]
fn the_table_has_the_known_figures() {
    let text = inspect(&plan(lfm2_8b_a1b(), 1), "").unwrap();
    for part in [
        "8.340 G parameters, 16.68 GB of weights in bf16",
        "12.0 KiB of keys and values a token",
        "144.0 KiB of convolution state",
        "6144 x 2048",
        "32 x 1792 x 2048",
        "H200",
    ] {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
    let row = |name: &str| -> Vec<String> {
        let line = text
            .lines()
            .find(|line| line.trim_start().starts_with(name));
        line.unwrap().split_whitespace().map(String::from).collect()
    };
    assert_eq!(row("short_conv")[1], "x18");
    assert_eq!(row("attention")[1], "x6");
    assert_eq!(row("dense_down")[1], "x2");
    assert_eq!(row("weights read")[2..4], ["3.115", "GB"]);
}

/// By hand: 8B's in-projection is 2 x 6144 x 2048 FLOPs a row over 2 x 6144 x 2048 bytes, so its intensity is the rows while
/// activations stay in the L2 cache.
#[test]
fn operations_stand_on_their_side_of_the_ridge() {
    let plan = plan(lfm2_8b_a1b(), 1);
    let document = inspect_json(&plan, "--roofline --gpu h200");
    assert_eq!(document["gpu"]["ridge"].as_f64().unwrap().round(), 174.0);
    let operations = document["stages"][0]["operations"].as_array().unwrap();
    let named = |name: &str| {
        operations
            .iter()
            .find(|op| op["operation"] == name)
            .unwrap()
    };
    let costs = named("conv_in_proj")["costs"].as_array().unwrap();
    assert_eq!(costs.len(), plan.ladders.decode.len(), "every bucket");
    for cost in costs {
        let rows = cost["rows"].as_f64().unwrap();
        assert_eq!(cost["intensity"].as_f64().unwrap(), rows);
        let bound = if rows < 174.0 { "memory" } else { "compute" };
        assert_eq!(cost["bound"], bound, "{rows}");
    }
    let none = named("sample")["costs"][0]["intensity"].is_null();
    assert!(none, "logits stay in the L2 cache");
    let text = inspect(&plan, "--roofline --rows 256").unwrap();
    let line = text.lines().find(|line| line.contains("conv_in_proj"));
    let words: Vec<&str> = line.unwrap().split_whitespace().collect();
    assert_eq!(words[1..4], ["x18", "453.0", "MB"]);
    assert_eq!(words[6..9], ["256.0", "147.1%", "compute"]);
}

#[test]
fn json_adds_up() {
    let two = plan(lfm2_8b_a1b(), 2);
    let document = inspect_json(&two, "--rows 1,32");
    assert_eq!(document["model"]["kv_bytes_per_token"], 12288);
    assert_eq!(document["gpu"]["name"], "h200");
    assert_eq!(document["buckets"]["score"][3], 4096);
    for (index, rows) in [1, 32].into_iter().enumerate() {
        let total = &document["totals"][index];
        assert_eq!(total["rows"], rows);
        assert_eq!(total["bucket"], rows);
        for field in [
            "weight_bytes",
            "cache_bytes",
            "activation_bytes",
            "flops",
            "roofline_us",
        ] {
            let sum = |values: Vec<&Value>| -> f64 {
                values.iter().map(|v| v[field].as_f64().unwrap()).sum()
            };
            let stages = document["stages"].as_array().unwrap();
            let by_stage = sum(stages.iter().map(|s| &s["totals"][index]).collect());
            let by_operation = sum(stages
                .iter()
                .flat_map(|s| s["operations"].as_array().unwrap())
                .map(|o| &o["costs"][index])
                .collect());
            let whole = total[field].as_f64().unwrap();
            // Each figure is rounded by itself.
            assert!(
                (by_stage - whole).abs() <= 2.0,
                "{field}: {by_stage} {whole}"
            );
            assert!(
                (by_operation - whole).abs() <= 40.0,
                "{field}: {by_operation} {whole}"
            );
        }
    }
    // Layer by layer it is the same work.
    let layers = inspect_json(&two, "--rows 1,32 --layers");
    assert_eq!(layers["totals"], document["totals"]);
    let operations: usize = layers["stages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s["operations"].as_array().unwrap().len())
        .sum();
    assert_eq!(
        operations,
        two.stages.iter().map(|s| s.ops.len()).sum::<usize>()
    );
}

#[test]
fn dot_is_one_chain() {
    let text = inspect(&plan(lfm2_8b_a1b(), 2), "--format dot --layers").unwrap();
    assert!(text.starts_with("digraph plan {\n") && text.ends_with("}\n"));
    assert_eq!(text.matches("subgraph").count(), 2);
    // 24 layers, embed, final_norm, lm_head, sample.
    assert_eq!(text.matches("[label=").count(), 28);
    assert_eq!(text.matches(" -> ").count(), 27);
    let collapsed = inspect(&plan(lfm2_8b_a1b(), 1), "--format dot").unwrap();
    assert!(
        collapsed.contains("layers 3 to 5: convolution, experts"),
        "{collapsed}"
    );
    assert!(collapsed.contains("layers 0 to 1: convolution, dense"));
}

#[test]
fn rows_are_checked() {
    let plan = plan(lfm2_8b_a1b(), 1);
    let error = inspect(&plan, "--rows 1,1025").unwrap_err();
    assert_eq!(error.exit_code(), 2);
    let message = error.to_string();
    assert!(
        message.contains("--rows 1025") && message.contains("1024"),
        "{message}"
    );
    for flags in [
        "--rows 0",
        "--gpu gtx",
        "--kind prefill",
        "--context 0",
        "--rows x",
    ] {
        let words = std::iter::once("inspect").chain(flags.split_whitespace());
        assert!(Inspect::try_parse_from(words).is_err(), "{flags}");
    }
}

fn doctor(flags: &str, subject: Option<&Subject>) -> (bool, String) {
    let words = std::iter::once("doctor").chain(flags.split_whitespace());
    let Doctor { args } = Doctor::try_parse_from(words).unwrap();
    let mut out = Vec::new();
    let healthy = args.run(&Asked::default(), subject, &mut out).unwrap();
    (healthy, String::from_utf8(out).unwrap())
}

fn subject(limits: Limits, bytes: u64) -> Subject {
    Subject {
        name: "random:lfm2-8b-a1b".into(),
        memory: MemoryPlan::new(
            &plan(lfm2_8b_a1b(), 1),
            F32,
            WeightPlacement::Mapped,
            &limits,
            Budget::new(Some(bytes)),
        ),
    }
}

#[test]
fn doctor_looks_at_machine_and_build() {
    let (healthy, text) = doctor("", None);
    assert!(healthy, "{text}");
    for name in ["cores", "memory", "build", "gpu"] {
        assert!(
            text.lines()
                .any(|l| l.split_whitespace().nth(1) == Some(name)),
            "{text}"
        );
    }
    let (_, json) = doctor("--format json", None);
    let document: Value = serde_json::from_str(&json).unwrap();
    for check in document["checks"].as_array().unwrap() {
        assert_eq!(
            check["status"] == "ok",
            check["advice"].is_null(),
            "{check}"
        );
    }
    assert!(document.get("memory").is_none());
}

#[test]
fn doctor_shows_the_arithmetic() {
    let fits = subject(Limits::default(), 8 << 30);
    let (healthy, text) = doctor("", Some(&fits));
    assert!(healthy, "{text}");
    for part in [
        "1024 pages of 64 tokens",
        "1.5 GiB",
        "budget",
        "8.0 GiB",
        "not in it",
    ] {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
    let (_, json) = doctor("--format json", Some(&fits));
    let document: Value = serde_json::from_str(&json).unwrap();
    let memory = &document["memory"];
    let sum: u64 = memory["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|item| item["in_budget"] == true)
        .map(|item| item["bytes"].as_u64().unwrap())
        .sum();
    assert_eq!(memory["total_bytes"], sum);
    assert_eq!(memory["options"]["pages"], 1024);
}

#[test]
fn doctor_names_problems() {
    for (limits, bytes, part) in [
        (Limits::default(), 1 << 20, "not enough memory"),
        (
            Limits {
                max_seqs: Some(9999),
                ..Limits::default()
            },
            8 << 30,
            "--max-seqs 9999",
        ),
    ] {
        let (healthy, text) = doctor("", Some(&subject(limits, bytes)));
        assert!(!healthy, "{text}");
        assert!(
            text.contains(part) && text.contains("\nproblem  model"),
            "{text}"
        );
    }
    // A pool that holds fewer sequences than there are slots is worth a word, no more.
    let (healthy, text) = doctor("", Some(&subject(Limits::default(), 1 << 30)));
    assert!(healthy, "{text}");
    assert!(text.contains("pages of 64 tokens hold"), "{text}");
}

#[test]
fn the_plan_has_a_graph_for_each_stage_kind_and_bucket() {
    let plan = plan(lfm2_8b_a1b(), 2);
    let json = inspect_json(&plan, "");
    let graphs = json["graphs"].as_array().unwrap();
    let ladders =
        ["decode", "mixed", "score"].map(|kind| json["buckets"][kind].as_array().unwrap().len());
    assert_eq!(graphs.len(), 2 * ladders.iter().sum::<usize>());
    assert!(graphs.iter().all(|graph| graph["captured"].is_null()));
    // The first of the totals is of one row, as the first bucket is.
    let of_both: f64 = graphs
        .iter()
        .filter(|graph| graph["kind"] == "decode" && graph["bucket"] == 1)
        .map(|graph| graph["roofline_us"].as_f64().unwrap())
        .sum();
    let total = json["totals"][0]["roofline_us"].as_f64().unwrap();
    assert!((of_both - total).abs() < 1e-6 * total, "{of_both} {total}");
    assert!(json["device"].is_null());
    let text = inspect(&plan, "").unwrap();
    assert!(
        text.contains("graphs, as the plan has them; --device cuda"),
        "{text}"
    );
}
