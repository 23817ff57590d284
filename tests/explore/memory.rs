//! Memory as several processors see it: a word keeps what was written to it, and an actor may still read what is old to
//! others, until it has learned of something newer.
//!
//! This is the release and acquire of C11, PTX and the hardware below, as an operation on views. A view says, for every word,
//! the oldest write that its owner may still read. A release carries its writer's view along, and an acquire that reads it
//! takes that over; anything else teaches nothing about other words. So a plain store may be seen late, or never before
//! a release, and a load without acquire may be followed by loads of what was there long before.
//!
//! Words that one side has alone at a time are held to more: whoever reads or writes one must know of every write to it, and
//! a writer of every read. Anything else is a race, whichever of the two came first this time. Where there is none, what
//! the others do meanwhile makes no difference to such an access, so the explorer does it at once.

/// What an access does, numbered as in `tg_explore` (kernels/sched/platform.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    Read,
    Write,
    Load,
    Store,
    Acquire,
    Release,
    Swap,
}

impl Kind {
    /// The access is to a word that one side has alone.
    pub fn is_plain(self) -> bool {
        matches!(self, Self::Read | Self::Write)
    }

    const ALL: [Self; 7] = [
        Self::Read,
        Self::Write,
        Self::Load,
        Self::Store,
        Self::Acquire,
        Self::Release,
        Self::Swap,
    ];

    pub fn of(number: u32) -> Self {
        Self::ALL[number as usize]
    }
}

/// An access to word `word`, counted by the explorer.
#[derive(Debug, Clone, Copy)]
pub struct Access {
    pub kind: Kind,
    pub word: usize,
    pub to: u64,
    pub expected: u64,
}

/// Words of a run, at most; among them those that count reads.
pub const WORDS: usize = 64;

/// For each word, how many of its writes are too old. Those past the last word of a run stay 0.
pub type View = [u8; WORDS];

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Write {
    value: u64,
    /// What a release lets others see.
    view: Option<Box<View>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Memory {
    /// Oldest first.
    words: Vec<Vec<Write>>,
    /// Which actors look at a word, a bit each.
    seen_by: Vec<u32>,
    views: Vec<View>,
    /// Actors that read nothing any more.
    gone: u32,
}

/// What an access may read, and the memory that it leaves.
pub type Outcomes = Result<Vec<(u64, Memory)>, String>;

impl Memory {
    pub fn new(actors: usize) -> Self {
        Self {
            words: Vec::new(),
            seen_by: Vec::new(),
            views: vec![[0; WORDS]; actors],
            gone: 0,
        }
    }

    /// One more word, and its number.
    pub fn add(&mut self, value: u64, seen_by: u32) -> usize {
        assert!(
            self.words.len() < WORDS,
            "more words than views have room for"
        );
        self.words.push(vec![Write { value, view: None }]);
        self.seen_by.push(seen_by);
        self.words.len() - 1
    }

    pub fn len(&self) -> usize {
        self.words.len()
    }

    fn newest(&self, word: usize) -> u8 {
        (self.words[word].len() - 1) as u8
    }

    fn learn(&mut self, actor: usize, view: &View) {
        for (word, seen_by) in self.seen_by.iter().enumerate() {
            if seen_by >> actor & 1 == 1 {
                let known = &mut self.views[actor][word];
                *known = view[word].max(*known);
            }
        }
    }

    fn put(&mut self, actor: usize, word: usize, value: u64, view: Option<Box<View>>) {
        self.words[word].push(Write { value, view });
        self.views[actor][word] = self.newest(word);
        if let Some(view) = &mut self.words[word].last_mut().expect("just pushed").view {
            view.copy_from_slice(&self.views[actor]);
        }
    }

    /// All that may come of an access of `actor`. `reads`: the words that count reads of `access.word`: of a reader, its own.
    ///
    /// # Errors
    /// A race, in words.
    pub fn access(&self, actor: usize, access: Access, reads: &[usize]) -> Outcomes {
        let Access {
            kind,
            word,
            to,
            expected,
        } = access;
        let known = self.views[actor][word];
        if kind.is_plain() && known != self.newest(word) {
            return Err(format!(
                "actor {actor}: {kind:?} of word {word} races with a write"
            ));
        }
        let unknown = |&count: &usize| self.views[actor][count] != self.newest(count);
        if kind == Kind::Write && reads.iter().any(unknown) {
            return Err(format!(
                "actor {actor}: Write of word {word} races with a read"
            ));
        }
        let mut after = Vec::new();
        match kind {
            Kind::Read | Kind::Load | Kind::Acquire => {
                for at in known..=self.newest(word) {
                    let mut memory = self.clone();
                    let Write { value, view } = &self.words[word][at as usize];
                    memory.views[actor][word] = at;
                    if let (Kind::Acquire, Some(view)) = (kind, view) {
                        memory.learn(actor, view);
                    }
                    if let (Kind::Read, [count]) = (kind, reads) {
                        memory.put(actor, *count, 0, None);
                    }
                    after.push((*value, memory));
                }
            }
            Kind::Write | Kind::Store | Kind::Release => {
                let mut memory = self.clone();
                let view = (kind == Kind::Release).then(|| Box::new([0; WORDS]));
                memory.put(actor, word, to, view);
                after.push((0, memory));
            }
            Kind::Swap => {
                // An atomic operation works on the newest value; what was released with that stays released.
                let mut memory = self.clone();
                let Write { value, view } = self.words[word].last().expect("never empty").clone();
                memory.views[actor][word] = self.newest(word);
                if let Some(view) = view {
                    memory.learn(actor, &view);
                }
                if value == expected {
                    memory.put(actor, word, to, Some(Box::new([0; WORDS])));
                }
                after.push((value, memory));
            }
        }
        for (_, memory) in &mut after {
            memory.forget();
        }
        Ok(after)
    }

    /// `actor` reads nothing any more.
    pub fn leave(&mut self, actor: usize) {
        self.gone |= 1 << actor;
        self.views[actor] = [0; WORDS];
        self.forget();
    }

    /// Drops the writes that nobody can read, so that equal memories are equal values.
    fn forget(&mut self) {
        let mut old = [0; WORDS];
        for (word, writes) in self.words.iter_mut().enumerate() {
            let looks = |actor: &usize| (self.seen_by[word] & !self.gone) >> actor & 1 == 1;
            let readable = (0..self.views.len())
                .filter(looks)
                .map(|actor| self.views[actor][word])
                .min();
            old[word] = readable.unwrap_or(writes.len() as u8 - 1);
            writes.drain(..old[word] as usize);
        }
        let words = self.words.len();
        let age = |view: &mut View| {
            (0..words).for_each(|word| view[word] = view[word].saturating_sub(old[word]))
        };
        self.views.iter_mut().for_each(age);
        let releases = self
            .words
            .iter_mut()
            .flatten()
            .filter_map(|write| write.view.as_deref_mut());
        releases.for_each(age);
    }
}
