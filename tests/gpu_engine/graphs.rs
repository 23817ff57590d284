//! Captured graphs: what they are made of, and what the device does not launch.

use crate::rig::{Rig, SETUP};
use cudarc::driver::sys;
use std::ffi::c_void;
use tailgraph::backend::cuda::driver::audit::Node;
use tailgraph::backend::cuda::driver::exec::{Exec, LaunchedBy};
use tailgraph::backend::cuda::driver::graph::Captured;
use tailgraph::backend::cuda::engine::program::{StepProgram, buckets, capture_calls};
use tailgraph::backend::cuda::engine::step_copy::{PLACES, StepCopy};
use tailgraph::backend::cuda::memory::buffer::Buffer;
use tailgraph::plan::StepKind;

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_step_lists_its_kernels_and_pdl_edges() {
    let rig = Rig::new();
    let (programs, _) = rig.probe(&SETUP);
    let copy = StepCopy::new(&rig.context, &rig.stream, &SETUP.options, PLACES).unwrap();
    let bucket = buckets(&SETUP.bucket_sizes(), StepKind::Decode, 32)
        .nth(3)
        .unwrap();
    let calls = programs[0].lower(bucket, copy.at()).unwrap();
    // SAFETY: copy and program outlive the graph, which is never launched.
    let graph = unsafe { capture_calls(&rig.stream, "stage 0 decode 8", &calls) }.unwrap();
    let names: Vec<String> = graph
        .nodes()
        .unwrap()
        .into_iter()
        .map(|node| match node {
            Node::Kernel(kernel) => kernel.name,
            other => panic!("{other}"),
        })
        .collect();
    let mut expected = vec!["tg_probe_write", "tg_probe_read"];
    expected.extend(["tg_probe_mix"; 6]);
    expected.extend(["tg_probe_log", "tg_probe_sample"]);
    assert_eq!(names, expected);
    let Node::Kernel(read) = &graph.nodes().unwrap()[1] else {
        panic!("a kernel");
    };
    assert_eq!(
        (read.grid, read.block, read.shared_bytes),
        ((8, 1, 1), (128, 1, 1), 0)
    );
    assert_eq!(graph.edges().unwrap(), (9, 9));
    for by in [LaunchedBy::Host, LaunchedBy::Device] {
        assert_ne!(Exec::new(&graph, by).unwrap().device_handle(), 0);
    }
}

unsafe extern "C" fn nothing(_: *mut c_void) {}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_graph_with_a_host_node_is_for_the_host_alone() {
    let rig = Rig::new();
    let memory = Buffer::new(&rig.context, 64).unwrap();
    let graph = Captured::capture(&rig.stream, "a test", |stream| {
        memory.fill(stream, 1)?;
        // SAFETY: the function takes anything and does nothing.
        let added = unsafe {
            sys::cuLaunchHostFunc(stream.cu_stream(), Some(nothing), std::ptr::null_mut())
        };
        assert_eq!(added, sys::CUresult::CUDA_SUCCESS);
        memory.fill(stream, 2)
    })
    .unwrap();
    assert_eq!(graph.nodes().unwrap().len(), 3);
    let error = Exec::new(&graph, LaunchedBy::Device)
        .unwrap_err()
        .to_string();
    for words in ["node 1", "a test", "HOST"] {
        assert!(error.contains(words), "{error}");
    }
    let exec = Exec::new(&graph, LaunchedBy::Host).unwrap();
    // SAFETY: the memory is alive until the wait below is over.
    unsafe { exec.launch() }.unwrap();
    let mut bytes = [0; 64];
    memory.read(&rig.stream, 0, &mut bytes).unwrap();
    assert_eq!(bytes, [2; 64]);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_capture_that_fails_leaves_the_stream_usable() {
    let rig = Rig::new();
    let memory = Buffer::new(&rig.context, 64).unwrap();
    let error = Captured::capture(&rig.stream, "a wait", |stream| {
        memory.fill(stream, 1)?;
        // Waiting is what no capture takes.
        memory.read(stream, 0, &mut [0; 64])
    })
    .unwrap_err();
    assert!(error.to_string().contains("CAPTURE"), "{error}");
    memory.fill(&rig.stream, 3).unwrap();
    let mut bytes = [0; 64];
    memory.read(&rig.stream, 0, &mut bytes).unwrap();
    assert_eq!(bytes, [3; 64]);
}
