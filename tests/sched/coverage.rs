//! How often rare branches were taken: a property test that never gets there shows nothing.

macro_rules! branches {
    ($($field:ident),* $(,)?) => {
        #[derive(Debug, Clone, Copy, Default)]
        pub struct Coverage {
            $(pub $field: u64,)*
        }

        impl Coverage {
            pub fn add(&mut self, other: &Self) {
                $(self.$field += other.$field;)*
            }

            /// Every branch with its count.
            pub fn counts(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($field), self.$field)),*]
            }
        }
    };
}

branches! {
    event_ring_full,
    logprobs_full,
    unread_beyond_logprobs,
    front_without_pages,
    front_without_slot,
    cancel_while_waiting,
    cancel_in_prefill,
    cancel_with_last_token,
    timeout_while_waiting,
    timeout_in_prefill,
    deadline_with_token,
    stop_with_last_token,
    ended_with_steps_in_flight,
    drain_in_chunked_prompt,
    row_budget_exactly_met,
    chunk_budget_exactly_met,
    prompts_alone_beyond_the_chunk_budget,
    a_share_beyond_the_chunk_budget,
    chunk_skipped,
    decode_rows_shared,
    ran_ahead,
    waited_for_the_step_ahead,
    pipeline_full,
    grew,
    decoding_without_pages,
    left_while_decoding,
    left_in_prompt,
    left_while_recomputed,
    waited_as_the_newest,
    recomputed,
    recomputed_twice,
    ended_while_leaving,
    ended_while_preempted,
    front_behind_one_preempted,
    waited_for_a_prefix,
    began_behind_a_prefix,
    took_a_prefix_over,
    went_on_from_a_prefix,
    prefix_ends_in_a_page,
    place_in_use,
    place_was_wanted,
    way_for_others,
    prefix_made_room,
    too_large_to_share,
    left_with_a_prefix,
    mailbox_without_credit,
    trace_ring_full,
    trace_records_lost,
    request_ring_wrapped,
    token_ring_wrapped,
    refused,
    not_finite,
    scored,
    stopped_by_host,
}
