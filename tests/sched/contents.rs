//! What a device would hold if each step ran as it was composed: a token's name for its key and value, and for the state of a
//! slot or a prefix the names of all tokens that it has come by. So it shows whatever a sequence reads that is not its own.

use super::check::ensure;
use super::machine::Machine;
use super::model::{Model, Step};
use super::world::prompt_token;
use tailgraph::sys::abi;

pub struct Contents {
    /// By page and place in it.
    pages: Vec<Vec<i32>>,
    slots: Vec<Vec<i32>>,
    prefixes: Vec<Vec<i32>>,
}

impl Contents {
    pub fn new(config: &abi::tg_config) -> Self {
        Self {
            pages: vec![vec![-1; config.page_tokens as usize]; config.pages as usize],
            slots: vec![vec![]; config.slots as usize],
            prefixes: vec![vec![]; config.prefixes as usize],
        }
    }

    pub fn run(&mut self, machine: &Machine, model: &Model, step: &Step) -> Result<(), String> {
        let page_tokens = machine.state().config.page_tokens;
        for sequence in &step.sequences {
            let (slot, first) = (sequence.slot, sequence.first_position);
            let request = model.running[&slot].request;
            let prompt = &model.prompts[request as usize];
            // A sampled token has a name of its own, whatever it is.
            let name = |position: u32| match prompt.get(position as usize) {
                Some(token) => *token,
                None => prompt_token(request, position),
            };
            let table = machine.pages(slot);
            let page_at = |position: u32| table[(position / page_tokens) as usize] as usize;
            let state = &mut self.slots[slot as usize];
            if sequence.flags & abi::TG_SEQUENCE_FIRST != 0 {
                state.clear();
            }
            if sequence.from != abi::TG_NONE {
                state.clone_from(&self.prefixes[sequence.from as usize]);
            }
            if sequence.from_page != abi::TG_NONE {
                self.pages[page_at(first)] = self.pages[sequence.from_page as usize].clone();
            }
            ensure!(
                state.len() == first as usize,
                "slot {slot} goes on at {first} from the state behind {} tokens",
                state.len()
            );
            let end = first + sequence.rows;
            for position in first..end {
                state.push(name(position));
                let place = (position % page_tokens) as usize;
                self.pages[page_at(position)][place] = name(position);
            }
            let wanted: Vec<i32> = (0..end).map(name).collect();
            let read = |position| self.pages[page_at(position)][(position % page_tokens) as usize];
            let found: Vec<i32> = (0..end).map(read).collect();
            ensure!(
                found == wanted && *state == wanted,
                "slot {slot} has {state:?} behind it and reads {found:?}, expected {wanted:?}"
            );
            if sequence.flags & abi::TG_SEQUENCE_BORDER != 0 {
                self.prefixes[sequence.computes as usize] = state.clone();
            }
            if sequence.border_page != abi::TG_NONE {
                self.pages[sequence.border_page as usize] = self.pages[page_at(end - 1)].clone();
            }
        }
        Ok(())
    }
}
