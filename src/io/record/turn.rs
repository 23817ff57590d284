//! A trace record as JSON.

use crate::sys::abi;
use serde::{Deserialize, Serialize};

/// `tg_trace` of kernels/abi.h, field by field. Clocks are in ns of the scheduler's own: a GPU's `%globaltimer`, the
/// engine's age on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    pub turn: u64,
    pub now_ns: u64,
    pub end_ns: u64,
    pub stage: u32,
    pub request_head: u64,
    pub control_head: u64,
    pub event_tail: u64,
    pub trace_tail: u64,
    pub flags: u32,
    /// A step came back.
    pub returned: bool,
    /// Slots that sampled their last token in it.
    pub stopped: Vec<u32>,
    /// `TG_ACTION_*`
    pub action: u32,
    pub error: u32,
    pub kind: u32,
    pub bucket: u32,
    pub rows: u32,
    pub sequences: u32,
    pub sample_rows: u32,
    /// `None` where no step was composed.
    pub step: Option<u64>,
    pub returned_step: Option<u64>,
    pub queue_depth: u32,
    pub running: u32,
    pub free_pages: u32,
    pub steps_in_flight: u32,
    /// Running sequences that are preempted, and those whose recomputation begins.
    #[serde(rename = "set_back")]
    pub preempted: u32,
    #[serde(rename = "read_again")]
    pub recomputed: u32,
    pub skipped: u32,
    pub prefixes: u32,
}

fn step(number: u64) -> Option<u64> {
    (number != abi::TG_NO_STEP).then_some(number)
}

impl From<&abi::tg_trace> for Turn {
    fn from(record: &abi::tg_trace) -> Self {
        let (inputs, outcome) = (&record.inputs, &record.outcome);
        let is_stopped = |slot: &u32| inputs.stopped[*slot as usize / 32] >> (slot % 32) & 1 != 0;
        Self {
            turn: record.turn,
            now_ns: inputs.now_ns,
            end_ns: record.end_ns,
            stage: record.stage,
            request_head: inputs.request_head,
            control_head: inputs.control_head,
            event_tail: inputs.event_tail,
            trace_tail: inputs.trace_tail,
            flags: inputs.flags,
            returned: inputs.returned != 0,
            stopped: (0..abi::TG_MAX_SLOTS).filter(is_stopped).collect(),
            action: outcome.action,
            error: outcome.error,
            kind: outcome.kind,
            bucket: outcome.bucket,
            rows: outcome.rows,
            sequences: outcome.sequences,
            sample_rows: outcome.sample_rows,
            step: step(outcome.step),
            returned_step: step(outcome.returned_step),
            queue_depth: outcome.queue_depth,
            running: outcome.running,
            free_pages: outcome.free_pages,
            steps_in_flight: outcome.steps_in_flight,
            preempted: outcome.preempted,
            recomputed: outcome.recomputed,
            skipped: outcome.skipped,
            prefixes: outcome.prefixes,
        }
    }
}

impl From<&Turn> for abi::tg_trace {
    /// Slots past the last that there can be are left out.
    fn from(turn: &Turn) -> Self {
        let mut inputs = abi::tg_inputs {
            now_ns: turn.now_ns,
            request_head: turn.request_head,
            control_head: turn.control_head,
            event_tail: turn.event_tail,
            trace_tail: turn.trace_tail,
            flags: turn.flags,
            returned: u32::from(turn.returned),
            ..Default::default()
        };
        for slot in turn.stopped.iter().filter(|&&s| s < abi::TG_MAX_SLOTS) {
            inputs.stopped[*slot as usize / 32] |= 1 << (slot % 32);
        }
        Self {
            inputs,
            outcome: abi::tg_outcome {
                action: turn.action,
                error: turn.error,
                kind: turn.kind,
                bucket: turn.bucket,
                rows: turn.rows,
                sequences: turn.sequences,
                sample_rows: turn.sample_rows,
                // Only turns that changed something are recorded.
                changed: 1,
                step: turn.step.unwrap_or(abi::TG_NO_STEP),
                returned_step: turn.returned_step.unwrap_or(abi::TG_NO_STEP),
                queue_depth: turn.queue_depth,
                running: turn.running,
                free_pages: turn.free_pages,
                steps_in_flight: turn.steps_in_flight,
                preempted: turn.preempted,
                recomputed: turn.recomputed,
                skipped: turn.skipped,
                prefixes: turn.prefixes,
            },
            turn: turn.turn,
            end_ns: turn.end_ns,
            stage: turn.stage,
            ..Default::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_as_it_was() {
        let mut record = abi::tg_trace {
            turn: 9,
            end_ns: u64::MAX,
            stage: 1,
            ..Default::default()
        };
        record.inputs.now_ns = u64::MAX - 1;
        record.inputs.stopped[0] = 1;
        record.inputs.stopped[31] = 1 << 31;
        record.inputs.returned = 1;
        record.inputs.event_tail = 77;
        record.outcome.changed = 1;
        record.outcome.step = abi::TG_NO_STEP;
        record.outcome.returned_step = 5;
        record.outcome.free_pages = 3;
        record.outcome.preempted = 2;
        record.outcome.skipped = 1000;
        record.outcome.prefixes = 4;
        record.outcome.recomputed = 1;
        let turn = Turn::from(&record);
        assert_eq!(turn.stopped, [0, 1023]);
        let text = serde_json::to_string(&turn).unwrap();
        let turn: Turn = serde_json::from_str(&text).unwrap();
        assert!(abi::tg_trace::from(&turn) == record);
    }
}
