//! The soak on the random tiny model: on a GPU that schedules itself, and on the CPU, where it also shows that it
//! notices what it is there for.

use crate::soak::bits::Bits;
use crate::soak::drive::Driver;
use crate::soak::load::{Ask, Fate, ask};
use crate::soak::on_gpu::OnGpu;
use crate::soak::recorded::Recording;
use crate::soak::{Place, Soak};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tailgraph::Result;
use tailgraph::backend::SharedSink;
use tailgraph::backend::cpu;
use tailgraph::backend::cuda::driver::gpu::OpenGpu;
use tailgraph::model::{DType, Model, ModelSource};
use tailgraph::plan::{GraphFile, Limits, Plan};
use tailgraph::runtime::replay::Replayer;
use tailgraph::runtime::{EngineOptions, Event, SingleEngine};

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
        chunk_tokens: 128,
        chunk_share: 0,
        chunk_align: 16,
        steps_in_flight: 1,
        prefixes: 0,
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

fn on_cpu(options: &EngineOptions, sink: &SharedSink) -> Result<SingleEngine> {
    let (model, plan) = tiny();
    let stages = cpu::stages(&model, &plan, options, sink)?;
    SingleEngine::start(stages, &plan.bucket_sizes, options)
}

#[test]
fn the_cpu_holds_it_without_a_single_tie() {
    let _alone = ALONE.lock();
    let (model, _) = tiny();
    let place = Place {
        model: &model,
        engine: &|_, options, sink| on_cpu(options, sink),
        replayer: &|_, shape| {
            let (model, plan) = tiny();
            Replayer::new(shape, cpu::stages(&model, &plan, &shape.options, &None)?)
        },
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
        let engine = on_cpu(&SMALL.options, &None).unwrap();
        let mut driver = Driver::new(engine, pages, shape.vocab_size).unwrap();
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
fn it_notices_a_bit_that_the_replay_does_not_give() {
    let _alone = ALONE.lock();
    let (model, plan) = tiny();
    let shape = SMALL.shape(&model);
    let options = EngineOptions {
        record: true,
        ..SMALL.options
    };
    let engine = on_cpu(&options, &None).unwrap();
    let mut driver = Driver::new(engine, options.pages, shape.vocab_size).unwrap();
    let engine_shape = driver.shape().clone();
    let mut asks = (0..30).map(|number| ask(SMALL.seed, number, &shape));
    driver.run(&mut asks, 14, &mut |_| Ok(())).unwrap();
    let mut recording = driver.finish().unwrap().unwrap();
    let replay = |recording: &Recording| {
        let stages = cpu::stages(&model, &plan, &options, &None).unwrap();
        let replayer = Replayer::new(&engine_shape, stages).unwrap();
        let mut composed = vec![];
        (recording.replay(replayer, &mut composed), composed)
    };
    let (first, composed) = replay(&recording);
    assert!(first.steps > 40, "{first:?}");
    recording.descriptors = composed;
    let (again, _) = replay(&recording);
    assert_eq!((&first.difference, &again.difference), (&None, &None));
    assert_eq!(first.digest, again.digest);

    let differs = |recording: &Recording, what: &str| {
        let difference = replay(recording).0.difference.unwrap();
        assert!(difference.contains(what), "{what}: {difference}");
    };
    recording.descriptors[17].1 ^= 1 << 63;
    differs(&recording, "step 17: descriptor");
    recording.descriptors[17].1 ^= 1 << 63;
    recording.turns[20].outcome.free_pages ^= 1;
    differs(&recording, "the core comes to");
    recording.turns[20].outcome.free_pages ^= 1;
    let left = recording.events.split_off(1);
    differs(&recording, "event 1: recorded None");
    recording.events.extend(left);
    let logprob = recording.events.iter_mut().find_map(|event| match event {
        Event::Token { logprobs, .. } => logprobs.as_mut(),
        Event::End { .. } => None,
    });
    let logprob = &mut logprob.unwrap().logprob;
    *logprob = f32::from_bits(logprob.to_bits() ^ 1);
    differs(&recording, "recorded Some(Token");
}

/// A kernel notes the descriptors here as on a GPU. A load that preempts nothing does not hold.
#[test]
fn rounds_are_equal_and_need_preemption() {
    let _alone = ALONE.lock();
    let (model, plan) = tiny();
    for (pages, tight) in [(12, true), (64, false)] {
        let bits = Bits {
            seed: 4,
            last: Duration::from_millis(1),
            round: Duration::ZERO,
            least_requests: 100,
            shape: SMALL.shape(&model),
            options: &|slots| EngineOptions {
                max_seqs: slots.min(8),
                pages,
                ..SMALL.options
            },
            engine: &|options| Ok((on_cpu(options, &None)?, Box::new(|| Ok(vec![])))),
            replayer: &|shape| {
                Replayer::new(shape, cpu::stages(&model, &plan, &shape.options, &None)?)
            },
        };
        let report = bits.run(&mut |_| {}).unwrap();
        assert_eq!(report.difference, None, "{report:?}");
        assert_eq!(report.load.recomputed > 0, tight, "{report:?}");
        assert!(tight || !report.holds, "{report:?}");
        assert_eq!(report.rounds.len(), 1, "{report:?}");
        assert!(report.load.grown > 0, "{report:?}");
    }
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
    let on_gpu = OnGpu {
        gpu,
        gpus: 1,
        model,
        plan,
    };
    let place = Place {
        model: &on_gpu.model,
        engine: &|dtype, options, sink| on_gpu.engine(dtype, options, sink),
        replayer: &|dtype, shape| on_gpu.replayer(dtype, shape),
        free_bytes: &|| on_gpu.gpu.free_bytes().map(Some),
    };
    let report = soak.run(&place, &mut |line| println!("{line}")).unwrap();
    assert!(report.holds, "{report:?}");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn rounds_of_the_gpu_are_equal() {
    let _alone = ALONE.lock();
    let gpu = OpenGpu::new(0).unwrap();
    let (model, plan) = tiny();
    let on_gpu = OnGpu {
        gpu,
        gpus: 1,
        model,
        plan,
    };
    let bits = Bits {
        seed: 0,
        last: Duration::from_secs(1),
        round: Duration::from_millis(200),
        least_requests: 0,
        shape: SMALL.shape(&on_gpu.model),
        options: &|slots| EngineOptions {
            max_seqs: slots,
            pages: slots.max(6) * 3,
            step_tokens: slots + 128,
            ..SMALL.options
        },
        engine: &|options| on_gpu.described(DType::BF16, options),
        replayer: &|shape| on_gpu.replayer(DType::BF16, shape),
    };
    let report = bits.run(&mut |line| println!("{line}")).unwrap();
    assert_eq!(report.difference, None);
    assert!(report.steps > 1000, "{report:?}");
}
