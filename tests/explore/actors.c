/* actors.c: stages on a ring of links, and replicas on a queue, over the functions of kernels/sched as they are. Each actor
 * is plain bytes and a function that moves it on; whatever that asks of memory that others see is an access (tg_explore),
 * and every access is a place where the explorer may let others go first.
 *
 * The explorer runs a call again from its start for each further access of it, with what the earlier ones read. So a call
 * keeps nothing but what is in its actor. */
#include "sched/sched.c"

#include <setjmp.h>
#include <string.h>

#define MOST_STAGES 4u
#define MOST_DEPTH 4u
/* A place's words: which step, what announces it, one that says what it is, and one of activations. */
enum { NUMBER, ANNOUNCED, TABLE, ACTIVATIONS, PLACE_WORDS };
#define LIMIT_NS 100u
#define ENTRIES 4u

/* What is explored. */
struct scenario {
  uint32_t stages, depth, return_depth, in_flight, steps; /* of a ring */
  uint32_t replicas, capacity, requests, most;            /* of a queue; 0 replicas: a ring it is */
  uint32_t greedy;                                        /* stage 0 takes nothing back while it has steps to begin */
  uint32_t stops;                                         /* one more actor sets the stop flag, at any time */
  uint32_t announces;                                     /* steps are announced, and what they are is read before they come */
  uint32_t run;                                           /* so many behind each request begin as it does */
  uint32_t keeps;                                         /* a replica reads what it has claimed only after it has claimed again */
};

/* What the explorer knows of an actor stands first. */
struct actor {
  uint32_t done;
  uint32_t fault;   /* not 0: FAULTS[fault - 1] */
  uint32_t waiting; /* a wait of it has a deadline */
  uint32_t kind, index, phase;
  struct scenario scenario;
  uint64_t out, back; /* steps begun and come back; requests pushed and free; the claim that is kept, and how much of it */
  uint64_t last;      /* request read last */
  uint64_t taken;     /* requests read: a bit each */
  tg_links links;
  tg_claimer claimer;
};

enum { FIRST_STAGE, LATER_STAGE, STOPPER, PUSHER, REPLICA };
enum { OUT_OF_ORDER = 1, WRONG_CONTENTS, ENDED_WITH_ERROR, LOST_OR_DOUBLED, CREDITS_LOST };

static struct {
  uint64_t stop;
  struct {
    tg_link_words poster, taker;
    uint64_t places[MOST_DEPTH * PLACE_WORDS];
  } link[MOST_STAGES];
  tg_queue queue;
  uint64_t claimed; /* beside the queue: in memory of a GPU */
  uint64_t entries[ENTRIES], runs[ENTRIES];
  uint64_t drained;
} memory;

struct access {
  uint32_t kind;
  const uint64_t *word;
  uint64_t to, expected;
};

static jmp_buf suspended;
static const uint64_t *results;
static uint32_t results_left;
static struct access *asked;

uint64_t tg_explore(uint32_t kind, const uint64_t *word, uint64_t to, uint64_t expected) {
  if (results_left) {
    results_left--;
    return *results++;
  }
  *asked = (struct access){kind, word, to, expected};
  longjmp(suspended, 1);
}

static uint64_t contents(uint64_t number) { return 100u + number; }

/* What a step is goes ahead of it. */
static void announce(struct actor *a, uint64_t number) {
  tg_write(tg_link_place(&a->links.out) + TABLE, contents(number));
  tg_links_announce(&a->links, 0u, 0u);
}

enum { TAKES, ROOM, POSTS };

static void first_stage(struct actor *a, uint64_t now) {
  const struct scenario *s = &a->scenario;
  if (a->phase == TAKES) {
    uint32_t taken = tg_links_take(&a->links, now);
    if (taken == TG_LINK_READY) {
      uint64_t found = tg_read(tg_link_place(&a->links.in) + ACTIVATIONS);
      if (found != contents(a->back) + s->stages - 1u) a->fault = WRONG_CONTENTS;
      tg_links_release(&a->links);
      if (++a->back == s->steps) tg_links_end(&a->links, TG_LINK_DRAINED);
    } else if (taken == TG_LINK_WAIT && a->out < s->steps && a->out - a->back < s->in_flight) {
      a->phase = ROOM;
    }
  } else if (a->phase == ROOM) {
    if (tg_links_room(&a->links, now) != TG_LINK_READY) return;
    if (s->announces) announce(a, a->out);
    a->phase = POSTS;
  } else {
    tg_write(tg_link_place(&a->links.out) + ACTIVATIONS, contents(a->out++));
    tg_links_post(&a->links);
    a->phase = s->greedy && a->out < s->steps && a->out - a->back < s->in_flight ? ROOM : TAKES;
  }
}

enum { LOOKS, MAKES_ROOM, WAITS, HANDS_ON };

/* A later stage does as in kernels/sched/stages.cu: launches at the announcement, takes and announces what the step is, and then waits for it. */
static void later_stage(struct actor *a, uint64_t now) {
  const struct scenario *s = &a->scenario;
  uint64_t *in = tg_link_place(&a->links.in), *out = tg_link_place(&a->links.out);
  uint32_t kind, bucket;
  switch (a->phase) {
    case LOOKS:
      if (!s->announces || tg_link_announced(&a->links.in, &kind, &bucket)) {
        if (s->announces && tg_read(in + TABLE) != contents(a->links.in.count)) a->fault = WRONG_CONTENTS;
        a->phase = s->announces ? MAKES_ROOM : WAITS;
      } else if (tg_links_take(&a->links, now) == TG_LINK_READY) {
        a->links.in.holds = 0u; /* it asks for the end alone */
      }
      return;
    case MAKES_ROOM:
      if (tg_links_room(&a->links, now) != TG_LINK_READY) return;
      if (a->index + 1u < s->stages) announce(a, a->links.in.count);
      a->phase = WAITS;
      return;
    case WAITS:
      if (tg_links_take(&a->links, now) == TG_LINK_READY) a->phase = HANDS_ON;
      return;
    default:
      if (!s->announces && tg_links_room(&a->links, now) != TG_LINK_READY) return;
      uint64_t found = tg_read(in + ACTIVATIONS);
      if (found != contents(a->links.in.count) + a->index - 1u) a->fault = WRONG_CONTENTS;
      tg_write(out + ACTIVATIONS, found + 1u);
      tg_links_post(&a->links);
      tg_links_release(&a->links);
      a->phase = LOOKS;
  }
}

static void stage(struct actor *a, uint64_t now) {
  if (a->kind == FIRST_STAGE) first_stage(a, now);
  if (a->kind == LATER_STAGE) later_stage(a, now);
  /* Waits are kept as if they had begun at 0: only how long they last counts. */
  a->links.in.since_ns = a->links.out.since_ns = 0u;
  a->waiting = a->links.in.waits || a->links.out.waits;
  a->done = a->links.ended != 0u;
  if ((a->links.ended & 0xffffu) == TG_LINK_ORDER) a->fault = OUT_OF_ORDER;
}

static void push(struct actor *a) {
  if (a->out == a->scenario.requests) {
    tg_release(&memory.drained, 1u);
    a->done = 1u;
  } else if (a->out - a->back < a->scenario.capacity) {
    tg_write(&memory.entries[a->out % a->scenario.capacity], contents(a->out));
    if (a->scenario.run) tg_store(&memory.runs[a->out % a->scenario.capacity], a->scenario.run);
    tg_release(&memory.queue.pushed.value, ++a->out);
  } else {
    a->back = tg_queue_tail(&memory.queue, a->back);
  }
}

static void read_claim(struct actor *a, uint64_t first, uint64_t count) {
  for (uint64_t number = first; number < first + count; number++) {
    if (tg_read(&memory.entries[number % a->scenario.capacity]) != contents(number)) a->fault = WRONG_CONTENTS;
    if (a->taken && number <= a->last) a->fault = OUT_OF_ORDER;
    if (a->taken >> number & 1u) a->fault = LOST_OR_DOUBLED;
    a->taken |= 1ull << number;
    a->last = number;
  }
}

/* A dispatcher serves: the oldest claim still held is that of the call before, where the scenario keeps them. */
static void serve(struct actor *a) {
  uint64_t first = 0u;
  uint32_t queue_ends = (uint32_t)tg_acquire(&memory.drained);
  tg_claim_look(&a->claimer);
  uint32_t count = tg_claim(&a->claimer, a->scenario.most, a->scenario.most + a->scenario.run, &first);
  if (a->scenario.keeps) {
    read_claim(a, a->out, a->back);
    a->out = first;
    a->back = count;
    tg_claim_release(&a->claimer, count ? first : TG_NO_STEP);
  } else {
    read_claim(a, first, count);
    tg_claim_release(&a->claimer, TG_NO_STEP);
  }
  if (count == 0u && queue_ends) a->done = 1u;
}

static void make_link(tg_link_end *poster, tg_link_end *taker, uint32_t link, uint32_t depth) {
  poster->mine = &memory.link[link].poster, poster->theirs = &memory.link[link].taker;
  taker->mine = &memory.link[link].taker, taker->theirs = &memory.link[link].poster;
  poster->places = taker->places = memory.link[link].places;
  poster->place_words = taker->place_words = PLACE_WORDS;
  poster->depth = taker->depth = depth;
  poster->link = taker->link = link;
}

uint32_t explore_actor_bytes(void) { return sizeof(struct actor); }

/* Fills `actors` and says how many they are. */
uint32_t explore_setup(const struct scenario *s, struct actor *actors) {
  uint32_t stages = s->replicas ? 0u : s->stages, count = 0u;
  memset(&memory, 0, sizeof(memory));
  const tg_queue shape = {.replicas = s->replicas, .run_capacity = s->run ? s->capacity : 0u};
  tg_queue_init(&memory.queue, &shape);
  memset(actors, 0, sizeof(struct actor) * 8u);
  for (uint32_t i = 0u; i < stages; i++, count++) {
    actors[i].kind = i == 0u ? FIRST_STAGE : LATER_STAGE;
    actors[i].links.stage = i;
    actors[i].links.stop = &memory.stop;
    actors[i].links.limit_ns = LIMIT_NS;
    make_link(&actors[i].links.out, &actors[(i + 1u) % stages].links.in, i, i + 1u == stages ? s->return_depth : s->depth);
  }
  for (uint32_t i = 0u; i < s->replicas; i++, count++) {
    actors[i].kind = REPLICA;
    tg_claimer_init(&actors[i].claimer, &memory.queue, &memory.claimed, i);
    actors[i].claimer.runs = memory.runs;
  }
  if (s->replicas) actors[count++].kind = PUSHER;
  if (s->stops) actors[count++].kind = STOPPER;
  for (uint32_t i = 0u; i < count; i++) actors[i].index = i, actors[i].scenario = *s;
  return count;
}

/* Runs one call of an actor, from its start. Its first accesses read `before`. 1: the call is over; 0: it asks for one more
 * access, and `actor` is worth nothing. */
uint32_t explore_call(struct actor *actor, uint32_t late, const uint64_t *before, uint32_t count, struct access *access) {
  results = before;
  results_left = count;
  asked = access;
  if (setjmp(suspended)) return 0u;
  if (actor->kind <= LATER_STAGE) stage(actor, late ? LIMIT_NS : 0u);
  if (actor->kind == PUSHER) push(actor);
  if (actor->kind == REPLICA) serve(actor);
  if (actor->kind == STOPPER) {
    tg_release(&memory.stop, TG_INPUT_STOP);
    actor->done = 1u;
  }
  return 1u;
}

/* Which actors may ever look at a word: a bit each; 0: nobody writes it. */
uint32_t explore_seen_by(const struct scenario *s, const uint64_t *word) {
  const char *at = (const char *)word;
  if (word == &memory.stop && !s->stops) return 0u;
  for (uint32_t i = 0u; i < MOST_STAGES; i++) {
    const char *link = (const char *)&memory.link[i];
    if (at >= link && at < link + sizeof(memory.link[i])) return 1u << i | 1u << (i + 1u) % s->stages;
  }
  return ~0u;
}

/* With all actors at their end, and nobody dead, late or stopped: is all as it should be? 0, or the fault. */
uint32_t explore_end(const struct scenario *s, const struct actor *actors) {
  uint64_t taken = 0u;
  for (uint32_t i = 0u; i < s->replicas; i++) {
    if (taken & actors[i].taken) return LOST_OR_DOUBLED;
    taken |= actors[i].taken;
  }
  if (s->replicas) return taken == (1ull << s->requests) - 1u ? 0u : LOST_OR_DOUBLED;
  for (uint32_t i = 0u; i < s->stages; i++) {
    const struct actor *next = &actors[(i + 1u) % s->stages];
    if ((actors[i].links.ended & 0xffffu) != TG_LINK_DRAINED) return ENDED_WITH_ERROR;
    if (actors[i].links.out.count != s->steps || next->links.in.count != s->steps) return CREDITS_LOST;
  }
  return 0u;
}
