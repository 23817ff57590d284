//! `lab handover`: steps over two GPUs that hand rows to each other, or add theirs up, in each way there is (kernels/ways/pair.cu).

mod pair;
pub mod step;

use super::cuda::{Exec, LaunchedBy, OpenGpu, nccl, peer};
use super::gpus;
use super::measure::{self, Chunk, Plan, Steps};
use super::memory::Progress;
use clap::Args;
use libloading::Library;
use pair::{End, Pair};
use serde_json::json;
use std::rc::Rc;
use std::time::Duration;
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

/// The ways by their names, with what each does.
pub const WAYS: &str = "\
nccl-spin             NCCL's send and receive captured in a graph for each GPU; the host launches both and spins
nccl-queued           nccl-spin with all graphs queued beforehand: what NCCL costs without the host
copies-spin           kernels, copies from GPU to GPU and events, all queued by the host, which spins
copies-graph          one graph over both GPUs, copies among its nodes; the host launches it and spins
stores-spin           kernels store rows there and release a flag that a kernel waits for; graphs by the host
stores-queued         stores-spin with all graphs queued beforehand: the floor
stores-device         stores-spin whose graphs' last nodes launch the next ones by tail launches: no host
reduce-nccl-spin      NCCL's all-reduce captured in a graph for each GPU; the host launches both and spins
reduce-nccl-queued    reduce-nccl-spin with all graphs queued beforehand
reduce-stores-spin    one kernel on each GPU stores its rows there, waits for the other's and adds both
reduce-stores-queued  reduce-stores-spin with all graphs queued beforehand: the floor
reduce-stores-device  reduce-stores-spin whose graphs' last nodes launch the next ones: no host";

/// A way to run steps over two GPUs.
#[derive(Debug, Clone, Copy)]
pub struct Way {
    pub name: &'static str,
    pub carrier: Carrier,
    pub begun: Begun,
    /// Both GPUs add up their rows; else the first hands its rows to the second, and gets a token back.
    pub reduces: bool,
}

impl Way {
    /// What a name of the list means.
    pub fn of(name: &'static str) -> Self {
        let reduces = name.starts_with("reduce-");
        let (carrier, begun) = match name.trim_start_matches("reduce-") {
            "nccl-spin" => (Carrier::Nccl, Begun::Graphs),
            "nccl-queued" => (Carrier::Nccl, Begun::Queued),
            "copies-spin" => (Carrier::Copies, Begun::Calls),
            "copies-graph" => (Carrier::Copies, Begun::OneGraph),
            "stores-queued" => (Carrier::Stores, Begun::Queued),
            "stores-device" => (Carrier::Stores, Begun::Device),
            _ => (Carrier::Stores, Begun::Graphs),
        };
        Self {
            name,
            carrier,
            begun,
            reduces,
        }
    }
}

#[derive(Debug, Clone, Args)]
#[command(after_help = WAYS)]
pub struct HandoverArgs {
    #[command(flatten)]
    plan: Plan,
    /// Rows of a step, of 2048 bf16 each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,8,64,512", value_parser = clap::value_parser!(u32).range(1..))]
    rows: Vec<u32>,
}

const FIELDS: &str = "way rows cpu_load gpu_load p50_step_us p99_step_us p99.9_step_us longest_step_us gbytes_per_s \
                      bytes_per_step host_cpu_us_per_step host_launches_per_step device_mib startup_ms timed_steps";

/// Measures every way asked for.
pub fn run(args: &HandoverArgs) -> Result<()> {
    let plan = &args.plan;
    let (ways, out) = (plan.ways(WAYS)?, plan.on.print.open()?);
    let [a, b] = gpus(&plan.on.device)?;
    let gpus = [OpenGpu::new(a)?, OpenGpu::new(b)?];
    let (mut there, is_all) = (vec![], plan.ways == ["all"]);
    for way in ways.into_iter().map(Way::of) {
        match check(&gpus, way) {
            Ok(()) => there.push(way),
            Err(error @ Error::Usage(_)) if is_all => eprintln!("warning: left out: {error}"),
            Err(error) => return Err(error),
        }
    }
    if there.is_empty() {
        let message = "--ways all: found no way that this machine has all for, expected some";
        return Err(Error::Usage(message.to_owned()));
    }
    let mut things = vec![];
    for &rows in &args.rows {
        let reference = |reduces| Rc::new(step::reference(rows, reduces, plan.most_steps()));
        let references = [false, true].map(reference);
        for &way in &there {
            let (gpus, reference) = (&gpus, references[usize::from(way.reduces)].clone());
            let named = json!({
                "handover_schema": 1,
                "way": way.name,
                "rows": rows,
                "bytes_per_step": rows as usize * step::ROW_BYTES,
            });
            let open = move || Run::new(gpus, way, rows, &reference, WAIT);
            things.push((named, open));
        }
    }
    let heading = "Steps over two GPUs, by the first one's clock";
    measure::run(plan, out, &gpus, &things, heading, FIELDS)
}

/// How long a kernel waits for the other GPU, which other processes may have meanwhile. A step takes some microseconds.
pub const WAIT: Duration = Duration::from_secs(5);

fn nccl_for(way: &str) -> Result<Library> {
    nccl::found(&format!("--ways {way}"), "name ways without nccl in them")
}

/// Refuses a way for which these GPUs lack something.
pub fn check(gpus: &[OpenGpu; 2], way: Way) -> Result<()> {
    if way.carrier == Carrier::Nccl {
        return nccl_for(way.name).map(drop);
    }
    let [a, b] = gpus.each_ref().map(|gpu| &gpu.context);
    if peer::reaches(a, b)? && peer::reaches(b, a)? {
        return Ok(());
    }
    let (way, a, b) = (way.name, a.ordinal(), b.ordinal());
    Err(Error::Usage(format!(
        "--ways {way}: cuda:{a} and cuda:{b} do not reach each other's memory, expected GPUs that do (`tailgraph doctor` shows them), or \
         ways with nccl in them"
    )))
}

/// A way and its memory. Graphs go before what they use.
pub struct Run {
    /// A step's: none where it is queued anew each time, one of both GPUs, or one for each.
    graphs: Vec<Exec>,
    pair: Pair,
    /// The token behind each number of steps.
    reference: Rc<Vec<u64>>,
}

impl Run {
    /// Makes `way` ready for steps of so many rows, whose tokens are `reference`'s. `wait`: see [`WAIT`].
    pub fn new(
        gpus: &[OpenGpu; 2],
        way: Way,
        rows: u32,
        reference: &Rc<Vec<u64>>,
        wait: Duration,
    ) -> Result<Self> {
        let pair = Pair::new(gpus, way, rows, wait.as_nanos() as u64)?;
        let (graphs, by) = match way.begun {
            Begun::Calls => (vec![], LaunchedBy::Host),
            Begun::Device => (pair.capture()?, LaunchedBy::Device),
            _ => (pair.capture()?, LaunchedBy::Host),
        };
        let graphs = graphs.iter().map(|graph| Exec::new(graph, by));
        Ok(Self {
            graphs: graphs.collect::<Result<_>>()?,
            pair,
            reference: reference.clone(),
        })
    }

    /// One step more, of which only the first GPU's part is launched: to see what becomes of a GPU that waits in vain.
    #[allow(dead_code, reason = "of use to tests")]
    pub fn run_alone(&mut self) -> Result<()> {
        let until = self.pair.ends[0].memory.shared.ways.step + 1;
        self.begin(until)?;
        // SAFETY: the pair lives until nothing runs any more.
        unsafe { self.graphs[0].launch() }?;
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
        if self.graphs.is_empty() {
            return self.pair.queue().map(|()| QUEUED);
        }
        // SAFETY: the pair lives until nothing runs any more.
        let launch = |graph: &Exec| unsafe { graph.launch() };
        self.graphs.iter().try_for_each(launch)?;
        Ok(self.graphs.len() as u64)
    }

    /// After a failure: ends what waits without an end, and takes what a GPU says of it for what the host saw.
    fn given_up(&mut self, error: Error) -> Error {
        if let Some(nccl) = &mut self.pair.nccl {
            nccl.abort();
            return error;
        }
        // What a kernel waits for in vain ends by itself.
        if self.wait_for_all().is_err() {
            return error;
        }
        self.told_failure().err().unwrap_or(error)
    }

    /// Allows so many steps in all.
    fn begin(&mut self, until: u64) -> Result<()> {
        for end in &mut self.pair.ends {
            end.memory.shared.ways.limit = until;
            end.memory.write()?;
        }
        Ok(())
    }

    fn told_failure(&mut self) -> Result<()> {
        let [a, b] = self
            .pair
            .ends
            .each_ref()
            .map(|end| end.memory.gpu.info.ordinal);
        for (end, gpus) in self.pair.ends.iter_mut().zip([[a, b], [b, a]]) {
            end.memory.read()?;
            if let Some(failure) = end.memory.shared.failure(self.pair.way.name, gpus) {
                return Err(failure);
            }
        }
        Ok(())
    }

    /// What both GPUs have is what is right.
    fn check(&mut self, until: u64) -> Result<()> {
        self.told_failure()?;
        self.pair.ends.iter().try_for_each(|End { memory, .. }| {
            let shared = &memory.shared;
            let of = format!(
                "{} rows cuda:{} has the token",
                shared.rows, memory.gpu.info.ordinal
            );
            self.compare(
                until,
                shared.ways.step,
                &of,
                shared.ways.digest,
                &self.reference,
            )
        })
    }
}

impl Steps for Run {
    fn run(&mut self, count: u64) -> Result<Chunk> {
        let from = self.pair.ends[0].memory.shared.ways.step;
        let until = from + count;
        self.begin(until)?;
        let ran = self.launches(from, until);
        let ran = ran.and_then(|launches| self.wait_for_all().map(|()| launches));
        let launches = ran.map_err(|error| self.given_up(error))?;
        self.check(until)?;
        let ends_ns = self.pair.ends[0].memory.ends_ns(from, until)?;
        Ok(Chunk { ends_ns, launches })
    }

    fn digest(&self) -> u64 {
        self.pair.ends[0].memory.shared.ways.digest
    }
}

impl Progress for Run {
    fn way(&self) -> &'static str {
        self.pair.way.name
    }

    fn is_done(&self) -> Result<bool> {
        let [first, second] = &self.pair.ends;
        Ok(first.memory.is_done()? && second.memory.is_done()?)
    }

    /// Steps that the first GPU has counted.
    fn steps_told(&self) -> u64 {
        self.pair.ends[0].memory.told()
    }

    /// Which GPU a step waits for, its kernels say.
    fn place(&self) -> String {
        let at = self.pair.ends.each_ref().map(|End { memory, .. }| {
            format!("cuda:{} at step {}", memory.gpu.info.ordinal, memory.told())
        });
        at.join(" and ")
    }
}
