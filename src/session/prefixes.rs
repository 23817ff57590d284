//! Which prompts begin alike: a radix tree of the prompts that are to come and of those that came, and the borders that pay.

#[cfg(test)]
mod tests;

use crate::plan::EngineOptions;
use crate::runtime::Border;
use crate::sys::abi::TG_MAX_BORDERS;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// Tokens that a prefix has behind the one before it, at least. Chat templates begin with fewer, which are not worth a step of
/// their own.
const LEAST: usize = 16;
/// What the tree may hold, in tokens: 16 MiB, or twice that where edges were cut. Much older prompts' prefixes are no longer on
/// the device either, whose pages hold some hundred thousand tokens.
const MOST: usize = 4 << 20;
/// What a node, or a prompt, takes beside the tokens of its edge, in tokens.
const OVERHEAD: usize = 32;
const ROOT: u32 = 0;

/// The prompts of one engine, each without its last token, which every sequence computes itself.
pub struct Prefixes {
    /// The root first.
    nodes: Vec<Node>,
    free: Vec<u32>,
    /// A node's child whose edge begins with a token.
    children: HashMap<(u32, u32), u32>,
    /// The nodes that prompts end at, and for how many sequences each; oldest first.
    prompts: VecDeque<(u32, u64)>,
    /// How many all edges have.
    tokens: usize,
    most: usize,
    /// The newest number of a prefix.
    newest: u32,
}

/// What prompts have in common from their first token to the end of the edge that leads here.
struct Node {
    parent: u32,
    /// The edge's tokens are in the range.
    text: Arc<[u32]>,
    range: Range<usize>,
    /// Sequences whose prompts run through it, or end here.
    count: u64,
    /// The prefix's number, once it was a border: 0 before.
    number: u32,
}

impl Node {
    fn edge(&self) -> &[u32] {
        &self.text[self.range.clone()]
    }
}

/// A node on a prompt's path.
#[derive(Clone, Copy)]
struct Found {
    node: u32,
    /// From the prompt's first token on.
    tokens: usize,
    count: u64,
}

impl Prefixes {
    /// Those of an engine, which may share none.
    pub fn of(options: &EngineOptions) -> Self {
        if options.prefixes > 0 {
            Self::holding(MOST)
        } else {
            Self::none()
        }
    }

    /// Nothing is shared: no prompt is kept, and none has borders.
    pub fn none() -> Self {
        Self::holding(0)
    }

    pub fn any(&self) -> bool {
        self.most > 0
    }

    fn holding(most: usize) -> Self {
        let root = Node {
            parent: ROOT,
            text: Arc::new([]),
            range: 0..0,
            count: 0,
            number: 0,
        };
        Self {
            nodes: vec![root],
            free: Vec::new(),
            children: HashMap::new(),
            prompts: VecDeque::new(),
            tokens: 0,
            most,
            newest: 0,
        }
    }

    /// So many sequences with this prompt are to come.
    pub fn expect(&mut self, prompt: &[u32], sequences: usize) {
        let mut rest = shareable(prompt);
        if !self.any() || rest.is_empty() || sequences == 0 {
            return;
        }
        let count = sequences as u64;
        let mut at = ROOT;
        while let Some((child, alike)) = self.next(at, rest) {
            at = self.split(child, alike);
            self.nodes[at as usize].count += count;
            rest = &rest[alike..];
        }
        if !rest.is_empty() {
            self.tokens += rest.len();
            at = self.add(Node {
                parent: at,
                text: rest.into(),
                range: 0..rest.len(),
                count,
                number: 0,
            });
        }
        self.prompts.push_back((at, count));
        while self.held() > self.most && self.forget() {}
    }

    /// Where prefixes of the prompt end that pay, by the prompts that are to come or came: ascending, and numbered.
    pub fn borders(&mut self, prompt: &[u32]) -> Vec<Border> {
        let mut chosen: Vec<Found> = Vec::new();
        // The deepest node so far that all prompts of its count run through.
        let mut pending: Option<Found> = None;
        let (mut at, mut tokens) = (ROOT, 0);
        let prompt = shareable(prompt);
        while let Some((node, alike)) = self.next(at, &prompt[tokens..]) {
            let &Node {
                count, ref range, ..
            } = &self.nodes[node as usize];
            if alike < range.len() || count < 2 {
                break;
            }
            (at, tokens) = (node, tokens + alike);
            if let Some(branch) = pending.filter(|branch| branch.count > count) {
                choose(&mut chosen, branch);
            }
            pending = Some(Found {
                node,
                tokens,
                count,
            });
        }
        if let Some(last) = pending {
            choose(&mut chosen, last);
        }
        let number = |found: Found| {
            let node = &mut self.nodes[found.node as usize];
            if node.number == 0 {
                self.newest = self.newest.checked_add(1)?;
                node.number = self.newest;
            }
            Some(Border {
                prefix: node.number,
                tokens: found.tokens as u32,
            })
        };
        chosen.into_iter().map_while(number).collect()
    }

    /// The child of a node where `rest` goes on, and how many tokens of its edge are those of `rest`: at least one.
    fn next(&self, at: u32, rest: &[u32]) -> Option<(u32, usize)> {
        let child = *self.children.get(&(at, *rest.first()?))?;
        let both = self.nodes[child as usize].edge().iter().zip(rest);
        Some((child, both.take_while(|(a, b)| a == b).count()))
    }

    /// The node that the first `tokens` of a node's edge lead to.
    fn split(&mut self, node: u32, tokens: usize) -> u32 {
        let lower = &mut self.nodes[node as usize];
        if tokens == lower.range.len() {
            return node;
        }
        let at = lower.range.start + tokens;
        let upper = Node {
            parent: lower.parent,
            text: lower.text.clone(),
            range: lower.range.start..at,
            count: lower.count,
            number: 0,
        };
        lower.range.start = at;
        let next = lower.text[at];
        // It takes the place of the lower one among its siblings.
        let upper = self.add(upper);
        self.nodes[node as usize].parent = upper;
        self.children.insert((upper, next), node);
        upper
    }

    fn add(&mut self, node: Node) -> u32 {
        let key = (node.parent, node.edge()[0]);
        let index = match self.free.pop() {
            Some(index) => {
                self.nodes[index as usize] = node;
                index
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        };
        self.children.insert(key, index);
        index
    }

    /// Forgets all prompts. What comes later shares nothing with them.
    pub fn clear(&mut self) {
        while self.forget() {}
    }

    /// What it holds, in tokens.
    fn held(&self) -> usize {
        self.tokens + OVERHEAD * (self.nodes.len() - 1 - self.free.len() + self.prompts.len())
    }

    /// Removes the oldest prompt; false: there is none.
    fn forget(&mut self) -> bool {
        let Some((mut at, count)) = self.prompts.pop_front() else {
            return false;
        };
        while at != ROOT {
            let node = &mut self.nodes[at as usize];
            node.count -= count;
            let parent = node.parent;
            if node.count == 0 {
                self.tokens -= node.range.len();
                self.children.remove(&(parent, node.edge()[0]));
                node.text = Arc::new([]);
                node.range = 0..0;
                self.free.push(at);
            } else if 2 * node.range.len() < node.text.len() {
                // Most of what it keeps in memory may be of nodes that went.
                node.text = node.edge().into();
                node.range = 0..node.text.len();
            }
            at = parent;
        }
        true
    }
}

/// The tokens of a prompt that others may have computed.
fn shareable(prompt: &[u32]) -> &[u32] {
    prompt.split_last().map_or(&[], |(_, before)| before)
}

/// Adds the next border below `chosen`, if it is far enough behind; of more than a request may have, that goes which saves
/// the least. What one saves is its tokens, for all sequences that have it and not the next one.
fn choose(chosen: &mut Vec<Found>, next: Found) {
    let before = chosen.last().map_or(0, |last| last.tokens);
    if next.tokens < before + LEAST {
        return;
    }
    chosen.push(next);
    if chosen.len() <= TG_MAX_BORDERS as usize {
        return;
    }
    let saves = |&at: &usize| {
        let before = at.checked_sub(1).map_or(0, |before| chosen[before].tokens);
        let more = chosen.get(at + 1).map_or(1, |below| below.count);
        (chosen[at].tokens - before) as u64 * (chosen[at].count - more)
    };
    if let Some(least) = (0..chosen.len()).min_by_key(saves) {
        chosen.remove(least);
    }
}
