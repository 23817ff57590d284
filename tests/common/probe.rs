//! A step without a model (kernels/step/probe.cu): what to try a machine and the launching with. Every token is a fixed
//! integer function of its sequence's tokens so far, so any host can say what comes out.

use cudarc::driver::{CudaContext, CudaStream};
use std::sync::Arc;
use tailgraph::backend::cuda::driver::call::KernelCall;
use tailgraph::backend::cuda::driver::launch::{Argument, Kernel, Launch};
use tailgraph::backend::cuda::driver::module::Module;
use tailgraph::backend::cuda::engine::program::StepProgram;
use tailgraph::backend::cuda::families::{Bucket, StepAt};
use tailgraph::backend::cuda::memory::buffer::Buffer;
use tailgraph::backend::cuda::memory::pinned::Pinned;
use tailgraph::backend::{SharedRegion, StepView};
use tailgraph::error::Result;
use tailgraph::plan::EngineOptions;

/// PROBE_THREADS of kernels/step/probe.cu.
const THREADS: u32 = 128;

/// What the step computes, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeOptions {
    /// Kernels one after the other, over all stages.
    pub layers: u32,
    pub vocabulary: u32,
    /// With programmatic dependent launch.
    pub pdl: bool,
    /// Steps whose descriptors' fingerprints are kept, the newest; 0 keeps none.
    pub log_entries: u32,
}

/// In step `step`, stand still for `wait_ns`, then write where nothing is if `fault` says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disturbance {
    pub step: u64,
    pub wait_ns: u64,
    pub fault: bool,
}

/// The device memory of all stages.
#[derive(Debug)]
struct Memory {
    /// `[pages, page_tokens]` u32
    cells: Buffer,
    /// `[slots]` u32 each: layers go from one to the other
    values: [Buffer; 2],
    /// `[3]` u64: a [`Disturbance`]
    orders: Option<Arc<Pinned>>,
}

/// One stage of it.
pub struct ProbeStep {
    options: ProbeOptions,
    memory: Arc<Memory>,
    /// This stage's, the first included, the last not.
    layers: (u32, u32),
    kernels: Kernels,
    log: ProbeLog,
}

#[derive(Clone)]
struct Kernels {
    write: Kernel,
    read: Kernel,
    mix: Kernel,
    sample: Kernel,
    disturb: Kernel,
}

/// What kernels find of each step's descriptor: a program of one kernel, which may stand among those of any model's step.
/// Clones share the log; read it once nothing runs.
#[derive(Debug, Clone)]
pub struct ProbeLog {
    kernel: Kernel,
    /// `[entries, 2]` u64: step, fingerprint
    memory: Arc<Buffer>,
    entries: u32,
    pdl: bool,
}

impl ProbeStep {
    /// `stages` of them, in order, with one memory, and its log.
    ///
    /// # Errors
    /// [`tailgraph::Error::Memory`] where there is not enough; [`tailgraph::Error::Runtime`] for what the driver refuses.
    pub fn stages(
        context: &Arc<CudaContext>,
        module: &Arc<Module>,
        stages: u32,
        engine: &EngineOptions,
        options: ProbeOptions,
        disturbance: Option<Disturbance>,
    ) -> Result<(Vec<Self>, ProbeLog)> {
        let orders = match disturbance {
            None => None,
            Some(disturbance) => {
                let orders = Pinned::new(context, 3 * size_of::<u64>())?;
                let Disturbance {
                    step,
                    wait_ns,
                    fault,
                } = disturbance;
                // SAFETY: the allocation has this size, and nobody else has it yet.
                unsafe {
                    let at = orders.start().as_ptr().cast::<[u64; 3]>();
                    at.write([step, wait_ns, u64::from(fault)]);
                }
                Some(orders)
            }
        };
        let words = |count: u32| Buffer::new(context, 4 * count as usize);
        let slots = engine.max_seqs;
        let memory = Arc::new(Memory {
            cells: words(engine.pages * engine.page_tokens)?,
            values: [words(slots)?, words(slots)?],
            orders,
        });
        let log = ProbeLog::new(context, module, options.log_entries, options.pdl)?;
        let kernels = Kernels {
            write: module.kernel("tg_probe_write")?,
            read: module.kernel("tg_probe_read")?,
            mix: module.kernel("tg_probe_mix")?,
            sample: module.kernel("tg_probe_sample")?,
            disturb: module.kernel("tg_probe_disturb")?,
        };
        let layer = |stage: u32| options.layers * stage / stages;
        let stage = |stage: u32| Self {
            options,
            memory: memory.clone(),
            layers: (layer(stage), layer(stage + 1)),
            kernels: kernels.clone(),
            log: log.clone(),
        };
        Ok(((0..stages).map(stage).collect(), log))
    }
}

impl StepProgram for ProbeStep {
    fn lower(&self, bucket: Bucket, at: StepAt) -> Result<Vec<KernelCall>> {
        let call = |kernel: &Kernel, blocks: u32, arguments: Vec<Argument>| KernelCall {
            kernel: kernel.clone(),
            launch: Launch {
                pdl: self.options.pdl,
                ..Launch::blocks(blocks, THREADS)
            },
            arguments,
            weights: vec![],
            ops: vec![],
        };
        let state = || Argument::Address(at.state);
        let step = || Argument::Address(at.step);
        let values = |layer: u32| Argument::Address(self.memory.values[layer as usize % 2].at(0));
        let cells = || Argument::Address(self.memory.cells.at(0));
        let (kernels, samples) = (&self.kernels, bucket.sequences);
        let (first, end) = self.layers;
        let mut calls = vec![];
        if first == 0 {
            let blocks = bucket.rows.div_ceil(THREADS);
            calls.push(call(&kernels.write, blocks, vec![cells(), state(), step()]));
            let arguments = vec![values(0), cells(), state(), step()];
            calls.push(call(&kernels.read, samples, arguments));
        }
        for layer in first..end {
            let arguments = vec![
                values(layer + 1),
                values(layer),
                step(),
                Argument::U32(layer),
            ];
            calls.push(call(&kernels.mix, samples.div_ceil(THREADS), arguments));
        }
        if end < self.options.layers {
            return Ok(calls);
        }
        if let Some(orders) = &self.memory.orders {
            let arguments = vec![Argument::Address(orders.device()), step()];
            calls.push(call(&kernels.disturb, 1, arguments));
        }
        if self.options.log_entries > 0 {
            calls.extend(self.log.lower(bucket, at)?);
        }
        let vocabulary = Argument::U32(self.options.vocabulary);
        let arguments = vec![values(end), state(), step(), vocabulary];
        calls.push(call(&kernels.sample, samples.div_ceil(THREADS), arguments));
        Ok(calls)
    }
}

impl ProbeLog {
    /// A log of the newest `entries` steps. `pdl`: the step's kernels are launched with programmatic dependent launch.
    ///
    /// # Errors
    /// [`tailgraph::Error::Memory`] where there is not enough; [`tailgraph::Error::Runtime`] for what the driver refuses.
    pub fn new(
        context: &Arc<CudaContext>,
        module: &Arc<Module>,
        entries: u32,
        pdl: bool,
    ) -> Result<Self> {
        Ok(Self {
            kernel: module.kernel("tg_probe_log")?,
            memory: Arc::new(Buffer::new(context, 16 * entries as usize)?),
            entries,
            pdl,
        })
    }

    /// Step numbers and the fingerprints of their descriptors, by step modulo `entries`.
    ///
    /// # Errors
    /// The driver refuses the copy.
    pub fn read(&self, stream: &CudaStream) -> Result<Vec<(u64, u64)>> {
        let mut bytes = vec![0; self.memory.bytes()];
        self.memory.read(stream, 0, &mut bytes)?;
        let word = |at: &[u8]| u64::from_le_bytes(at.try_into().expect("eight bytes"));
        Ok(bytes
            .chunks_exact(16)
            .map(|entry| (word(&entry[..8]), word(&entry[8..])))
            .collect())
    }
}

impl StepProgram for ProbeLog {
    fn lower(&self, _: Bucket, at: StepAt) -> Result<Vec<KernelCall>> {
        Ok(vec![KernelCall {
            kernel: self.kernel.clone(),
            launch: Launch {
                pdl: self.pdl,
                ..Launch::blocks(1, THREADS)
            },
            arguments: vec![
                Argument::Address(self.memory.at(0)),
                Argument::U32(self.entries),
                Argument::Address(at.state),
                Argument::Address(at.step),
            ],
            weights: vec![],
            ops: vec![],
        }])
    }
}

fn mix(mut x: u32) -> u32 {
    x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

fn mix64(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl ProbeOptions {
    /// The token that follows `tokens`.
    pub fn next(&self, tokens: &[u32]) -> u32 {
        let cell = |(position, &token): (usize, &u32)| {
            mix(token
                .wrapping_mul(0x9e37_79b9)
                .wrapping_add(position as u32))
        };
        let sum = tokens
            .iter()
            .enumerate()
            .map(cell)
            .fold(0, u32::wrapping_add);
        let value = (0..self.layers).fold(sum, |value, layer| mix(value.wrapping_add(layer)));
        value % self.vocabulary
    }
}

/// The fingerprint of a descriptor that tg_probe_log notes: every word of it but the places of its tables.
pub fn fingerprint(step: &StepView<'_>, page_tokens: u32) -> u64 {
    let word = |index: usize, field: u64, value: u32| {
        mix64(u64::from(value).wrapping_add(mix64((index as u64) << 8 | field)))
    };
    let header = step.header();
    let mut sum = mix64(header.number).wrapping_add(mix64(!header.start_ns));
    let mut add = |index: usize, fields: &[(u64, u32)]| {
        for &(field, value) in fields {
            sum = sum.wrapping_add(word(index, field, value));
        }
    };
    let head = [
        header.kind,
        header.bucket,
        header.bucket_rows,
        header.rows,
        header.decode_rows,
        header.sequences,
        header.sample_rows,
    ];
    for (index, value) in head.into_iter().enumerate() {
        add(index, &[(0, value)]);
    }
    for (index, row) in step.rows().iter().enumerate() {
        let sequence = &step.sequences()[row.sequence as usize];
        let page = step.pages(sequence)[(row.position / page_tokens) as usize];
        let cell = page * page_tokens + row.position % page_tokens;
        let token = row.token as u32;
        add(
            index,
            &[
                (1, row.slot),
                (2, row.position),
                (3, token),
                (4, row.sequence),
                (5, cell),
            ],
        );
    }
    for (index, s) in step.sequences().iter().enumerate() {
        add(
            index,
            &[
                (6, s.slot),
                (7, s.first_row),
                (8, s.rows),
                (9, s.first_position),
                (10, s.sample),
                (11, s.flags),
                (12, index as u32),
            ],
        );
    }
    for (index, &row) in step.sample_rows().iter().enumerate() {
        add(index, &[(13, row)]);
    }
    sum
}
