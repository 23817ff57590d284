//! Sizes an engine is started with. `plan::memory` derives them from limits and a memory budget.

/// Everything an engine allocates follows from these; nothing is allocated after start-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineOptions {
    /// Sequences running at once (slots).
    pub max_seqs: u32,
    /// prompt + max_new_tokens of one request, at most.
    pub max_context: u32,
    pub page_tokens: u32,
    /// Pages in the pool.
    pub pages: u32,
    /// Rows of one step, at most; at least `max_seqs + chunk_align`.
    pub step_tokens: u32,
    /// Prompt chunks end on multiples of this, or at the prompt's end.
    pub chunk_align: u32,
    /// Micro-batches in flight; at least the number of stages.
    pub steps_in_flight: u32,
    /// Keep every trace record: a full trace ring blocks the scheduler instead of losing the oldest.
    pub record: bool,
}

/// What is in flight, as of the scheduler's last turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EngineStatus {
    pub running: u32,
    pub waiting: u32,
    pub free_pages: u32,
    pub steps: u64,
}
