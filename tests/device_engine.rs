//! An engine whose scheduler runs on a device, with a thread in the device's place: it has a copy of the state block,
//! takes turns as the dispatcher kernel does, and shares nothing with the host but the rings.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tailgraph::backend::{Block, DeviceScheduler, StageBackend, StepView};
use tailgraph::error::{Error, Result};
use tailgraph::plan::{EngineOptions, Ladders, RingCapacities};
use tailgraph::runtime::{EndReason, Engine, EngineStatus, Event, Logits, Request, Sampling};
use tailgraph::sys::abi;

const PATIENCE: Duration = Duration::from_secs(60);

const OPTIONS: EngineOptions = EngineOptions {
    max_seqs: 4,
    max_context: 64,
    page_tokens: 16,
    pages: 12,
    step_tokens: 16,
    chunk_align: 4,
    steps_in_flight: 1,
    record: false,
};

const CAPACITIES: RingCapacities = RingCapacities {
    requests: 64,
    tokens: 1024,
    controls: 16,
    events: 64,
    trace: 1024,
};

fn ladders() -> Ladders {
    Ladders {
        decode: vec![1, 2, 4],
        mixed: vec![8, 16],
        score: vec![16],
    }
}

/// Samples by a formula.
fn run_step(step: &StepView<'_>) {
    for (index, &row) in step.sample_rows().iter().enumerate() {
        let sampled = abi::tg_sampled {
            token: 1000 + step.rows()[row as usize].position as i32,
            ..Default::default()
        };
        step.set_sampled(index, sampled);
    }
}

struct Host;

impl StageBackend for Host {
    fn run(&mut self, step: &StepView<'_>) -> Result<()> {
        run_step(step);
        Ok(())
    }
}

/// Aligned memory.
struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: plain memory, used under the rings' protocol.
unsafe impl Send for Memory {}
// SAFETY: likewise.
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

impl Block for Shared {
    fn start(&self) -> NonNull<u8> {
        self.0.start
    }

    fn bytes(&self) -> usize {
        self.0.layout.size()
    }
}

/// What goes wrong in step 3.
#[derive(Clone, Copy, PartialEq)]
enum Trouble {
    None,
    /// The driver reports a fault from then on.
    Fault,
    /// The device ends as if its work were done.
    Silence,
    /// The step goes on until someone ends it.
    Stuck,
}

struct Device {
    trouble: Trouble,
    blocks: Option<(Arc<Memory>, Arc<Memory>)>,
    thread: Option<JoinHandle<()>>,
    /// Ends a stuck step.
    release: Arc<AtomicBool>,
    /// Set when the device is dropped.
    dropped: Arc<AtomicBool>,
}

impl Device {
    fn new(trouble: Trouble) -> Self {
        Self {
            trouble,
            blocks: None,
            thread: None,
            release: Arc::default(),
            dropped: Arc::default(),
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::Release);
    }
}

impl DeviceScheduler for Device {
    fn prepare(
        &mut self,
        state: &[u8],
        ring_bytes: usize,
        ladders: &Ladders,
        slots: u32,
    ) -> Result<Box<dyn Block>> {
        assert_eq!((ladders.decode.len(), slots), (3, 4));
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
        let (trouble, release) = (self.trouble, self.release.clone());
        self.thread = Some(std::thread::spawn(move || {
            dispatch(&state, &rings, trouble, &release);
        }));
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
            for phase in 0..abi::tg_phases() {
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
                    run_step(&StepView::new(state, outcome.step));
                    let mailbox = (&raw mut (*state).mailbox).cast::<abi::tg_mailbox>();
                    assert_eq!(abi::tg_mailbox_post(mailbox, outcome.step), 1);
                }
            }
            abi::TG_ACTION_DONE | abi::TG_ACTION_ERROR => return,
            _ => std::thread::yield_now(),
        }
    }
}

fn on_device(trouble: Trouble) -> Engine {
    let device = Box::new(Device::new(trouble));
    Engine::on_device(device, &ladders(), &OPTIONS, CAPACITIES).unwrap()
}

fn request(prompt_tokens: u32, max_new_tokens: u32) -> Request {
    Request {
        prompt: (0..prompt_tokens).collect(),
        max_new_tokens,
        stop_ids: vec![1030],
        sampling: Sampling::default(),
        timeout: None,
        logits: Logits::None,
    }
}

/// Events without their times.
#[derive(Debug, PartialEq)]
enum Seen {
    Token(u64, u32, u32),
    End(u64, EndReason, u32),
}

fn seen(event: Event) -> Seen {
    match event {
        Event::Token {
            request,
            token,
            index,
            ..
        } => Seen::Token(request, token, index),
        Event::End {
            request,
            reason,
            tokens,
            ..
        } => Seen::End(request, reason, tokens),
    }
}

/// The status once all pages are free: a turn hands out its events before it says, word by word, what it has come to.
fn settled(engine: &Engine) -> EngineStatus {
    let start = Instant::now();
    while engine.status().free_pages < OPTIONS.pages && start.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
    engine.status()
}

#[test]
fn a_device_and_threads_give_the_same_events() {
    let threads = Engine::on_host(vec![Box::new(Host)], &ladders(), &OPTIONS, CAPACITIES).unwrap();
    let mut streams = vec![];
    for mut engine in [threads, on_device(Trouble::None)] {
        for i in 0..40 {
            let number = engine
                .try_submit(&request(1 + i * 7 % 30, 1 + i * 5 % 23))
                .unwrap();
            assert_eq!(number, Some(u64::from(i)));
        }
        assert!(engine.cancel(17));
        assert_eq!(
            engine.next_event(Duration::ZERO).unwrap(),
            None,
            "not launched"
        );
        engine.launch().unwrap();
        let (mut events, mut ended) = (vec![], 0);
        while ended < 40 {
            let event = seen(engine.next_event(PATIENCE).unwrap().expect("an event"));
            ended += usize::from(matches!(event, Seen::End(..)));
            events.push(event);
        }
        engine.drain();
        let status = settled(&engine);
        assert_eq!((status.running, status.free_pages), (0, 12));
        assert!(status.steps > 40);
        streams.push(events);
    }
    assert!(streams[0].contains(&Seen::End(17, EndReason::Cancelled, 0)));
    assert!(
        streams[0]
            .iter()
            .any(|e| matches!(e, Seen::End(_, EndReason::Stop, _)))
    );
    assert_eq!(streams[0], streams[1]);
}

/// Tokens until the error, and the error.
fn fail(engine: &mut Engine) -> (Vec<u32>, String) {
    let mut tokens = vec![];
    loop {
        match engine.next_event(PATIENCE) {
            Ok(Some(Event::Token { token, .. })) => tokens.push(token),
            Ok(other) => panic!("expected tokens, then an error; found {other:?}"),
            Err(error) => return (tokens, error.to_string()),
        }
    }
}

#[test]
fn what_ends_the_device_is_reported_after_every_event_before_it() {
    for (trouble, words) in [
        (Trouble::Fault, "the driver answered FAULT"),
        (Trouble::Silence, "without saying why"),
    ] {
        let mut engine = on_device(trouble);
        engine.launch().unwrap();
        engine.try_submit(&request(2, 40)).unwrap().unwrap();
        let (tokens, error) = fail(&mut engine);
        assert_eq!(tokens, [1001, 1002, 1003], "of steps 0 to 2");
        let step = "step 3 (stage 0, decode bucket of 1 rows, 1 used)";
        assert!(error.contains(words) && error.contains(step), "{error}");
        assert!(!error.contains('\n'));
        assert!(engine.try_submit(&request(1, 1)).is_err());
    }
}

#[test]
fn a_stuck_step_is_named_and_its_memory_left_alone() {
    let device = Device::new(Trouble::Stuck);
    let (release, dropped) = (device.release.clone(), device.dropped.clone());
    let mut engine = Engine::on_device(Box::new(device), &ladders(), &OPTIONS, CAPACITIES).unwrap();
    engine.watch(Duration::from_millis(100));
    engine.launch().unwrap();
    engine.try_submit(&request(2, 40)).unwrap().unwrap();
    let (tokens, error) = fail(&mut engine);
    assert_eq!(tokens.len(), 3);
    for words in [
        "step 3 (stage 0, decode bucket of 1 rows",
        "has been running for 0.1 s",
    ] {
        assert!(error.contains(words), "{error}");
    }
    let start = Instant::now();
    drop(engine);
    assert!(start.elapsed() < Duration::from_secs(30));
    assert!(
        !dropped.load(Ordering::Acquire),
        "its step still uses the memory"
    );
    release.store(true, Ordering::Release);
}

#[test]
fn an_idle_device_is_not_stuck() {
    let mut engine = on_device(Trouble::None);
    engine.watch(Duration::from_millis(20));
    engine.launch().unwrap();
    assert_eq!(engine.next_event(Duration::from_millis(200)).unwrap(), None);
    engine.drain();
    assert_eq!(engine.next_event(Duration::from_millis(50)).unwrap(), None);
}

#[test]
fn a_device_that_was_never_launched_goes_quietly() {
    let device = Device::new(Trouble::None);
    let dropped = device.dropped.clone();
    drop(Engine::on_device(Box::new(device), &ladders(), &OPTIONS, CAPACITIES).unwrap());
    assert!(dropped.load(Ordering::Acquire));
}
