//! Captured graphs instantiated and uploaded. The driver takes longer to instantiate a graph than we take to capture it, so other
//! threads instantiate and upload while the caller's captures the next one.

use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::driver::exec::{Exec, LaunchedBy};
use crate::backend::cuda::driver::graph::Captured;
use crate::error::Result;
use cudarc::driver::{CudaContext, CudaStream};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

/// Threads that instantiate and upload. With 1, 2, 3 and 4 the graphs of LFM2-24B-A2B for 1,024 sequences were ready after 132, 86, 76 and
/// 69 ms on an H100.
const WORKERS: usize = 4;

/// A graph's place among all, and its executables.
type Made = (usize, Result<Vec<Exec>>);

/// Takes graphs as they are captured and makes `copies` executables of each, which are on the device when this returns. In
/// the order of `graphs`.
///
/// # Errors
/// That of the first graph which could not be captured, instantiated or uploaded.
pub fn instantiate(
    context: &Arc<CudaContext>,
    by: LaunchedBy,
    copies: usize,
    graphs: impl Iterator<Item = Result<Captured>>,
) -> Result<Vec<Vec<Exec>>> {
    let refused = |error| failed("instantiating graphs", error);
    // The graphs' own stream is captured meanwhile, and takes no uploads.
    let streams = (0..WORKERS).map(|_| context.new_stream());
    let streams: Vec<_> = streams
        .collect::<std::result::Result<_, _>>()
        .map_err(refused)?;
    let mut made = thread::scope(|scope| {
        let workers: Vec<_> = streams
            .iter()
            .map(|stream| {
                let (sender, captured) = channel();
                let thread = scope.spawn(move || work(captured, by, copies, stream));
                (sender, thread)
            })
            .collect();
        let mut made: Vec<Made> = vec![];
        for (index, graph) in graphs.enumerate() {
            let (sender, _) = &workers[index % WORKERS];
            match graph.map(|graph| sender.send((index, graph))) {
                Ok(Ok(())) => {}
                // This worker takes no more: it has failed with a graph before.
                Ok(Err(_)) => break,
                Err(error) => {
                    made.push((index, Err(error)));
                    break;
                }
            }
        }
        for (sender, thread) in workers {
            drop(sender);
            made.extend(thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        made
    });
    made.sort_by_key(|&(index, _)| index);
    let execs = made.into_iter().map(|(_, execs)| execs);
    let execs = execs.collect::<Result<_>>()?;
    streams
        .iter()
        .try_for_each(|stream| stream.synchronize())
        .map_err(refused)?;
    Ok(execs)
}

/// What a worker makes of the graphs that it is given, up to the first with which it fails.
fn work(
    graphs: Receiver<(usize, Captured)>,
    by: LaunchedBy,
    copies: usize,
    stream: &CudaStream,
) -> Vec<Made> {
    let make = |graph: Captured| {
        let execs = Exec::instantiate_copies(&graph, by, copies)?;
        execs.iter().try_for_each(|exec| exec.upload(stream))?;
        Ok(execs)
    };
    let mut made = vec![];
    for (index, graph) in graphs {
        let execs = make(graph);
        let failed = execs.is_err();
        made.push((index, execs));
        if failed {
            break;
        }
    }
    made
}
