//! Graphs that the GPU launches: the host launches the head, once a run (kernels/ways/device.cu).

use super::super::cuda::{Exec, LaunchedBy};
use super::super::memory::Progress;
use super::step::BUCKETS;
use super::{Ground, Launching};
use tailgraph::error::Result;

struct Chain {
    head: Exec,
    /// The device knows them by their handles.
    _steps: Vec<Exec>,
}

/// `decides`: a kernel of the way's own ends a step by launching the next; else the head launches all. `copies`: graphs of each
/// bucket, of which two are needed where a graph runs beside the one that launches it.
pub fn chain(
    ground: &mut Ground,
    way: &str,
    decides: bool,
    copies: usize,
) -> Result<Box<dyn Launching>> {
    let module = &ground.memory.gpu.module;
    let decide = decides.then(|| module.kernel(&format!("tg_ways_decide_{way}")));
    let decide = decide.transpose()?;
    let mut steps = vec![];
    for copy in 0..copies {
        for bucket in 0..BUCKETS {
            let graph = ground.capture(bucket, decide.as_ref())?;
            let exec = Exec::new(&graph, LaunchedBy::Device)?;
            ground.memory.shared.graphs[copy][bucket] = exec.device_handle();
            steps.push(exec);
        }
    }
    let head = Exec::new(
        &ground.capture_head(&format!("tg_ways_head_{way}"))?,
        LaunchedBy::Device,
    )?;
    Ok(Box::new(Chain {
        head,
        _steps: steps,
    }))
}

impl Launching for Chain {
    fn run(&mut self, ground: &mut Ground, _until: u64) -> Result<u64> {
        // SAFETY: the memory is the ground's and the graphs are this value's, which outlive what runs.
        unsafe { self.head.launch() }?;
        ground.wait_for_all()?;
        Ok(1)
    }
}
