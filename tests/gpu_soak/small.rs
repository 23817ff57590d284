//! The soak on the random tiny model: on a GPU that schedules itself, and on the CPU, where it also shows that it
//! notices what it is there for.

use crate::soak::drive::Driver;
use crate::soak::load::{Ask, Fate, ask};
use crate::soak::{Place, Soak};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tailgraph::Result;
use tailgraph::backend::SharedSink;
use tailgraph::backend::cpu;
use tailgraph::backend::cuda::gpu::OpenGpu;
use tailgraph::model::{DType, Model, ModelSource};
use tailgraph::plan::{GraphFile, Limits, Plan};
use tailgraph::runtime::cuda::Launch;
use tailgraph::runtime::{Engine, EngineOptions};

const SMALL: Soak = Soak {
    seed: 5,
    requests: 250,
    alone: 12,
    at_once: 14,
    last: Duration::from_secs(2),
    dtypes: [DType::F32, DType::F32],
    options: EngineOptions {
        max_seqs: 8,
        max_context: 96,
        page_tokens: 16,
        pages: 24,
        step_tokens: 128,
        chunk_align: 16,
        steps_in_flight: 1,
        record: false,
    },
    longest_prompt: 48,
    most_new_tokens: 24,
    longest_timeout: Duration::from_millis(60),
};

/// One at a time: the others' memory is in the same process and on the same GPU.
static ALONE: Mutex<()> = Mutex::new(());

fn tiny() -> (Arc<Model>, Plan) {
    let model = Model::load(&ModelSource::parse("random:tiny").unwrap()).unwrap();
    let file = GraphFile::open(None).unwrap();
    let plan = file.plan(Arc::new(model.config.clone()), &Limits::default());
    (Arc::new(model), plan.unwrap())
}

fn on_cpu(sink: &SharedSink) -> Result<Engine> {
    let (model, plan) = tiny();
    let stages = cpu::stages(&model, &plan, &SMALL.options, sink)?;
    Engine::start(stages, &plan.ladders, &SMALL.options)
}

#[test]
fn the_cpu_holds_it_without_a_single_tie() {
    let _alone = ALONE.lock();
    let (model, _) = tiny();
    let place = Place {
        model: &model,
        engine: &|_, sink| on_cpu(sink),
        free_bytes: &|| Ok(None),
    };
    let report = SMALL.run(&place, &mut |_| {}).unwrap();
    assert!(report.holds, "{report:?}");
    assert_eq!(report.alone.equal, SMALL.alone, "{:?}", report.alone);
    assert_eq!(report.alone.noise[2], 0.0, "{:?}", report.alone);
}

#[test]
fn it_notices_a_page_too_few_and_an_end_that_was_not_asked_for() {
    let _alone = ALONE.lock();
    let (model, _) = tiny();
    let shape = SMALL.shape(&model);
    let whole = (0..)
        .map(|number| ask(SMALL.seed, number, &shape))
        .find(|ask| ask.fate == Fate::Whole)
        .unwrap();
    let run = |pages, fate| {
        let ask = Ask {
            fate,
            ..whole.clone()
        };
        let mut driver = Driver::new(on_cpu(&None).unwrap(), pages, shape.vocab_size).unwrap();
        driver.run(&mut std::iter::once(ask), 1, &mut |_| Ok(()))
    };
    run(SMALL.options.pages, Fate::Whole).unwrap();
    let error = run(SMALL.options.pages + 1, Fate::Whole).unwrap_err();
    assert!(
        error.to_string().contains("expected 25 free pages"),
        "{error}"
    );
    let error = run(SMALL.options.pages, Fate::TooLarge).unwrap_err();
    assert!(error.to_string().contains("asked: TooLarge"), "{error}");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_gpu_holds_it() {
    let _alone = ALONE.lock();
    let gpu = OpenGpu::new(0).unwrap();
    let (model, plan) = tiny();
    let soak = Soak {
        requests: 1000,
        alone: 100,
        at_once: 96,
        last: Duration::from_secs(3),
        dtypes: [DType::F32, DType::BF16],
        options: EngineOptions {
            max_seqs: 64,
            pages: 200,
            ..SMALL.options
        },
        longest_timeout: Duration::from_millis(10),
        ..SMALL
    };
    let place = Place {
        model: &model,
        engine: &|dtype, sink| {
            let launch = Launch::DeviceGraph;
            Engine::on_gpu(&gpu, &model, &plan, &soak.options, dtype, launch, sink)
        },
        free_bytes: &|| gpu.free_bytes().map(Some),
    };
    let report = soak.run(&place, &mut |line| println!("{line}")).unwrap();
    assert!(report.holds, "{report:?}");
}
