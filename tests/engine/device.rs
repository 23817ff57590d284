//! A thread in a device's place: it has a copy of the state block, takes turns as the dispatcher kernel does, and shares
//! nothing with the host but the rings.

use crate::rig::{OPTIONS, bucket_sizes, formula, sample};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tailgraph::backend::device::Runs;
use tailgraph::backend::{
    Claimer, DeviceScheduler, QueueMemory, SharedRegion, StageBackend, StepView,
};
use tailgraph::error::{Error, Result};
use tailgraph::plan::{BucketSizes, RingCapacities};
use tailgraph::runtime::SingleEngine;
use tailgraph::sys::abi;

/// Aligned memory.
struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: plain memory, used under the rings' protocol.
unsafe impl Send for Memory {}
// SAFETY: plain memory, used under the rings' protocol.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(bytes: usize) -> Arc<Self> {
        let layout = Layout::from_size_align(bytes, 128).unwrap();
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap();
        Arc::new(Self { start, layout })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

struct Shared(Arc<Memory>);

impl SharedRegion for Shared {
    fn start(&self) -> NonNull<u8> {
        self.0.start
    }

    fn bytes(&self) -> usize {
        self.0.layout.size()
    }
}

/// What goes wrong in step 3.
#[derive(Clone, Copy, PartialEq)]
pub enum Trouble {
    None,
    /// The driver reports a fault from then on.
    Fault,
    /// The device ends as if its work were done.
    Silence,
    /// The step goes on until someone ends it.
    Stuck,
}

pub struct Device {
    trouble: Trouble,
    /// Does atomics in other devices' memory.
    peers: bool,
    /// Knew before it was prepared that it may be told to claim.
    may_claim: bool,
    blocks: Option<(Arc<Memory>, Arc<Memory>)>,
    /// What of a queue is in its own memory, and the queue.
    seat: Option<(Arc<Memory>, Arc<QueueMemory>)>,
    thread: Option<JoinHandle<()>>,
    /// Ends a stuck step.
    pub release: Arc<AtomicBool>,
    /// Set when the device is dropped.
    pub dropped: Arc<AtomicBool>,
}

impl Device {
    pub fn new(trouble: Trouble) -> Self {
        Self {
            trouble,
            peers: false,
            may_claim: false,
            blocks: None,
            seat: None,
            thread: None,
            release: Arc::default(),
            dropped: Arc::default(),
        }
    }
}

impl Device {
    /// One that can claim from a queue that others of its kind claim from too.
    pub fn with_peers() -> Self {
        let mut device = Self::new(Trouble::None);
        device.peers = true;
        device
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::Release);
    }
}

impl DeviceScheduler for Device {
    fn name(&self) -> String {
        "a test's device".into()
    }

    fn may_claim(&mut self) -> Result<()> {
        assert!(self.blocks.is_none(), "its graphs are captured by then");
        self.may_claim = true;
        Ok(())
    }

    fn prepare(
        &mut self,
        state: &[u8],
        ring_bytes: usize,
        bucket_sizes: &BucketSizes,
        slots: u32,
    ) -> Result<Box<dyn SharedRegion>> {
        assert_eq!((bucket_sizes.decode.len(), slots), (3, 4));
        let (copy, rings) = (Memory::new(state.len()), Memory::new(ring_bytes));
        // SAFETY: the copy is as large, and nobody else's.
        unsafe {
            copy.start
                .as_ptr()
                .copy_from_nonoverlapping(state.as_ptr(), state.len());
        }
        self.blocks = Some((copy, rings.clone()));
        Ok(Box::new(Shared(rings)))
    }

    fn launch(&mut self) -> Result<()> {
        let (state, rings) = self.blocks.clone().unwrap();
        let seat = self.seat.clone();
        let (trouble, release) = (self.trouble, self.release.clone());
        self.thread = Some(std::thread::spawn(move || {
            dispatch(&state, &rings, trouble, &release);
            drop(seat);
        }));
        Ok(())
    }

    fn queue_memory(&self, bytes: usize) -> Result<Option<QueueMemory>> {
        if !self.peers {
            return Ok(None);
        }
        let (block, word) = (Memory::new(bytes), Memory::new(size_of::<u64>()));
        Ok(Some(QueueMemory {
            address: block.start.as_ptr() as u64,
            claimed: word.start.as_ptr() as u64,
            region: Box::new(Shared(block)),
            owner: Box::new(word),
        }))
    }

    fn reaches(&self, queue: &QueueMemory) -> Result<bool> {
        Ok(self.peers && queue.owner.is::<Arc<Memory>>())
    }

    fn claim_from(&mut self, queue: &Arc<QueueMemory>, claimer: Claimer) -> Result<()> {
        assert!(self.may_claim, "its graphs have no instructions for it");
        let Claimer { mut words, numbers } = claimer;
        let numbers = numbers as usize * size_of::<u64>();
        let own = Memory::new(numbers + words.capacity as usize * size_of::<u64>());
        let (state, _) = self.blocks.as_ref().unwrap();
        // SAFETY: both lie in the allocation; nobody takes turns on the state yet.
        unsafe {
            words.numbers = own.start.as_ptr().cast();
            words.seen = own.start.as_ptr().add(numbers).cast();
            (*state.start.as_ptr().cast::<abi::tg_state>()).claimer = words;
        }
        self.seat = Some((own, queue.clone()));
        Ok(())
    }

    fn running(&mut self) -> Result<bool> {
        let ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        if ended && self.trouble == Trouble::Fault {
            return Err(Error::Runtime("running: the driver answered FAULT".into()));
        }
        Ok(!ended)
    }
}

/// The dispatcher: turns with 256 lanes, and the steps in between.
fn dispatch(state: &Memory, rings: &Memory, trouble: Trouble, release: &AtomicBool) {
    let (state, rings) = (state.start.as_ptr().cast(), rings.start.as_ptr().cast());
    let start = Instant::now();
    let now_ns = || 1 + start.elapsed().as_nanos() as u64;
    loop {
        // SAFETY: both blocks are initialised; only this thread takes turns on them.
        let outcome = unsafe {
            let now = now_ns();
            for phase in 0..abi::TG_PHASES {
                for lane in 0..abi::TG_MAX_LANES {
                    abi::tg_phase(state, rings, now, phase, lane, abi::TG_MAX_LANES);
                }
            }
            abi::tg_trace_write(state, rings, now_ns(), 0);
            (*state).outcome
        };
        match outcome.action {
            abi::TG_ACTION_STEP => {
                if outcome.step == 3 {
                    match trouble {
                        Trouble::None => {}
                        Trouble::Fault | Trouble::Silence => return,
                        Trouble::Stuck => {
                            while !release.load(Ordering::Acquire) {
                                std::thread::sleep(Duration::from_millis(1));
                            }
                        }
                    }
                }
                // SAFETY: the step was just composed; this thread runs it and posts it back.
                unsafe {
                    sample(&StepView::new(state, outcome.step), None);
                    let mailbox = (&raw mut (*state).mailbox).cast::<abi::tg_mailbox>();
                    assert_eq!(abi::tg_mailbox_post(mailbox, outcome.step), 1);
                }
            }
            abi::TG_ACTION_DONE | abi::TG_ACTION_ERROR => return,
            _ => std::thread::yield_now(),
        }
    }
}

const CAPACITIES: RingCapacities = RingCapacities {
    requests: 64,
    tokens: 1024,
    controls: 16,
    events: 64,
    sampled: 16,
    trace: 1024,
    biases: 3,
};

/// An engine on this device, not launched.
pub fn on_device(device: Device) -> SingleEngine {
    SingleEngine::of(
        Runs::Scheduler(Box::new(device)),
        &bucket_sizes(),
        &OPTIONS,
        CAPACITIES,
    )
    .unwrap()
}

/// One with the same rings on threads of the host.
pub fn on_threads() -> SingleEngine {
    let stages = vec![Box::new(formula()) as Box<dyn StageBackend>];
    SingleEngine::of(Runs::Stages(stages), &bucket_sizes(), &OPTIONS, CAPACITIES).unwrap()
}
