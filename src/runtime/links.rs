//! Stages' ends of the links between them (kernels/sched/handover.h): what a step's descriptor and activations go over, and
//! what was sampled comes back over. A stage shares nothing else with its neighbours, so each has a state block of its own,
//! and only stage 0's is the scheduler's.

use super::memory::{HostRegion, Memory, StateBlock, acquire};
use super::sizes::Sizes;
use crate::backend::{SharedRegion, StepView};
use crate::error::{Error, Result};
use crate::sys::abi;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

/// What asking for room or for a step gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    Ready,
    /// Ask again.
    Wait,
    /// This stage has ended: [`StageLink::failure`] says whether that is an error.
    Over,
}

/// A stage's two links. One stage alone has none: its steps come back to the scheduler at once.
pub struct StageLink {
    memory: Arc<Memory>,
    ends: Option<Ends>,
}

struct Ends {
    raw: abi::tg_links,
    /// What the steps that a later stage takes bring; `None` for the first stage.
    own: Option<StateBlock>,
    /// Both links' words and places, which `raw` points into.
    _blocks: [Arc<HostRegion>; 2],
    /// Where in a place the activations begin, in words, and how many f32 they are at most.
    activations: (usize, usize),
    last: bool,
    stages: u32,
    start: Instant,
}

// SAFETY: the pointers lead into blocks that live as long, and what lies there is touched under the links' protocol.
unsafe impl Send for Ends {}

/// Words of both sides at the start of a link's block.
const WORDS_BYTES: usize = 2 * size_of::<abi::tg_link_words>();

/// One for each stage. `row_floats`: f32 of activations that a row has between stages.
///
/// # Errors
/// [`Error::Memory`] where the system has not so much.
pub(super) fn links(
    memory: &Arc<Memory>,
    sizes: &Sizes,
    stages: u32,
    row_floats: usize,
) -> Result<Vec<StageLink>> {
    if stages < 2 {
        let (memory, ends) = (memory.clone(), None);
        return Ok(vec![StageLink { memory, ends }]);
    }
    let config = &sizes.config;
    // SAFETY: these only read the configuration, which the core has accepted.
    let (between, back, activations) = unsafe {
        (
            abi::tg_step_place_words(config, row_floats.div_ceil(2) as u64),
            abi::tg_result_place_words(config),
            abi::tg_place_activations(config),
        )
    };
    let floats = config.step_tokens as usize * row_floats;
    // The last stage's link has a place for every step in flight: handover.h says why.
    let shape = |link: u32| {
        if link + 1 == stages {
            (back, config.steps_in_flight)
        } else {
            (between, config.mailbox_depth)
        }
    };
    let block = |link| {
        let (words, places) = shape(link);
        let bytes = words as usize * places as usize * size_of::<u64>();
        HostRegion::new(WORDS_BYTES + bytes).map(Arc::new)
    };
    let blocks: Vec<_> = (0..stages).map(block).collect::<Result<_>>()?;
    let end = |link: u32, posts: bool| {
        let start = blocks[link as usize].start().as_ptr();
        let (place_words, depth) = shape(link);
        // SAFETY: the block begins with the words of both sides, and places follow.
        let (poster, places) =
            unsafe { (start.cast::<abi::tg_link_words>(), start.add(WORDS_BYTES)) };
        // SAFETY: as above.
        let taker = unsafe { poster.add(1) };
        abi::tg_link_end {
            mine: if posts { poster } else { taker },
            theirs: if posts { taker } else { poster },
            places: places.cast(),
            place_words,
            depth,
            link,
            ..Default::default()
        }
    };
    let stage = |stage: u32| {
        let before = (stage + stages - 1) % stages;
        let raw = abi::tg_links {
            in_: end(before, false),
            out: end(stage, true),
            // SAFETY: an address inside the living ring block.
            stop: unsafe { &raw const (*memory.rings().head()).flags.value },
            limit_ns: abi::TG_NO_TIMEOUT,
            stage,
            ..Default::default()
        };
        let ends = Ends {
            raw,
            own: (stage != 0).then(|| StateBlock::new(sizes)).transpose()?,
            _blocks: [before, stage].map(|link| blocks[link as usize].clone()),
            activations: (activations as usize, floats),
            last: stage + 1 == stages,
            stages,
            start: Instant::now(),
        };
        Ok(StageLink {
            memory: memory.clone(),
            ends: Some(ends),
        })
    };
    (0..stages).map(stage).collect()
}

impl Ends {
    fn ask(&mut self, what: unsafe extern "C" fn(*mut abi::tg_links, u64) -> u32) -> Asked {
        let now_ns = self.start.elapsed().as_nanos() as u64;
        // SAFETY: `raw` points into living blocks, and this stage's thread alone has it.
        match unsafe { what(&raw mut self.raw, now_ns) } {
            abi::TG_LINK_READY => Asked::Ready,
            abi::TG_LINK_WAIT => Asked::Wait,
            _ => Asked::Over,
        }
    }

    fn room(&mut self) -> Asked {
        match self.raw.out.holds {
            0 => self.ask(abi::tg_links_room),
            _ => Asked::Ready,
        }
    }

    /// The activations in the place that is being read or filled.
    fn activations(&self, end: &abi::tg_link_end) -> Option<NonNull<[f32]>> {
        let (at, floats) = self.activations;
        // SAFETY: a place has room for so many behind where they begin.
        let start = unsafe { abi::tg_link_place(end).add(at) };
        let start = NonNull::new(start.cast::<f32>())?;
        (end.holds != 0).then(|| NonNull::slice_from_raw_parts(start, floats))
    }
}

impl StageLink {
    fn state(&self) -> *mut abi::tg_state {
        let own = self.ends.as_ref().and_then(|ends| ends.own.as_ref());
        own.map_or_else(|| self.memory.state(), StateBlock::head)
    }

    /// Is there room to hand a step on? To be asked before it runs, for that is where it leaves its activations.
    pub fn room(&mut self) -> Asked {
        self.ends.as_mut().map_or(Asked::Ready, Ends::room)
    }

    /// The next step for this stage, if one has been posted.
    ///
    /// # Panics
    /// On stage 0, whose steps are the core's.
    pub fn take(&mut self) -> Option<u64> {
        let state = self.state();
        let ends = self.ends.as_mut().filter(|ends| ends.own.is_some());
        let ends = ends.expect("stage 0's steps come from the core");
        if ends.ask(abi::tg_links_take) != Asked::Ready {
            return None;
        }
        // SAFETY: the place is whole and this stage's until it gives it back; `state` was made by the same configuration,
        // and no step is in it: the last one has been posted.
        unsafe {
            let place = abi::tg_link_place(&raw const ends.raw.in_);
            abi::tg_get_step(state, place, 0, 1);
            Some(place.read())
        }
    }

    /// In stage 0: gives the core the steps that have come back. `true` where there were any.
    pub fn collect(&mut self) -> bool {
        let state = self.memory.state();
        let Some(ends) = &mut self.ends else {
            return false;
        };
        let mut any = false;
        while ends.ask(abi::tg_links_take) == Asked::Ready {
            // SAFETY: the place is this stage's until it gives it back, and the step is in flight.
            unsafe {
                let place = abi::tg_link_place(&raw const ends.raw.in_);
                abi::tg_get_results(state, place, 0, 1);
                give_back(state, place.read());
                abi::tg_links_release(&raw mut ends.raw);
            }
            any = true;
        }
        any
    }

    /// Hands a step that has run to the next stage (the last stage: back to the scheduler). `false` without room.
    pub fn post(&mut self, step: u64) -> bool {
        let state = self.state();
        let Some(ends) = &mut self.ends else {
            give_back(state, step);
            return true;
        };
        if ends.room() != Asked::Ready {
            return false;
        }
        // SAFETY: the place is this stage's to fill until it is posted, and the step is in `state`.
        unsafe {
            let place = abi::tg_link_place(&raw const ends.raw.out);
            let put = if ends.last {
                abi::tg_put_results
            } else {
                abi::tg_put_step
            };
            put(state, step, place, 0, 1);
            abi::tg_links_post(&raw mut ends.raw);
            if ends.raw.in_.holds != 0 && ends.own.is_some() {
                abi::tg_links_release(&raw mut ends.raw);
            }
        }
        true
    }

    /// The descriptor of a step that this stage has, with where its activations come from and go to.
    pub fn step(&self, number: u64) -> StepView<'_> {
        let Some(ends) = &self.ends else {
            return self.memory.step(number);
        };
        let input = ends
            .own
            .as_ref()
            .and_then(|_| ends.activations(&ends.raw.in_));
        let output = if ends.last {
            None
        } else {
            ends.activations(&ends.raw.out)
        };
        // SAFETY: the state has this step until it is posted, and both places are this stage's until then.
        unsafe { StepView::new(self.state(), number).with_activations(input, output) }
    }

    /// All steps have come back: the stages behind this one end.
    pub fn drained(&mut self) {
        self.end(abi::TG_LINK_DRAINED);
    }

    fn end(&mut self, code: u32) {
        if let Some(ends) = &mut self.ends {
            // SAFETY: as for asking.
            unsafe { abi::tg_links_end(&raw mut ends.raw, code) };
        }
    }

    /// Has the scheduler, or a stage, ended, drained or stopped or in error?
    pub fn done(&self) -> bool {
        // SAFETY: the index is atomic on both sides.
        let action = unsafe { acquire(&raw mut (*self.memory.rings().head()).action) } as u32;
        let ended = self.ends.as_ref().is_some_and(|ends| ends.raw.ended != 0);
        ended || action == abi::TG_ACTION_DONE || action == abi::TG_ACTION_ERROR
    }

    /// What ended this stage, where that was a fault of the links; a stage that failed says so itself.
    pub fn failure(&self) -> Option<Error> {
        let ends = self.ends.as_ref()?;
        let ended = ends.raw.ended;
        let of_links = matches!(
            ended as u32 & 0xffff,
            abi::TG_LINK_LATE | abi::TG_LINK_ORDER
        );
        let name = |stage| format!("stage {stage}");
        of_links.then(|| Error::Runtime(link_failure(ended, ends.stages, name)))
    }
}

/// What `tg_links.ended` of one of so many stages says; `name`: a stage, as messages name it.
pub(super) fn link_failure(ended: u64, stages: u32, name: impl Fn(u32) -> String) -> String {
    let (code, link, stage) = (
        ended as u32 & 0xffff,
        ended as u32 >> 16,
        (ended >> 32) as u32,
    );
    if code == abi::TG_LINK_FAILED {
        return format!("{} could not go on", name(stage));
    }
    // A link leads from the stage of its number to the next.
    let other = if link == stage {
        (link + 1) % stages
    } else {
        link
    };
    let what = match code {
        abi::TG_LINK_LATE => "left it waiting past its deadline",
        _ => "handed on another step than the next one, which is a bug in tailgraph",
    };
    let (stage, other) = (name(stage), name(other));
    format!("link {link}, as {stage} saw it: {other} {what}")
}

/// The core finds the step in its own mailbox.
fn give_back(state: *mut abi::tg_state, step: u64) {
    // SAFETY: the caller's thread is the only poster, and the first of the mailboxes lies at the start of their array.
    let posted = unsafe {
        let mailbox = (&raw mut (*state).mailbox).cast::<abi::tg_mailbox>();
        abi::tg_mailbox_post(mailbox, step)
    };
    assert_eq!(posted, 1, "the core's mailbox holds every step in flight");
}

impl Drop for StageLink {
    /// Whoever still waits for this stage ends too.
    fn drop(&mut self) {
        self.end(abi::TG_LINK_FAILED);
    }
}
