//! What `inspect` prints, through its clap definition.

use crate::support::{BF16, lfm2_8b_a1b, plan};
use clap::Parser;
use serde_json::Value;
use tailgraph::Error;
use tailgraph::cli::args::InspectArgs;
use tailgraph::plan::{OpKind, Plan};

#[derive(Parser)]
struct Inspect {
    #[command(flatten)]
    args: InspectArgs,
}

fn inspect(plan: &Plan, flags: &str) -> Result<String, Error> {
    let words = ["inspect", "--model", "random:tiny"].into_iter();
    let words = words.chain(flags.split_whitespace());
    let Inspect { args } = Inspect::try_parse_from(words).unwrap();
    Ok(String::from_utf8(args.show(plan, BF16, None)?).unwrap())
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
            "--kind mixed --context 1024",
            "--kind score --gpu a100",
            "--tokens 1,2,4,8,16,32,64,128",
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

/// By hand: 8B's in-projection is 2 x 6144 x 2048 FLOPs a row over 2 x 6144 x 2048 bytes, so its intensity is the rows while
/// activations stay in the L2 cache.
#[test]
fn the_table_has_the_known_figures() {
    let plan = plan(lfm2_8b_a1b(), 1);
    let text = inspect(&plan, "--tokens 256").unwrap();
    for part in [
        "8.340 G parameters, 16.68 GB of weights in bf16",
        "12.0 KiB of keys and values a token",
        "144.0 KiB of convolution state",
        "H200",
        "ridge at 174 FLOP/B",
        "32 x 1792 x 2048",
    ] {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
    let row = |name: &str| -> Vec<String> {
        let line = text
            .lines()
            .find(|line| line.trim_start().starts_with(name));
        line.unwrap().split_whitespace().map(String::from).collect()
    };
    let expected = "conv_in_proj x18 6144 x 2048 453.0 MB 115.964 G 256.0 147.1% compute";
    let found = row("conv_in_proj");
    let expected: Vec<&str> = expected.split(' ').collect();
    assert_eq!(found[..7], expected[..7]);
    assert_eq!(found[9..12], expected[9..]);
    assert_eq!(row("attention")[1], "x6");
    assert_eq!(row("dense_down")[1], "x2");
    let one = inspect(&plan, "--tokens 1").unwrap();
    let heading = "decode step of 1 token (bucket 1): 3.115 GB of weights, ";
    assert!(one.contains(heading), "{one}");
}

#[test]
fn operations_stand_on_their_side_of_the_ridge() {
    let plan = plan(lfm2_8b_a1b(), 1);
    let document = inspect_json(&plan, "--tokens 1,8,32,128,256,1024 --gpu h200");
    assert_eq!(document["gpu"]["ridge"].as_f64().unwrap().round(), 174.0);
    let operations = document["stages"][0]["operations"].as_array().unwrap();
    let named = |name: &str| {
        operations
            .iter()
            .find(|op| op["operation"] == name)
            .unwrap()
    };
    for cost in named("conv_in_proj")["costs"].as_array().unwrap() {
        let rows = cost["rows"].as_f64().unwrap();
        assert_eq!(cost["intensity"].as_f64().unwrap(), rows);
        let bound = if rows < 174.0 { "memory" } else { "compute" };
        assert_eq!(cost["bound"], bound, "{rows}");
    }
    let none = named("sample")["costs"][0]["intensity"].is_null();
    assert!(none, "logits stay in the L2 cache");
}

#[test]
fn json_adds_up() {
    let two = plan(lfm2_8b_a1b(), 2);
    let document = inspect_json(&two, "--tokens 1,32");
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
}

#[test]
fn dot_is_one_chain() {
    let text = inspect(&plan(lfm2_8b_a1b(), 2), "--format dot").unwrap();
    assert!(text.starts_with("digraph plan {\n") && text.ends_with("}\n"));
    assert_eq!(text.matches("subgraph").count(), 2);
    // 24 layers, embed, final_norm, lm_head, sample.
    assert_eq!(text.matches("[label=").count(), 28);
    assert_eq!(text.matches(" -> ").count(), 27);
    for part in ["layer 1: convolution, dense", "layer 2: attention, experts"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn rows_are_checked() {
    let plan = plan(lfm2_8b_a1b(), 1);
    let error = inspect(&plan, "--tokens 1,1025").unwrap_err();
    assert_eq!(error.exit_code(), 2);
    let message = error.to_string();
    assert!(
        message.contains("--tokens 1025") && message.contains("1024"),
        "{message}"
    );
    for flags in [
        "--tokens 0",
        "--gpu gtx",
        "--kind prefill",
        "--context 0",
        "--tokens x",
    ] {
        let words = ["inspect", "--model", "random:tiny"].into_iter();
        let words = words.chain(flags.split_whitespace());
        assert!(Inspect::try_parse_from(words).is_err(), "{flags}");
    }
}
