//! `bench keep-busy`: what `--gpu-load` starts. Kernels one behind the other until standard input ends, which it does when the
//! process that started this one does.

use super::gpu;
use crate::backend::cuda::tools::busy::KeepBusy;
use crate::bench::gpu_load::{KERNEL, READY};
use crate::cli::Exit;
use crate::cli::args::bench::KeepBusyArgs;
use crate::error::{Error, Result};
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub fn run(args: &KeepBusyArgs) -> Result<Exit> {
    let gpu = gpu::open("bench keep-busy", &args.device)?;
    let busy = KeepBusy::new(&gpu, KERNEL)?;
    let over = Arc::new(AtomicBool::new(false));
    let tell = over.clone();
    // It ends with standard input, or with the process.
    std::thread::spawn(move || {
        let mut rest = Vec::new();
        let _ = std::io::stdin().lock().read_to_end(&mut rest);
        tell.store(true, Ordering::Relaxed);
    });
    busy.run(|launched| {
        // One has run by now, and another one runs.
        if launched == 3 {
            let said = writeln!(std::io::stdout(), "{READY}");
            said.map_err(|error| Error::Runtime(format!("standard output: {error}")))?;
        }
        Ok(!over.load(Ordering::Relaxed))
    })?;
    Ok(Exit::Done)
}
