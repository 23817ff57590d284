//! The model's shared prefixes: who makes one, who computes it, who begins behind it, and when it goes.

use super::model::Model;
use super::spec::{Running, Step, Turn};
use tailgraph::sys::abi;

/// How far a prefix is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The request that computes it, if one does.
    Pending(Option<u64>),
    /// All of it is composed, the last of it in this step.
    Ready(u64),
    /// Nobody has it any more: its pages come back in the next turn.
    Going,
}

#[derive(Debug, Clone)]
pub struct Prefix {
    pub number: u32,
    pub tokens: u32,
    /// Its place, of the prefix that it goes on from.
    pub parent: Option<u32>,
    pub stage: Stage,
    /// Running sequences whose longest it is, and prefixes that go on from it.
    pub users: u32,
    /// Its own.
    pub pages: u32,
    /// The turn that its last user left in.
    pub used: u64,
}

impl Prefix {
    fn is_idle(&self) -> bool {
        self.users == 0 && matches!(self.stage, Stage::Ready(_))
    }
}

/// What a request shares.
#[derive(Default)]
pub(super) struct Share {
    base: Option<u32>,
    /// Borders whose prefixes it makes.
    made: Vec<abi::tg_border>,
    /// Pages for these, and for itself.
    pub pages: u32,
    pub own: u32,
    in_the_way: Option<u32>,
}

/// A prompt's next chunk.
pub(super) struct Stretch {
    pub from: u32,
    pub end: u32,
    pub behind: Option<u32>,
    pub computes: Option<u32>,
}

impl Model {
    /// Pages that so many tokens fill.
    pub fn filled(&self, prefix: Option<u32>) -> u32 {
        prefix.map_or(0, |place| {
            self.prefixes[&place].tokens / self.config.page_tokens
        })
    }

    /// The prefix at this place and all that it goes on from.
    pub fn chain(&self, prefix: Option<u32>) -> Vec<u32> {
        std::iter::successors(prefix, |place| self.prefixes[place].parent).collect()
    }

    pub(super) fn borders(request: &abi::tg_request) -> Vec<abi::tg_border> {
        let named = request
            .borders
            .iter()
            .take_while(|border| border.prefix != 0);
        named.copied().collect()
    }

    fn place(&self, border: &abi::tg_border) -> u32 {
        border.prefix % self.config.prefixes
    }

    /// Lets the prefixes that nobody has go: their pages come back now, their places at the turn's end.
    pub(super) fn take_back(&mut self, turn: &mut Turn) {
        let all = self.prefixes.iter();
        let going: Vec<u32> = all
            .filter(|(_, prefix)| prefix.stage == Stage::Going)
            .map(|(place, _)| *place)
            .collect();
        for place in &going {
            self.free_pages += self.prefixes[place].pages;
        }
        turn.changed |= !going.is_empty();
        turn.came_back = going;
    }

    pub(super) fn free_places(&mut self, turn: &Turn) {
        for place in &turn.came_back {
            let prefix = self.prefixes.remove(place).expect("it goes");
            self.leave(prefix.parent);
        }
    }

    pub(super) fn any_go(&self) -> bool {
        self.prefixes
            .values()
            .any(|prefix| prefix.stage == Stage::Going)
    }

    /// A user of a prefix is no more.
    pub(super) fn leave(&mut self, place: Option<u32>) {
        let turns = self.turns;
        let Some(prefix) = place.and_then(|place| self.prefixes.get_mut(&place)) else {
            return;
        };
        prefix.users -= 1;
        prefix.used = turns;
        if prefix.users == 0 && matches!(prefix.stage, Stage::Pending(_)) {
            prefix.stage = Stage::Going;
        }
    }

    /// For want of so many pages, idle prefixes go, but the one that is needed. Whether some do.
    pub(super) fn make_room(&mut self, pages: u32, needed: Option<u32>, turn: &mut Turn) -> bool {
        let going = self.prefixes.iter();
        let going = going.filter(|(place, prefix)| {
            prefix.stage == Stage::Going && !turn.came_back.contains(place)
        });
        let mut found: u32 = going.map(|(_, prefix)| prefix.pages).sum();
        while found < pages {
            let idle = self.prefixes.iter();
            let idle = idle.filter(|(place, prefix)| prefix.is_idle() && Some(**place) != needed);
            let Some(oldest) = idle
                .min_by_key(|(_, prefix)| prefix.used)
                .map(|(place, _)| *place)
            else {
                break;
            };
            let prefix = self.prefixes.get_mut(&oldest).unwrap();
            prefix.stage = Stage::Going;
            found += prefix.pages;
            turn.prefix_made_room = true;
        }
        found > 0
    }

    pub(super) fn share(&self, request: &abi::tg_request, pages: u32, turn: &mut Turn) -> Share {
        let alone = || Share {
            pages,
            own: pages,
            ..Share::default()
        };
        if self.config.prefixes == 0 {
            return alone();
        }
        let borders = Self::borders(request);
        let is_there = |border: &abi::tg_border| {
            let prefix = self.prefixes.get(&self.place(border));
            let named = (border.prefix, border.tokens);
            prefix.is_some_and(|p| (p.number, p.tokens) == named && p.stage != Stage::Going)
        };
        let last = borders.iter().rposition(is_there);
        let base = last.map(|at| self.place(&borders[at]));
        let mut share = Share {
            base,
            ..Share::default()
        };
        let mut filled = self.filled(base);
        let mut places = vec![];
        for border in &borders[last.map_or(0, |at| at + 1)..] {
            let place = self.place(border);
            match self.prefixes.get(&place) {
                Some(prefix) => {
                    let goes = prefix.is_idle() || prefix.stage == Stage::Going;
                    if goes && Some(place) != base {
                        share.in_the_way = Some(place);
                    } else {
                        turn.place_in_use = true;
                    }
                }
                None if places.contains(&place) => turn.place_in_use = true,
                None => {
                    places.push(place);
                    share.made.push(*border);
                    share.pages += border.tokens.div_ceil(self.config.page_tokens) - filled;
                    filled = border.tokens / self.config.page_tokens;
                }
            }
        }
        let chain = self.chain(base);
        let chain: u32 = chain.iter().map(|place| self.prefixes[place].pages).sum();
        let tokens = request.prompt_tokens + request.max_new_tokens;
        let all = tokens.div_ceil(self.config.page_tokens) - filled;
        if chain + share.pages + all > self.config.pages {
            turn.too_large_to_share |= !borders.is_empty();
            return alone();
        }
        share.own = pages - filled;
        share.pages += share.own;
        share
    }

    /// Whether the front of the queue must wait for prefixes to go, which then do for those behind it, too.
    pub(super) fn waits_for_prefixes(&mut self, share: &Share, turn: &mut Turn) -> bool {
        if share.in_the_way.is_none() {
            if share.pages <= self.free_pages {
                return false;
            }
            turn.front_without_pages = true;
        }
        let slots = self.config.slots as usize - self.running.len();
        let mut wanted = share.pages;
        for behind in 0..self.waiting.len().min(slots) {
            let request = *self.request(self.taken + behind as u64);
            if self.refuses(&request) {
                continue;
            }
            let of = self.share(&request, self.pages_at_first(&request), turn);
            if let Some(place) = of.in_the_way.filter(|&place| Some(place) != share.base) {
                self.prefixes.get_mut(&place).unwrap().stage = Stage::Going;
                turn.place_was_wanted = true;
                turn.way_for_others |= behind > 0;
            }
            if behind > 0 {
                wanted += of.own;
            }
        }
        if wanted > self.free_pages {
            self.make_room(wanted - self.free_pages, share.base, turn);
        }
        true
    }

    pub(super) fn make_prefixes(&mut self, share: &Share, turn: &mut Turn) -> Option<u32> {
        let mut parent = share.base;
        turn.went_on_from_a_prefix |= parent.is_some() && !share.made.is_empty();
        for border in &share.made {
            let place = self.place(border);
            let pages = border.tokens.div_ceil(self.config.page_tokens) - self.filled(parent);
            self.use_prefix(parent);
            let prefix = Prefix {
                number: border.prefix,
                tokens: border.tokens,
                parent,
                stage: Stage::Pending(None),
                users: 0,
                pages,
                used: 0,
            };
            self.free_pages -= pages;
            self.prefixes.insert(place, prefix);
            parent = Some(place);
        }
        self.use_prefix(parent);
        parent
    }

    fn use_prefix(&mut self, place: Option<u32>) {
        if let Some(prefix) = place.and_then(|place| self.prefixes.get_mut(&place)) {
            prefix.users += 1;
        }
    }

    /// The next chunk of a slot, or `None` where it waits for another's.
    pub(super) fn stretch(&mut self, slot: u32, turn: &mut Turn) -> Option<Stretch> {
        let running = &self.running[&slot];
        let mut stretch = Stretch {
            from: running.composed,
            end: running.reading,
            behind: None,
            computes: None,
        };
        let chain = self.chain(running.prefix);
        let is_missing = |place: &u32| matches!(self.prefixes[place].stage, Stage::Pending(_));
        let mut before = running.prefix;
        if let Some(missing) = chain.iter().copied().rfind(is_missing) {
            if !self.computes(missing, slot, turn) {
                turn.waited_for_a_prefix = true;
                return None;
            }
            stretch.computes = Some(missing);
            stretch.end = self.prefixes[&missing].tokens;
            before = self.prefixes[&missing].parent;
        }
        if let Some(before) = before
            && stretch.from <= self.prefixes[&before].tokens
        {
            let prefix = &self.prefixes[&before];
            if prefix.stage == Stage::Ready(self.steps_composed) {
                return None;
            }
            stretch.from = prefix.tokens;
            stretch.behind = Some(before);
        }
        Some(stretch)
    }

    /// Whether the slot computes that prefix: it does where nobody who could go on does.
    fn computes(&mut self, place: u32, slot: u32, turn: &mut Turn) -> bool {
        let request = self.running[&slot].request;
        let Stage::Pending(by) = self.prefixes[&place].stage else {
            return false;
        };
        let goes_on = |r: &Running| {
            Some(r.request) == by && r.end.is_none() && r.prefix.is_some() && r.is_in_prompt()
        };
        if let Some(other) = self.running.values().find(|r| goes_on(r)) {
            return other.request == request;
        }
        turn.took_a_prefix_over |= by.is_some();
        self.prefixes.get_mut(&place).unwrap().stage = Stage::Pending(Some(request));
        true
    }

    /// The page that a prefix ends in, if it does not fill it.
    pub(super) fn some_page(&self, place: Option<u32>) -> u32 {
        let full = |place| {
            self.prefixes[&place]
                .tokens
                .is_multiple_of(self.config.page_tokens)
        };
        match place {
            Some(place) if !full(place) => Step::SOME_PAGE,
            _ => abi::TG_NONE,
        }
    }
}
