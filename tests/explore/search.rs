//! Every way in which the actors' accesses can follow each other, each state once.

use crate::actors::{Actors, FAULTS, RawAccess, Scenario};
use crate::memory::{Access, Kind, Memory};
use std::collections::HashMap;
use std::ffi::c_void;
use std::hash::{Hash, Hasher};

/// Actors of a scenario, at most.
const MOST_ACTORS: usize = 8;

/// What may happen besides.
#[derive(Debug, Clone, Copy, Default)]
pub struct Trouble {
    /// This actor may stop moving, between any two accesses.
    pub dies: Option<usize>,
    /// A wait may be found to be past its deadline.
    pub late: bool,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Actor {
    /// The actor's memory when the call that runs began; an actor of actors.c.
    memory: Vec<u64>,
    /// What that call has read.
    read: Vec<u64>,
    /// The call was told that it is past every deadline.
    late: bool,
    dead: bool,
}

impl Actor {
    /// `done`, `fault` and `waiting` of actors.c.
    fn head(&self) -> [u32; 3] {
        let [first, second] = [self.memory[0], self.memory[1]];
        [first as u32, (first >> 32) as u32, second as u32]
    }

    fn moves(&self) -> bool {
        !self.dead && self.head()[0] == 0
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    actors: Vec<Actor>,
    memory: Memory,
}

impl State {
    /// That two of some million states share their 128 bits is not to be expected.
    fn fingerprint(&self) -> u128 {
        let mut mixer = Mixer([1, 2]);
        self.hash(&mut mixer);
        let [high, low] = mixer.0.map(|half| half ^ half >> 32);
        u128::from(high) << 64 | u128::from(low)
    }
}

/// Two quick hashes at once.
struct Mixer([u64; 2]);

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        let [high, low] = &mut self.0;
        *high = (high.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        *low = (low.rotate_left(37) ^ word).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0[0]
    }
}

/// What a search found.
#[derive(Debug)]
pub struct Found {
    pub states: usize,
    /// Nothing is wrong, or what is, and how it came to that.
    pub fault: Option<String>,
}

/// What was done: by an actor, and which access that gave which value; `None`: it died, or went on without any.
#[derive(Debug, Clone, Copy)]
struct Did(usize, Option<(Access, u64)>);

/// A word of actors.c's memory, by its address; or how often this actor has read it, which is another.
type Named = (usize, Option<usize>);

struct Search<'a> {
    actors: &'a Actors,
    scenario: Scenario,
    trouble: Trouble,
    /// Addresses of actors.c's memory as words, in the order of the words.
    addresses: Vec<Named>,
    words: HashMap<Named, usize>,
    first: State,
    seen: HashMap<u128, u32>,
    /// For each state the one that it was first reached from, and what was done then.
    from: Vec<(u32, Did)>,
    edges: Vec<(u32, u32)>,
    ends: Vec<u32>,
}

/// All states of a scenario. Every one must be able to come to the end of all that are not dead, and what is found there,
/// or anywhere, must be right.
pub fn explore(actors: &Actors, scenario: Scenario, trouble: Trouble) -> Found {
    let mut bytes = vec![0u64; MOST_ACTORS * actors.bytes / 8];
    // SAFETY: there is room for as many actors as a scenario has.
    let count = unsafe { (actors.setup)(&scenario, bytes.as_mut_ptr()) } as usize;
    let each = bytes.chunks(actors.bytes / 8).take(count);
    let first = State {
        actors: each
            .map(|memory| Actor {
                memory: memory.to_vec(),
                read: vec![],
                late: false,
                dead: false,
            })
            .collect(),
        memory: Memory::new(count),
    };
    let mut search = Search {
        actors,
        scenario,
        trouble,
        addresses: vec![],
        words: HashMap::new(),
        first,
        seen: HashMap::new(),
        from: vec![],
        edges: vec![],
        ends: vec![],
    };
    let fault = search.run().err();
    Found {
        states: search.from.len(),
        fault,
    }
}

impl Search<'_> {
    fn run(&mut self) -> Result<(), String> {
        let mut open = vec![(0, self.first.clone())];
        self.seen.insert(self.first.fingerprint(), 0);
        self.from.push((0, Did(0, None)));
        while let Some((number, state)) = open.pop() {
            if !state.actors.iter().any(Actor::moves) {
                self.check_end(&state)
                    .map_err(|fault| self.told(number, &fault))?;
                self.ends.push(number);
                continue;
            }
            for (what, next) in self
                .next(&state)
                .map_err(|fault| self.told(number, &fault))?
            {
                let new = self.from.len() as u32;
                let index = *self.seen.entry(next.fingerprint()).or_insert(new);
                self.edges.push((number, index));
                if index == new {
                    self.from.push((number, what));
                    open.push((index, next));
                }
            }
        }
        self.check_all_end()
    }

    /// How it came to `state`, and what is wrong there.
    fn told(&self, state: u32, fault: &str) -> String {
        let mut way = vec![fault.to_owned()];
        let mut at = state;
        while at != 0 && way.len() < 60 {
            let (before, what) = &self.from[at as usize];
            way.push(match what {
                Did(actor, None) => format!("{actor} dies, or goes on"),
                Did(actor, Some((access, value))) => format!("{actor} {access:x?} gave {value:x}"),
            });
            at = *before;
        }
        way.reverse();
        way.join("\n")
    }

    /// A state that can come to no end is a deadlock, or goes round for ever.
    fn check_all_end(&self) -> Result<(), String> {
        let mut back = vec![vec![]; self.from.len()];
        for &(from, to) in &self.edges {
            back[to as usize].push(from);
        }
        let mut ends = vec![false; self.from.len()];
        let mut open = self.ends.clone();
        while let Some(state) = open.pop() {
            if !std::mem::replace(&mut ends[state as usize], true) {
                open.extend(&back[state as usize]);
            }
        }
        match ends.iter().position(|ends| !ends) {
            Some(stuck) => Err(self.told(stuck as u32, "from here nothing comes to its end")),
            None => Ok(()),
        }
    }

    /// Everything that can happen next.
    fn next(&mut self, state: &State) -> Result<Vec<(Did, State)>, String> {
        let mut all = Vec::new();
        for actor in 0..state.actors.len() {
            if !state.actors[actor].moves() {
                continue;
            }
            if self.trouble.dies == Some(actor) {
                let mut next = state.clone();
                next.actors[actor].dead = true;
                next.memory.leave(actor);
                all.push((Did(actor, None), next));
            }
            self.step(state, actor, state.actors[actor].late, &mut all)?;
            let [_, _, waiting] = state.actors[actor].head();
            if self.trouble.late && waiting != 0 && state.actors[actor].read.is_empty() {
                self.step(state, actor, true, &mut all)?;
            }
        }
        Ok(all)
    }

    /// One access of `actor`, or the end of its call where that asks for none.
    fn step(
        &mut self,
        state: &State,
        actor: usize,
        late: bool,
        all: &mut Vec<(Did, State)>,
    ) -> Result<(), String> {
        let mut begun = state.clone();
        begun.actors[actor].late = late;
        let Some(access) = self.proceed(&mut begun, actor)? else {
            all.push((Did(actor, None), begun));
            return Ok(());
        };
        let (access, reads) = self.find(&mut begun, actor, &access);
        for (value, memory) in begun.memory.access(actor, access, &reads)? {
            let mut next = State {
                actors: begun.actors.clone(),
                memory,
            };
            next.actors[actor].read.push(value);
            // Others cannot tell when these are done: see memory.rs.
            while let Some(asked) = self.proceed(&mut next, actor)? {
                let (access, reads) = self.find(&mut next, actor, &asked);
                if !access.kind.is_plain() && !self.is_constant(&asked) {
                    break;
                }
                let mut outcomes = next.memory.access(actor, access, &reads)?;
                let (value, memory) = outcomes.pop().expect("there is one");
                next.memory = memory;
                next.actors[actor].read.push(value);
            }
            all.push((Did(actor, Some((access, value))), next));
        }
        Ok(())
    }

    /// Does no actor of this scenario ever write to the word?
    fn is_constant(&self, access: &RawAccess) -> bool {
        // SAFETY: an address that actors.c gave.
        unsafe { (self.actors.seen_by)(&self.scenario, access.word) == 0 }
    }

    /// Runs an actor's call up to its next access, which is returned, or to its end: `None`.
    fn proceed(&self, state: &mut State, actor: usize) -> Result<Option<RawAccess>, String> {
        let own = &mut state.actors[actor];
        let mut memory = own.memory.clone();
        let mut access = RawAccess {
            kind: 0,
            word: std::ptr::null(),
            to: 0,
            expected: 0,
        };
        // SAFETY: `memory` is an actor as actors.c left it, and `read` outlives the call.
        let over = unsafe {
            (self.actors.call)(
                memory.as_mut_ptr(),
                u32::from(own.late),
                own.read.as_ptr(),
                own.read.len() as u32,
                &mut access,
            )
        };
        if over == 0 {
            return Ok(Some(access));
        }
        (own.memory, own.late) = (memory, false);
        own.read.clear();
        let [done, fault, _] = own.head();
        if fault != 0 {
            return Err(format!("actor {actor}: {}", FAULTS[fault as usize - 1]));
        }
        if done != 0 {
            state.memory.leave(actor);
        }
        Ok(None)
    }

    fn word(&mut self, named: Named) -> usize {
        let new = self.addresses.len();
        let word = *self.words.entry(named).or_insert(new);
        if word == new {
            self.addresses.push(named);
        }
        word
    }

    /// The word of an address, which becomes one where it is new, and the words that count its reads: the reader's own, or
    /// for a writer all.
    fn find(
        &mut self,
        state: &mut State,
        actor: usize,
        access: &RawAccess,
    ) -> (Access, Vec<usize>) {
        let kind = Kind::of(access.kind);
        let address = access.word.cast::<c_void>().expose_provenance();
        let word = self.word((address, None));
        let reads = match kind {
            Kind::Read => vec![self.word((address, Some(actor)))],
            Kind::Write => (0..state.actors.len())
                .filter_map(|reader| self.words.get(&(address, Some(reader))).copied())
                .collect(),
            _ => vec![],
        };
        for &(address, reader) in &self.addresses[state.memory.len()..] {
            let at = std::ptr::with_exposed_provenance::<u64>(address);
            // SAFETY: an address that actors.c gave, of its memory, which nothing changes after its setup.
            let (value, seen_by) =
                unsafe { (at.read(), (self.actors.seen_by)(&self.scenario, at)) };
            let value = if reader.is_some() { 0 } else { value };
            state.memory.add(value, seen_by);
        }
        let access = Access {
            kind,
            word,
            to: access.to,
            expected: access.expected,
        };
        (access, reads)
    }

    /// All have ended, or are dead.
    fn check_end(&self, state: &State) -> Result<(), String> {
        let excused = state.actors.iter().any(|actor| actor.dead)
            || self.trouble.late
            || self.scenario.stops != 0;
        if excused {
            return Ok(());
        }
        let actors: Vec<u64> = state
            .actors
            .iter()
            .flat_map(|actor| actor.memory.clone())
            .collect();
        // SAFETY: the scenario's actors, one after the other.
        match unsafe { (self.actors.end)(&self.scenario, actors.as_ptr()) } {
            0 => Ok(()),
            fault => Err(FAULTS[fault as usize - 1].to_owned()),
        }
    }
}
