//! Which kernels the listed calls and the captured graphs are of.

use super::{count, graphs, inspect, json, text};
use crate::rig::Run;
use serde_json::Value;
use std::path::Path;
use tailgraph::backend::cuda::tuning::variants::{Architecture, Experts, Linear};
use tailgraph::backend::cuda::tuning::{GpuClass, KernelFile};
use tailgraph::model::DType;

/// The shapes of LFM2-24B-A2B, as a model.
fn of_64_experts(folder: &Path) -> String {
    let config = folder.join("config.json");
    let layers: Vec<&str> = (0..40)
        .map(|layer| {
            if layer % 4 == 2 {
                "full_attention"
            } else {
                "conv"
            }
        })
        .collect();
    let shapes = serde_json::json!({
        "model_type": "lfm2_moe", "vocab_size": 65536, "hidden_size": 2048, "num_hidden_layers": 40,
        "intermediate_size": 11776, "moe_intermediate_size": 1536, "num_attention_heads": 32,
        "num_key_value_heads": 8, "num_dense_layers": 2, "num_experts": 64, "num_experts_per_tok": 4,
        "max_position_embeddings": 128000, "layer_types": layers,
    });
    std::fs::write(&config, shapes.to_string()).unwrap();
    format!("random:{}", config.display())
}

#[test]
fn calls_are_listed_of_big_models_and_refused_with_a_gpu() {
    let folder = tempfile::tempdir().unwrap();
    let model = of_64_experts(folder.path());
    let listed = Run::new(&["inspect", "--model", &model, "--calls", "--tokens", "1,64"]).end();
    let shown = text(&listed);
    assert!(shown.starts_with("stage 0 decode 1: "), "{shown}");
    for words in [
        "decode 64: ",
        "tg_grouped_experts",
        "ffn_norm + router",
        "39  ",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let refused = inspect(&["--calls"]).end();
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("--gpu NAME"), "{}", refused.stderr);
}

/// Models of 64 experts have kernels of two words of bits; no others' names are among the calls.
#[test]
fn more_experts_have_kernels_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let model = of_64_experts(folder.path());
    let calls = ["inspect", "--model", &model, "--calls", "--tokens", "1,2"];
    let listed = Run::new(&calls).end();
    let shown = text(&listed);
    for name in [
        "tg_skinny_held_out_bf16_e64",
        "tg_skinny_out_bf16_e64",
        "tg_skinny_expert_gate_up_bf16_e64",
        "tg_skinny_experts_bf16_e64",
        "tg_skinny_down_bf16_e64",
    ] {
        assert!(shown.contains(name), "{name}: {shown}");
    }
    let few = ["inspect", "--model", "random:lfm2-8b-a1b", "--calls"];
    let listed = Run::new(&few).and(&["--tokens", "1,2"]).end();
    let shown = text(&listed);
    assert!(!shown.contains("_e64"));
}

/// Prompts of many tokens alone, and of those what has weights in 8 bits; where that cannot be it is refused.
#[test]
fn prompts_have_rows_in_8_bits_where_they_are_asked_for() {
    let calls = ["inspect", "--model", "random:lfm2-8b-a1b", "--calls"];
    let asked = ["--activations", "fp8"];
    let listed = |more: &[&str]| Run::new(&calls).and(&asked).and(more).end();
    let of = |kind: &str, rows: &str| {
        let shown = listed(&["--weights", "fp8", "--kind", kind, "--tokens", rows]);
        text(&shown).to_owned()
    };
    let many = of("mixed", "8192");
    for name in [
        "tg_e4m3_rows",
        "gate_up_e4m3_rows",
        "down_e4m3_rows",
        "tg_persistent_e4m3_rows_w256",
    ] {
        assert!(many.contains(name), "{name}: {many}");
    }
    assert!(!many.contains("tg_persistent_bf16_e4m3"), "{many}");
    for few in [of("mixed", "512"), of("decode", "256")] {
        assert!(!few.contains("e4m3_rows"), "{few}");
        assert!(few.contains("bf16_e4m3"), "{few}");
    }
    for (more, words) in [
        (
            &["--weights", "as-is"][..],
            "weights in bf16: expected --dtype bf16",
        ),
        (&["--weights", "fp8", "--dtype", "f32"], "with --dtype f32"),
        (
            &["--weights", "fp8", "--gpu", "a100"],
            "expected a GPU of compute capability 9.0",
        ),
    ] {
        let refused = listed(more);
        assert_eq!(refused.code, 2, "{more:?}");
        assert!(
            refused.stderr.contains(words),
            "{more:?}: {}",
            refused.stderr
        );
    }
}

/// A file that is named says which kernels are called, here as in a run.
#[test]
fn calls_are_those_of_the_kernel_file_that_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiled.toml");
    let tiled = "1024 = { products = \"tiled\", experts = \"tiled\" }";
    let text = format!("architecture = \"sm_90\"\n[decode.bf16]\n{tiled}\n");
    std::fs::write(&path, text).unwrap();
    let calls = [
        "inspect",
        "--model",
        "random:tiny",
        "--calls",
        "--tokens",
        "1",
    ];
    let listed = |more: &[&str]| Run::new(&calls).and(more).end().stdout;
    let named = listed(&["--kernel-file", path.to_str().unwrap()]);
    assert!(listed(&[]).contains("tg_skinny_"));
    assert!(
        !named.contains("tg_skinny_") && named.contains("tg_"),
        "{named}"
    );
}

/// What is built in for a 9.0 is what its graphs are made of: the few-row, dense, wide and other kernels that entries name,
/// and no others.
#[test]
fn graphs_are_of_the_kernels_that_the_file_names() {
    let file = KernelFile::built_in(Architecture::Sm90).unwrap();
    let gpu = GpuClass::parse("m132-b4800").unwrap();
    for (name, dtype) in [("bf16", DType::BF16), ("f32", DType::F32)] {
        let run = Run::new(&["inspect", "--model", "random:tiny", "--device", "cuda"]);
        let shown = json(run.and(&[
            "--max-seqs",
            "1024",
            "--launch",
            "host-graph",
            "--dtype",
            name,
        ]));
        assert_eq!(shown["device"]["kernel_variants"], file.name(gpu));
        assert_eq!(shown["device"]["entries"]["own_gpu"], true);
        assert_eq!(shown["device"]["entries"]["own_shape"], false);
        assert_eq!(shown["device"]["entries"]["shape"], "h2048-e32-f1792");
        let decode = graphs(&shown)
            .iter()
            .filter(|graph| graph["kind"] == "decode");
        let mut buckets = 0;
        for (graph, entry) in decode.zip(file.entries(dtype)) {
            buckets += 1;
            assert_eq!(count(&graph["bucket"]), u64::from(entry.rows));
            let (captured, variant) = (&graph["captured"], entry.variant);
            let of = &captured["variant"];
            assert_eq!(of["products"], variant.linear.to_string());
            assert_eq!(of["experts"], variant.experts.to_string());
            let kernels = captured["kernels"].as_array().unwrap();
            let has = |family: &str| {
                let mut names = kernels
                    .iter()
                    .map(|kernel| kernel["name"].as_str().unwrap());
                names.any(|name| name.starts_with(family))
            };
            let skinny = matches!(variant.linear, Linear::Skinny { .. });
            assert_eq!(has("tg_skinny_held_out_"), skinny, "{variant}");
            let split = skinny && dtype == DType::F32 && entry.rows <= 2;
            assert_eq!(has("tg_skinny_held_out_f32_bf16x3"), split, "{variant}");
            assert_eq!(has("tg_swap_ab_shared_"), variant.linear == Linear::SwapAb);
            assert_eq!(has("tg_skinny_down_"), variant.experts == Experts::Skinny);
            assert_eq!(has("tg_skinny_experts_"), variant.experts == Experts::Fused);
            let grouped = matches!(variant.experts, Experts::Grouped(_));
            assert_eq!(has("tg_grouped_experts_"), grouped, "{variant}");
            let tiled = variant.linear == Linear::Tiled || variant.experts == Experts::Tiled;
            assert_eq!(has("tg_tiled_"), tiled, "{variant}");
        }
        assert_eq!(buckets, if dtype == DType::F32 { 9 } else { 10 });
        let grouped = "grouped (tiles of 128, 6 stages, guess, 16 MiB prefetched)";
        for (rows, of_halves) in [(512, grouped), (2048, "persistent")] {
            let many = |graph: &&Value| graph["kind"] == "mixed" && graph["bucket"] == rows;
            let mixed = graphs(&shown).iter().find(many);
            let variant = &mixed.unwrap()["captured"]["variant"];
            assert_eq!(variant["products"], "persistent");
            let experts = if dtype == DType::F32 {
                "persistent"
            } else {
                of_halves
            };
            assert_eq!(variant["experts"], experts, "{rows} rows");
        }
    }
}

/// Other GPUs run by files of their own.
#[test]
fn older_and_newer_gpus_have_kernels_of_their_own() {
    for (capability, few_rows) in [("8.6", 0), ("10.0", 8)] {
        let run = Run::new(&["inspect", "--model", "random:tiny", "--device", "cuda"]);
        let run = run.and(&["--max-seqs", "32", "--launch", "host-graph"]);
        let shown = json(run.with("CAPABILITY", capability));
        let decode = graphs(&shown)
            .iter()
            .filter(|graph| graph["kind"] == "decode");
        assert_eq!(decode.clone().count(), 6, "1 to 32 rows");
        for graph in decode {
            let variant = &graph["captured"]["variant"];
            let expected = if count(&graph["bucket"]) <= few_rows {
                ("skinny (4 stages)", "skinny")
            } else {
                ("tiled", "tiled")
            };
            let found = (variant["products"].as_str(), variant["experts"].as_str());
            assert_eq!(
                found,
                (Some(expected.0), Some(expected.1)),
                "{capability}: {graph}"
            );
        }
    }
}

/// Products for few rows with experts of the others, and the other way round: what is not few's norms and routes by itself.
#[test]
fn products_and_experts_may_be_of_different_families() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mixed.toml");
    let grouped = "experts = \"grouped\", tile_rows = 8, grouped_stages = 6, guess = false";
    let text = format!(
        "architecture = \"sm_90\"\n[decode.bf16]\n1 = {{ products = \"skinny\", skinny_stages = 3, {grouped} }}\n\
         2 = {{ products = \"tiled\", {grouped} }}\n"
    );
    std::fs::write(&path, text).unwrap();
    let shown =
        json(inspect(&["--launch", "host-graph"]).and(&["--kernel-file", path.to_str().unwrap()]));
    let nodes = |rows: u64, name: &str| {
        let wanted = |graph: &&Value| graph["kind"] == "decode" && graph["bucket"] == rows;
        let graph = graphs(&shown).iter().find(wanted).unwrap();
        let operations = graph["captured"]["operations"].as_array().unwrap().iter();
        let of_it = operations.filter(|operation| operation["operation"] == name);
        let nodes = of_it.map(|operation| operation["nodes"].as_array().unwrap().clone());
        nodes.collect::<Vec<_>>()
    };
    for rows in [1, 2] {
        for (name, kernels) in [("router", 1), ("expert_gate_up", 1), ("expert_down", 2)] {
            let of_it = nodes(rows, name);
            assert!(of_it.iter().all(|nodes| nodes.len() == kernels), "{name}");
        }
    }
    // One row has one kernel that norms, multiplies and convolves; two rows have one for each operation.
    assert_eq!(nodes(1, "conv_in_proj"), nodes(1, "short_conv"));
    assert!(nodes(1, "operator_norm").contains(&nodes(1, "conv_in_proj")[0]));
    assert_ne!(nodes(2, "conv_in_proj"), nodes(2, "short_conv"));
    // A norm behind experts is done as these are added up.
    let (downs, norms) = (nodes(2, "expert_down"), nodes(2, "operator_norm"));
    let behind = |norm: &&Vec<Value>| downs.iter().any(|down| down[1] == norm[0]);
    let (behind, own): (Vec<_>, Vec<_>) = norms.iter().partition(behind);
    assert!(!behind.is_empty() && !own.is_empty());
}
