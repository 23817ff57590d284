//! `inspect --device cuda`: captured graphs, looked at through the test's driver.

use crate::common::program::Ended;
use crate::common::schema::{check, schema};
use crate::rig::Run;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tailgraph::backend::cuda::tuning::KernelFile;
use tailgraph::backend::cuda::tuning::variants::{Architecture, Experts, Products};
use tailgraph::model::DType;

fn inspect(arguments: &[&str]) -> Run {
    Run::new(&["inspect", "--model", "random:tiny", "--device", "cuda"])
        .and(&["--max-seqs", "2", "--step-tokens", "512"])
        .and(arguments)
}

fn json(run: Run) -> Value {
    let ended = run.and(&["--json"]).end();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let shown = serde_json::from_str(&ended.stdout).unwrap();
    check(&schema("inspect"), &shown).unwrap();
    shown
}

fn graphs(shown: &Value) -> &Vec<Value> {
    shown["graphs"].as_array().unwrap()
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

fn text(ended: &Ended) -> &str {
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    &ended.stdout
}

/// Two sequences and steps of 512 rows: decode 1 and 2, mixed 16 to 512, score 512.
const GRAPHS: usize = 9;

#[test]
fn every_graph_is_listed_with_its_nodes() {
    for (launch, stages, per_step) in [("device-graph", "2", 2), ("host-graph", "2", 1)] {
        let shown = json(inspect(&["--launch", launch, "--stages", stages]));
        assert_eq!(shown["device"]["launch"], launch);
        let graphs = graphs(&shown);
        assert_eq!(graphs.len(), GRAPHS * per_step, "{launch}");
        for graph in graphs {
            let captured = &graph["captured"];
            let nodes = count(&captured["nodes"]);
            assert_eq!(count(&captured["edges"]), nodes - 1);
            // All kernels of a 9.0 but the first, which follows nothing.
            assert_eq!(count(&captured["early_edges"]), nodes - 1, "{graph}");
            let kernels = captured["kernels"].as_array().unwrap();
            let in_all: u64 = kernels.iter().map(|kernel| count(&kernel["count"])).sum();
            assert_eq!(in_all, nodes);
            for kernel in kernels {
                assert_eq!(kernel["registers"], 40, "{kernel}");
                assert_eq!(kernel["static_shared_bytes"], 1024, "{kernel}");
                assert_eq!(kernel["local_bytes"], 16, "{kernel}");
            }
            for time in ["capture_ms", "instantiate_ms", "upload_ms"] {
                assert!(captured[time].as_f64().unwrap() >= 0.0, "{time}");
            }
        }
    }
}

/// The dispatcher is the last node of every step, and a step's graph is there twice.
#[test]
fn a_step_has_the_dispatcher_behind_it() {
    let shown = json(inspect(&["--launch", "device-graph"]));
    assert_eq!(graphs(&shown).len(), GRAPHS);
    for graph in graphs(&shown) {
        let captured = &graph["captured"];
        assert_eq!(captured["dispatcher"], true, "{graph}");
        assert_eq!(captured["copies"], 2, "{graph}");
        assert_eq!(count(&captured["edges"]), count(&captured["nodes"]) - 1);
    }
}

/// Every operation is done by some node, in the plan's order, and what the scheduler adds is of none.
#[test]
fn nodes_are_of_their_operations() {
    let shown = json(inspect(&["--launch", "device-graph", "--stages", "2"]));
    for graph in graphs(&shown) {
        let captured = &graph["captured"];
        let mut of_operations = BTreeSet::new();
        let mut last_before = 0;
        for operation in captured["operations"].as_array().unwrap() {
            let nodes = operation["nodes"].as_array().unwrap();
            let last = nodes.last().map(count);
            let last = last.unwrap_or_else(|| panic!("nobody does {operation} of {graph}"));
            assert!(last >= last_before, "{operation} of {graph}");
            last_before = last;
            of_operations.extend(nodes.iter().map(count));
        }
        let nodes = count(&captured["nodes"]);
        let first_stage = graph["stages"][0] == 0;
        // What begins a stage before it, the dispatcher after the last.
        let expected: BTreeSet<u64> = match first_stage {
            true => (1..nodes).collect(),
            false => (1..nodes - 1).collect(),
        };
        assert_eq!(of_operations, expected, "{graph}");
        let scheduler: Vec<&str> = captured["kernels"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|kernel| {
                kernel["operations"]
                    .as_array()
                    .unwrap()
                    .contains(&"scheduler".into())
            })
            .map(|kernel| kernel["name"].as_str().unwrap())
            .collect();
        match first_stage {
            true => assert_eq!(scheduler, ["tg_begin_step"]),
            false => assert_eq!(scheduler, ["tg_begin_stage", "tg_dispatch"]),
        }
    }
}

/// In wide steps gate, up and down of a layer's experts are one kernel, and another adds them up.
#[test]
fn experts_of_grouped_steps_are_one_kernel() {
    let run = Run::new(&["inspect", "--model", "random:tiny", "--device", "cuda"]);
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("step.svg");
    let shown = json(
        run.and(&["--max-seqs", "16", "--rows", "16"])
            .and(&["--svg", svg.to_str().unwrap()]),
    );
    let grouped = |graph: &&Value| graph["kind"] == "decode" && graph["bucket"] == 16;
    let captured = &graphs(&shown).iter().find(grouped).unwrap()["captured"];
    let layers = |name: &str| {
        let operations = captured["operations"].as_array().unwrap().iter();
        let of_it = operations.filter(|operation| operation["operation"] == name);
        let nodes = |operation: &Value| operation["nodes"].as_array().unwrap().len();
        of_it.map(nodes).collect::<Vec<_>>()
    };
    assert!(layers("expert_gate_up").iter().all(|&nodes| nodes == 1));
    let downs = layers("expert_down");
    assert!(!downs.is_empty() && downs.iter().all(|&nodes| nodes == 2));
    let kernels = captured["kernels"].as_array().unwrap();
    let is_grouped = |kernel: &&Value| {
        let name = kernel["name"].as_str().unwrap();
        name.starts_with("tg_grouped_experts_")
    };
    let kernel = kernels.iter().find(is_grouped).unwrap();
    let done = serde_json::json!(["expert_gate_up", "expert_down"]);
    assert_eq!(kernel["operations"], done);
    assert_eq!(count(&kernel["count"]), downs.len() as u64);
    let svg = std::fs::read_to_string(svg).unwrap();
    assert!(svg.contains("in a neighbour's kernel"), "{svg}");
}

/// What is listed without a GPU is what a GPU is given: the same kernels in the same order for the same operations, in launches
/// of the same shape.
#[test]
fn listed_calls_are_those_that_are_captured() {
    for (capability, gpu) in [("8.0", "a100"), ("9.0", "h100"), ("10.0", "b200")] {
        for (dtype, kind) in [("bf16", "decode"), ("f32", "mixed"), ("f16", "score")] {
            let sizes = ["--max-seqs", "64", "--dtype", dtype, "--kind", kind];
            let captured = json(
                Run::new(&["inspect", "--model", "random:tiny", "--device", "cuda"])
                    .and(&["--launch", "host-graph"])
                    .and(&sizes)
                    .with("CAPABILITY", capability),
            );
            let listed = Run::new(&["inspect", "--model", "random:tiny", "--calls", "--json"])
                .and(&["--gpu", gpu, "--rows", "1,2,4,8,16,32,64"])
                .and(&sizes)
                .over(Path::new("/nowhere"))
                .end();
            let listed: Value = serde_json::from_str(text(&listed)).unwrap();
            check(&schema("calls"), &listed).unwrap();
            for step in listed["steps"].as_array().unwrap() {
                let of_it =
                    |graph: &&Value| graph["kind"] == kind && graph["bucket"] == step["rows"];
                let graph = graphs(&captured).iter().find(of_it).unwrap();
                compare(step, &graph["captured"]);
            }
        }
    }
}

/// A listed step and the graph of its bucket.
fn compare(step: &Value, captured: &Value) {
    let calls = step["calls"].as_array().unwrap();
    assert_eq!(calls.len() as u64, count(&captured["nodes"]));
    assert_eq!(step["variant"], captured["variant"]);
    for operation in captured["operations"].as_array().unwrap() {
        let done = |call: &Value| {
            let ops = call["operations"].as_array().unwrap();
            ops.iter().any(|op| {
                op["operation"] == operation["operation"] && op["layer"] == operation["layer"]
            })
        };
        let places = calls.iter().enumerate().filter(|(_, call)| done(call));
        let places: Vec<u64> = places.map(|(place, _)| place as u64).collect();
        assert_eq!(operation["nodes"], serde_json::json!(places), "{operation}");
    }
    let mut launches = BTreeMap::new();
    for call in calls {
        // Launches ask for whole 32 bytes.
        let shared = count(&call["dynamic_shared_bytes"]).next_multiple_of(32);
        let key = (call["kernel"].to_string(), call["grid"].to_string(), shared);
        *launches.entry(key).or_insert(0) += 1;
    }
    for kernel in captured["kernels"].as_array().unwrap() {
        let shared = count(&kernel["dynamic_shared_bytes"]);
        let key = (
            kernel["name"].to_string(),
            kernel["grid"].to_string(),
            shared,
        );
        assert_eq!(
            launches.remove(&key),
            Some(count(&kernel["count"])),
            "{kernel}"
        );
    }
    assert!(launches.is_empty(), "{launches:?}");
}

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
    let listed = Run::new(&["inspect", "--model", &model, "--calls", "--rows", "1,64"]).end();
    let shown = text(&listed);
    assert!(shown.starts_with("decode 1: "), "{shown}");
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

/// Of 64 experts the kernels of two words of bits, and who guesses for them; no others' names are among the calls.
#[test]
fn more_experts_have_kernels_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let model = of_64_experts(folder.path());
    let calls = ["inspect", "--model", &model, "--calls", "--rows", "1,2"];
    let listed = Run::new(&calls).end();
    let shown = text(&listed);
    for name in [
        "tg_skinny_conv_bf16_e128",
        "tg_skinny_project_bf16_e128",
        "tg_skinny_held_out_bf16_e64",
        "tg_skinny_out_bf16_e64",
        "tg_skinny_expert_gate_up_bf16_e64",
        "tg_skinny_experts_bf16_e64",
        "tg_skinny_down_bf16_e64",
    ] {
        assert!(shown.contains(name), "{name}: {shown}");
    }
    let few = ["inspect", "--model", "random:lfm2-8b-a1b", "--calls"];
    let listed = Run::new(&few).and(&["--rows", "1,2"]).end();
    let shown = text(&listed);
    assert!(!shown.contains("_e64") && !shown.contains("_e128"));
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
        "--rows",
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
    for (name, dtype) in [("bf16", DType::BF16), ("f32", DType::F32)] {
        let run = Run::new(&["inspect", "--model", "random:tiny", "--device", "cuda"]);
        let shown = json(run.and(&[
            "--max-seqs",
            "256",
            "--launch",
            "host-graph",
            "--dtype",
            name,
        ]));
        assert_eq!(shown["device"]["kernel_variants"], file.name());
        let decode = graphs(&shown)
            .iter()
            .filter(|graph| graph["kind"] == "decode");
        let mut buckets = 0;
        for (graph, entry) in decode.zip(file.entries(dtype)) {
            buckets += 1;
            assert_eq!(count(&graph["bucket"]), u64::from(entry.rows));
            let (captured, variant) = (&graph["captured"], entry.variant);
            let of = &captured["variant"];
            assert_eq!(of["products"], variant.products.to_string());
            assert_eq!(of["experts"], variant.experts.to_string());
            let kernels = captured["kernels"].as_array().unwrap();
            let has = |family: &str| {
                let mut names = kernels
                    .iter()
                    .map(|kernel| kernel["name"].as_str().unwrap());
                names.any(|name| name.starts_with(family))
            };
            let skinny = matches!(variant.products, Products::Skinny { .. });
            assert_eq!(has("tg_skinny_held_out_"), skinny, "{variant}");
            let split = skinny && dtype == DType::F32 && entry.rows <= 2;
            assert_eq!(has("tg_skinny_held_out_f32_split"), split, "{variant}");
            assert_eq!(
                has("tg_swap_ab_shared_"),
                variant.products == Products::SwapAb
            );
            assert_eq!(has("tg_skinny_down_"), variant.experts == Experts::Skinny);
            assert_eq!(has("tg_skinny_experts_"), variant.experts == Experts::Fused);
            let grouped = matches!(variant.experts, Experts::Grouped(_));
            assert_eq!(has("tg_grouped_experts_"), grouped, "{variant}");
            let tiled = variant.products == Products::Tiled || variant.experts == Experts::Tiled;
            assert_eq!(has("tg_tiled_"), tiled, "{variant}");
        }
        assert_eq!(buckets, 9);
        let many = |graph: &&Value| graph["kind"] == "mixed" && graph["bucket"] == 512;
        let mixed = graphs(&shown).iter().find(many);
        let variant = &mixed.unwrap()["captured"]["variant"];
        assert_eq!(variant["products"], "persistent");
        assert_eq!(variant["experts"], "persistent");
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
            let expected = match count(&graph["bucket"]) <= few_rows {
                true => ("skinny (4 stages)", "skinny"),
                false => ("tiled", "tiled"),
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
    // One kernel norms, multiplies and convolves; of the others each has its own ...
    assert_eq!(nodes(1, "conv_in_proj"), nodes(1, "short_conv"));
    assert!(nodes(1, "operator_norm").contains(&nodes(1, "conv_in_proj")[0]));
    assert_ne!(nodes(2, "conv_in_proj"), nodes(2, "short_conv"));
    // ... but for a norm behind experts, which is done as these are added up.
    let (downs, norms) = (nodes(2, "expert_down"), nodes(2, "operator_norm"));
    let behind = |norm: &&Vec<Value>| downs.iter().any(|down| down[1] == norm[0]);
    let (behind, own): (Vec<_>, Vec<_>) = norms.iter().partition(behind);
    assert!(!behind.is_empty() && !own.is_empty());
}

#[test]
fn the_tables_name_kernels_and_memory() {
    let ended = inspect(&["--kind", "mixed"]).end();
    let text = text(&ended);
    for part in [
        "graphs as captured for device-graph on cuda:0 Test GPU 0",
        "capture ms",
        "stage 0 mixed 512, dispatcher in it: nodes by kernel",
        "products persistent, experts persistent",
        "variants sm_90-",
        "tg_dispatch",
        "scheduler",
        "1024+",
        "keys and values",
    ] {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
    for line in text.lines() {
        assert!(line.chars().count() <= 160, "{line}");
    }
}

#[test]
fn pictures_show_kernels() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (dot, svg) = (path("step.dot"), path("step.svg"));
    let ended = inspect(&["--rows", "2", "--dot", &dot, "--svg", &svg]).end();
    text(&ended);
    let dot = std::fs::read_to_string(dot).unwrap();
    assert!(dot.contains("tg_dispatch"), "{dot}");
    let svg = std::fs::read_to_string(svg).unwrap();
    for part in [
        "tg_embed",
        "expert_gate_up",
        "Test GPU 0",
        "class=\"early\"",
        "tg_dispatch",
    ] {
        assert!(svg.contains(part), "no {part} in\n{svg}");
    }
    // Two slots: no step of 64 rows.
    let file = path("none.svg");
    std::fs::write(&file, "of an earlier run").unwrap();
    let ended = inspect(&["--rows", "64", "--svg", &file]).end();
    ended.fails_in_a_line(2, &["no graph of decode 64", "--max-seqs 2"]);
    assert_eq!(std::fs::read(&file).unwrap(), b"of an earlier run");
    // What the driver writes is no stream.
    let ended = inspect(&["--rows", "2", "--dot", "/dev/fd/2"]).end();
    ended.fails(1, &["/dev/fd/2: found a pipe"]);
}

#[test]
fn what_cannot_be_shown_says_why() {
    inspect(&["--launch", "host-kernels"])
        .end()
        .fails_in_a_line(2, &["captures no graphs", "host-graph or device-graph"]);
    let driver_fails = inspect(&[]).with("FAIL", "cuFuncGetAttribute:1:999").end();
    driver_fails.fails_in_a_line(1, &["looking into the graph of stage 0 decode 1"]);
    inspect(&[])
        .with("DEVICES", "0")
        .end()
        .fails_in_a_line(1, &["GPU"]);
}
