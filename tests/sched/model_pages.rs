//! The model's pages: who wants some, who gets them, who gives them back and is recomputed.

use super::model::Model;
use super::spec::{Place, Running, Seen, Turn};
use tailgraph::sys::abi;

/// What the turn has to go by once the returned step is collected.
pub struct Ready {
    /// Slots that could have a decode row.
    pub candidates: Vec<u32>,
    /// How many decode, in flight or not, and with pages or not.
    pub decoding: usize,
    /// The requests of those that have pages for their next row.
    pub with_pages: Vec<u64>,
    /// Slots that want pages for the row after the next, the oldest request first.
    pub wanting: Vec<u32>,
}

impl Model {
    fn decodes(&self, running: &Running) -> bool {
        running.end.is_none() && running.place == Place::Runs && running.composed == running.reading
    }

    /// Tokens of a sequence, those that its steps in flight will bring among them.
    fn tokens(&self, running: &Running) -> u32 {
        self.request(running.request).prompt_tokens + running.generated + running.steps
    }

    fn has_room(&self, running: &Running, tokens: u32) -> bool {
        let request = self.request(running.request);
        let tokens = tokens.min(request.prompt_tokens + request.max_new_tokens);
        tokens <= running.pages * self.config.page_tokens
    }

    pub(super) fn ready(&self, turn: &mut Turn) -> Ready {
        let decoding: Vec<(u32, &Running)> = self
            .running
            .iter()
            .filter(|(_, r)| self.decodes(r))
            .map(|(slot, r)| (*slot, r))
            .collect();
        let with_pages = |(_, r): &&(u32, &Running)| self.has_room(r, self.tokens(r));
        let free = |(_, r): &&(u32, &Running)| r.steps == 0 || self.goes_on(r);
        let has: Vec<u64> = decoding
            .iter()
            .filter(with_pages)
            .map(|(_, r)| r.request)
            .collect();
        turn.stalled = has.len() < decoding.len();
        let candidates = decoding.iter().filter(with_pages).filter(free);
        let mut wanting: Vec<(u64, u32)> = decoding
            .iter()
            .filter(|(_, r)| !self.has_room(r, self.tokens(r) + 1))
            .map(|(slot, r)| (r.request, *slot))
            .collect();
        wanting.sort_unstable();
        Ready {
            candidates: candidates.map(|(slot, _)| *slot).collect(),
            decoding: decoding.len(),
            with_pages: has,
            wanting: wanting.into_iter().map(|(_, slot)| slot).collect(),
        }
    }

    /// Pages for `tokens` and `grow_tokens` more, as far as the request can need them.
    pub(super) fn pages_to_grow(&self, request: &abi::tg_request, tokens: u32) -> u32 {
        let grown = tokens.saturating_add(self.config.grow_tokens);
        let tokens = grown.min(request.prompt_tokens + request.max_new_tokens);
        tokens.div_ceil(self.config.page_tokens)
    }

    /// Slots that are preempted, the oldest request first.
    pub fn preempted(&self) -> Vec<u32> {
        let all = self.running.iter();
        let mut slots: Vec<(u64, u32)> = all
            .filter(|(_, r)| r.place == Place::Preempted && r.end.is_none())
            .map(|(slot, r)| (r.request, *slot))
            .collect();
        slots.sort_unstable();
        slots.into_iter().map(|(_, slot)| slot).collect()
    }

    fn leaving(&self) -> Option<u32> {
        let mut all = self.running.iter();
        all.find(|(_, r)| r.place == Place::Leaving)
            .map(|(slot, _)| *slot)
    }

    pub(super) fn preempt_leaving(&mut self, turn: &mut Turn) {
        let Some(running) = self.leaving().and_then(|slot| self.running.get_mut(&slot)) else {
            return;
        };
        if running.steps == 0 {
            let (pages, prefix) = (running.pages, running.prefix.take());
            running.pages = 0;
            running.composed = 0;
            running.place = Place::Preempted;
            turn.changed = true;
            turn.left_with_a_prefix |= prefix.is_some();
            self.free_pages += pages - self.filled(prefix);
            self.leave(prefix);
        }
    }

    /// The running first, then those that are preempted, then the queue; who waits for pages lets nobody newer in.
    pub(super) fn hand_out(&mut self, seen: &Seen, wanting: &[u32], turn: &mut Turn) {
        for &slot in wanting {
            if self.running[&slot].place != Place::Runs {
                continue;
            }
            let running = &self.running[&slot];
            let request = *self.request(running.request);
            let more = self.pages_to_grow(&request, self.tokens(running)) - running.pages;
            if self.free_pages == 0 {
                if !self.make_room(more, None, turn) {
                    self.preempt_for(slot, turn);
                }
                turn.front_behind_one_preempted |= self.waiting() > 0;
                return;
            }
            self.give(slot, more.min(self.free_pages));
            turn.grew = true;
            turn.changed = true;
        }
        if self.leaving().is_some() {
            turn.front_behind_one_preempted |= self.waiting() > 0;
            return;
        }
        for slot in self.preempted() {
            let running = &self.running[&slot];
            let request = *self.request(running.request);
            let pages = self.pages_to_grow(&request, self.tokens(running));
            if pages > self.free_pages {
                self.make_room(pages - self.free_pages, None, turn);
                break;
            }
            self.give(slot, pages);
            self.begin_again(slot, turn);
        }
        if self.preempted().is_empty() {
            self.admit(seen, turn);
        } else {
            turn.front_behind_one_preempted |= self.waiting() > 0;
        }
    }

    fn give(&mut self, slot: u32, pages: u32) {
        self.free_pages -= pages;
        self.running.get_mut(&slot).unwrap().pages += pages;
    }

    fn begin_again(&mut self, slot: u32, turn: &mut Turn) {
        let running = self.running.get_mut(&slot).unwrap();
        let prompt_tokens = self.requests[running.request as usize].prompt_tokens;
        running.place = Place::Runs;
        running.reading = prompt_tokens + running.generated;
        running.again += 1;
        turn.recomputed += 1;
        turn.recomputed_twice |= running.again == 2;
        turn.changed = true;
        self.prefill.push(slot);
        let running = &self.running;
        self.prefill.sort_by_key(|slot| running[slot].request);
    }

    /// There is no page for `slot`: the newest without a limit leaves, unless one does already or that is this one.
    fn preempt_for(&mut self, slot: u32, turn: &mut Turn) {
        if self.leaving().is_some() {
            return;
        }
        let unlimited =
            |r: &Running| self.request(r.request).flags & abi::TG_REQUEST_UNLIMITED != 0;
        let runs = |r: &Running| r.place == Place::Runs && r.end.is_none();
        let newest = self
            .running
            .iter()
            .filter(|(_, r)| runs(r) && unlimited(r))
            .max_by_key(|(_, r)| r.request);
        let newest = *newest.expect("who wants pages has no limit").0;
        if newest == slot {
            turn.waited_as_the_newest = true;
            return;
        }
        let running = self.running.get_mut(&newest).unwrap();
        let read = running.composed == running.reading;
        turn.left_while_decoding |= read;
        turn.left_in_prompt |= !read && running.again == 0;
        turn.left_while_recomputed |= !read && running.again > 0;
        running.place = Place::Leaving;
        turn.changed = true;
        self.prefill.retain(|slot| *slot != newest);
    }
}
