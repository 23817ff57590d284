//! What a turn sees and what it must do, in plain lists: the terms in which model and core are compared.

use tailgraph::sys::abi;

/// An event, without what only the core's caller knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Token {
        request: u64,
        index: u32,
        token: i32,
        step: u64,
        time_ns: u64,
        /// Index of its sampled row, where the request asked for logprobs.
        sample: Option<u32>,
    },
    End {
        request: u64,
        reason: u32,
        tokens: u32,
        time_ns: u64,
        seen_ns: u64,
        admitted_ns: u64,
        first_ns: u64,
        again: u32,
        skipped: u32,
    },
}

/// A step descriptor's contents.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Step {
    pub number: u64,
    pub start_ns: u64,
    pub kind: u32,
    pub bucket: u32,
    pub bucket_rows: u32,
    pub decode_rows: u32,
    pub rows: Vec<abi::tg_row>,
    pub sequences: Vec<abi::tg_sequence>,
    pub sample_rows: Vec<u32>,
}

impl Step {
    /// In a model's step, a page that only the core knows.
    pub const SOME_PAGE: u32 = 0;

    /// The same without the pages that only the core knows.
    pub fn without_pages(mut self) -> Self {
        for sequence in &mut self.sequences {
            for page in [&mut sequence.from_page, &mut sequence.border_page] {
                *page = match *page {
                    abi::TG_NONE => abi::TG_NONE,
                    _ => Self::SOME_PAGE,
                };
            }
        }
        self
    }
}

/// Whether a slot's request has its pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Runs,
    /// Until its steps in flight have come back.
    Leaving,
    Preempted,
}

#[derive(Debug, Clone)]
pub struct Running {
    pub request: u64,
    pub seen_ns: u64,
    pub admitted_ns: u64,
    pub first_ns: u64,
    pub place: Place,
    /// Tokens composed so far of what is to be computed: its prompt, or when it is recomputed, that and its tokens so far.
    pub composed: u32,
    pub reading: u32,
    pub again: u32,
    pub generated: u32,
    pub tokens: Vec<i32>,
    pub steps: u32,
    /// In its page table, those of its prefixes first.
    pub pages: u32,
    /// The place of the longest prefix that it shares.
    pub prefix: Option<u32>,
    pub skipped: u32,
    pub end: Option<u32>,
    /// Slots that have had a decode row while it could have had one and waited.
    pub overtaken_by: Vec<u32>,
    /// Steps that passed it over since a sequence last began or ceased to decode.
    pub passed_over: u32,
}

impl Running {
    pub fn is_in_prompt(&self) -> bool {
        self.place == Place::Runs && self.composed < self.reading
    }
}

/// What a turn sees of the world.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    pub now_ns: u64,
    pub request_head: u64,
    pub control_head: u64,
    pub event_tail: u64,
    pub flags: u32,
    /// A finished step waits in mailbox 0.
    pub finished: bool,
    pub trace_full: bool,
}

/// What a turn must do.
#[derive(Debug, Default)]
pub struct Turn {
    pub action: u32,
    pub changed: bool,
    /// The step that came back.
    pub returned: Option<u64>,
    pub step: Option<Step>,
    pub recomputed: u32,
    /// Prompt tokens that the step's sequences begin behind.
    pub skipped: u32,
    /// The prefixes, by their places, whose pages came back.
    pub came_back: Vec<u32>,
    /// Coverage.
    pub waited_for_a_prefix: bool,
    pub took_a_prefix_over: bool,
    pub went_on_from_a_prefix: bool,
    pub place_in_use: bool,
    pub place_was_wanted: bool,
    pub way_for_others: bool,
    pub prefix_made_room: bool,
    pub too_large_to_share: bool,
    pub left_with_a_prefix: bool,
    pub ring_full: bool,
    pub logprobs_full: bool,
    pub beyond_logprobs: bool,
    pub front_without_pages: bool,
    pub front_without_slot: bool,
    pub cancel_waiting: bool,
    pub timeout_waiting: bool,
    pub timeout_in_prefill: bool,
    pub cancel_in_prefill: bool,
    pub cancel_with_last_token: bool,
    pub deadline_with_token: bool,
    pub stop_with_last_token: bool,
    pub ended_in_flight: bool,
    pub chunk_skipped: bool,
    pub decode_share: bool,
    pub ran_ahead: bool,
    pub waited_for_step: bool,
    pub pipeline_full: bool,
    pub grew: bool,
    pub stalled: bool,
    pub left_while_decoding: bool,
    pub left_in_prompt: bool,
    pub left_while_recomputed: bool,
    pub waited_as_the_newest: bool,
    pub recomputed_twice: bool,
    pub ended_while_leaving: bool,
    pub ended_while_preempted: bool,
    pub front_behind_one_preempted: bool,
}
