//! NCCL between GPUs, to compare with: the library is loaded where somebody asks for it, and nothing else here needs it.
//!
//! It is never to use the links' multicast (NVLS), which needs a service of the whole host and may fail on a machine that has some of
//! its GPUs. The environment alone tells it so, and no thread may change that while another looks: the command line does
//! ([`without_multicast`]) before it begins one, and [`found`] refuses what any other program has not.

use crate::backend::cuda::driver::Address;
use crate::error::{Error, Result};
use cudarc::driver::{CudaContext, CudaStream, sys};
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

/// File names of NCCL in its packages; the one without a version is there where its headers are installed too.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// `ncclInt8`
const BYTES: c_int = 0;
/// `ncclBfloat16`
const BF16: c_int = 9;
/// `ncclSum`
const SUM: c_int = 0;

type Comm = *mut c_void;
type Answer = c_int;

/// The functions of nccl.h that are used; all but the last answer `ncclResult_t`.
struct Functions {
    init_all: unsafe extern "C" fn(*mut Comm, c_int, *const c_int) -> Answer,
    destroy: unsafe extern "C" fn(Comm) -> Answer,
    abort: unsafe extern "C" fn(Comm) -> Answer,
    group_start: unsafe extern "C" fn() -> Answer,
    group_end: unsafe extern "C" fn() -> Answer,
    send: unsafe extern "C" fn(*const c_void, usize, c_int, c_int, Comm, sys::CUstream) -> Answer,
    receive: unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Comm, sys::CUstream) -> Answer,
    all_reduce: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        Comm,
        sys::CUstream,
    ) -> Answer,
    error_string: unsafe extern "C" fn(Answer) -> *const c_char,
}

/// Links from each GPU to the next, and from the last to the first.
pub struct Nccl {
    functions: Functions,
    /// Both ends of each link: its sender's, then its receiver's.
    links: Vec<[Comm; 2]>,
    /// Has the functions' code.
    _library: Library,
}

// SAFETY: a communicator may be used from any thread, by one at a time.
unsafe impl Send for Nccl {}

/// What NCCL reads as it connects GPUs.
const MULTICAST: &str = "NCCL_NVLS_ENABLE";

/// Keeps NCCL from multicast.
///
/// # Safety
/// No other thread looks at the environment meanwhile.
pub unsafe fn without_multicast() {
    // SAFETY: the caller's promise.
    unsafe { std::env::set_var(MULTICAST, "0") };
}

/// The library. `asked`: the option that wants it; `instead`: what to do without it.
///
/// # Errors
/// [`Error::Usage`]: it is not there, or would use multicast.
pub fn found(asked: &str, instead: &str) -> Result<Library> {
    if std::env::var_os(MULTICAST).is_none_or(|value| value != "0") {
        return Err(Error::Usage(format!(
            "{asked}: the environment has no {MULTICAST}=0, expected it, as NCCL's multicast needs a service of the whole host: set it \
             before this program starts, or {instead}"
        )));
    }
    let mut why = String::new();
    for name in NAMES {
        // SAFETY: loading NCCL runs its initialisers, which have no demands.
        match unsafe { Library::new(name) } {
            Ok(library) => return Ok(library),
            Err(error) if why.is_empty() => why = error.to_string(),
            Err(_) => {}
        }
    }
    Err(Error::Usage(format!(
        "{asked}: {} cannot be loaded ({why}), expected NCCL where the system looks for libraries (LD_LIBRARY_PATH): install it (the \
         system's package libnccl2, or `pip install nvidia-nccl-cu13`, whose folder nvidia/nccl/lib has it), or {instead}",
        NAMES[0]
    )))
}

/// # Safety
/// The function is of that type.
unsafe fn function<F: Copy>(library: &Library, name: &str) -> Result<F> {
    // SAFETY: the caller's promise.
    let symbol = unsafe { library.get::<F>(name.as_bytes()) };
    let symbol = symbol.map_err(|error| {
        Error::Usage(format!(
            "{}: found a library without {name} ({error}), expected NCCL 2.10 or newer",
            NAMES[0]
        ))
    });
    Ok(*symbol?)
}

impl Functions {
    fn of(library: &Library) -> Result<Self> {
        // SAFETY: as nccl.h declares them.
        unsafe {
            Ok(Self {
                init_all: function(library, "ncclCommInitAll")?,
                destroy: function(library, "ncclCommDestroy")?,
                abort: function(library, "ncclCommAbort")?,
                group_start: function(library, "ncclGroupStart")?,
                group_end: function(library, "ncclGroupEnd")?,
                send: function(library, "ncclSend")?,
                receive: function(library, "ncclRecv")?,
                all_reduce: function(library, "ncclAllReduce")?,
                error_string: function(library, "ncclGetErrorString")?,
            })
        }
    }

    fn check(&self, what: &str, answer: Answer) -> Result<()> {
        if answer == 0 {
            return Ok(());
        }
        // SAFETY: NCCL answers any code with a string that stays.
        let why = unsafe { CStr::from_ptr((self.error_string)(answer)) };
        let why = why.to_string_lossy();
        Err(Error::Runtime(format!("{what}: NCCL answered {why}")))
    }
}

impl Nccl {
    /// `library`: as [`found`] gives it.
    ///
    /// # Errors
    /// [`Error::Usage`] where the library is too old; [`Error::Runtime`] where it does not connect the GPUs.
    pub fn new(library: Library, contexts: &[&Arc<CudaContext>]) -> Result<Self> {
        let functions = Functions::of(&library)?;
        let mut nccl = Self {
            functions,
            links: vec![],
            _library: library,
        };
        for (index, from) in contexts.iter().enumerate() {
            let to = contexts[(index + 1) % contexts.len()];
            let gpus = [from, &to].map(|context| context.ordinal() as c_int);
            let mut comms = [std::ptr::null_mut(); 2];
            // SAFETY: there is room for two.
            let made = unsafe { (nccl.functions.init_all)(comms.as_mut_ptr(), 2, gpus.as_ptr()) };
            let what = format!("connecting cuda:{} and cuda:{}", gpus[0], gpus[1]);
            nccl.functions.check(&what, made)?;
            nccl.links.push(comms);
        }
        Ok(nccl)
    }

    /// The link from the last GPU to the first.
    pub fn last(&self) -> usize {
        self.links.len() - 1
    }

    /// Queues a send of so many bytes on the one stream and its receive on the other, of the link's GPUs.
    ///
    /// # Errors
    /// NCCL refuses.
    ///
    /// # Safety
    /// There are so many bytes at both places, and nobody else uses them from when a stream comes by until it has.
    pub unsafe fn exchange(
        &self,
        link: usize,
        (from, by): (Address, &CudaStream),
        (to, there): (Address, &CudaStream),
        bytes: usize,
    ) -> Result<()> {
        let [sender, receiver] = self.links[link];
        let Functions {
            group_start,
            group_end,
            send,
            receive,
            ..
        } = self.functions;
        let check = |what, answer| self.functions.check(what, answer);
        // SAFETY: the caller's promise. One thread has both ends, which NCCL wants in a group.
        unsafe {
            check("sending to another GPU", group_start())?;
            let sent = send(
                from as *const c_void,
                bytes,
                BYTES,
                1,
                sender,
                by.cu_stream(),
            );
            let come = receive(
                to as *mut c_void,
                bytes,
                BYTES,
                0,
                receiver,
                there.cu_stream(),
            );
            let ended = group_end();
            check("sending to another GPU", sent)?;
            check("receiving from another GPU", come)?;
            check("sending to another GPU", ended)
        }
    }
}

impl Nccl {
    /// Queues, on the streams of a link's two GPUs, that so many bf16 at both places become their sums.
    ///
    /// # Errors
    /// NCCL refuses.
    ///
    /// # Safety
    /// The caller keeps the promises of [`Self::exchange`].
    pub unsafe fn reduce(
        &self,
        link: usize,
        ends: [(Address, &CudaStream); 2],
        count: usize,
    ) -> Result<()> {
        let Functions {
            group_start,
            group_end,
            all_reduce,
            ..
        } = self.functions;
        let check = |answer| self.functions.check("adding up rows of two GPUs", answer);
        // SAFETY: the caller's promise.
        unsafe {
            check(group_start())?;
            let queued = self.links[link]
                .iter()
                .zip(ends)
                .map(|(&comm, (at, stream))| {
                    let (from, to) = (at as *const c_void, at as *mut c_void);
                    all_reduce(from, to, count, BF16, SUM, comm, stream.cu_stream())
                });
            let queued: Vec<Answer> = queued.collect();
            let ended = group_end();
            queued.into_iter().try_for_each(check)?;
            check(ended)
        }
    }

    /// Ends what waits on the GPUs for what never comes. Nothing can be queued any more.
    pub fn abort(&mut self) {
        for comm in self.links.drain(..).flatten() {
            // SAFETY: made by `new`, and given up once. There is nobody to tell of a failure, which is reported already.
            let _ = unsafe { (self.functions.abort)(comm) };
        }
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        for &comm in self.links.iter().flatten() {
            // SAFETY: made by `new`, destroyed once. A failure leaves it to the end of the process.
            let _ = unsafe { (self.functions.destroy)(comm) };
        }
    }
}
