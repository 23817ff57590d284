//! The GPUs of what `bench` measures without a model.

use crate::backend::DeviceSpec;
use crate::backend::cuda::device::GpuDevice;
use crate::backend::cuda::driver::gpu::OpenGpu;
use crate::cli::args::RunArgs;
use crate::cli::args::bench::BenchArgs;
use crate::cli::spec;
use crate::error::{Error, Result};
use crate::session::Target;

/// That of `command`, whose option names it.
///
/// # Errors
/// [`Error::Usage`] for anything but one GPU; what opening it gives.
pub fn open(command: &str, device: &str) -> Result<OpenGpu> {
    match &spec::named(device)?[..] {
        [DeviceSpec::Gpu(spec)] => OpenGpu::new(spec.ordinal),
        _ => Err(Error::Usage(format!(
            "{command}: found --device {device}, expected one GPU, as in cuda:0"
        ))),
    }
}

/// The two of `command`, whose option names them.
///
/// # Errors
/// [`Error::Usage`] for anything but two GPUs; what opening them gives.
pub fn two(command: &str, devices: &str) -> Result<[OpenGpu; 2]> {
    match &spec::named(devices)?[..] {
        [DeviceSpec::Gpu(a), DeviceSpec::Gpu(b)] => {
            Ok([OpenGpu::new(a.ordinal)?, OpenGpu::new(b.ordinal)?])
        }
        _ => Err(Error::Usage(format!(
            "{command}: found --device {devices}, expected two GPUs, as in cuda:0,1"
        ))),
    }
}

/// That of `bench launch`, which has the options of a run: whoever launches there is a part of each point, and not of the GPU.
///
/// # Errors
/// As [`open`].
pub fn of_launch(args: &BenchArgs) -> Result<GpuDevice> {
    let (_, run) = args.settings().swap_remove(0);
    let run = RunArgs {
        launch: None,
        ahead: false,
        ..run
    };
    match Target::open(&spec::device(&run, "bench launch")?)? {
        Target::Gpu(device) => Ok(device),
        Target::Cpu(_) | Target::Stages(_) => Err(Error::Usage(
            "bench launch: the CPU launches no kernels; expected --device cuda and a GPU".into(),
        )),
    }
}
