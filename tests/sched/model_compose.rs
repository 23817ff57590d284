//! The model's second half: which rows the next step gets, and what the turn comes to.

use super::model::Model;
use super::model_pages::Ready;
use super::model_prefix::Stage;
use super::spec::{Running, Seen, Step, Turn};
use tailgraph::sys::abi;

impl Model {
    /// Whatever its step in flight samples, it has a row in the next one: for a core that runs ahead.
    pub(super) fn goes_on(&self, running: &Running) -> bool {
        let request = self.request(running.request);
        self.config.ahead != 0
            && running.steps == 1
            && request.stop_count == 0
            && running.generated + 1 < request.max_new_tokens
    }

    /// A core that runs ahead composes behind another step only a row for each running sequence.
    fn must_wait(&self, candidates: &[u32]) -> bool {
        self.config.ahead != 0 && !self.steps.is_empty() && candidates.len() < self.running.len()
    }

    pub(super) fn compose(&mut self, seen: &Seen, ready: &Ready, turn: &mut Turn) {
        let mut step = Step {
            number: self.steps_composed,
            start_ns: seen.now_ns,
            kind: abi::TG_KIND_DECODE,
            ..Step::default()
        };
        let candidates = &ready.candidates;
        if self.must_wait(candidates) {
            turn.waited_for_step = !candidates.is_empty() || !self.prefill.is_empty();
            return;
        }
        let micro_batches = match self.config.ahead {
            0 => self.config.steps_in_flight as usize,
            _ => 1,
        };
        let share = ready.decoding.div_ceil(micro_batches);
        if ready.with_pages != self.decoding {
            self.running.values_mut().for_each(|r| r.passed_over = 0);
            self.decoding.clone_from(&ready.with_pages);
        }
        turn.decode_share = candidates.len() > share;
        let split = candidates.partition_point(|&slot| slot < self.cursor);
        let around = candidates[split..].iter().chain(&candidates[..split]);
        let mut picks: Vec<u32> = around.take(share).copied().collect();
        let cursor = picks.last().map(|slot| slot + 1);
        picks.sort_unstable();
        for slot in picks {
            let running = &self.running[&slot];
            let prompt_tokens = self.request(running.request).prompt_tokens;
            let mut token = -1;
            let mut position = prompt_tokens + running.generated - 1;
            if running.steps == 1 {
                let (ahead, _) = self.steps.back().expect("the step ahead is in flight");
                let own = ahead.sequences.iter().find(|s| s.slot == slot);
                token = -2 - own.expect("it has rows in the step ahead").sample as i32;
                position += 1;
                turn.ran_ahead = true;
            }
            let flags = abi::TG_SEQUENCE_DECODE | abi::TG_SEQUENCE_LAST;
            step.add(slot, position, &[token], true, flags);
            step.decode_rows += 1;
        }
        let beside = self.rows_beside(turn);
        for slot in self.prefill.clone() {
            let Some(stretch) = self.stretch(slot, turn) else {
                continue;
            };
            let running = &self.running[&slot];
            let all_read = running.reading as usize;
            let prompt = match running.again {
                0 => &self.prompts[running.request as usize],
                _ => &vec![abi::TG_TOKEN_KEPT; all_read],
            };
            let all = self.request(running.request).flags == abi::TG_REQUEST_LOGITS_ALL;
            let (from, end) = (stretch.from as usize, stretch.end as usize);
            let mut most_rows = self.config.step_tokens;
            if step.decode_rows > 0 {
                most_rows = most_rows.min(step.decode_rows + beside);
            }
            let furthest = from + most_rows as usize - step.rows.len();
            let align = self.config.chunk_align as usize;
            let to = (from + 1..=furthest.min(end))
                .rev()
                .find(|to| *to == end || to % align == 0);
            let Some(to) = to else {
                turn.chunk_skipped = true;
                // Nobody may have rows behind it; but who computes what is missing is found out for all.
                for behind in self
                    .prefill
                    .clone()
                    .into_iter()
                    .skip_while(|s| *s != slot)
                    .skip(1)
                {
                    self.stretch(behind, turn);
                }
                break;
            };
            let last = to == all_read;
            let first = if from == 0 { abi::TG_SEQUENCE_FIRST } else { 0 };
            let flags = first | if last { abi::TG_SEQUENCE_LAST } else { 0 };
            step.add(slot, from as u32, &prompt[from..to], last && !all, flags);
            let sequence = step.sequences.last_mut().unwrap();
            sequence.from = stretch.behind.unwrap_or(abi::TG_NONE);
            sequence.from_page = self.some_page(stretch.behind);
            sequence.computes = stretch.computes.unwrap_or(abi::TG_NONE);
            if stretch.behind.is_some() {
                let skipped = stretch.from - running.composed;
                turn.skipped += skipped;
                self.running.get_mut(&slot).unwrap().skipped += skipped;
            }
            if let (Some(place), true) = (stretch.computes, to == end) {
                sequence.flags |= abi::TG_SEQUENCE_BORDER;
                sequence.border_page = self.some_page(Some(place));
                let now = Stage::Ready(self.steps_composed);
                self.prefixes.get_mut(&place).unwrap().stage = now;
            }
            if all {
                step.kind = abi::TG_KIND_SCORE;
            } else if step.kind == abi::TG_KIND_DECODE {
                step.kind = abi::TG_KIND_MIXED;
            }
        }
        if step.rows.is_empty() {
            return;
        }
        self.launch(step, cursor, candidates, turn);
    }

    /// Prompt rows beside decode rows, at most.
    fn rows_beside(&mut self, turn: &mut Turn) -> u32 {
        let mut unread = 0;
        for slot in self.prefill.clone() {
            let next = self.stretch(slot, turn);
            let running = &self.running[&slot];
            // One that waits reads what is its own.
            let from = next.map(|next| next.from);
            let from = from.or(running.prefix.map(|place| self.prefixes[&place].tokens));
            unread += running.reading - from.expect("it reads, or waits for a prefix");
        }
        let share = unread.checked_div(self.config.chunk_share);
        self.config.chunk_tokens.max(share.unwrap_or(0))
    }

    fn launch(&mut self, mut step: Step, cursor: Option<u32>, candidates: &[u32], turn: &mut Turn) {
        let decode_rows = step.rows[..step.decode_rows as usize].iter();
        for slot in candidates {
            let running = self.running.get_mut(slot).unwrap();
            running.passed_over += 1;
            running
                .overtaken_by
                .extend(decode_rows.clone().map(|row| row.slot));
        }
        for sequence in &step.sequences {
            let running = self.running.get_mut(&sequence.slot).unwrap();
            running.steps += 1;
            running.passed_over = 0;
            running.overtaken_by.clear();
            if sequence.flags & abi::TG_SEQUENCE_DECODE == 0 {
                running.composed = sequence.first_position + sequence.rows;
            }
        }
        let running = &self.running;
        let in_prefill = |slot: &u32| running[slot].composed < running[slot].reading;
        self.prefill.retain(in_prefill);
        self.cursor = cursor.unwrap_or(self.cursor);
        let kind = step.kind as usize;
        let sizes = &self.config.bucket_rows[kind][..self.config.bucket_count[kind] as usize];
        let rows = step.rows.len() as u32;
        step.bucket = sizes.iter().position(|b| *b >= rows).expect("a bucket") as u32;
        step.bucket_rows = sizes[step.bucket as usize];
        self.steps_composed += 1;
        self.steps.push_back((step.clone(), Vec::new()));
        turn.step = Some(step);
    }

    pub(super) fn release_tokens(&mut self) {
        let read_first = self.prefill.iter().map(|slot| &self.running[slot]);
        let needed = read_first
            .filter(|r| r.again == 0)
            .map(|r| self.request(r.request).token_start + u64::from(r.composed));
        let taken_end = self.taken.checked_sub(1).map_or(0, |newest| {
            let newest = self.request(newest);
            newest.token_start + u64::from(newest.prompt_tokens)
        });
        let tail = needed.min().unwrap_or(taken_end);
        self.token_tail = self.token_tail.max(tail);
    }

    pub(super) fn choose_action(&self, seen: &Seen, turn: &mut Turn) {
        let drained = seen.flags & abi::TG_INPUT_DRAIN != 0
            && self.waiting.is_empty()
            && self.running.is_empty()
            && self.steps.is_empty();
        turn.action = if turn.step.is_some() {
            abi::TG_ACTION_STEP
        } else if !self.pending.is_empty() {
            abi::TG_ACTION_BLOCKED
        } else if drained {
            abi::TG_ACTION_DONE
        } else {
            abi::TG_ACTION_IDLE
        };
        turn.changed |= turn.action == abi::TG_ACTION_STEP || turn.action == abi::TG_ACTION_DONE;
    }
}

impl Step {
    /// A sequence's rows: its tokens at consecutive positions.
    fn add(&mut self, slot: u32, first_position: u32, tokens: &[i32], sampled: bool, flags: u32) {
        let sequence = self.sequences.len() as u32;
        let first_row = self.rows.len() as u32;
        for (position, &token) in (first_position..).zip(tokens) {
            self.rows.push(abi::tg_row {
                slot,
                position,
                token,
                sequence,
            });
        }
        self.sequences.push(abi::tg_sequence {
            slot,
            first_row,
            rows: tokens.len() as u32,
            first_position,
            sample: if sampled {
                self.sample_rows.len() as u32
            } else {
                abi::TG_NONE
            },
            flags,
            ..abi::tg_sequence::UNSHARED
        });
        if sampled {
            self.sample_rows.push(self.rows.len() as u32 - 1);
        }
    }
}
