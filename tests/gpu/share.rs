//! What sequences get from shared prefixes, and prefixes from sequences: byte for byte, and nothing else.

use crate::common::random::Random;
use crate::rig::{OPERANDS, Rig, Step, config, operand};
use crate::support::Gpu;
use tailgraph::backend::cuda::families::share::{LayerState, Sharing};
use tailgraph::backend::cuda::memory::buffer::Buffer;
use tailgraph::model::ModelConfig;
use tailgraph::plan::StepKind;
use tailgraph::sys::abi;

const PREFIXES: usize = 40;
/// Pages beside those of slots.
const PAGES: usize = 80;

/// What a layer keeps, in memory and as it is to be.
struct Layer {
    arrays: Vec<(Buffer, Vec<u8>)>,
    /// Bytes of a slot's state, or of a page's keys.
    each: usize,
}

impl Layer {
    fn new(gpu: &Gpu, random: &mut Random, pages: bool, places: usize, each: usize) -> Self {
        let mut array = || {
            let words = (0..places * each / 8).map(|_| random.next().to_le_bytes());
            let bytes: Vec<u8> = words.flatten().collect();
            (gpu.put(&bytes), bytes)
        };
        let arrays = (0..1 + usize::from(pages)).map(|_| array()).collect();
        Self { arrays, each }
    }

    fn state(&self) -> LayerState {
        match &self.arrays[..] {
            [(conv, _)] => LayerState::Conv(conv.at(0)),
            [(k, _), (v, _)] => LayerState::Pages {
                k: k.at(0),
                v: v.at(0),
            },
            _ => unreachable!(),
        }
    }

    fn copy(&mut self, from: usize, to: usize) {
        for (_, bytes) in &mut self.arrays {
            bytes.copy_within(from * self.each..(from + 1) * self.each, to * self.each);
        }
    }
}

/// A chunk for every slot, behind any position; some start from a prefix, some end at a border, and those of some prefixes fill all their
/// pages. No two write to one place.
fn random_step(random: &mut Random, slots: usize, page_tokens: u32, shares: bool) -> Step {
    let tokens = 3 * page_tokens;
    let mut step = Step::with_slots(random, slots, tokens, page_tokens);
    let mut prefixes: Vec<u32> = (0..PREFIXES as u32).collect();
    let mut pages: Vec<u32> = (0..PAGES as u32)
        .map(|p| step.pages.len() as u32 + p)
        .collect();
    random.shuffle(&mut prefixes);
    random.shuffle(&mut pages);
    let (starts, ends) = prefixes.split_at(PREFIXES / 2);
    for slot in 0..slots {
        let first = 1 + random.below(tokens - 1);
        step.chunk(slot, first, 1 + random.below(tokens - first) as usize);
        let (what, paged) = (random.below(4), random.below(2) == 0);
        let mut page = || {
            if paged {
                pages.pop().unwrap()
            } else {
                abi::TG_NONE
            }
        };
        let mut shared = abi::tg_sequence::UNSHARED;
        if what & 1 != 0 {
            (shared.from, shared.from_page) = (starts[random.below(starts.len())], page());
        }
        // Some compute a prefix and do not come to its border.
        if what & 2 != 0 && slot < ends.len() {
            shared.computes = ends[slot];
            if random.below(4) > 0 {
                shared.flags = abi::TG_SEQUENCE_BORDER;
                shared.border_page = page();
            }
        }
        if shares {
            step.shared.push((slot, shared));
        }
    }
    step
}

/// What a step's copies are to do.
fn copy(step: &Step, layers: &mut [Layer], sharing: Sharing) {
    let slots = step.slots.len();
    for (index, shared) in &step.shared {
        let chunk = &step.chunks[*index];
        let (prefix, page, position) = match sharing {
            Sharing::Starts => (shared.from, shared.from_page, chunk.first_position),
            Sharing::Ends => {
                let is_border = shared.flags & abi::TG_SEQUENCE_BORDER != 0;
                let prefix = if is_border {
                    shared.computes
                } else {
                    abi::TG_NONE
                };
                let last = chunk.first_position + chunk.tokens.len() as u32 - 1;
                (prefix, shared.border_page, last)
            }
        };
        let own =
            step.pages[index * step.max_pages as usize + (position / step.page_tokens) as usize];
        for layer in &mut *layers {
            let (of_slot, of_prefix) = match layer.arrays.len() {
                1 => (chunk.slot as usize, slots.wrapping_add(prefix as usize)),
                _ => (own as usize, page as usize),
            };
            if [prefix, page][layer.arrays.len() - 1] == abi::TG_NONE {
                continue;
            }
            match sharing {
                Sharing::Starts => layer.copy(of_prefix, of_slot),
                Sharing::Ends => layer.copy(of_slot, of_prefix),
            }
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn ragged_pages_and_state_go_from_and_to_prefixes() {
    let gpu = Gpu::new();
    let mut random = Random(71);
    for dtype in OPERANDS {
        for (slots, layers, page_tokens, taps, hidden) in [
            (1, 2, 16, 3, 2048),
            (7, 5, 64, 2, 96),
            (3, 70, 16, 8, 32),
            (40, 3, 48, 3, 32),
            (5, 3, 256, 4, 32),
        ] {
            let config = ModelConfig {
                hidden_size: hidden,
                conv_l_cache: taps,
                ..config()
            };
            let row_bytes = config.num_key_value_heads * config.head_dim * dtype.bytes();
            let state_bytes = (taps - 1) * hidden * dtype.bytes();
            let rig = Rig::new(&gpu, config, operand(dtype));
            for (kind, shares) in [
                (StepKind::Mixed, true),
                (StepKind::Score, true),
                (StepKind::Mixed, false),
            ] {
                let step = random_step(&mut random, slots, page_tokens, shares);
                let mut layers: Vec<Layer> = (0..layers)
                    .map(|layer| match layer % 3 {
                        1 => {
                            let pages = step.pages.len() + PAGES;
                            let each = page_tokens as usize * row_bytes;
                            Layer::new(&gpu, &mut random, true, pages, each)
                        }
                        _ => Layer::new(&gpu, &mut random, false, slots + PREFIXES, state_bytes),
                    })
                    .collect();
                let states: Vec<LayerState> = layers.iter().map(Layer::state).collect();
                let on_gpu = step.upload(&gpu);
                let enqueue = rig.enqueue(&on_gpu, kind, on_gpu.rows);
                for sharing in [Sharing::Starts, Sharing::Ends] {
                    // SAFETY: the arrays have the shapes that the call asks for.
                    unsafe { enqueue.run(|to| to.share_prefixes(sharing, &states, page_tokens)) };
                    copy(&step, &mut layers, sharing);
                    for (index, layer) in layers.iter().enumerate() {
                        for (found, expected) in &layer.arrays {
                            let same = gpu.get(found) == *expected;
                            assert!(
                                same,
                                "{dtype:?}, {slots} slots, {kind:?}, {sharing:?}, layer {index}"
                            );
                        }
                    }
                }
            }
        }
    }
}
