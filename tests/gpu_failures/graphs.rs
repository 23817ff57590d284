//! Graphs that are instantiated beside the capture of the next.

use crate::rig::Run;

/// Graphs of a GPU that schedules itself: the steps decode 1, mixed 16 to 512 and score 512, and the idle graph.
const CAPTURED: usize = 8 + 1;
/// A step's graph has to run beside itself, the idle graph has not.
const INSTANTIATED: usize = 2 * 8 + 1;

fn generate() -> Run {
    Run::generate("device-graph").and(&["one"])
}

/// A run fails where its last call of a function does, and makes no call more.
#[test]
fn a_graph_of_two_copies_is_captured_once() {
    for (call, count) in [
        ("cuStreamBeginCapture_v2", CAPTURED),
        ("cuGraphInstantiateWithParams", INSTANTIATED),
        ("cuGraphUpload", INSTANTIATED),
    ] {
        let failing = |number| {
            generate()
                .with("FAIL", format!("{call}:{number}:801"))
                .end()
        };
        failing(count).fails_in_a_line(1, &["CUDA_ERROR_NOT_SUPPORTED"]);
        failing(count + 1).good();
    }
}

/// Threads fail with the second step's graph and the third one's, and the fourth one is not captured: the first of them counts.
#[test]
fn a_graph_that_is_refused_is_named_with_its_node() {
    let refused = |number| format!("cuGraphInstantiateWithParams:{number}:801");
    let run = generate().with("GRAPH", format!("{},{}", refused(2), refused(3)));
    let ended = run.with("FAIL", "cuStreamEndCapture:4:801").end();
    let parts = [
        "instantiating the graph of stage 0 mixed 16: ",
        "CUDA_ERROR_NOT_SUPPORTED",
        "CUDA_GRAPH_INSTANTIATE_ERROR",
        ", kernel tg_dispatch grid 1x1x1 block ",
    ];
    ended.fails_in_a_line(1, &parts);
    let (_, node) = ended.stderr.split_once("for node ").unwrap();
    let place = node.split_once(',').unwrap().0;
    assert!(place.parse::<usize>().unwrap() > 0, "{node}");
}
