//! A GPU that other processes keep busy: `lab keep-busy`, and the processes that `--gpu-load` starts of it. Each has kernels of some
//! milliseconds one behind the other, as the jobs of other users have them.

use super::cuda::{Argument, Buffer, Launch, OpenGpu, failed, time_in_a_row};
use super::gpus;
use clap::Args;
use cudarc::driver::sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;
use tailgraph::error::{Error, Result};

/// The length of each kernel on a GPU of its own.
const KERNEL: Duration = Duration::from_millis(2);
/// More than any GPU here holds at once: it has no room for others meanwhile.
const BLOCKS: u32 = 2112;
const THREADS: u32 = 256;
/// Kernels that are timed to size the others, and the rounds of each.
const TRIALS: u32 = 10;
const TRIAL_ROUNDS: u32 = 20_000;
/// What a process says once its kernels run.
const READY: &str = "ready";

#[derive(Debug, Clone, Args)]
pub struct KeepBusy {
    /// A certain GPU: cuda:1 [default: the first]
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// Processes that keep the GPU busy while COMMAND runs
    #[arg(long, default_value_t = 1, requires = "command")]
    processes: u32,
    /// A command to run beside them [default: keep the GPU busy until standard input ends]
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub fn run(args: &KeepBusy) -> Result<ExitCode> {
    let [ordinal] = gpus(&args.device)?;
    let [program, arguments @ ..] = &args.command[..] else {
        keep_busy(&OpenGpu::new(ordinal)?)?;
        return Ok(ExitCode::SUCCESS);
    };
    let _beside = Process::start(args.processes, ordinal)?;
    let ended = Command::new(program).args(arguments).status();
    let ended =
        ended.map_err(|error| Error::Runtime(format!("{program} did not start: {error}")))?;
    // A shell, too, counts a command that a signal ended as failed.
    Ok(ExitCode::from(ended.code().map_or(1, |code| code as u8)))
}

/// Launches kernels, one always waiting behind the one that runs, until standard input ends, which it does when the process that
/// started this one does.
fn keep_busy(gpu: &OpenGpu) -> Result<()> {
    let refused = |error| failed("keeping the GPU busy", error);
    let stream = gpu.context.new_stream().map_err(refused)?;
    let kernel = gpu.module.kernel("tg_ways_busy")?;
    let out = Buffer::new(&gpu.context, size_of::<f32>())?;
    let launch = |rounds| {
        let arguments = [Argument::Address(out.at(0)), Argument::U32(rounds)];
        // SAFETY: the arguments are the kernel's, and the buffer outlives what runs: the stream is waited for below.
        unsafe { kernel.launch(&stream, Launch::blocks(BLOCKS, THREADS), &arguments) }
    };
    let mut shortest = Duration::MAX;
    for _ in 0..TRIALS {
        shortest = shortest.min(time_in_a_row(&stream, 1, || launch(TRIAL_ROUNDS))?);
    }
    let rounds = (f64::from(TRIAL_ROUNDS) * KERNEL.div_duration_f64(shortest)).max(1.0) as u32;
    let input = std::thread::spawn(|| std::io::stdin().read_to_end(&mut vec![]));
    // It sleeps, as a process does that only waits for its kernels.
    let event = || {
        launch(rounds)?;
        let recorded = stream.record_event(Some(CU_EVENT_BLOCKING_SYNC));
        recorded.map_err(refused)
    };
    let first = event()?;
    let mut running = event()?;
    first.synchronize().map_err(refused)?;
    writeln!(std::io::stdout(), "{READY}").map_err(|error| Error::io("standard output", error))?;
    while !input.is_finished() {
        let waiting = event()?;
        running.synchronize().map_err(refused)?;
        running = waiting;
    }
    stream.synchronize().map_err(refused)
}

/// A process that keeps a GPU busy until this is dropped: it ends when its standard input does.
pub struct Process(Child);

impl Process {
    /// `count` of them on GPU `ordinal`, whose kernels run by the time this returns.
    pub fn start(count: u32, ordinal: u32) -> Result<Vec<Self>> {
        let start = |_| Self::new(ordinal);
        let started = (0..count).map(start).collect::<std::io::Result<_>>();
        started.map_err(|error| {
            Error::Runtime(format!("a process to keep cuda:{ordinal} busy: {error}"))
        })
    }

    fn new(ordinal: u32) -> std::io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["keep-busy", "--device", &format!("cuda:{ordinal}")]);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let (mut process, mut line) = (Self(command.spawn()?), String::new());
        let output = process.0.stdout.take().expect("it is piped");
        BufReader::new(output).read_line(&mut line)?;
        if line.trim_end() == READY {
            return Ok(process);
        }
        let found = format!("found {line:?}, expected {READY:?} once its kernels run on the GPU");
        Err(std::io::Error::other(found))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // It ends within some kernels' time; there is nobody to tell of a failure.
        let _ = self.0.wait();
    }
}
