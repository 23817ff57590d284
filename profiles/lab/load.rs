//! A GPU that other processes keep busy: `lab keep-busy`, and the processes that `--gpu-load` starts of it. Each has kernels of some
//! milliseconds one behind the other, as the jobs of other users have them.

use super::cuda::{Argument, Buffer, Launch, OpenGpu, failed};
use super::{Gpus, open};
use clap::Args;
use cudarc::driver::sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
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
    /// cuda, or cuda:N for a certain GPU
    #[arg(long, value_name = "DEVICE", default_value = "cuda", value_parser = Gpus::parse)]
    device: Gpus,
    /// Processes that keep the GPU busy while COMMAND runs
    #[arg(long, default_value_t = 1, requires = "command")]
    processes: u32,
    /// A command to run beside them [default: keep the GPU busy until standard input ends]
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub fn run(args: &KeepBusy) -> Result<ExitCode> {
    let [ordinal] = args.device.numbers()?;
    let [program, arguments @ ..] = &args.command[..] else {
        keep_busy(&open(ordinal)?)?;
        return Ok(ExitCode::SUCCESS);
    };
    let _beside = Processes::new(args.processes, ordinal)?;
    let ended = Command::new(program).args(arguments).status();
    let ended =
        ended.map_err(|error| Error::Runtime(format!("{program} did not start: {error}")))?;
    // As a shell has it, a command that a signal ended counts as failed.
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
        let start = Instant::now();
        launch(TRIAL_ROUNDS)?;
        stream.synchronize().map_err(refused)?;
        shortest = shortest.min(start.elapsed());
    }
    let rounds = (f64::from(TRIAL_ROUNDS) * KERNEL.div_duration_f64(shortest)) as u32;
    let over = Arc::new(AtomicBool::new(false));
    let tell = over.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
        tell.store(true, Ordering::Relaxed);
    });
    // It sleeps, as a process does that only waits for its kernels.
    let event = || {
        gpu.context
            .new_event(Some(CU_EVENT_BLOCKING_SYNC))
            .map_err(refused)
    };
    let events = [event()?, event()?];
    let mut count = 0;
    while !over.load(Ordering::Relaxed) {
        let event = &events[count % 2];
        if count >= 2 {
            event.synchronize().map_err(refused)?;
        }
        launch(rounds.max(1))?;
        event.record(&stream).map_err(refused)?;
        count += 1;
        // One has run by now, and another one runs.
        if count == 3 {
            writeln!(std::io::stdout(), "{READY}")
                .map_err(|error| Error::io("standard output", error))?;
        }
    }
    stream.synchronize().map_err(refused)
}

/// Processes that keep a GPU busy until this is dropped: they end when their standard input does.
pub struct Processes(Vec<Child>);

impl Processes {
    /// `count` of them on GPU `ordinal`, whose kernels run by the time this returns.
    pub fn new(count: u32, ordinal: u32) -> Result<Self> {
        let mut all = Self(vec![]);
        for number in 1..=count {
            let failed = |why: String| {
                Error::Runtime(format!(
                    "process {number} of {count} that keep cuda:{ordinal} busy: {why}"
                ))
            };
            let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
            let mut command = Command::new(program);
            command.args(["keep-busy", "--device", &format!("cuda:{ordinal}")]);
            let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
            let mut child = child.map_err(|error| failed(error.to_string()))?;
            let output = child.stdout.take();
            all.0.push(child);
            let mut line = String::new();
            if let Some(output) = output {
                let read = BufReader::new(output).read_line(&mut line);
                read.map_err(|error| failed(error.to_string()))?;
            }
            if line.trim_end() != READY {
                return Err(failed(format!(
                    "found {line:?}, expected {READY:?} once its kernels run on the GPU"
                )));
            }
        }
        Ok(all)
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            drop(child.stdin.take());
        }
        for child in &mut self.0 {
            // It ends within some kernels' time; there is nobody to tell of a failure.
            let _ = child.wait();
        }
    }
}
