//! A core and its two memory blocks. Everything here is single-threaded: a test is host, stages and lanes.

use super::api::Api;
use crate::common::random::Random;
use std::alloc::{Layout, alloc, dealloc};
use tailgraph::sys::abi;

/// In which order the lanes of a phase run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Forward,
    Backward,
    /// A new order for every phase, from this seed.
    Shuffled(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lanes {
    pub count: u32,
    pub order: Order,
}

impl Lanes {
    pub const ONE: Self = Self {
        count: 1,
        order: Order::Forward,
    };
}

pub(super) struct Block {
    pub(super) at: *mut u8,
    pub(super) layout: Layout,
}

impl Block {
    pub(super) fn new(bytes: u64, pattern: u8) -> Self {
        let layout = Layout::from_size_align(bytes as usize, 128).unwrap();
        // SAFETY: the layout is not empty, and the block is as large as it says.
        let at = unsafe {
            let at = alloc(layout);
            assert!(!at.is_null());
            at.write_bytes(pattern, layout.size());
            at
        };
        Self { at, layout }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.at, self.layout) }
    }
}

pub struct Machine {
    api: Api,
    state: Block,
    rings: Block,
    lanes: Lanes,
    shuffle: Random,
}

impl Machine {
    /// A fresh core, or the error of a configuration that breaks a rule.
    pub fn new(
        api: Api,
        config: &abi::tg_config,
        shape: &abi::tg_rings,
        lanes: Lanes,
    ) -> Result<Self, u32> {
        Self::with_pattern(api, config, shape, lanes, 0xa5)
    }

    /// Makes what [`Self::new`] makes; `pattern` is what both blocks hold before they are laid out.
    pub fn with_pattern(
        api: Api,
        config: &abi::tg_config,
        shape: &abi::tg_rings,
        lanes: Lanes,
        pattern: u8,
    ) -> Result<Self, u32> {
        // SAFETY: plain structs in; blocks of the sizes that the core asked for.
        unsafe {
            let state_bytes = (api.state_bytes)(config);
            let rings_bytes = (api.rings_bytes)(shape);
            if state_bytes == 0 || rings_bytes == 0 {
                return Err(abi::TG_ERROR_CONFIG);
            }
            let state = Block::new(state_bytes, pattern);
            let rings = Block::new(rings_bytes, pattern);
            match (api.state_init)(state.at.cast(), config) {
                abi::TG_ERROR_NONE => {}
                error => return Err(error),
            }
            (api.rings_init)(rings.at.cast(), shape);
            let shuffle = Random::new(match lanes.order {
                Order::Shuffled(seed) => seed,
                _ => 0,
            });
            Ok(Self {
                api,
                state,
                rings,
                lanes,
                shuffle,
            })
        }
    }

    fn run_phases(&mut self, now_ns: u64, phases: std::ops::Range<u32>) -> abi::tg_outcome {
        let lanes = self.lanes.count;
        let mut order: Vec<u32> = (0..lanes).collect();
        if self.lanes.order == Order::Backward {
            order.reverse();
        }
        for phase in phases {
            if matches!(self.lanes.order, Order::Shuffled(_)) {
                self.shuffle.shuffle(&mut order);
            }
            for &lane in &order {
                // SAFETY: both blocks were laid out by this core and nobody else touches them.
                unsafe {
                    (self.api.phase)(
                        self.state.at.cast(),
                        self.rings.at.cast(),
                        now_ns,
                        phase,
                        lane,
                        lanes,
                    );
                }
            }
        }
        self.state().outcome
    }

    /// A live turn and its trace record.
    pub fn turn(&mut self, now_ns: u64) -> abi::tg_outcome {
        let outcome = self.run_phases(now_ns, 0..abi::TG_PHASES);
        // SAFETY: as in run_phases.
        unsafe {
            (self.api.trace_write)(self.state.at.cast(), self.rings.at.cast(), now_ns + 1, 0);
        }
        outcome
    }

    /// A turn with the inputs of a record.
    pub fn replay(&mut self, inputs: &abi::tg_inputs) -> abi::tg_outcome {
        self.state_mut().inputs = *inputs;
        self.run_phases(inputs.now_ns, abi::TG_GATHER_PHASES..abi::TG_PHASES)
    }

    pub fn state(&self) -> &abi::tg_state {
        // SAFETY: initialised in new.
        unsafe { &*self.state.at.cast() }
    }

    pub fn state_mut(&mut self) -> &mut abi::tg_state {
        // SAFETY: initialised in new.
        unsafe { &mut *self.state.at.cast() }
    }

    pub fn rings(&self) -> &abi::tg_rings {
        // SAFETY: initialised in new.
        unsafe { &*self.rings.at.cast() }
    }

    pub fn rings_mut(&mut self) -> &mut abi::tg_rings {
        // SAFETY: initialised in new.
        unsafe { &mut *self.rings.at.cast() }
    }

    pub fn state_bytes(&self) -> &[u8] {
        // SAFETY: the block is initialised as a whole by the pattern.
        unsafe { std::slice::from_raw_parts(self.state.at, self.state.layout.size()) }
    }

    pub fn rings_bytes(&self) -> &[u8] {
        // SAFETY: the block is initialised as a whole by the pattern.
        unsafe { std::slice::from_raw_parts(self.rings.at, self.rings.layout.size()) }
    }

    /// `count` entries of a table of the state block.
    pub fn table<T>(&self, offset: u64, count: u32) -> &[T] {
        let end = offset + u64::from(count) * size_of::<T>() as u64;
        assert!(
            end <= self.state.layout.size() as u64,
            "table past the block"
        );
        // SAFETY: inside the block; tables hold plain integers.
        unsafe {
            std::slice::from_raw_parts(self.state.at.add(offset as usize).cast(), count as usize)
        }
    }

    pub fn slot(&self, slot: u32) -> &abi::tg_slot {
        &self.table(self.state().slot_table, self.state().config.slots)[slot as usize]
    }

    /// The pages a running slot holds.
    pub fn pages(&self, slot: u32) -> &[u32] {
        let columns = self.state().max_pages;
        let offset = self.state().page_table + u64::from(slot) * u64::from(columns) * 4;
        let held = self.slot(slot).pages;
        assert!(
            held <= columns,
            "slot {slot} holds {held} of {columns} pages"
        );
        self.table(offset, held)
    }

    pub fn step(&self, number: u64) -> &abi::tg_step {
        let state = self.state();
        &state.steps[(number % u64::from(state.config.steps_in_flight)) as usize]
    }

    /// What sampling leaves for row `index` of a step.
    pub fn set_sampled(&mut self, number: u64, index: u32, sampled: abi::tg_sampled) {
        let offset = self.step(number).sampled_table;
        assert!(index < self.state().config.slots);
        // SAFETY: the table holds `slots` entries.
        unsafe {
            self.state
                .at
                .add(offset as usize)
                .cast::<abi::tg_sampled>()
                .add(index as usize)
                .write(sampled);
        }
    }

    pub fn post(&mut self, mailbox: usize, step: u64) -> bool {
        let mailbox = &raw mut self.state_mut().mailbox[mailbox];
        // SAFETY: a mailbox of the state block.
        unsafe { (self.api.mailbox_post)(mailbox, step) != 0 }
    }

    pub fn take(&mut self, mailbox: usize) -> Option<u64> {
        let mailbox = &raw mut self.state_mut().mailbox[mailbox];
        let mut step = 0;
        // SAFETY: a mailbox of the state block.
        unsafe { ((self.api.mailbox_take)(mailbox, &mut step) != 0).then_some(step) }
    }

    /// Entry `n` of a ring.
    pub fn ring_get<T: Copy>(&self, offset: u64, capacity: u32, n: u64) -> T {
        let at = offset as usize + (n & u64::from(capacity - 1)) as usize * size_of::<T>();
        assert!(at + size_of::<T>() <= self.rings.layout.size());
        // SAFETY: inside the block; entries are plain integers.
        unsafe { self.rings.at.add(at).cast::<T>().read() }
    }

    /// The biases of a request in the ring, as many as there is room for.
    pub fn set_biases(&mut self, number: u64, biases: impl Iterator<Item = abi::tg_bias>) {
        let rings = self.rings();
        let room = u64::from(rings.bias_capacity);
        let place = number & u64::from(rings.request_capacity - 1);
        let offset = rings.biases + place * room * size_of::<abi::tg_bias>() as u64;
        for (i, bias) in (0..room).zip(biases) {
            self.ring_set(offset, 1 << 31, i, bias);
        }
    }

    pub fn ring_set<T: Copy>(&mut self, offset: u64, capacity: u32, n: u64, entry: T) {
        let at = offset as usize + (n & u64::from(capacity - 1)) as usize * size_of::<T>();
        assert!(at + size_of::<T>() <= self.rings.layout.size());
        // SAFETY: inside the block.
        unsafe { self.rings.at.add(at).cast::<T>().write(entry) }
    }
}
