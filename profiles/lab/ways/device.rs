//! Graphs that the GPU launches: the host launches the head, once a run (kernels/ways/device.cu).

use super::step::{BUCKETS, COPIES};
use super::{Ground, Steps};
use crate::backend::cuda::driver::exec::{Exec, LaunchedBy};
use crate::backend::cuda::listed::techniques::Technique;
use crate::backend::cuda::tools::progress::Progress;
use crate::error::{Error, Result};

pub(super) struct Chain {
    head: Exec,
    /// The device knows them by their handles.
    _steps: Vec<Exec>,
}

impl Chain {
    pub fn new(ground: &mut Ground, technique: Technique) -> Result<Self> {
        let (head, decide) = match technique {
            Technique::DeviceSibling => ("tg_ways_head_sibling", Some("tg_ways_decide_sibling")),
            Technique::DeviceTail => ("tg_ways_head_tail", Some("tg_ways_decide_tail")),
            Technique::DeviceScheduler => ("tg_ways_head_scheduler", None),
            Technique::DeviceForget => ("tg_ways_head_forget", None),
            other => {
                return Err(Error::Runtime(format!(
                    "{}: found a way whose graphs the GPU does not launch: this is a bug in tailgraph",
                    other.name()
                )));
            }
        };
        let decide = decide.map(|name| ground.module.kernel(name)).transpose()?;
        let mut steps = vec![];
        for copy in 0..COPIES {
            for bucket in 0..BUCKETS {
                let graph = ground.capture(bucket, decide.as_ref())?;
                let exec = Exec::new(&graph, LaunchedBy::Device)?;
                ground.place_graph(copy, bucket, exec.device_handle());
                steps.push(exec);
            }
            // Only a sibling runs beside the graph that launches it.
            if technique != Technique::DeviceSibling {
                break;
            }
        }
        Ok(Self {
            head: Exec::new(&ground.capture_head(head)?, LaunchedBy::Device)?,
            _steps: steps,
        })
    }
}

impl Steps for Chain {
    fn run(&mut self, ground: &mut Ground, _until: u64) -> Result<u64> {
        // SAFETY: the memory is the ground's and the graphs are this value's, which outlive what runs.
        unsafe { self.head.launch() }?;
        ground.wait_for_all()?;
        Ok(1)
    }
}
