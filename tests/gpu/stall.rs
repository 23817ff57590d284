//! A GPU that stands still in the middle of a run over two: the others stop by the deadline and say which stage they waited for.
//! With fewer GPUs this test says so, and looks at nothing.

use cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
use std::thread;
use std::time::{Duration, Instant};
use tailgraph::backend::cuda::driver::gpu::OpenGpu;
use tailgraph::backend::cuda::driver::launch::{Argument, Launch};
use tailgraph::backend::cuda::driver::machine;
use tailgraph::backend::cuda::memory::buffer::Buffer;
use tailgraph::io::row::{Ask, Options};
use tailgraph::session::{DeviceSpec, GpuSpec, Parallel, RunSpec, Session};

/// A step that takes longer fails the run.
const LIMIT: Duration = Duration::from_millis(500);
/// How long the GPU has no room for anything else: twice the limit, and what a device is given to stop.
const STILL: Duration = Duration::from_secs(4);

fn two_stages() -> RunSpec {
    let gpu = |ordinal| {
        DeviceSpec::Gpu(GpuSpec {
            step_timeout: LIMIT,
            ..GpuSpec::new(ordinal)
        })
    };
    let mut spec = RunSpec::new("random:tiny").unwrap();
    spec.device = gpu(0);
    spec.beside = vec![gpu(1)];
    spec.parallel = Parallel::Stages;
    spec
}

fn long() -> Ask {
    Ask {
        options: Options {
            max_new_tokens: Some(1_500),
            ignore_eos: Some(true),
            ..Options::default()
        },
        ..Ask::text("The tail launches")
    }
}

/// All threads that the GPU has room for stand still for [`STILL`].
fn hold(gpu: &OpenGpu, noted: &Buffer) {
    let multiprocessors = gpu
        .context
        .attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    let stream = gpu.context.new_stream().unwrap();
    let spin = gpu.module.kernel("tg_probe_spin").unwrap();
    let launch = Launch::blocks(2 * multiprocessors.unwrap() as u32, 1024);
    let arguments = [
        Argument::Address(noted.at(0)),
        Argument::U64(STILL.as_nanos() as u64),
    ];
    // SAFETY: the kernel's arguments; `noted` has two u64, and the stream is waited for.
    unsafe { spin.launch(&stream, launch, &arguments) }.unwrap();
    stream.synchronize().unwrap();
}

/// One kernel that fills the GPU for [`STILL`] is in front of the stage's next graph: the run's own process launches it, since
/// another's would only take turns with it.
#[test]
#[ignore = "needs two NVIDIA GPUs"]
fn a_gpu_that_stands_still_is_named_by_the_deadline() {
    if machine::probe().unwrap().gpus.len() < 2 {
        eprintln!("skipped: found fewer than two GPUs");
        return;
    }
    for (stands_still, named) in [
        (1, ["stage 1 on cuda:1", "past its deadline"]),
        (0, ["stage 0", "0.5 s"]),
    ] {
        let gpu = OpenGpu::new(stands_still).unwrap();
        let noted = Buffer::new(&gpu.context, 16).unwrap();
        let session = Session::open(two_stages()).unwrap();
        let mut answer = session.ask(&long()).unwrap();
        assert!(answer.next().unwrap().is_ok(), "a first piece");
        thread::scope(|scope| {
            scope.spawn(|| hold(&gpu, &noted));
            let start = Instant::now();
            let error = answer.find_map(Result::err).expect("a run that fails");
            let took = start.elapsed();
            println!("cuda:{stands_still}, after {took:?}: {error}");
            for part in named {
                assert!(error.to_string().contains(part), "{part}: {error}");
            }
            assert!(took > LIMIT && took < STILL, "{took:?}");
        });
        // The kernel has ended here, so that the session, which waits for what runs on its GPUs, can end too.
    }
}
