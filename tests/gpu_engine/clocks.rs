//! The clocks that everything else is timed by, held against each other: a kernel that stands still for a known time by
//! `%globaltimer` is timed by CUDA events, and a chain that events have timed stamps itself.

use crate::rig::Rig;
use cudarc::driver::{CudaEvent, sys};
use tailgraph::backend::cuda::driver::launch::{Argument, Kernel, Launch};
use tailgraph::backend::cuda::memory::buffer::Buffer;

/// Long enough for the host to enqueue all that is timed: events then have nothing but kernels between them.
const AHEAD_NS: u64 = 400_000;
const MIX_THREADS: u32 = 128;

/// Kernels that note when they began and ended.
struct Spins {
    spin: Kernel,
    /// `[spins, 2]` u64
    noted: Buffer,
}

impl Spins {
    fn new(rig: &Rig, most: usize) -> Self {
        Self {
            spin: rig.module.kernel("tg_probe_spin").unwrap(),
            noted: Buffer::new(&rig.context, 16 * most).unwrap(),
        }
    }

    fn enqueue(&self, rig: &Rig, index: usize, wait_ns: u64) {
        let arguments = [
            Argument::Address(self.noted.at(16 * index)),
            Argument::U64(wait_ns),
        ];
        // SAFETY: the arguments are the kernel's, and the array outlives the wait of whoever reads it.
        unsafe {
            self.spin
                .launch(&rig.stream, Launch::blocks(1, 1), &arguments)
        }
        .unwrap();
    }

    /// When spin `index` began and ended.
    fn noted_ns(&self, rig: &Rig, index: usize) -> [u64; 2] {
        let mut bytes = [0; 16];
        self.noted
            .read(&rig.stream, 16 * index, &mut bytes)
            .unwrap();
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        [word(0), word(8)]
    }
}

fn event(rig: &Rig) -> CudaEvent {
    let flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
    rig.context.new_event(Some(flags)).unwrap()
}

/// What CUDA events say of what `enqueue` enqueues.
fn events_ns(rig: &Rig, spins: &Spins, enqueue: impl FnOnce()) -> f64 {
    let (before, after) = (event(rig), event(rig));
    spins.enqueue(rig, 0, AHEAD_NS);
    before.record(&rig.stream).unwrap();
    enqueue();
    after.record(&rig.stream).unwrap();
    rig.stream.synchronize().unwrap();
    f64::from(before.elapsed_ms(&after).unwrap()) * 1e6
}

fn close(found_ns: f64, expected_ns: f64, what: &str) {
    println!("{what}: {found_ns:.0} ns, expected {expected_ns:.0}");
    let share = found_ns / expected_ns - 1.0;
    assert!(
        share.abs() < 0.01,
        "{what}: {found_ns} ns, expected {expected_ns} within 1%"
    );
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn events_time_a_known_wait() {
    let rig = Rig::new();
    let spins = Spins::new(&rig, 2);
    for wait_ns in [1_000_000, 1_000_000, 4_000_000, 20_000_000] {
        let found_ns = events_ns(&rig, &spins, || spins.enqueue(&rig, 1, wait_ns));
        close(found_ns, wait_ns as f64, "events around a wait");
        let [began, ended] = spins.noted_ns(&rig, 1);
        assert!(ended - began >= wait_ns);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn stamps_time_a_chain_as_events_do() {
    const MIXES: u32 = 200;
    let rig = Rig::new();
    let spins = Spins::new(&rig, 3);
    let mix = rig.module.kernel("tg_probe_mix").unwrap();
    let values = Buffer::new(&rig.context, 4 * MIX_THREADS as usize * 2).unwrap();
    // A step of no rows: the kernels run and touch nothing.
    let step = Buffer::new(&rig.context, 4096).unwrap();
    step.fill(&rig.stream, 0).unwrap();
    for wait_ns in [500_000, 500_000, 2_000_000] {
        let found_ns = events_ns(&rig, &spins, || {
            spins.enqueue(&rig, 1, wait_ns);
            for layer in 0..MIXES {
                let arguments = [
                    Argument::Address(values.at(0)),
                    Argument::Address(values.at(4 * MIX_THREADS as usize)),
                    Argument::Address(step.at(0)),
                    Argument::U32(layer),
                ];
                let launch = Launch {
                    pdl: true,
                    ..Launch::blocks(1, MIX_THREADS)
                };
                // SAFETY: the arguments are the kernel's, over arrays that outlive the wait in `events_ns`.
                unsafe { mix.launch(&rig.stream, launch, &arguments) }.unwrap();
            }
            spins.enqueue(&rig, 2, wait_ns);
        });
        let (first, last) = (spins.noted_ns(&rig, 1), spins.noted_ns(&rig, 2));
        let stamped_ns = (last[1] - first[0]) as f64;
        assert!(stamped_ns > 2.0 * wait_ns as f64 + 50_000.0, "{stamped_ns}");
        close(found_ns, stamped_ns, "events around a chain");
    }
}
