//! Other processes on the GPU that is measured: of this program, each with kernels of some milliseconds one behind the other, as
//! the jobs of other users have them. The GPU gives its processes time slices in turn.

use crate::error::{Error, Result};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Of the kernels of such a process, on a GPU of its own.
pub const KERNEL: Duration = Duration::from_millis(2);
/// What such a process says when its kernels run.
pub const READY: &str = "ready";
/// For opening a GPU that others keep busy.
const READY_TIMEOUT: Duration = Duration::from_secs(120);
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// Processes that keep a GPU busy until this is dropped.
#[derive(Debug, Default)]
pub struct GpuLoad {
    processes: Vec<Child>,
}

impl GpuLoad {
    /// `count` of them on GPU `ordinal`, whose kernels run by the time this returns.
    ///
    /// # Errors
    /// [`Error::Runtime`] where one does not start, with what it says on standard error above.
    pub fn new(count: u32, ordinal: u32) -> Result<Self> {
        let mut load = Self::default();
        for number in 1..=count {
            let what = format!("--gpu-load {count}: process {number}");
            let program = std::env::current_exe()
                .map_err(|error| Error::Runtime(format!("{what}: this program's file: {error}")))?;
            let mut child = Command::new(program)
                .args(["bench", "keep-busy", "--device", &format!("cuda:{ordinal}")])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .map_err(|error| Error::Runtime(format!("{what} did not start: {error}")))?;
            let output = child.stdout.take();
            load.processes.push(child);
            await_ready(&what, output)?;
        }
        Ok(load)
    }
}

/// The processes that one point after another wants.
#[derive(Debug, Default)]
pub struct Beside {
    count: u32,
    load: Option<GpuLoad>,
}

impl Beside {
    /// From now on there are `count` of them on GPU `ordinal`, those that are there already included.
    ///
    /// # Errors
    /// As for [`GpuLoad::new`].
    pub fn have(&mut self, count: u32, ordinal: u32) -> Result<()> {
        if count == self.count {
            return Ok(());
        }
        (self.count, self.load) = (0, None);
        self.load = Some(GpuLoad::new(count, ordinal)?);
        self.count = count;
        Ok(())
    }
}

/// Until a process says that its kernels run.
fn await_ready(what: &str, output: Option<impl std::io::Read + Send + 'static>) -> Result<()> {
    let output = output.ok_or_else(|| Error::Runtime(format!("{what} has no standard output")))?;
    let (tell, hear) = mpsc::channel();
    // It ends with the process, which holds the other end.
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = BufReader::new(output).read_line(&mut line);
        let _ = tell.send(read.map(|_| line));
    });
    match hear.recv_timeout(READY_TIMEOUT) {
        Ok(Ok(line)) if line.trim_end() == READY => Ok(()),
        Ok(Ok(line)) => Err(Error::Runtime(format!(
            "{what}: found {line:?}, expected {READY:?} once its kernels run on the GPU; its own message is above"
        ))),
        Ok(Err(error)) => Err(Error::Runtime(format!("{what}: {error}"))),
        Err(_) => Err(Error::Runtime(format!(
            "{what}: its kernels did not run within {} s, expected a GPU that it can open",
            READY_TIMEOUT.as_secs()
        ))),
    }
}

impl Drop for GpuLoad {
    /// They end when their standard input does.
    fn drop(&mut self) {
        for child in &mut self.processes {
            drop(child.stdin.take());
        }
        let start = Instant::now();
        for child in &mut self.processes {
            while matches!(child.try_wait(), Ok(None)) {
                if start.elapsed() > END_TIMEOUT {
                    // It hangs on the GPU; there is nobody to tell.
                    let _ = child.kill();
                    let _ = child.wait();
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_waited_for_until_it_is_ready() {
        await_ready("process 1", Some(&b"ready\n"[..])).unwrap();
        for found in [&b""[..], b"no GPU\n"] {
            let message = await_ready("--gpu-load 2: process 1", Some(found)).unwrap_err();
            let message = message.to_string();
            for word in ["--gpu-load 2: process 1", "expected \"ready\""] {
                assert!(message.contains(word), "{message}");
            }
        }
        assert!(GpuLoad::new(0, 0).unwrap().processes.is_empty());
    }
}
