//! `lab handover`: steps over two GPUs that hand rows to each other, or add theirs up, in each way there is (kernels/ways/pair.h).

mod end;
mod pair;
pub mod step;

use super::measure::{self, Chunk, LOOK, Plan, Progress, Steps, Thing};
use super::reference::Reference;
use super::table::{Column, Output};
use super::{Gpus, ended};
use clap::Args;
use libloading::Library;
use pair::Pair;
use serde_json::json;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};
use step::{ROW_BYTES, STAMPS, Shared};
use tailgraph::backend::cuda::driver::exec::{Exec, LaunchedBy};
use tailgraph::backend::cuda::driver::gpu::OpenGpu;
use tailgraph::backend::cuda::driver::{nccl, peer};
use tailgraph::cli::interrupt;
use tailgraph::error::{Error, Result};

/// What takes rows to the other GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    Nccl,
    /// The GPUs' copy engines.
    Copies,
    /// Kernels.
    Stores,
}

/// Who begins a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begun {
    /// The host, kernel by kernel, once it has seen the step before.
    Calls,
    /// The host, a graph for each GPU, once it has seen the step before.
    Graphs,
    /// The host, one graph of both GPUs.
    OneGraph,
    /// The host, which has queued all graphs beforehand.
    Queued,
    /// The GPUs.
    Device,
}

/// A way to run steps over two GPUs.
pub struct HandoverWay {
    pub name: &'static str,
    pub does: &'static str,
    pub carrier: Carrier,
    pub begun: Begun,
    /// Both GPUs add up their rows; else the first hands its rows to the second, and gets a token back.
    pub reduces: bool,
}

const fn way(name: &'static str, carrier: Carrier, begun: Begun, reduces: bool, does: &'static str) -> HandoverWay {
    HandoverWay { name, does, carrier, begun, reduces }
}

pub const WAYS: [HandoverWay; 12] = {
    use {Begun as B, Carrier as C};
    [
        way("nccl-spin", C::Nccl, B::Graphs, false, "NCCL's send and receive captured in a graph for each GPU; the host launches both and spins"),
        way("nccl-queued", C::Nccl, B::Queued, false, "nccl-spin with all graphs queued beforehand: what NCCL costs without the host"),
        way("copies-spin", C::Copies, B::Calls, false, "kernels, copies and events, all queued by the host, which spins"),
        way("copies-graph", C::Copies, B::OneGraph, false, "one graph over both GPUs, copies among its nodes; the host launches it and spins"),
        way("stores-spin", C::Stores, B::Graphs, false, "kernels store rows there and release a flag that a kernel waits for; graphs by the host"),
        way("stores-queued", C::Stores, B::Queued, false, "stores-spin with all graphs queued beforehand: the floor"),
        way("stores-device", C::Stores, B::Device, false, "stores-spin whose graphs' last nodes launch the next ones by tail launches: no host"),
        way("reduce-nccl-spin", C::Nccl, B::Graphs, true, "NCCL's all-reduce captured in a graph for each GPU; the host launches both and spins"),
        way("reduce-nccl-queued", C::Nccl, B::Queued, true, "reduce-nccl-spin with all graphs queued beforehand"),
        way("reduce-stores-spin", C::Stores, B::Graphs, true, "one kernel on each GPU stores its rows there, waits for the other's and adds both"),
        way("reduce-stores-queued", C::Stores, B::Queued, true, "reduce-stores-spin with all graphs queued beforehand: the floor"),
        way("reduce-stores-device", C::Stores, B::Device, true, "reduce-stores-spin whose graphs' last nodes launch the next ones: no host"),
    ]
};

fn help() -> String {
    let line = |way: &HandoverWay| format!("  {:<20} {}\n", way.name, way.does);
    format!("Ways:\n{}", WAYS.iter().map(line).collect::<String>())
}

#[derive(Debug, Clone, Args)]
#[command(after_help = help())]
pub struct Handover {
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    plan: Plan,
    /// Two GPUs: the first hands rows to the second
    #[arg(long, value_name = "DEVICES", default_value = "cuda:0,1", value_parser = Gpus::parse)]
    device: Gpus,
    /// Ways by their names; all leaves out those that the machine lacks something for, and says what
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "all", value_parser = named)]
    ways: Vec<String>,
    /// Rows of a step, of 2048 bf16 each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,8,64,512", value_parser = clap::value_parser!(u32).range(1..))]
    rows: Vec<u32>,
}

fn named(name: &str) -> std::result::Result<String, String> {
    if name == "all" || WAYS.iter().any(|way| way.name == name) {
        return Ok(name.to_owned());
    }
    Err(format!("expected all, or some of {}", WAYS.each_ref().map(|way| way.name).join(", ")))
}

const COLUMNS: [Column; 15] = [
    ("way", "way"),
    ("rows", "rows"),
    ("cpu load", "cpu_load"),
    ("gpu load", "gpu_load"),
    ("us p50", "p50_step_us"),
    ("p99", "p99_step_us"),
    ("p99.9", "p99.9_step_us"),
    ("longest", "longest_step_us"),
    ("GB/s", "gbytes_per_s"),
    ("bytes", "bytes_per_step"),
    ("CPU us/step", "host_cpu_us_per_step"),
    ("launches/step", "host_launches_per_step"),
    ("MiB", "device_mib"),
    ("start ms", "startup_ms"),
    ("steps", "timed_steps"),
];

/// Measures every way asked for. One that fails has no row, and its error ends the command once all others were measured.
///
/// # Errors
/// The GPUs cannot be opened, lack something for a way that is asked for by its name or for all ways, or a way failed.
pub fn run(args: &Handover) -> Result<ExitCode> {
    let gpus = &args.device.two()?;
    let (mut there, mut lacking) = (vec![], None);
    for way in &WAYS {
        let by_name = args.ways.iter().any(|asked| asked == way.name);
        if !by_name && !args.ways.iter().any(|asked| asked == "all") {
            continue;
        }
        match check(gpus, way) {
            Ok(()) => there.push(way),
            Err(error) if by_name || !matches!(error, Error::Usage(_)) => return Err(error),
            Err(error) => {
                eprintln!("warning: left out: {error}");
                lacking = Some(error);
            }
        }
    }
    if let (true, Some(error)) = (there.is_empty(), lacking) {
        return Err(error);
    }
    interrupt::look();
    let mut things = vec![];
    for &rows in &args.rows {
        let references = [false, true].map(|reduces| Rc::new(step::reference(rows, reduces)));
        for &way in &there {
            let reference = references[usize::from(way.reduces)].clone();
            let foreseen = reference.clone();
            things.push(Thing {
                named: json!({ "handover_schema": 1, "way": way.name, "rows": rows }),
                bytes_per_step: Some(u64::from(rows) * ROW_BYTES as u64),
                foresee: Box::new(move |steps| drop(foreseen.value(steps))),
                open: Box::new(move || {
                    let run = Run::new(gpus, way, rows, &reference, WAIT)?;
                    Ok(Box::new(run) as Box<dyn Steps>)
                }),
            });
        }
    }
    let both = [&gpus[0], &gpus[1]];
    let measured = measure::all(&args.plan, &both, &things, &interrupt::flag())?;
    let heading = format!(
        "Steps over {} and {}: us from one step's end to the next, by the first GPU's clock. Every way of a sort gave the same bits on \
         both GPUs.",
        gpus[0].info, gpus[1].info
    );
    ended(&args.output, measured, &heading, &COLUMNS)
}

/// How long a kernel waits for the other GPU, which other processes may have meanwhile. A step takes some microseconds.
pub const WAIT: Duration = Duration::from_secs(5);

fn nccl_for(way: &str) -> Result<Library> {
    nccl::found(&format!("--ways {way}"), "name ways without nccl in them")
}

/// Refuses a way for which these GPUs lack something.
///
/// # Errors
/// [`Error::Usage`], saying what; the driver does not say.
pub fn check(gpus: &[OpenGpu; 2], way: &HandoverWay) -> Result<()> {
    if way.carrier == Carrier::Nccl {
        return nccl_for(way.name).map(drop);
    }
    let [a, b] = gpus.each_ref().map(|gpu| &gpu.context);
    if peer::reaches(a, b)? && peer::reaches(b, a)? {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "--ways {}: cuda:{} and cuda:{} do not reach each other's memory, expected GPUs that do (`tailgraph doctor` shows them), or \
         ways with nccl in them",
        way.name, gpus[0].info.ordinal, gpus[1].info.ordinal
    )))
}

/// What a step is launched as.
enum Work {
    /// Nothing is captured.
    Calls,
    One(Exec),
    Each([Exec; 2]),
}

/// A way and its memory. Graphs go before what they use.
pub struct Run {
    work: Work,
    pair: Pair,
    rows: u32,
    reference: Rc<Reference>,
    done: u64,
}

impl Run {
    /// Makes `way` ready for steps of so many rows, whose tokens are `reference`'s. `wait`: see [`WAIT`].
    ///
    /// # Errors
    /// As [`check`]; what the driver or NCCL refuses.
    pub fn new(
        gpus: &[OpenGpu; 2],
        way: &'static HandoverWay,
        rows: u32,
        reference: &Rc<Reference>,
        wait: Duration,
    ) -> Result<Self> {
        Shared::check_layout()?;
        check(gpus, way)?;
        let pair = Pair::new(gpus, way, rows, wait.as_nanos() as u64)?;
        // SAFETY: a run keeps the pair until nothing runs any more.
        let work = unsafe {
            match way.begun {
                Begun::Calls => Work::Calls,
                Begun::OneGraph => Work::One(Exec::new(&pair.capture_both()?, LaunchedBy::Host)?),
                begun => {
                    let by = if begun == Begun::Device { LaunchedBy::Device } else { LaunchedBy::Host };
                    let [first, second] = pair.capture_each()?;
                    Work::Each([Exec::new(&first, by)?, Exec::new(&second, by)?])
                }
            }
        };
        Ok(Self { work, pair, rows, reference: reference.clone(), done: 0 })
    }

    /// One step more, of which only the first GPU's part is launched: to see what becomes of a GPU that waits in vain.
    ///
    /// # Errors
    /// That it did; it is there for nothing else.
    pub fn run_alone(&mut self) -> Result<()> {
        let until = self.done + 1;
        for end in &mut self.pair.ends {
            end.begin(until)?;
        }
        if let Work::Each([first, _]) = &self.work {
            // SAFETY: the pair lives until nothing runs any more.
            unsafe { first.launch() }?;
        }
        self.spin_for(until).map_err(|error| self.given_up(error))
    }

    /// Launches all of these steps; how many launches that took.
    fn launches(&mut self, from: u64, until: u64) -> Result<u64> {
        if self.pair.way.begun == Begun::Device {
            return self.launch();
        }
        let mut launches = 0;
        for step in from..until {
            launches += self.launch()?;
            if self.pair.way.begun != Begun::Queued {
                self.spin_for(step + 1)?;
            }
        }
        self.spin_for(until)?;
        Ok(launches)
    }

    /// Launches a step, or, where the GPUs begin the next ones, all of them.
    fn launch(&self) -> Result<u64> {
        /// A step that is not captured: four kernels and two copies.
        const QUEUED: u64 = 6;
        // SAFETY: the pair lives until nothing runs any more.
        unsafe {
            match &self.work {
                Work::Calls => self.pair.queue().map(|()| QUEUED),
                Work::One(graph) => graph.launch().map(|()| 1),
                Work::Each(graphs) => {
                    graphs.iter().try_for_each(|graph| graph.launch())?;
                    Ok(2)
                }
            }
        }
    }

    /// After a failure: ends what waits without an end, and takes what a GPU says of it for what the host saw.
    fn given_up(&mut self, error: Error) -> Error {
        if let Some(nccl) = &mut self.pair.nccl {
            nccl.abort();
            return error;
        }
        // What a kernel waits for in vain ends by itself.
        let until = Instant::now() + 2 * WAIT;
        while !self.is_done().unwrap_or(true) {
            if Instant::now() > until {
                return error;
            }
            std::thread::sleep(LOOK);
        }
        self.told_failure().err().unwrap_or(error)
    }

    /// # Errors
    /// What a GPU has noted; the driver refuses to say.
    fn told_failure(&mut self) -> Result<()> {
        let [first, second] = self.pair.ends.each_ref().map(|end| end.ordinal());
        for (end, gpus) in self.pair.ends.iter_mut().zip([[first, second], [second, first]]) {
            end.end()?;
            if let Some(failure) = end.shared.failure(self.pair.way.name, gpus) {
                return Err(failure);
            }
        }
        Ok(())
    }

    /// What both GPUs have is what is right.
    fn check(&mut self, until: u64) -> Result<()> {
        self.told_failure()?;
        let expected = self.reference.value(until);
        for end in &self.pair.ends {
            if end.shared.step != until {
                return Err(self.ended_early(until));
            }
            if end.shared.token != expected {
                return Err(Error::Runtime(format!(
                    "{}: after {until} steps of {} rows cuda:{} has the token {:016x}, expected {expected:016x}, as every way gives: \
                     rows were missing, late or of another step",
                    self.pair.way.name,
                    self.rows,
                    end.ordinal(),
                    end.shared.token
                )));
            }
        }
        Ok(())
    }
}

impl Steps for Run {
    fn run(&mut self, count: u64) -> Result<Chunk> {
        assert!(count <= STAMPS as u64, "{count} steps in a chunk");
        let (from, until) = (self.done, self.done + count);
        self.reference.value(until);
        for end in &mut self.pair.ends {
            end.begin(until)?;
        }
        let ran = self.launches(from, until).and_then(|launches| self.wait_for_all().map(|()| launches));
        let launches = ran.map_err(|error| self.given_up(error))?;
        self.check(until)?;
        self.done = until;
        Ok(Chunk { ends_ns: self.pair.ends[0].ends_ns(from, until)?, launches })
    }

    fn digest(&self) -> u64 {
        self.pair.ends[0].shared.token
    }
}

impl Progress for Run {
    /// A kernel on each GPU may have waited by then.
    const STEP_TIMEOUT: Duration = Duration::from_secs(12);

    fn is_done(&self) -> Result<bool> {
        let [first, second] = &self.pair.ends;
        Ok(first.is_done()? && second.is_done()?)
    }

    /// As the first GPU says.
    fn steps_told(&self) -> u64 {
        self.pair.ends[0].told()
    }

    /// Which GPU a step waits for, its kernels say.
    fn late(&self, limit: Duration) -> Error {
        let at = self.pair.ends.each_ref().map(|end| format!("cuda:{} at step {}", end.ordinal(), end.told()));
        Error::Runtime(format!(
            "{}: found {} after {} s, expected microseconds a step: another process may hold a GPU, or one failed",
            self.pair.way.name,
            at.join(" and "),
            limit.as_secs()
        ))
    }

    fn ended_early(&self, until: u64) -> Error {
        let at = self.pair.ends.each_ref().map(|end| format!("cuda:{} at step {}", end.ordinal(), end.told()));
        Error::Runtime(format!(
            "{}: all launches ended with {}, expected {until} steps: a launch was lost",
            self.pair.way.name,
            at.join(" and ")
        ))
    }
}
