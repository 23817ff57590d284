//! The host's end of the rings: requests and cancels in, events and trace records out.

use super::entries::{Tables, check_size, entry, from_event};
use super::memory::{RingBlock, acquire, index, release, word};
use super::notices::View;
use super::options::EngineStatus;
use super::request::{Event, Request};
use super::watchdog::Standing;
use crate::error::Result;
use crate::sys::abi;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Belongs to one thread at a time; the only writer of the host's indices.
pub struct HostRings {
    rings: Arc<RingBlock>,
    /// Where the next prompt starts in the token ring.
    token_head: u64,
    traces_lost: u64,
    /// Where requests come from, if not over these.
    queue: Option<View>,
}

impl HostRings {
    pub(super) fn new(rings: Arc<RingBlock>) -> Self {
        Self {
            rings,
            token_head: 0,
            traces_lost: 0,
            queue: None,
        }
    }

    /// The scheduler claims its requests from a queue.
    pub(super) fn claimed_from(&mut self, queue: View) {
        self.queue = Some(queue);
    }

    /// Another handle, for whoever pushes requests in place of the host. Only one of them may push.
    pub(super) fn for_requests(&self) -> Self {
        Self::new(self.rings.clone())
    }

    /// Could the rings ever hold this request?
    ///
    /// # Errors
    /// Fails as [`Self::try_push_requests`] does.
    pub(super) fn check(&self, request: &Request) -> Result<()> {
        // SAFETY: capacities never change.
        let (token_capacity, bias_capacity) = unsafe {
            let rings = self.rings.head();
            ((*rings).token_capacity, (*rings).bias_capacity)
        };
        check_size(request, token_capacity, bias_capacity)?;
        entry(request, 0).map(drop)
    }

    /// Queues a request and returns its number, or `None` while there is no room for it or its prompt.
    ///
    /// # Errors
    /// Fails as [`Self::try_push_requests`] does.
    pub fn try_push_request(&mut self, request: &Request) -> Result<Option<u64>> {
        let numbers = self.try_push_requests(std::iter::once(request))?;
        Ok((!numbers.is_empty()).then_some(numbers.start))
    }

    /// Queues requests, as many of the first ones as there is room for with their prompts, and returns their numbers. The
    /// scheduler sees all of them at once.
    ///
    /// # Errors
    /// [`Error::Usage`](crate::error::Error::Usage) where one has no prompt, more stop ids or biases than an entry has room for, or a prompt longer
    /// than the whole token ring: then none is queued.
    pub fn try_push_requests<'r>(
        &mut self,
        requests: impl IntoIterator<Item = &'r Request>,
    ) -> Result<Range<u64>> {
        let rings = self.rings.head();
        // SAFETY: capacities never change; the indices are atomic on both sides.
        let (first, tail, token_tail, token_capacity, capacity, bias_capacity) = unsafe {
            (
                acquire(&raw mut (*rings).request_head),
                acquire(&raw mut (*rings).request_tail),
                acquire(&raw mut (*rings).token_tail),
                (*rings).token_capacity,
                (*rings).request_capacity,
                (*rings).bias_capacity,
            )
        };
        // SAFETY: the offsets are those of the block's tables.
        let tables = unsafe {
            Tables {
                requests: self.rings.table((*rings).requests),
                biases: self.rings.table((*rings).biases),
                tokens: self.rings.table((*rings).tokens),
                capacity,
                bias_capacity,
                token_capacity,
            }
        };
        let (mut head, mut token_head) = (first, self.token_head);
        for request in requests {
            let prompt = &request.prompt;
            check_size(request, token_capacity, bias_capacity)?;
            let entry = entry(request, token_head)?;
            let token_end = token_head + prompt.len() as u64;
            if head - tail >= u64::from(capacity)
                || token_end - token_tail > u64::from(token_capacity)
            {
                break;
            }
            // SAFETY: the entry, its biases and the tokens lie in room that the scheduler has handed back and will not read
            // before the head is released below.
            unsafe { tables.write(head, request, entry) };
            (head, token_head) = (head + 1, token_end);
        }
        // SAFETY: all entries below the new head are whole.
        unsafe { release(&raw mut (*rings).request_head, head) };
        self.token_head = token_head;
        Ok(first..head)
    }

    /// Asks for a request to be ended early. `false` while the control ring is full.
    pub fn push_cancel(&mut self, request: u64) -> bool {
        let rings = self.rings.head();
        // SAFETY: as for requests.
        unsafe {
            let head = acquire(&raw mut (*rings).control_head);
            let capacity = (*rings).control_capacity;
            if head - acquire(&raw mut (*rings).control_tail) >= u64::from(capacity) {
                return false;
            }
            self.rings
                .entry::<abi::tg_control>((*rings).controls, capacity, head)
                .write(abi::tg_control { request });
            release(&raw mut (*rings).control_head, head + 1);
        }
        true
    }

    /// No more requests will come.
    pub fn set_drain(&mut self) {
        self.set_flag(abi::TG_INPUT_DRAIN);
    }

    /// End now, whatever is in flight.
    pub fn set_stop(&mut self) {
        self.set_flag(abi::TG_INPUT_STOP);
    }

    fn set_flag(&mut self, flag: u32) {
        // SAFETY: the index is atomic on both sides.
        unsafe {
            index(&raw mut (*self.rings.head()).flags).fetch_or(u64::from(flag), Ordering::AcqRel);
        }
    }

    /// The oldest event that has not been read.
    pub fn pop_event(&mut self) -> Option<Event> {
        self.pop_stamped().map(|(_, event)| event)
    }

    /// The next event, after the scheduler's clock (ns) in the turn that published it.
    pub fn pop_stamped(&mut self) -> Option<(u64, Event)> {
        loop {
            let (event, sampled) = self.pop_entry()?;
            // The row whose logits are not finite has an event too, as its replay would; its end tells of it.
            if event.type_ != abi::TG_EVENT_TOKEN || event.token >= 0 {
                return Some((event.time_ns, from_event(&event, sampled.as_ref())));
            }
        }
    }

    /// The oldest event that has not been read, with the scheduler's own times in it.
    pub(super) fn pop_raw_event(&mut self) -> Option<abi::tg_event> {
        self.pop_entry().map(|(event, _)| event)
    }

    /// The oldest entry of the event ring, with its logprobs where it has any.
    fn pop_entry(&mut self) -> Option<(abi::tg_event, Option<abi::tg_sampled>)> {
        let rings = self.rings.head();
        // SAFETY: entries between tail and head are the host's to read; only this thread moves the tail.
        unsafe {
            let tail = acquire(&raw mut (*rings).event_tail);
            if acquire(&raw mut (*rings).event_head) == tail {
                return None;
            }
            let event = self
                .rings
                .entry::<abi::tg_event>((*rings).events, (*rings).event_capacity, tail)
                .read();
            let wants_logprobs =
                event.type_ == abi::TG_EVENT_TOKEN && event.detail != abi::TG_LOGPROBS_NONE;
            let sampled = wants_logprobs.then(|| {
                let capacity = (*rings).sampled_capacity;
                self.rings
                    .entry::<abi::tg_sampled>((*rings).sampled, capacity, tail)
                    .read()
            });
            release(&raw mut (*rings).event_tail, tail + 1);
            Some((event, sampled))
        }
    }

    /// The oldest trace record that has been neither read nor written over.
    pub fn pop_trace(&mut self) -> Option<abi::tg_trace> {
        let rings = self.rings.head();
        // SAFETY: as for events. Only a recording scheduler waits for its records to be read. Any other may
        // write over the oldest while it is being read here: whether it did shows in the head afterwards.
        unsafe {
            let capacity = (*rings).trace_capacity;
            let (recording, room) = ((*rings).record != 0, u64::from(capacity));
            let tail = acquire(&raw mut (*rings).trace_tail);
            loop {
                let head = acquire(&raw mut (*rings).trace_head);
                let first = if recording {
                    tail
                } else {
                    // The entry at head - capacity is the one that is written next.
                    tail.max((head + 1).saturating_sub(room))
                };
                if first == head {
                    return None;
                }
                let record = self
                    .rings
                    .entry::<abi::tg_trace>((*rings).trace, capacity, first)
                    .read_volatile();
                fence(Ordering::Acquire);
                if recording || acquire(&raw mut (*rings).trace_head) < first + room {
                    self.traces_lost += first - tail;
                    release(&raw mut (*rings).trace_tail, first + 1);
                    return Some(record);
                }
            }
        }
    }

    /// What the scheduler last said of itself.
    pub fn status(&self) -> EngineStatus {
        let status = self.posted();
        EngineStatus {
            running: status.running as u32,
            waiting: status.queue_depth as u32,
            free_pages: status.free_pages as u32,
            steps: status.steps,
        }
    }

    /// What has to move on: the step that runs now, or a scheduler that has requests to take and nothing else to do.
    pub(super) fn standing(&self) -> Option<Standing> {
        let before = self.posted();
        let (action, _) = self.action();
        // The words were written one by one, so they belong together only if no step was composed meanwhile.
        let after = self.posted();
        match action {
            abi::TG_ACTION_STEP if before.steps == after.steps => Some(Standing::Step(after)),
            abi::TG_ACTION_IDLE if after.running == 0 && self.waiting() => {
                Some(Standing::Scheduler)
            }
            _ => None,
        }
    }

    /// Whether there are requests that the scheduler has not taken.
    fn waiting(&self) -> bool {
        let rings = self.rings.head();
        // SAFETY: the indices are atomic on both sides.
        let (head, taken) = unsafe {
            let head = &raw mut (*rings).request_head;
            let taken = acquire(&raw mut (*rings).request_tail);
            (acquire(head), taken)
        };
        match &self.queue {
            Some(queue) => queue.unclaimed() > 0 || queue.claims() != taken,
            None => head != taken,
        }
    }

    /// The last turn's `TG_ACTION_*` and `TG_ERROR_*`.
    pub(super) fn action(&self) -> (u32, u32) {
        // SAFETY: the index is atomic on both sides.
        let action = unsafe { acquire(&raw mut (*self.rings.head()).action) };
        (action as u32, (action >> 32) as u32)
    }

    /// What the scheduler last said of itself, word by word.
    pub(super) fn posted(&self) -> abi::tg_status {
        // SAFETY: every word of the status is written atomically by the other side.
        let load = |at| unsafe { word(at) }.load(Ordering::Acquire);
        // SAFETY: only addresses are taken, inside the living block.
        unsafe {
            let status = &raw mut (*self.rings.head()).status;
            abi::tg_status {
                steps: load(&raw mut (*status).steps),
                start_ns: load(&raw mut (*status).start_ns),
                stage: load(&raw mut (*status).stage),
                kind: load(&raw mut (*status).kind),
                bucket_rows: load(&raw mut (*status).bucket_rows),
                rows: load(&raw mut (*status).rows),
                running: load(&raw mut (*status).running),
                queue_depth: load(&raw mut (*status).queue_depth),
                free_pages: load(&raw mut (*status).free_pages),
                in_flight: load(&raw mut (*status).in_flight),
                ended: load(&raw mut (*status).ended),
                pad: Default::default(),
            }
        }
    }

    /// Trace records that [`HostRings::pop_trace`] came too late for.
    pub fn traces_lost(&self) -> u64 {
        self.traces_lost
    }
}
