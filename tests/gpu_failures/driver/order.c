/* order.c: with TEST_CUDA_ORDER, whether work is ordered that has to be. All of it is done as it is enqueued, so a wait that is
 * missing would show nowhere. Here each stream, and the host, has a clock of the others' work that its own comes behind: what it
 * enqueued, waited for or was told. The order in which the host enqueues is what work is to look like, so
 *
 *   a launch comes behind all that was copied to its device before it,
 *   a copy from a device comes behind the last launch there, and the next launch before the next copy from that place comes behind it,
 *   a copy to a place comes behind the launch that read what was there, but for bytes that stay as they are,
 *   a copy that changes bytes comes behind all others that write them, whether these change them or not,
 *   a copy from the host's memory finds what the host put there until the host has been told that it has run, and
 *   a copy to the host's memory leaves POISON there until then.
 *
 * Whatever does not ends the process. See driver.h. */
#include "driver.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define POISON 0xee
#define WORD 8

/* Work of a stream: the stream's number, and which of its work it is. */
struct stamp { uint32_t stream, work; };

/* A place that was copied to or from. */
struct place {
  struct place *next;
  uint64_t at;
  size_t bytes;
  struct stamp copied;
  struct stamp read; /* of a copy to a device: the launch behind it; of one from there: the launch before it */
  char *bytes_then;  /* of the host's memory; what another copy leaves there is not the host's */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t streams; /* 0 is the host */
static uint32_t host[MOST_STREAMS];
static struct stamp launched[MOST_DEVICES];
static struct place *to_device[MOST_DEVICES], *from_device[MOST_DEVICES];
static struct place *over_device[MOST_DEVICES]; /* all that a copy writes, with what stays as it is */
static struct place *from_host, *to_host; /* that the host has not been told of */

int order_is_checked(void) { return getenv("TEST_CUDA_ORDER") != NULL; }

static int is_behind(const uint32_t clock[MOST_STREAMS], struct stamp stamp) { return clock[stamp.stream] >= stamp.work; }

static void join(uint32_t clock[MOST_STREAMS], const uint32_t other[MOST_STREAMS]) {
  for (int i = 0; i < MOST_STREAMS; i++)
    if (clock[i] < other[i]) clock[i] = other[i];
}

static void check(int holds, const struct stream *stream, const char *what) {
  if (holds) return;
  fprintf(stderr, "order: GPU %d: %s\n", stream->context->device, what);
  _exit(77);
}

static struct stamp enqueue(struct stream *stream) {
  if (!stream->number) stream->number = ++streams;
  if (streams >= MOST_STREAMS) abort();
  join(stream->clock, host);
  return (struct stamp){stream->number, ++stream->clock[stream->number]};
}

static int overlap(const struct place *place, uint64_t at, size_t bytes) {
  return place->at < at + bytes && at < place->at + place->bytes;
}

/* Begins the list of places with one more, of a copy in this stream. Those that lie inside it, and that the copy comes behind, go. */
static struct place *add(struct place **list, const struct stream *stream, uint64_t at, size_t bytes, struct stamp copied) {
  for (struct place **link = list; *link;) {
    struct place *place = *link;
    if (place->at < at || at + bytes < place->at + place->bytes || !is_behind(stream->clock, place->copied)) {
      link = &place->next;
      continue;
    }
    *link = place->next;
    free(place->bytes_then);
    free(place);
  }
  struct place *place = calloc(1, sizeof *place);
  *place = (struct place){.next = *list, .at = at, .bytes = bytes, .copied = copied};
  return *list = place;
}

/* What a copy changes. */
static void copied_to(const struct stream *stream, int device, uint64_t at, size_t bytes, struct stamp copy) {
  for (struct place *place = over_device[device]; place; place = place->next)
    if (overlap(place, at, bytes)) check(is_behind(stream->clock, place->copied), stream, "a copy that an older one may still undo");
  for (struct place *place = to_device[device]; place; place = place->next) {
    if (!overlap(place, at, bytes)) continue;
    check(is_behind(stream->clock, place->copied), stream, "a copy to where another may still come");
    check(is_behind(stream->clock, place->read), stream, "a copy to what a launch may still read");
  }
  add(&to_device[device], stream, at, bytes, copy);
}

/* Runs of words that change. */
static void changed(const struct stream *stream, int device, uint64_t to, const char *from, size_t bytes, struct stamp copy) {
  size_t begin = bytes;
  for (size_t i = 0; i < bytes; i += WORD) {
    size_t word = bytes - i < WORD ? bytes - i : WORD;
    int same = !memcmp((const char *)to + i, from + i, word);
    if (!same && begin == bytes) begin = i;
    if (begin < bytes && (same || i + word == bytes)) {
      copied_to(stream, device, to + begin, (same ? i : bytes) - begin, copy);
      begin = bytes;
    }
  }
}

static void copied_from(struct stream *stream, int device, uint64_t at, size_t bytes, struct stamp copy) {
  struct stamp before = launched[device];
  if (strcmp(getenv("TEST_CUDA_ORDER"), "to"))
    check(is_behind(stream->clock, before), stream, "a copy of what a launch may still write");
  add(&from_device[device], stream, at, bytes, copy)->read = before;
}

void order_launch(struct stream *stream) {
  pthread_mutex_lock(&lock);
  struct stamp launch = enqueue(stream);
  int device = stream->context->device;
  for (struct place *place = to_device[device]; place; place = place->next) {
    if (place->read.work) continue;
    check(is_behind(stream->clock, place->copied), stream, "a launch before what it reads has come");
    place->read = launch;
  }
  launched[device] = launch;
  memcpy(stream->launch_clock, stream->clock, sizeof stream->clock);
  stream->context->launch = stream;
  pthread_mutex_unlock(&lock);
}

/* A launch has been between this copy from a place and the one before: it must have waited for that one. */
static void read_again(const struct stream *stream, const struct context *from, uint64_t at, size_t bytes) {
  for (struct place *place = from_device[from->device]; place; place = place->next) {
    struct stamp now = launched[from->device];
    if (!from->launch || !overlap(place, at, bytes) || (place->read.stream == now.stream && place->read.work == now.work)) continue;
    check(is_behind(from->launch->launch_clock, place->copied), stream, "a launch wrote what was still being copied");
  }
}

void order_peer(struct stream *stream, struct context *to, uint64_t to_at, struct context *from, uint64_t from_at, size_t bytes) {
  pthread_mutex_lock(&lock);
  struct stamp copy = enqueue(stream);
  read_again(stream, from, from_at, bytes);
  copied_from(stream, from->device, from_at, bytes, copy);
  copied_to(stream, to->device, to_at, bytes, copy);
  add(&over_device[to->device], stream, to_at, bytes, copy);
  pthread_mutex_unlock(&lock);
}

/* A send on the one stream and its receive on the other: both end together. */
void order_exchange(struct stream *by, struct stream *there, uint64_t to, uint64_t from, size_t bytes) {
  pthread_mutex_lock(&lock);
  struct stamp sent = enqueue(by), come = enqueue(there);
  read_again(by, by->context, from, bytes);
  copied_from(by, by->context->device, from, bytes, sent);
  copied_to(there, there->context->device, to, bytes, come);
  add(&over_device[there->context->device], there, to, bytes, come);
  join(there->clock, by->clock);
  join(by->clock, there->clock);
  pthread_mutex_unlock(&lock);
}

/* What a copy reads from the host's memory, as it was then. */
static void check_kept(const struct place *place) {
  if (!place->bytes_then || !memcmp((const void *)place->at, place->bytes_then, place->bytes)) return;
  fprintf(stderr, "order: the host wrote where a copy may still read\n");
  _exit(77);
}

void order_to_device(struct stream *stream, uint64_t to, const void *from, size_t bytes) {
  pthread_mutex_lock(&lock);
  struct stamp copy = enqueue(stream);
  int on_the_way = 0;
  for (struct place *place = to_host; place; place = place->next) {
    if (!overlap(place, (uint64_t)from, bytes)) continue;
    check(is_behind(stream->clock, place->copied), stream, "a copy from where another may still come");
    on_the_way = 1;
  }
  for (struct place *place = from_host; place; place = place->next)
    if (overlap(place, (uint64_t)from, bytes)) check_kept(place);
  changed(stream, stream->context->device, to, from, bytes, copy);
  add(&over_device[stream->context->device], stream, to, bytes, copy);
  struct place *place = calloc(1, sizeof *place);
  *place = (struct place){.next = from_host, .at = (uint64_t)from, .bytes = bytes, .copied = copy};
  if (!on_the_way) place->bytes_then = memcpy(malloc(bytes), from, bytes);
  from_host = place;
  pthread_mutex_unlock(&lock);
}

/* `left`: what is to be found at `to`. */
void order_to_host(struct stream *stream, void *to, uint64_t from, const void *left, size_t bytes) {
  pthread_mutex_lock(&lock);
  struct stamp copy = enqueue(stream);
  read_again(stream, stream->context, from, bytes);
  copied_from(stream, stream->context->device, from, bytes, copy);
  for (struct place *place = from_host; place; place = place->next)
    if (overlap(place, (uint64_t)to, bytes))
      check(is_behind(stream->clock, place->copied), stream, "a copy to what another may still read");
  struct place *place = add(&to_host, stream, (uint64_t)to, bytes, copy);
  place->bytes_then = malloc(bytes);
  memcpy(place->bytes_then, left, bytes);
  memset(to, POISON, bytes);
  pthread_mutex_unlock(&lock);
}

void order_record(struct event *event, struct stream *stream) {
  pthread_mutex_lock(&lock);
  enqueue(stream);
  memcpy(event->clock, stream->clock, sizeof event->clock);
  event->looks = 2;
  pthread_mutex_unlock(&lock);
}

void order_wait(struct stream *stream, const struct event *event) {
  static uint64_t waits;
  const char *deaf = getenv("TEST_CUDA_DEAF");
  pthread_mutex_lock(&lock);
  if (deaf && ++waits == strtoull(deaf, NULL, 10)) fprintf(stderr, "order: GPU %d: a stream is deaf\n", stream->context->device);
  else join(stream->clock, event->clock);
  pthread_mutex_unlock(&lock);
}

/* The host is told that all before the clock has run. */
static void told(const uint32_t clock[MOST_STREAMS]) {
  join(host, clock);
  for (struct place **link = &from_host; *link;) {
    struct place *place = *link;
    if (!is_behind(host, place->copied)) {
      link = &place->next;
      continue;
    }
    check_kept(place);
    *link = place->next;
    free(place->bytes_then);
    free(place);
  }
  for (struct place **link = &to_host; *link;) {
    struct place *place = *link;
    if (!is_behind(host, place->copied)) {
      link = &place->next;
      continue;
    }
    memcpy((void *)place->at, place->bytes_then, place->bytes);
    *link = place->next;
    free(place->bytes_then);
    free(place);
  }
}

/* An event is through once it has been looked at. */
int order_look(struct event *event, int waits) {
  pthread_mutex_lock(&lock);
  int through = waits || event->looks == 0;
  const char *deaf = getenv("TEST_CUDA_DEAF");
  if (through && !(waits && deaf && !strcmp(deaf, "host"))) told(event->clock);
  if (!through) event->looks--;
  pthread_mutex_unlock(&lock);
  return through;
}

void order_synchronize(struct stream *stream) {
  pthread_mutex_lock(&lock);
  enqueue(stream);
  told(stream->clock);
  pthread_mutex_unlock(&lock);
}
