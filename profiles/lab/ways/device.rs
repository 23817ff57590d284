//! What the host launches once a run: graphs that launch one another (kernels/ways/device.cu), a kernel that stays for all steps, and
//! one that launches all that follows.

use super::super::cuda::{Argument, Captured, Exec, Launch, LaunchedBy};
use super::step::{BUCKETS, THREADS, WIDEST};
use super::{Ground, Launching};
use tailgraph::error::Result;

/// Graphs of which the host launches the head. `decides`: a kernel of the way's own ends a step by launching the next; else the head
/// launches all. `copies`: graphs of each bucket, of which two are needed where a graph runs beside the one that launches it.
pub fn chain(ground: &mut Ground, way: &str, decides: bool, copies: usize) -> Result<Launching> {
    let module = ground.memory.gpu.module.clone();
    let decide = decides.then(|| module.kernel(&format!("tg_ways_decide_{way}")));
    let decide = decide.transpose()?;
    // The device knows them by their handles.
    let mut graphs = vec![];
    for copy in 0..copies {
        for bucket in 0..BUCKETS {
            let graph = ground.capture(bucket, decide.as_ref())?;
            let exec = Exec::new(&graph, LaunchedBy::Device)?;
            ground.memory.shared.graphs[copy][bucket] = exec.device_handle();
            graphs.push(exec);
        }
    }
    let head = module.kernel(&format!("tg_ways_head_{way}"))?;
    let head = Captured::capture(&ground.memory.stream, ground.name("the head"), |_| {
        ground.queue_one(&head, &[])
    })?;
    let (at, head) = (graphs.len(), Exec::new(&head, LaunchedBy::Device)?);
    graphs.push(head);
    Ok(Box::new(move |ground, _| {
        ground.launch(&graphs[at]).map(|()| 1)
    }))
}

/// One cooperative kernel that stays (kernels/ways/persistent.cu).
pub fn persistent(ground: &Ground) -> Result<Launching> {
    let kernel = ground.memory.gpu.module.kernel("tg_ways_persistent")?;
    Ok(Box::new(move |ground, _| {
        let (launch, stream) = (Launch::blocks(WIDEST, THREADS), &ground.memory.stream);
        // SAFETY: the argument is the kernel's; the memory is the ground's, which outlives what runs.
        unsafe { kernel.launch_cooperative(stream, launch, &[ground.ways()]) }.map(|()| 1)
    }))
}

/// A kernel that launches a step's kernels, and its own next turn (kernels/cdp/turn.cu). Its image has the device runtime, and the
/// step's kernels once more: no other way pays for that.
pub fn launching(ground: &Ground, own_stream: bool) -> Result<Launching> {
    let turn = ground.memory.gpu.module.kernel("tg_cdp_turn")?;
    Ok(Box::new(move |ground, _| {
        let queued = ground.queue_one(&turn, &[Argument::U32(own_stream.into())]);
        queued.map(|()| 1)
    }))
}
