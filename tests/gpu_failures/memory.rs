//! GPUs that run out of memory: before loading, by arithmetic; after, by what the driver says.

use crate::rig::Run;

#[test]
fn a_gpu_that_is_too_small_is_found_before_anything_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let run = Run::generate("device-graph")
        .and(&["one"])
        .with("MEMORY", 3_000_000);
    run.with("LOG", log.display()).end().fails_in_a_line(
        1,
        &[
            "not enough memory",
            "needed",
            "2.6 MiB allowed (90% of the 2.9 MiB free on cuda:0 Test GPU 0",
            "weights 5.4 MiB + ",
            " + activations ",
            "the weights alone do not fit",
        ],
    );
    assert!(!log.exists(), "something was allocated");
}

/// What fits when it is looked at may be gone when it is allocated.
#[test]
fn an_allocation_that_fails_says_what_it_was_for() {
    for (call, what) in [
        (1, "for the weights"),
        (2, "for activations"),
        (3, "for keys, values and conv state"),
        (4, "for the scheduler"),
    ] {
        let run = Run::generate("device-graph").and(&["one"]);
        let ended = run.with("FAIL", format!("cuMemAlloc_v2:{call}:2")).end();
        ended.fails_in_a_line(
            1,
            &[
                "allocating ",
                " bytes of GPU memory",
                what,
                "CUDA_ERROR_OUT_OF_MEMORY",
                "lower --memory-limit",
            ],
        );
    }
    let run = Run::generate("host-graph").and(&["one"]);
    run.with("FAIL", "cuMemHostAlloc:1:2")
        .end()
        .fails_in_a_line(
            1,
            &[
                "pinning ",
                " bytes of host memory",
                "CUDA_ERROR_OUT_OF_MEMORY",
            ],
        );
}

/// By stage, kind and bucket. One sequence, steps of 512 rows and a file of few buckets: decode 1, mixed 512 and score 512,
/// once for each stage; a host that runs ahead has decode twice; the GPU's own scheduler captures all of them and then the idle graph.
#[test]
fn a_graph_without_memory_is_named() {
    let graphs = |way| match way {
        "host-graph" => vec!["stage 0 decode 1", "stage 0 mixed 512", "stage 0 score 512"],
        "host-graph-ahead" => vec![
            "stage 0 decode 1",
            "stage 0 decode 1",
            "stage 0 mixed 512",
            "stage 0 score 512",
        ],
        _ => vec![
            "stage 0 decode 1",
            "stage 0 mixed 512",
            "stage 0 score 512",
            "stage 1 decode 1",
            "stage 1 mixed 512",
            "stage 1 score 512",
        ],
    };
    let folder = tempfile::tempdir().unwrap();
    let buckets = folder.path().join("buckets.toml");
    std::fs::write(&buckets, "[buckets]\nmixed = [512]\n").unwrap();
    let buckets = ["--bucket-file", buckets.to_str().unwrap()];
    for way in ["host-graph", "host-graph-ahead", "device-graph"] {
        for (index, graph) in graphs(way).into_iter().enumerate() {
            let number = 1 + index;
            for (what, setting, call) in [
                ("capturing", "FAIL", "cuStreamEndCapture"),
                ("instantiating", "GRAPH", "cuGraphInstantiateWithParams"),
                ("uploading", "GRAPH", "cuGraphUpload"),
            ] {
                let run = Run::generate(way).and(&["--stages", "2", "one"]);
                let run = run.and(&buckets);
                let ended = run.with(setting, format!("{call}:{number}:2")).end();
                let named = format!("{what} the graph of {graph}: ");
                ended.fails_in_a_line(1, &[&named, "CUDA_ERROR_OUT_OF_MEMORY", "--bucket-file"]);
            }
        }
    }
}

/// Which graph a run fails to capture where the `number`th cannot be; `None`: it captures fewer.
fn captured(run: Run, number: usize) -> Option<String> {
    let ended = run
        .with("FAIL", format!("cuStreamEndCapture:{number}:2"))
        .end();
    let Some((_, rest)) = ended.stderr.split_once("capturing the graph of stage 0 ") else {
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        return None;
    };
    rest.split_once(':').map(|(name, _)| name.to_owned())
}

/// A run captures only the kinds of steps that it has, and of the others the largest, which the scheduler wants.
#[test]
fn graphs_of_steps_that_never_come_are_not_captured() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in.jsonl");
    std::fs::write(&input, "{\"input_ids\":[9,10,11]}\n".repeat(3)).unwrap();
    let score = |positions: &'static str| {
        let run = Run::new(&["score", "--model", "random:tiny", "--device", "cuda"]);
        let run = run.and(&["--quiet", "--logits", positions, "--step-tokens", "1024"]);
        let run = run.and(&["--launch", "host-graph", "--output"]);
        let output = folder.path().join(format!("{positions}.safetensors"));
        run.and(&[output.to_str().unwrap(), "--input", input.to_str().unwrap()])
    };
    let generate = || Run::generate("host-graph").and(&["one"]);
    let mixed = ["16", "32", "64", "128", "256", "512", "1024"].map(|rows| format!("mixed {rows}"));
    let one = |name: &str| vec![name.to_owned()];
    let all = |parts: [Vec<String>; 3]| parts.concat();
    let score_all = all([
        one("decode 4"),
        one("mixed 1024"),
        vec!["score 512".into(), "score 1024".into()],
    ]);
    let score_last = all([one("decode 4"), mixed.to_vec(), one("score 1024")]);
    let generated = all([one("decode 1"), mixed[..6].to_vec(), one("score 512")]);
    let runs: [(&dyn Fn() -> Run, Vec<String>); 3] = [
        (&|| score("all"), score_all),
        (&|| score("last"), score_last),
        (&generate, generated),
    ];
    for (run, graphs) in runs {
        for (index, graph) in graphs.iter().enumerate() {
            assert_eq!(captured(run(), 1 + index).as_ref(), Some(graph));
        }
        assert_eq!(captured(run(), 1 + graphs.len()), None);
    }
}

/// A node of a type that only the host launches (3 is CU_GRAPH_NODE_TYPE_HOST) is found by index, type and neighbour.
#[test]
fn a_node_that_the_device_cannot_launch_is_named() {
    let run = |way| Run::generate(way).and(&["one"]).with("NODE", "10:3");
    run("device-graph").end().fails_in_a_line(
        1,
        &[
            "node 10 of the graph of stage 0 decode 1",
            "CU_GRAPH_NODE_TYPE_HOST",
            "after kernel tg_",
            "--launch host-graph",
        ],
    );
    assert_eq!(run("host-graph").end().code, 0, "the host launches it");
}
