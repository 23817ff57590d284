//! What a profiler hears of our NVTX ranges, without one: a listener of 50 lines stands in for Nsight.
#![cfg(feature = "cuda")]

mod common;

use common::compile::shared_library;
use common::program::{end, this_program};
use tailgraph::backend::{StageBackend, StepView};
use tailgraph::error::Result;
use tailgraph::plan::{BucketSizes, EngineOptions};
use tailgraph::runtime::{Engine, SingleEngine};
use tailgraph::telemetry::nvtx::{Category, Name, range};

/// Set for the process that opens ranges, which is this test again: NVTX looks for its listener once.
const SPEAKER: &str = "TAILGRAPH_TEST_NVTX_SPEAKER";

#[test]
fn ranges_nest_in_our_domain_under_registered_names() {
    if std::env::var_os(SPEAKER).is_some() {
        return speak();
    }
    let folder = tempfile::tempdir().unwrap();
    let listener = folder.path().join("listener.so");
    let flags = ["-Wall", "-Werror"];
    shared_library(&listener, &["tests/fixtures/nvtx_listener.c"], &flags);
    let mut command = this_program("ranges_nest_in_our_domain_under_registered_names");
    command
        .env(SPEAKER, "1")
        .env("NVTX_INJECTION64_PATH", &listener);
    let printed = end(&mut command, "").good();
    let heard: Vec<_> = printed
        .lines()
        .filter_map(|line| line.split("nvtx ").nth(1))
        // All fixed names are registered with the first that is used.
        .filter(|line| !line.starts_with("register tailgraph") || line.ends_with("decode 8"))
        .filter(|line| !line.starts_with("category tailgraph") || line.ends_with("step"))
        .collect();
    assert_eq!(
        heard,
        [
            "domain tailgraph",
            "register tailgraph decode 8",
            "category tailgraph step",
            "push tailgraph step/decode 8",
            "push tailgraph step/decode 8",
            "pop tailgraph",
            "push tailgraph step/decode 8",
            "pop tailgraph",
            "pop tailgraph",
            "start tailgraph run/serve",
            "end tailgraph 1",
            "start tailgraph run/drain",
            "end tailgraph 2",
        ],
        "{printed}"
    );
}

fn speak() {
    let decode = Name::new(Category::Step, c"decode 8");
    {
        let _outer = range(decode);
        for _ in 0..2 {
            let _inner = range(decode);
        }
    }
    serve();
}

/// An engine's life, which ends on another thread than it began on.
fn serve() {
    let bucket_sizes = BucketSizes {
        decode: vec![1],
        mixed: vec![2],
        score: vec![2],
    };
    let options = EngineOptions {
        max_seqs: 1,
        max_context: 8,
        page_tokens: 16,
        pages: 1,
        step_tokens: 2,
        chunk_tokens: 2,
        chunk_share: 0,
        chunk_align: 1,
        steps_in_flight: 1,
        prefixes: 0,
        record: false,
    };
    let mut engine = SingleEngine::start(vec![Box::new(Idle)], &bucket_sizes, &options).unwrap();
    let other = std::thread::spawn(move || {
        engine.drain();
        drop(engine);
    });
    other.join().unwrap();
}

struct Idle;

impl StageBackend for Idle {
    fn run(&mut self, _step: &StepView<'_>) -> Result<()> {
        Ok(())
    }
}
