/* abi.h: everything that the host, the scheduler core and the kernels share. Plain C, fixed-width integers only. Rust sees it through
 * bindgen (src/sys/abi.rs, checked in). Two memory blocks hold all of it, whose tables are found by byte offsets from their start:
 *
 *   tg_state   the scheduler's own memory: slots, pages, step descriptors, mailboxes
 *   tg_rings   what host and scheduler exchange: on a GPU, pinned memory
 *
 * Ring indices only ever grow; entry n lives at n & (capacity - 1). The writer of an index stores it with release, the reader loads it
 * with acquire, both at system scope. f32 values travel as their bits in uint32_t: the core never computes with them. */
#ifndef TAILGRAPH_ABI_H
#define TAILGRAPH_ABI_H

#include <stdint.h>

#define TG_MAX_LANES 256u     /* lanes of a turn, at most */
#define TG_DISPATCH_THREADS 288u /* of a dispatcher that takes turns: that many lanes, and a warp that launches */
#define TG_MAX_SLOTS 1024u    /* sequences running at once, at most */
#define TG_MAX_STEPS 16u      /* steps (micro-batches) in flight, at most */
#define TG_MAX_STAGES 16u
#define TG_MAX_STOP_IDS 16u
#define TG_MAX_LOGPROBS 20u
#define TG_MAX_BIASES 300u    /* of a request, at most; with the stop ids, fewer than the threads that sample a row */
#define TG_MAX_BORDERS 4u     /* of shared prefixes in a prompt, at most */
#define TG_MAX_PREFIXES 1024u /* shared prefixes that are there at once, at most */
#define TG_MAX_BUCKETS 16u    /* per kind */
#define TG_MAX_TAKES 256u     /* requests one turn admits or ends in the queue, at most */
#define TG_PHASES 12u         /* of a turn, */
#define TG_GATHER_PHASES 3u   /* and those that fill its inputs */
#define TG_NONE 0xffffffffu   /* no such index */
static const uint64_t TG_NO_TIMEOUT = UINT64_MAX;
static const uint64_t TG_NO_STEP = UINT64_MAX;

/* What a step computes; each kind has its own bucket sizes. */
#define TG_KIND_DECODE 0u     /* one row a sequence */
#define TG_KIND_MIXED 1u      /* prompt chunks too; LM head for the sampled rows only */
#define TG_KIND_SCORE 2u      /* LM head for every row */
#define TG_KINDS 3u

/* ---- rings ------------------------------------------------------------------------------- */

/* One index on cache lines of its own. */
typedef struct tg_index {
  uint64_t value;
  uint64_t pad[15];
} tg_index;

/* How a row is sampled (kernels/sample/sample.cu). Kernels load it 16 bytes at a time. */
typedef struct tg_sampling {
  uint64_t key;                  /* key of the counter-based generator; the counter is the new token's position */
  uint32_t temperature;          /* f32 bits; 0 is greedy */
  uint32_t top_p;                /* f32 bits; 1 keeps all */
  uint32_t min_p;                /* f32 bits; 0 keeps all */
  uint32_t repetition_penalty;   /* f32 bits; 1 is none */
  uint32_t top_k;                /* 0 keeps all */
  uint32_t logprobs;             /* TG_LOGPROBS_NONE, else how many alternatives come with each token (0 to TG_MAX_LOGPROBS) */
  uint32_t presence_penalty;     /* f32 bits; 0 is none */
  uint32_t frequency_penalty;    /* f32 bits; 0 is none */
  uint32_t bias_count;           /* entries of its tg_bias */
  uint32_t stop_from;            /* the first position whose token may be one of the stop ids; 0: any may */
} tg_sampling;
#define TG_LOGPROBS_NONE 0xffffffffu

/* What is added to the logit of one token; a request has no two of one id. */
typedef struct tg_bias {
  uint32_t id;
  uint32_t bias;   /* f32 bits */
} tg_bias;

/* tg_request.flags */
#define TG_REQUEST_LOGITS_LAST 1u  /* deliver the logits of the prompt's last position (needs max_new_tokens 0) */
#define TG_REQUEST_LOGITS_ALL 2u   /* deliver the logits of every prompt position (needs max_new_tokens 0; makes its steps TG_KIND_SCORE) */
#define TG_REQUEST_UNLIMITED 4u    /* no limit was named: takes its pages as it goes, and may be preempted and recomputed (sched/grow.h) */

/* Where a prefix ends that other prompts begin with too (sched/prefix.h). */
typedef struct tg_border {
  uint32_t prefix;  /* its number: the same in all requests that begin so, and in no others; 0: no border */
  uint32_t tokens;  /* from the prompt's first on, fewer than the prompt has */
} tg_border;

/* Host to scheduler. The ring index is the request number. */
typedef struct tg_request {
  uint64_t token_start;     /* absolute index of the prompt's first token in the token ring */
  uint64_t timeout_ns;      /* from when the scheduler first sees the request; TG_NO_TIMEOUT for none */
  uint32_t prompt_tokens;   /* at least 1 */
  uint32_t max_new_tokens;  /* 0 only to score the prompt */
  uint32_t flags;
  uint32_t stop_count;
  tg_sampling sampling;
  int32_t stop_ids[TG_MAX_STOP_IDS];  /* eos ids included; a sampled token among them ends the request */
  tg_border borders[TG_MAX_BORDERS];  /* ascending, those that are none last; all none with TG_REQUEST_LOGITS_ALL */
} tg_request;

/* Host to scheduler: cancel this request. Pushed after the request itself; the number of one that has ended is passed over. */
typedef struct tg_control {
  uint64_t request;
} tg_control;

/* tg_event.type */
#define TG_EVENT_TOKEN 1u
#define TG_EVENT_END 2u

/* Why a request ended. */
#define TG_END_NONE 0u
#define TG_END_STOP 1u       /* the last token is one of its stop ids */
#define TG_END_LENGTH 2u     /* max_new_tokens reached, or a prompt scored to its end */
#define TG_END_CANCELLED 3u
#define TG_END_TIMEOUT 4u
#define TG_END_REFUSED 5u    /* larger than the whole page pool or the context, or a malformed entry: never admitted */
#define TG_END_NOT_FINITE 6u /* logits that are not finite: no token could be sampled. Scored prompts end with LENGTH all the same */

/* Scheduler to host. Events of one request come in order: tokens 0, 1, 2 ..., then exactly one end. Before an end with
 * TG_END_NOT_FINITE there may be a token event with token -1, which is none: so a replay without tokens has as many events. */
typedef struct tg_event {
  uint64_t request;
  uint64_t time_ns;       /* the turn's clock */
  uint32_t type;
  uint32_t detail;        /* END: TG_END_*; TOKEN: its request's tg_sampling.logprobs */
  int32_t token;          /* TOKEN: the sampled id, or -1; END: prompt tokens that came from a shared prefix */
  uint32_t index;         /* TOKEN: 0 for the first new token; END: how many tokens were published */
  uint64_t seen_ns;       /* END: when the scheduler first saw the request, */
  uint64_t admitted_ns;   /* END: when it gave it a slot (0: never), */
  uint64_t first_ns;      /* END: when it collected its first token or finished its prompt (0: never) */
  uint64_t step;          /* TOKEN: number of the step that sampled it; END: how often the request was recomputed */
} tg_event;

/* What sampling leaves behind for one sampled row. */
typedef struct tg_sampled {
  int32_t token;                              /* -1: its logits are not finite */
  uint32_t logprob;                           /* f32 bits: log-softmax of the raw logits at `token`, where asked for */
  int32_t top_ids[TG_MAX_LOGPROBS];           /* the first `sampling.logprobs` are set, best first */
  uint32_t top_logprobs[TG_MAX_LOGPROBS];     /* f32 bits */
} tg_sampled;

/* tg_inputs.flags */
#define TG_INPUT_DRAIN 1u   /* no more requests will come: end once all have ended */
#define TG_INPUT_STOP 2u    /* end now: nothing more is published or launched */
#define TG_INPUT_UNCLAIMED 4u /* with TG_INPUT_DRAIN: the queue that this replica claims from has more. Never the host's */

/* All that a turn knows of the world outside tg_state, but for ring entries and sampled tokens. A replay of it gives the same steps. */
typedef struct tg_inputs {
  uint64_t now_ns;
  uint64_t request_head;    /* requests pushed, as seen this turn, or claimed, this turn's claim included */
  uint64_t control_head;
  uint64_t event_tail;      /* events the host has consumed, as seen this turn */
  uint64_t trace_tail;
  uint32_t flags;
  uint32_t returned;        /* 1: the oldest step in flight has come back (never while events wait to be published) */
  uint32_t stopped[TG_MAX_SLOTS / 32];  /* bit per slot: the token it sampled in the returned step is its last, being a stop id or -1 */
} tg_inputs;

/* tg_outcome.action: what the caller of a turn does next. */
#define TG_ACTION_IDLE 0u      /* nothing to launch: poll again, backing off */
#define TG_ACTION_STEP 1u      /* run step `step` (its descriptor is complete), then turn again */
#define TG_ACTION_BLOCKED 2u   /* event (or recording trace) ring full: poll again, backing off */
#define TG_ACTION_DONE 3u      /* drained or stopped: never turn again */
#define TG_ACTION_ERROR 4u     /* `error` says why: never turn again */

#define TG_ERROR_NONE 0u
#define TG_ERROR_CONFIG 1u       /* tg_config breaks one of its own rules */
#define TG_ERROR_BROKEN 2u       /* an invariant of the core does not hold: a bug */
#define TG_ERROR_MAILBOX 3u      /* a mailbox held something other than the oldest step in flight */
#define TG_ERROR_LAUNCH 4u       /* the GPU refused to launch the next graph */
#define TG_ERROR_LINK 5u         /* a stage has ended before its time: tg_status.ended says which, and why */

typedef struct tg_outcome {
  uint32_t action;
  uint32_t error;
  uint32_t kind;           /* TG_KIND_* of the composed step */
  uint32_t bucket;         /* index into that kind's bucket sizes */
  uint32_t rows;
  uint32_t sequences;
  uint32_t sample_rows;
  uint32_t changed;        /* 0: an idle or blocked turn that found nothing new; 1: its record is needed, and polling at once may pay */
  uint64_t step;           /* number of the composed step, counted from 0; TG_NO_STEP: none */
  uint64_t returned_step;  /* number of the step collected this turn; TG_NO_STEP: none */
  uint32_t queue_depth;    /* requests seen and still waiting */
  uint32_t running;        /* slots in use */
  uint32_t free_pages;
  uint32_t steps_in_flight;
  uint32_t preempted;      /* of the slots in use: those that gave their pages back and wait to be recomputed */
  uint32_t recomputed;     /* slots whose recomputation has begun in this turn */
  uint32_t skipped;        /* prompt tokens that sequences of the composed step have from shared prefixes, and begin behind */
  uint32_t prefixes;       /* shared prefixes that are there, or are being computed */
} tg_outcome;

/* One record for every turn with outcome.changed. */
typedef struct tg_trace {
  tg_inputs inputs;
  tg_outcome outcome;
  uint64_t turn;       /* counts every turn, recorded or not */
  uint64_t end_ns;     /* the clock as the turn ended; inputs.now_ns is its start */
  uint32_t stage;      /* the stage whose dispatcher wrote it */
  uint32_t pad;
} tg_trace;

/* What the scheduler is doing, as of its last turn that changed something. Each word is written by itself, all of them before `action`
 * is released. A step runs while `action` is TG_ACTION_STEP: number steps - 1, or the one before where two are in flight. */
typedef struct tg_status {
  uint64_t steps;        /* composed so far */
  uint64_t start_ns;     /* clock of the turn that composed the newest, */
  uint64_t stage;        /* the newest's stage that has begun last (stages of one GPU that follow its first say so themselves), */
  uint64_t kind;         /* its TG_KIND_*, */
  uint64_t bucket_rows;  /* the rows of its bucket, */
  uint64_t rows;         /* and its own */
  uint64_t running;      /* slots in use */
  uint64_t queue_depth;  /* requests seen and still waiting */
  uint64_t free_pages;
  uint64_t in_flight;    /* steps, as the newest was composed */
  uint64_t ended;        /* with TG_ERROR_LINK: tg_links.ended of stage 0 */
  uint64_t pad[5];
} tg_status;

/* The block's head. Capacities are powers of two. */
typedef struct tg_rings {
  /* written by the host */
  tg_index request_head;
  tg_index control_head;
  tg_index event_tail;
  tg_index trace_tail;
  tg_index flags;          /* TG_INPUT_* */
  /* written by the scheduler */
  tg_index request_tail;   /* requests admitted or ended: the host may write over their entries */
  tg_index token_tail;     /* prompt tokens copied into steps: the host may write over them */
  tg_index control_tail;
  tg_index event_head;
  tg_index trace_head;
  tg_index trace_lost;     /* records written over before the host read them */
  tg_index action;         /* the last turn's TG_ACTION_*, with the error in the upper half */
  tg_status status;
  /* set once */
  uint64_t bytes;          /* of the whole block */
  uint64_t requests;       /* byte offsets from the start of the block: tg_request[request_capacity] */
  uint64_t biases;         /* tg_bias[request_capacity][bias_capacity]: beside each request, sampling.bias_count of them */
  uint64_t tokens;         /* int32_t[token_capacity] */
  uint64_t controls;       /* tg_control[control_capacity] */
  uint64_t events;         /* tg_event[event_capacity] */
  uint64_t sampled;        /* tg_sampled[sampled_capacity]: of token events with logprobs, by the event's number (tg_state.most_unread) */
  uint64_t trace;          /* tg_trace[trace_capacity] */
  uint32_t request_capacity;
  uint32_t token_capacity;
  uint32_t control_capacity;
  uint32_t event_capacity;
  uint32_t sampled_capacity; /* at most event_capacity */
  uint32_t trace_capacity;
  uint32_t bias_capacity;  /* of one request: 0 to TG_MAX_BIASES, no power of two */
  uint32_t record;         /* 1: a full trace ring blocks the scheduler instead of losing the oldest record */
} tg_rings;

/* ---- one queue of requests for several replicas (kernels/sched/claim.h) ------------------------- */

#define TG_MAX_REPLICAS 16u

/* What a replica on a device publishes of each request that it has claimed, in the order of its own numbers. */
typedef struct tg_claimed {
  uint64_t number;     /* in the queue */
  uint64_t waited_ns;  /* there, from when this replica first saw it */
} tg_claimed;

/* Requests that any replica may take, in memory that all of them and the host see. Request n lies at n & (capacity - 1). Of replicas on
 * the host the block is this head and `runs`. */
typedef struct tg_queue {
  /* written by the host */
  tg_index pushed;                         /* requests in it so far */
  tg_index claims_tail[TG_MAX_REPLICAS];   /* claims of each replica that the host has read */
  /* written by replicas: but for `claimed` each has its own */
  tg_index claimed;                        /* requests taken, by whomever. Of GPUs it lies in the memory of the first one */
  tg_index told[TG_MAX_REPLICAS];          /* where the replica's newest claim ends */
  tg_index held[TG_MAX_REPLICAS];          /* the oldest request that it has claimed and still reads; TG_NO_STEP: none */
  tg_index claims_head[TG_MAX_REPLICAS];   /* claims that it has published */
  /* set once */
  uint64_t bytes;          /* of the whole block */
  uint64_t requests;       /* byte offsets from the start of the block: tg_request[capacity] */
  uint64_t biases;         /* tg_bias[capacity][bias_capacity] */
  uint64_t tokens;         /* int32_t[token_capacity] */
  uint64_t claims;         /* tg_claimed[replicas][claim_capacity] */
  uint64_t runs;           /* uint64_t[run_capacity]: of request n, at n & (run_capacity - 1), how many behind it share its prefix */
  uint32_t replicas;
  uint32_t capacity;       /* powers of two, but for bias_capacity; 0 where replicas are on the host */
  uint32_t token_capacity;
  uint32_t bias_capacity;  /* as of the replicas' rings */
  uint32_t claim_capacity;
  uint32_t run_capacity;   /* requests that are in the queue at once, at most: a power of two */
} tg_queue;

/* What one replica knows of the queue: its own memory, with addresses as it sees them. */
typedef struct tg_claimer {
  tg_queue *queue;         /* 0: its requests come over the rings */
  uint64_t *claimed;       /* the word that all replicas swap */
  uint64_t known;          /* that word, as this replica last found it, */
  uint64_t base;           /* and as it was when it last claimed or found nothing to claim */
  uint64_t pushed;         /* queue->pushed, as last looked at, */
  uint64_t noted;          /* and before that */
  uint64_t held;           /* what queue->held says of this replica */
  uint64_t first;          /* the oldest request of its newest claim */
  const uint64_t *runs;
  /* of a replica on a device */
  const tg_request *requests;
  const tg_bias *biases;
  const int32_t *tokens;
  tg_claimed *claims;      /* its own */
  uint64_t *numbers;       /* by its own number of a request, modulo config.request_capacity: the queue's */
  uint64_t *seen;          /* by the queue's number, modulo capacity: when this replica first saw that it was pushed */
  uint32_t replica;
  uint32_t replicas;
  uint32_t capacity;
  uint32_t token_capacity;
  uint32_t claim_capacity;
  uint32_t run_capacity;
  uint32_t pad[4];
} tg_claimer;

/* ---- the scheduler's memory ---------------------------------------------------------------- */

typedef struct tg_config {
  uint32_t slots;            /* sequences running at once */
  uint32_t pages;            /* in the pool */
  uint32_t page_tokens;
  uint32_t max_context;      /* prompt_tokens + max_new_tokens, at most */
  uint32_t step_tokens;      /* rows of one step, at most; at least slots + chunk_align */
  uint32_t chunk_tokens;     /* prompt rows of a step that has decode rows, at most, but see chunk_share; at least chunk_align */
  uint32_t chunk_align;      /* a prompt chunk ends on a multiple of this, or at the prompt's end */
  uint32_t stages;
  uint32_t steps_in_flight;  /* at least `stages`, at most TG_MAX_STEPS */
  uint32_t mailbox_depth;    /* credits of each mailbox: 1 to steps_in_flight */
  uint32_t request_capacity; /* of the rings this state will be used with */
  uint32_t token_capacity;
  uint32_t event_capacity;
  uint32_t sampled_capacity;
  uint32_t bucket_count[TG_KINDS];
  uint32_t bucket_rows[TG_KINDS][TG_MAX_BUCKETS];  /* ascending; the largest decode bucket >= slots, the others >= step_tokens */
  uint32_t ahead;            /* 1: a decode step may be composed before the one ahead has come back; needs 1 stage and 2 steps in flight */
  uint32_t bias_capacity;    /* of the rings this state will be used with */
  uint32_t grow_tokens;      /* tokens for which a request without a limit takes pages beyond those it has; at least 1 */
  uint32_t chunk_share;      /* or one in so many of the prompt tokens yet to be read, where that is more than chunk_tokens; 0: never */
  uint32_t prefixes;         /* places for shared prefixes: at most TG_MAX_PREFIXES; 0: nothing is shared */
  uint32_t pad[2];           /* what follows is copied 16 bytes at a time */
} tg_config;

/* tg_slot.phase */
#define TG_SLOT_FREE 0u
#define TG_SLOT_PREFILL 1u   /* some of what is to be read is not composed yet: of the prompt, or of prompt and tokens so far */
#define TG_SLOT_DECODE 2u    /* all of it is composed */
#define TG_SLOT_LEAVING 3u   /* gives its pages back once its steps in flight have come back */
#define TG_SLOT_PREEMPTED 4u  /* has no pages: waits to be recomputed */

/* One running sequence. Kernels read `request`, `flags`, `last_token`, `sampling` and the stop ids; the rest is the core's. */
typedef struct tg_slot {
  uint64_t request;
  uint64_t token_start;
  uint64_t deadline_ns;      /* TG_NO_TIMEOUT for none */
  uint64_t seen_ns;
  /* what every turn looks at: 32 bytes that a GPU reads as one sector */
  uint32_t phase;
  uint32_t end_reason;       /* not TG_END_NONE: ends when its last step in flight has come back */
  uint32_t steps;            /* steps in flight that hold rows of it */
  uint32_t generated;        /* tokens collected so far */
  uint32_t max_new_tokens;
  uint32_t prompt_tokens;
  uint32_t composed;         /* of what is to be read (prompt_tokens + generated, which stays while it is read), handed to steps so far */
  uint32_t pages;            /* in its page table: those that its prefixes fill, which it does not own, and then its own */
  uint64_t admitted_ns;
  uint64_t first_ns;
  int32_t last_token;        /* the newest collected token: the next decode row's input; -1 before the first */
  uint32_t flags;            /* tg_request.flags */
  uint32_t stop_count;
  uint32_t recomputes;       /* how often it was recomputed, this time included: then its tokens are the kept ones */
  uint32_t prefix;           /* the place of the longest prefix that it shares, or computes; TG_NONE */
  uint32_t skipped;          /* prompt tokens that it has from a shared prefix */
  uint32_t pad[2];           /* what follows is copied 16 bytes at a time */
  tg_sampling sampling;
  int32_t stop_ids[TG_MAX_STOP_IDS];
} tg_slot;

/* One row of a step: a token at a position of a sequence. */
typedef struct tg_row {
  uint32_t slot;
  uint32_t position;   /* absolute, from 0 */
  int32_t token;       /* a prompt token; -1: the slot's last_token; -2 - i: what sampled row i of the step before gets;
                          TG_TOKEN_KEPT: of a sequence that is recomputed, kept_table[slot][position] */
  uint32_t sequence;   /* index into the step's sequences */
} tg_row;

static const int32_t TG_TOKEN_KEPT = INT32_MIN;

/* tg_sequence.flags */
#define TG_SEQUENCE_FIRST 1u   /* holds the prompt's first token: per-slot state starts afresh */
#define TG_SEQUENCE_LAST 2u    /* holds the last token that is to be read, or is a decode row: something is sampled or delivered */
#define TG_SEQUENCE_DECODE 4u
#define TG_SEQUENCE_BORDER 8u  /* its last token is the last of the prefix that it computes: the slot's state goes to the prefix */

/* The rows that one sequence has in a step: consecutive rows, consecutive positions. */
typedef struct tg_sequence {
  uint32_t slot;
  uint32_t first_row;
  uint32_t rows;
  uint32_t first_position;
  uint32_t sample;     /* index among the step's sampled rows; TG_NONE: none */
  uint32_t flags;      /* TG_SEQUENCE_* */
  uint32_t from;       /* the place of a prefix that its first token follows: per-slot state starts from the prefix's; TG_NONE */
  uint32_t from_page;  /* the page whose tokens of that prefix go to the page of the first token beforehand; TG_NONE */
  uint32_t computes;   /* the place of the prefix that its tokens are of, where it computes one; TG_NONE */
  uint32_t border_page;/* with TG_SEQUENCE_BORDER: the page that the last token's page goes to afterwards; TG_NONE */
} tg_sequence;

/* A step descriptor: everything that is decided per step. Decode rows come first, in slot order; then prompt chunks. */
typedef struct tg_step {
  uint64_t number;        /* counts composed steps from 0; its place is number % steps_in_flight */
  uint64_t start_ns;      /* clock of the turn that composed it */
  uint32_t kind;
  uint32_t bucket;
  uint32_t bucket_rows;
  uint32_t rows;
  uint32_t decode_rows;
  uint32_t sequences;
  uint32_t sample_rows;
  uint32_t shares;        /* sequences that start from a prefix or end at the border of one */
  uint64_t row_table;       /* byte offsets from the start of tg_state: tg_row[step_tokens] */
  uint64_t sequence_table;  /* tg_sequence[slots] */
  uint64_t sample_table;    /* uint32_t[slots]: row of each sampled row, ascending */
  uint64_t sampled_table;   /* tg_sampled[slots]: written by sampling, read by collect */
  uint64_t slot_sequence_table;  /* uint32_t[slots]: each slot's sequence in this step; TG_NONE: it has no rows here */
  uint64_t earlier_table;   /* the sampled_table of the step before */
} tg_step;

/* tg_prefix.phase */
#define TG_PREFIX_FREE 0u
#define TG_PREFIX_PENDING 1u   /* some of it is not composed yet */
#define TG_PREFIX_READY 2u     /* all of it is composed */
#define TG_PREFIX_GOING 3u     /* has no users: its pages come back in the next turn */

/* A beginning that prompts share, with pages and a snapshot of per-slot state of its own. */
typedef struct tg_prefix {
  uint32_t number;       /* tg_border.prefix */
  uint32_t tokens;
  uint32_t parent;       /* the place of the prefix that it goes on from; TG_NONE */
  uint32_t phase;
  uint32_t users;        /* slots whose longest prefix it is, and prefixes that go on from it */
  uint32_t first_page;   /* pages before this one are the parent's */
  uint32_t pages;        /* its own: the last may hold fewer tokens than a page */
  uint32_t chain_pages;  /* its own and those of all that it goes on from */
  uint32_t slot;         /* TG_PREFIX_PENDING: who computes it; TG_NONE: nobody does */
  uint32_t first_free;   /* in the turn that made it: its pages are free_page_table[first_free ..] */
  uint64_t request;      /* of that slot */
  uint64_t made;         /* the turn that made it */
  uint64_t ready;        /* TG_PREFIX_READY: the step that has its last token; those after it may start from it */
  uint64_t used;         /* the turn that its last user left in */
} tg_prefix;

/* A queue of step numbers between two stages, with credits: at most `depth` posted and not yet taken. Stage s takes from mailbox[s] and
 * posts to the next one; mailbox[0] brings finished steps back to the scheduler. */
typedef struct tg_mailbox {
  tg_index posted;
  tg_index taken;
  uint64_t entries[TG_MAX_STEPS];
  uint32_t depth;
  uint32_t pad[31];
} tg_mailbox;

typedef struct tg_state {
  tg_config config;
  uint64_t bytes;            /* of the whole block */
  uint32_t max_pages;        /* pages of one sequence, at most: columns of the page table */
  uint32_t error;            /* TG_ERROR_*; sticky */
  uint32_t broken;           /* 1: a lane found an invariant broken; becomes `error` as the turn ends */
  uint32_t most_unread;      /* events that the host may have yet to read: event_capacity; once logprobs are asked for, sampled_capacity */
  /* byte offsets from the start of the block */
  uint64_t slot_table;       /* tg_slot[slots] */
  uint64_t bias_table;       /* tg_bias[slots][config.bias_capacity]: each slot's, from its admission on */
  uint64_t page_table;       /* uint32_t[slots][max_pages] */
  uint64_t free_page_table;  /* uint32_t[pages]: a stack */
  uint64_t free_slot_table;  /* uint32_t[slots / 32, rounded up]: a bit per free slot */
  uint64_t seen_table;       /* uint64_t[request_capacity]: when each waiting request was first seen */
  uint64_t waiting_table;    /* tg_request[request_capacity]: a copy of each, so that admission needs no trip to the rings */
  uint64_t cancel_table;     /* uint32_t[request_capacity / 32, at least 1]: waiting requests that were cancelled */
  uint64_t prefill_table;    /* uint32_t[slots]: slots in prefill, in the order of their requests */
  uint64_t preempted_table;   /* uint32_t[slots]: preempted slots, a stack with the oldest request on top */
  uint64_t kept_table;       /* int32_t[slots][max_context]: of sequences without a limit, the tokens so far by position */
  uint64_t prefix_table;     /* tg_prefix[prefixes]: prefix `number` has place number % prefixes */
  uint64_t prefix_page_table;/* uint32_t[prefixes][max_pages]: like page_table; a prefix's own pages */
  uint64_t going_table;      /* uint32_t[prefixes]: those that go */
  uint64_t pending_table;    /* tg_event[2 * slots + TG_MAX_TAKES]: events not yet published */
  uint64_t pending_sample_table; /* uint32_t[]: beside each, its index in the returned step's sampled_table; TG_NONE: none */
  /* from here to the end of the block: dead between turns */
  uint64_t scratch_table;    /* what the lanes of one turn tell each other (kernels/sched/turn.h) */
  uint64_t ended_table;      /* slots that ended this turn: [slots] */
  uint64_t wanting_table;    /* uint32_t[slots]: slots that want pages, in the order of their requests */
  uint64_t taken_table;      /* pages that were given out this turn: [slots + TG_MAX_TAKES] */
  uint64_t made_table;       /* uint32_t[prefixes]: prefixes that were made this turn */
  tg_inputs inputs;
  tg_outcome outcome;
  uint64_t turn;
  uint64_t requests_seen;
  uint64_t requests_taken;   /* admitted or ended without a slot */
  uint64_t controls_taken;
  uint64_t tokens_taken;     /* where the prompt of the newest taken request ends in the token ring */
  uint64_t token_tail;
  uint64_t events_published;
  uint64_t traces_written;
  uint64_t traces_lost;
  uint64_t steps_composed;
  uint64_t steps_collected;
  uint32_t free_pages;
  uint32_t running;
  uint32_t prefill;          /* entries of prefill_table */
  uint32_t decode_cursor;    /* where the next step starts to look for decode rows, so that all slots take their turn */
  uint32_t pending;          /* events in pending_table */
  uint32_t pending_published;/* of those, how many are out already */
  uint32_t preempted;         /* entries of preempted_table */
  uint32_t leaving;          /* the slot in TG_SLOT_LEAVING: one at a time; TG_NONE */
  uint32_t prefixes;         /* places that are not free */
  uint32_t idle_prefixes;    /* of those, ready and without users */
  uint32_t going;            /* entries of going_table */
  uint32_t pad[3];           /* what follows is copied 16 bytes at a time */
  tg_claimer claimer;
  tg_step steps[TG_MAX_STEPS];
  tg_mailbox mailbox[TG_MAX_STAGES];
} tg_state;

/* What a dispatcher is in its graph. */
#define TG_DISPATCH_IDLE 0u    /* its only node */
#define TG_DISPATCH_BEHIND 1u  /* the last node of a step, or of its last stage: takes the turn that collects the step */

/* Copies of each step's graph, where its GPU has one stage: none may be launched again while it still ends. Steps take turns. */
#define TG_COPIES 2u
/* Graphs that are launched in one run of the idle graph, at most (CUDA allows 120; the rest is room for those that end late). */
#define TG_CHAIN_STEPS 100u

/* The captured graphs of one GPU, as its dispatcher launches them: each a cudaGraphExec_t, by the step's number modulo TG_COPIES (0 where
 * there are more stages), stage, outcome.kind and outcome.bucket; 0 past the last bucket. */
typedef struct tg_graphs {
  uint64_t idle;    /* the dispatcher alone */
  uint64_t stages;  /* on this GPU */
  uint64_t step[TG_COPIES][TG_MAX_STAGES][TG_KINDS][TG_MAX_BUCKETS];
} tg_graphs;

/* How the graphs of one GPU follow each other. A step's graph, which may be launched before the step is composed, waits for `open`; its
 * dispatcher waits for `settled`. */
typedef struct tg_chain {
  uint64_t open;      /* steps that are composed: their kernels may read the state */
  uint64_t begun;     /* steps whose kernels have begun */
  uint64_t settled;   /* as `open`, once that turn has left nothing unwritten */
  uint64_t launched;  /* of TG_CHAIN_STEPS, since the idle graph began */
} tg_chain;

/* ---- steps on their way between stages (kernels/sched/handover.h) ----------------------------- */

/* Link s carries steps from stage s to stage (s + 1) % stages, the n-th of them in place n % depth in the memory of the taker. This is
 * what one side of a link releases; it lies in the memory of the other side. */
typedef struct tg_link_words {
  uint64_t count;   /* the poster's: steps posted; the taker's: places given back. Only grows */
  uint64_t ended;   /* 0: this side goes on; else why it does not */
  uint64_t pad[14];
} tg_link_words;

/* Why a stage has ended: a code in the lower 16 bits, then in 16 the link that it showed on, and above the stage that saw it. */
#define TG_LINK_DRAINED 1u   /* all steps have come back: no error */
#define TG_LINK_STOPPED 2u   /* the stop flag */
#define TG_LINK_LATE 3u      /* the other side of the link left a wait unanswered until its deadline */
#define TG_LINK_ORDER 4u     /* a place held another step than the next one */
#define TG_LINK_FAILED 5u    /* the stage could not do its work */

/* One side of a link: its own memory, which the other side never sees. */
typedef struct tg_link_end {
  tg_link_words *mine;         /* what this side says */
  const tg_link_words *theirs; /* what the other says */
  uint64_t *places;
  uint64_t place_words;        /* of one place; the first says which step it holds */
  uint64_t count;              /* as in mine->count */
  uint64_t known;              /* theirs->count, as last looked at */
  uint64_t since_ns;           /* where `waits`: since when */
  uint32_t depth;
  uint32_t link;
  uint32_t waits;
  uint32_t holds;              /* 1: a place is being filled, or read */
  uint32_t at;                 /* count % depth: its index */
  uint32_t pad;
} tg_link_end;

/* A stage's two links: what comes in, and what goes on. */
typedef struct tg_links {
  tg_link_end in;
  tg_link_end out;
  const uint64_t *stop;        /* the host's flags (TG_INPUT_STOP) */
  uint64_t limit_ns;           /* of a wait that another stage owes an answer to; TG_NO_TIMEOUT: none */
  uint64_t ended;              /* 0: this stage goes on */
  uint32_t stage;
  uint32_t pad;
} tg_links;

/* A stage that has a GPU of its own, in that GPU's memory beside its state block (kernels/sched/stages.cu). */
typedef struct tg_stage {
  tg_step step;              /* the one that runs, wherever it lies among those in flight: kernels read it here */
  const uint64_t *came_in;   /* the place that it came in; stage 0: none */
  uint64_t *goes_to;         /* the place that it is handed on in */
  tg_links links;
  uint64_t takes;            /* a later stage: the step that its next graph waits for */
  uint64_t left;             /* a step's graph that the GPU refused to launch, or 0: the idle graph's to launch */
  uint64_t opened;           /* stage 0: steps whose kernels may begin, */
  uint64_t begun;            /* and have */
  uint64_t launched;         /* graphs of steps so far */
  uint64_t settled;          /* as `launched`, once the dispatcher that launched the newest has left nothing unwritten */
  uint32_t in_chain;         /* of TG_CHAIN_STEPS, since the idle graph began */
  uint32_t arrived;          /* blocks of tg_hand_on that are through with this step */
  uint32_t over;             /* 1: no step comes any more */
  uint32_t pad;
} tg_stage;

#define TG_TIMES_STEPS 8192u /* whose times wait for the host to read them, at most */
/* A time as the host reads it: ns of the GPU's %globaltimer, modulo 2^48, above the step's number modulo 2^16. It is one word,
 * so that no reader sees half of it. 0: none yet. */
#define TG_TIMES_STEP_BITS 16u

/* When a stage had a step, for a trace. The step's kernels note their times here, and its dispatcher reports them as the last that it
 * does: a store over the bus, for which no kernel of a step waits. */
typedef struct tg_stage_times {
  uint64_t *told;    /* pinned: [TG_TIMES_STEPS][2], by the step's number: it came, it left */
  uint64_t came_ns;  /* the step's rows were there; stage 0, which has no stage before it: never set */
  uint64_t left_ns;  /* just before the step was posted to the next stage */
  uint64_t pad;
} tg_stage_times;

#define TG_LINK_WAIT 0u        /* nothing yet: ask again */
#define TG_LINK_READY 1u
#define TG_LINK_OVER 2u        /* this stage has ended, see `ended` */

/* ---- the core's functions (kernels/sched/sched.c); in device code they have no prototypes ----- */

#ifndef __CUDACC__
#ifdef __cplusplus
extern "C" {
#endif

/* Size of the state block for a configuration; 0 where the configuration breaks a rule. */
uint64_t tg_state_bytes(const tg_config *config);
/* Lays out and clears a state block of tg_state_bytes(config) bytes, 128-byte aligned. TG_ERROR_*. */
uint32_t tg_state_init(tg_state *state, const tg_config *config);

/* Size of the ring block for the capacities and `record` of a `shape` that is 0 elsewhere; and its head. Entries are left as they were. */
uint64_t tg_rings_bytes(const tg_rings *shape);
void tg_rings_init(tg_rings *rings, const tg_rings *shape);

/* A turn is phases 0 .. TG_PHASES - 1, each run for every lane in 0 .. lanes - 1 (at most TG_MAX_LANES), in any order, with a barrier
 * between phases. The result does not depend on `lanes`. The first TG_GATHER_PHASES fill state->inputs from the rings, the returned
 * step and `now_ns`. A replay fills it from a record and runs only the others, with ring entries as they were and `record` 0. */
void tg_phase(tg_state *state, tg_rings *rings, uint64_t now_ns, uint32_t phase, uint32_t lane, uint32_t lanes);

/* Appends state->inputs and state->outcome to the trace ring (lane 0, after the last phase, where outcome.changed). */
void tg_trace_write(tg_state *state, tg_rings *rings, uint64_t end_ns, uint32_t stage);

/* 1 where the step was posted / taken, 0 where there is no credit / nothing to take. */
uint32_t tg_mailbox_post(tg_mailbox *mailbox, uint64_t step);
uint32_t tg_mailbox_take(tg_mailbox *mailbox, uint64_t *step);

/* Words of one place of a link, with `row_words` of activations a row, or of results; and where the activations begin. */
uint64_t tg_step_place_words(const tg_config *config, uint64_t row_words);
uint64_t tg_result_place_words(const tg_config *config);
uint64_t tg_place_activations(const tg_config *config);
/* Room in the link that goes on, or a step in the one that comes in, at `now_ns`. TG_LINK_*. */
uint32_t tg_links_room(tg_links *links, uint64_t now_ns);
uint32_t tg_links_take(tg_links *links, uint64_t now_ns);
/* The place that is being filled, or read. */
uint64_t *tg_link_place(const tg_link_end *end);
/* Says which step is to be posted next, as soon as that is known, so that its taker can launch what runs it ahead. */
void tg_links_announce(tg_links *links, uint32_t kind, uint32_t bucket);
/* Whether the step that is to be taken next has been announced: 1 and its kind and bucket, or 0. */
uint32_t tg_link_announced(const tg_link_end *in, uint32_t *kind, uint32_t *bucket);
/* The filled place is the next stage's; the one that was read may be filled again. */
void tg_links_post(tg_links *links);
void tg_links_release(tg_links *links);
/* This stage ends, and releases why to both neighbours: for `code`, or as what has ended it before. */
void tg_links_end(tg_links *links, uint32_t code);
/* The descriptor of step `number`, or what it sampled, into a place, and from there into the state of the stage that took it. */
void tg_put_step(tg_state *state, uint64_t number, uint64_t *place, uint32_t lane, uint32_t lanes);
void tg_get_step(tg_state *state, const uint64_t *place, uint32_t lane, uint32_t lanes);
void tg_put_results(tg_state *state, uint64_t number, uint64_t *place, uint32_t lane, uint32_t lanes);
void tg_get_results(tg_state *state, const uint64_t *place, uint32_t lane, uint32_t lanes);

/* Size of a queue's block for the replicas and capacities of a `shape` that is 0 elsewhere, and its head. */
uint64_t tg_queue_bytes(const tg_queue *shape);
void tg_queue_init(tg_queue *queue, const tg_queue *shape);
/* The host's side: requests before this number are read by nobody any more. It only grows if it is handed in again as `before`. */
uint64_t tg_queue_tail(const tg_queue *queue, uint64_t before);
/* Replica `replica` has claimed nothing yet; `claimed` is the word that all swap. Sets all but what a device has. */
void tg_claimer_init(tg_claimer *claimer, tg_queue *queue, uint64_t *claimed, uint32_t replica);
/* Looks how many requests have been pushed. */
void tg_claim_look(tg_claimer *claimer);
/* Takes up to `most` of the requests that had been pushed when it last looked, from `*first` on, and holds them until tg_claim_release. Where
 * the last of them begins as those behind it do, these too, up to `run_most` in all. Returns how many. */
uint32_t tg_claim(tg_claimer *claimer, uint32_t most, uint32_t run_most, uint64_t *first);
/* A replica reads no entry or prompt before `oldest` any more; TG_NO_STEP: none of those it has claimed. */
void tg_claim_release(tg_claimer *claimer, uint64_t oldest);

#ifdef __cplusplus
}
#endif
#endif /* __CUDACC__ */

#endif
