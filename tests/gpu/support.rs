//! One GPU with our kernels loaded, a step descriptor in its memory, and seeded random input.

use cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DeviceRepr};
use half::{bf16, f16};
use std::sync::Arc;
use tailgraph::backend::cuda::driver::launch::{Argument, Kernel, Launch};
use tailgraph::backend::cuda::driver::machine;
use tailgraph::backend::cuda::driver::module::Module;
use tailgraph::backend::cuda::memory::buffer::Buffer;
use tailgraph::sys::abi;

pub struct Gpu {
    pub stream: Arc<CudaStream>,
    pub module: Arc<Module>,
}

impl Gpu {
    /// The first GPU. Where there is none the test fails with the reason.
    pub fn new() -> Self {
        let gpu = machine::probe().and_then(|driver| driver.gpu(0).cloned());
        let gpu = gpu.unwrap_or_else(|missing| panic!("{missing}"));
        let context = CudaContext::new(gpu.ordinal as usize).unwrap();
        // SAFETY: everything is on one stream, so there is nothing to track; a capture takes no events.
        unsafe { context.disable_event_tracking() };
        Self {
            stream: context.new_stream().unwrap(),
            module: Module::new(&context).unwrap(),
        }
    }

    pub fn upload<T: DeviceRepr>(&self, values: &[T]) -> CudaSlice<T> {
        self.stream.clone_htod(values).unwrap()
    }

    /// Waits for what was launched, and fails where a kernel did.
    pub fn download<T: DeviceRepr>(&self, array: &CudaSlice<T>) -> Vec<T> {
        self.stream.clone_dtoh(array).unwrap()
    }

    pub fn address<T>(&self, array: &CudaSlice<T>) -> Argument {
        Argument::Address(array.device_ptr(&self.stream).0)
    }

    pub fn kernel(&self, name: &str) -> Kernel {
        self.module.kernel(name).unwrap()
    }

    /// Launches `blocks` blocks of 256 threads, which is what every kernel of one block a row takes.
    ///
    /// # Safety
    /// [`Kernel::launch`]'s.
    pub unsafe fn launch(&self, kernel: &Kernel, blocks: usize, arguments: &[Argument]) {
        // SAFETY: the caller's promise.
        unsafe { kernel.launch(&self.stream, Launch::blocks(blocks as u32, 256), arguments) }
            .unwrap();
    }
}

/// Kernels that do nothing for a while, and so hold SMs from others.
pub struct Holder {
    spin: Kernel,
    /// Beside the GPU's.
    stream: Arc<CudaStream>,
    multiprocessors: u32,
}

impl Holder {
    /// Shared memory of a block: no other that needs much has room beside.
    const BYTES: u32 = 200 * 1024;

    /// On a GPU of 9.0 or newer.
    pub fn new(gpu: &Gpu) -> Self {
        let context = gpu.stream.context();
        let spin = gpu.kernel("tg_probe_spin");
        spin.allow_shared(Self::BYTES).unwrap();
        let count = context.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
        Self {
            spin,
            stream: context.new_stream().unwrap(),
            multiprocessors: count.unwrap() as u32,
        }
    }

    /// `count_of` all SMs are held for `ns` from now on. `noted`, two u64, which outlives it: from when to when.
    pub fn hold(&self, count_of: impl Fn(u32) -> u32, noted: &Buffer, ns: u64) {
        let launch = Launch {
            shared_bytes: Self::BYTES,
            ..Launch::blocks(count_of(self.multiprocessors), 32)
        };
        self.spin(&self.stream, launch, noted, ns);
    }

    /// One block stands still on `stream` for `ns`, and notes it.
    pub fn stand(&self, stream: &Arc<CudaStream>, noted: &Buffer, ns: u64) {
        self.spin(stream, Launch::blocks(1, 32), noted, ns);
    }

    fn spin(&self, stream: &Arc<CudaStream>, launch: Launch, noted: &Buffer, ns: u64) {
        let arguments = [Argument::Address(noted.at(0)), Argument::U64(ns)];
        // SAFETY: the array is the kernel's, and outlives it as hold() says.
        unsafe { self.spin.launch(stream, launch, &arguments) }.unwrap();
    }

    /// Until no SM is held.
    pub fn wait(&self) {
        self.stream.synchronize().unwrap();
    }
}

/// A state block in the GPU's memory that holds one step.
pub struct State {
    block: CudaSlice<u8>,
}

impl State {
    pub fn new(gpu: &Gpu, slots: &[abi::tg_slot], rows: &[abi::tg_row], sampled: &[u32]) -> Self {
        let mut block = vec![0; size_of::<abi::tg_state>()];
        let mut state = abi::tg_state {
            slot_table: append(&mut block, slots),
            ..abi::tg_state::default()
        };
        state.config.slots = slots.len() as u32;
        state.config.steps_in_flight = 1;
        state.steps[0] = abi::tg_step {
            rows: rows.len() as u32,
            sample_rows: sampled.len() as u32,
            row_table: append(&mut block, rows),
            sample_table: append(&mut block, sampled),
            ..abi::tg_step::default()
        };
        block[..size_of::<abi::tg_state>()].copy_from_slice(bytes(&[state]));
        Self {
            block: gpu.upload(&block),
        }
    }

    /// A step of `rows` rows of which nothing matters but that they are there.
    pub fn with_rows(gpu: &Gpu, rows: usize, sampled: &[u32]) -> Self {
        Self::new(gpu, &[], &vec![abi::tg_row::default(); rows], sampled)
    }

    /// `const tg_state *`
    pub fn state(&self, gpu: &Gpu) -> Argument {
        gpu.address(&self.block)
    }

    /// `const tg_step *`
    pub fn step(&self, gpu: &Gpu) -> Argument {
        let Argument::Address(state) = self.state(gpu) else {
            unreachable!("a block has an address")
        };
        Argument::Address(state + std::mem::offset_of!(abi::tg_state, steps) as u64)
    }
}

/// Appends a table at the next 64 bytes and gives its offset.
pub fn append<T: Copy>(block: &mut Vec<u8>, table: &[T]) -> u64 {
    block.resize(block.len().next_multiple_of(64), 0);
    let offset = block.len();
    block.extend_from_slice(bytes(table));
    offset as u64
}

pub fn bytes<T: Copy>(values: &[T]) -> &[u8] {
    // SAFETY: the structs of abi.h have no padding that is not a field of its own, and bytes have no alignment.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// The element types that kernels come in.
pub trait Element: Copy + PartialEq + std::fmt::Debug {
    const SUFFIX: &'static str;
    /// Half the distance between neighbouring values, relative to them, at most.
    const ROUNDING: f64;
    type Bits: Copy + PartialEq + std::fmt::Debug + DeviceRepr;
    fn from_f32(value: f32) -> Self::Bits;
    fn to_f32(bits: Self::Bits) -> f32;
}

macro_rules! element {
    ($name:ident, $suffix:literal, $rounding:expr, $bits:ty, $from:expr, $to:expr) => {
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub struct $name;

        impl Element for $name {
            const SUFFIX: &'static str = $suffix;
            const ROUNDING: f64 = $rounding;
            type Bits = $bits;
            fn from_f32(value: f32) -> $bits {
                $from(value)
            }
            fn to_f32(bits: $bits) -> f32 {
                $to(bits)
            }
        }
    };
}

element!(
    BF16,
    "bf16",
    1.0 / 256.0,
    u16,
    |v| bf16::from_f32(v).to_bits(),
    |b| bf16::from_bits(b).to_f32()
);
element!(
    F16,
    "f16",
    1.0 / 2048.0,
    u16,
    |v| f16::from_f32(v).to_bits(),
    |b| f16::from_bits(b).to_f32()
);
element!(
    F32,
    "f32",
    1.0 / 16_777_216.0,
    u32,
    f32::to_bits,
    f32::from_bits
);

/// The row counts every kernel is tested at: 1, bucket edges, ragged tails.
pub const ROWS: [usize; 9] = [1, 2, 3, 7, 8, 9, 64, 255, 512];

/// Hidden sizes: the smallest, ones that leave threads idle or split unevenly, and the published models'.
pub const HIDDEN: [usize; 6] = [32, 96, 1024, 1056, 2048, 3040];
