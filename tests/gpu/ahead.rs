//! The host that runs ahead: the same steps with the same bits as without, and two of them in flight.

use crate::engine::{OPTIONS, Setup, engine, greedy};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tailgraph::backend::LaunchWay;
use tailgraph::backend::cuda::driver::gpu::OpenGpu;
use tailgraph::model::{DType, Model, ModelSource};
use tailgraph::runtime::Engine as _;
use tailgraph::runtime::{Event, Request};
use tailgraph::sys::abi;

/// Kind, bucket, rows and sequences of a step.
type Shape = (u32, u32, u32, u32);

struct Served {
    /// By request, and with the bits of its logprobs.
    tokens: Vec<Vec<(u32, Vec<u32>)>>,
    steps: Vec<Shape>,
    /// Steps that were composed while another one was in flight.
    early: usize,
}

fn serve(gpu: &OpenGpu, model: &Arc<Model>, launch: LaunchWay, requests: &[Request]) -> Served {
    let setup = Setup {
        dtype: DType::BF16,
        launch,
        stages: 1,
    };
    let mut engine = engine(gpu, model, setup, &None);
    for request in requests {
        engine.try_submit(request).unwrap().expect("room");
    }
    engine.launch().unwrap();
    let mut served = Served {
        tokens: vec![vec![]; requests.len()],
        steps: vec![],
        early: 0,
    };
    let start = Instant::now();
    let mut ended = 0;
    while ended < requests.len() {
        assert!(start.elapsed() < Duration::from_secs(60), "{ended} ended");
        match engine.next_event(Duration::from_millis(100)).unwrap() {
            Some(Event::Token {
                request,
                token,
                logprobs,
                ..
            }) => {
                let bits = logprobs.map_or(vec![], |l| {
                    let top = l.top.iter().flat_map(|&(id, value)| [id, value.to_bits()]);
                    std::iter::once(l.logprob.to_bits()).chain(top).collect()
                });
                served.tokens[request as usize].push((token, bits));
            }
            Some(Event::End { .. }) => ended += 1,
            None => {}
        }
        while let Some(record) = engine.next_turn() {
            let outcome = &record.outcome;
            if outcome.action == abi::TG_ACTION_STEP {
                let shape = (
                    outcome.kind,
                    outcome.bucket,
                    outcome.rows,
                    outcome.sequences,
                );
                served.steps.push(shape);
                served.early += usize::from(outcome.steps_in_flight == 2);
            }
        }
    }
    assert_eq!(engine.traces_lost(), 0);
    served
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_host_runs_ahead_where_no_sequence_can_end_and_gives_the_same_bits() {
    let gpu = OpenGpu::new(0).unwrap();
    let model = Model::load(&ModelSource::parse("random:tiny").unwrap()).unwrap();
    let model = Arc::new(model);
    // More than there are slots; penalties look at every token that came before.
    let requests: Vec<Request> = (0..2 * OPTIONS.max_seqs)
        .map(|i| {
            let prompt: Vec<u32> = (0..1 + i * 17 % 60)
                .map(|j| 8 + (i * 31 + j) % 250)
                .collect();
            let mut request = greedy(&prompt, 20 + i * 7 % 90);
            if i % 2 == 1 {
                request.sampling.temperature = 0.9;
                request.sampling.repetition_penalty = 1.3;
                request.sampling.frequency_penalty = 0.4;
                request.biases = vec![(i, 3.0)];
                request.sampling.key = u64::from(i);
                request.sampling.logprobs = Some(3);
            }
            request
        })
        .collect();
    let expected = serve(&gpu, &model, LaunchWay::HostGraph, &requests);
    assert_eq!(expected.early, 0);
    let found = serve(&gpu, &model, LaunchWay::HostGraphAhead, &requests);
    assert_eq!(found.steps, expected.steps, "the same schedule");
    for (request, (found, expected)) in found.tokens.iter().zip(&expected.tokens).enumerate() {
        assert_eq!(found, expected, "request {request}");
    }
    println!("{} of {} steps ahead", found.early, found.steps.len());
    // A sequence's first step and the one after each sequence's end are waited for.
    let waits = 2 * requests.len() + 2;
    assert!(found.early + waits >= found.steps.len(), "{}", found.early);

    // One that may stop at any token lets nobody run ahead while it is there.
    let mut requests = requests;
    for request in &mut requests {
        request.stop_ids = vec![511];
    }
    let found = serve(&gpu, &model, LaunchWay::HostGraphAhead, &requests);
    assert_eq!(found.early, 0);
}
