//! What running points on an engine needs beside the engine: what is read and counted around it.

use crate::bench::clock::Clocks;
use crate::bench::drive::{self, Beside, Driven, Heard, Run};
use crate::bench::gpu_state::Watch;
use crate::bench::host::Busy;
use crate::bench::row::Startup;
use crate::bench::traced::Life;
use crate::bench::workload::Arrival;
use crate::bench::{Kind, Point};
use crate::error::{Error, Result};
use crate::io::arrays::{self, Sample};
use crate::session::Target;
use crate::telemetry::phases::{Phase, taken};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

const PHASES: [Phase; 5] = [
    Phase::Load,
    Phase::Graphs,
    Phase::Capture,
    Phase::Instantiate,
    Phase::Upload,
];

/// What each phase of starting took in this process so far.
pub fn phases_so_far() -> [Duration; 5] {
    PHASES.map(taken)
}

/// The prompts of `score --input`.
pub fn read_samples(path: &Path) -> Result<Vec<Sample>> {
    let samples = match arrays::Kind::of(path) {
        arrays::Kind::Safetensors => arrays::safetensors(path)?,
        arrays::Kind::Npy => arrays::npy(path)?,
        _ => {
            return Err(Error::Usage(format!(
                "--input {}: expected a name that ends in .safetensors or .npy",
                path.display()
            )));
        }
    };
    match samples.is_empty() {
        true => Err(Error::file(path, "found no prompts, expected at least one")),
        false => Ok(samples),
    }
}

/// What looks at the GPUs of a run.
#[cfg(feature = "cuda")]
pub fn watch<'t>(targets: impl Iterator<Item = &'t Target>) -> Watch {
    Watch::new(
        targets
            .flat_map(Target::gpus)
            .map(|device| &*device.gpu.context),
    )
}

#[cfg(not(feature = "cuda"))]
pub fn watch<'t>(_targets: impl Iterator<Item = &'t Target>) -> Watch {
    Watch::default()
}

/// Points that one engine serves, with the sequences that it is to hold.
pub fn groups(kind: Kind, points: &[Point]) -> Vec<(Option<u32>, Vec<Point>)> {
    let largest = points.iter().map(|point| point.batch).max();
    match kind {
        Kind::Serve => {
            let mut groups: Vec<(Option<u32>, Vec<Point>)> = Vec::new();
            for point in points {
                match groups
                    .iter_mut()
                    .find(|(batch, _)| *batch == Some(point.batch))
                {
                    Some((_, group)) => group.push(*point),
                    None => groups.push((Some(point.batch), vec![*point])),
                }
            }
            groups
        }
        // Prompts are scored as they come: how many at once is the engine's business.
        Kind::Score => vec![(None, points.to_vec())],
        Kind::Decode | Kind::Prefill => vec![(largest, points.to_vec())],
    }
}

/// An engine that runs one point after the other.
pub struct Runner<'a> {
    pub engine: &'a mut dyn Driven,
    /// Requests so far: the number of the next.
    pub sent: u64,
    pub interrupt: &'a AtomicBool,
    pub clocks: Clocks,
    /// Where all that the engine goes through is kept, if it is to be traced.
    pub life: Option<Life>,
}

impl Runner<'_> {
    /// The number of the next step, where the engine's life is kept.
    pub fn next_step(&self) -> u64 {
        self.life.as_ref().map_or(0, Life::next_step)
    }

    /// Before a run. False: interrupted. What an engine's life is made of is sent by its runs alone, which tell less of the clocks.
    #[must_use = "an interrupt ends the command"]
    pub fn compare_clocks(&mut self) -> Result<bool> {
        if self.life.is_some() {
            return Ok(true);
        }
        let Some(clocks) = drive::compare_clocks(self.engine, self.interrupt)? else {
            return Ok(false);
        };
        self.clocks = clocks;
        self.sent += drive::EXCHANGES;
        Ok(true)
    }

    /// `None`: interrupted.
    pub fn run(&mut self, point: &Point, arrivals: &[Arrival]) -> Result<Option<Run>> {
        let busy = Busy::new(point.cpu_load, self.interrupt)?;
        let beside = Beside {
            most_in_flight: point.most_in_flight,
            clocks: self.clocks,
            busy: &busy,
            interrupt: self.interrupt,
        };
        self.sent += arrivals.len() as u64;
        let Some(life) = &mut self.life else {
            return drive::run(self.engine, arrivals, &beside);
        };
        life.requests(arrivals);
        let mut heard = |heard: Heard<'_>| life.heard(&heard);
        drive::run_told(self.engine, arrivals, &beside, &mut heard)
    }
}

impl Startup {
    /// What each phase of starting took since `before`, as far as the device has it.
    pub fn since(before: [Duration; 5], on_gpu: bool) -> Self {
        let ms = |index: usize| (taken(PHASES[index]) - before[index]).as_secs_f64() * 1e3;
        let of_gpu = |index| on_gpu.then(|| ms(index));
        Self {
            startup_load_ms: Some(ms(0)),
            startup_graphs_ms: of_gpu(1),
            startup_capture_ms: of_gpu(2),
            startup_instantiate_ms: of_gpu(3),
            startup_upload_ms: of_gpu(4),
            ..Self::default()
        }
    }
}
