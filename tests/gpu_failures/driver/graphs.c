/* graphs.c: launches, of which a stream that is captured makes nodes, and the graphs of these. See driver.h. */
#include "driver.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- launches */

struct attribute {
  int id;
  char pad[4];
  union { int on; uint32_t extent[3]; char room[64]; } value;
};
struct launch {
  uint32_t grid[3], block[3], shared_bytes;
  struct stream *stream;
  const struct attribute *attributes;
  uint32_t attribute_count;
};
static int asks_for(const struct launch *launch, int id) {
  for (uint32_t i = 0; i < launch->attribute_count; i++)
    if (launch->attributes[i].id == id && launch->attributes[i].value.on) return 1;
  return 0;
}
enum { CLUSTER = 4, PROGRAMMATIC = 6 };
/* No GPU before 9.0 lets a kernel begin early. */
static int is_early(const struct launch *launch) {
  const char *capability = getenv("TEST_CUDA_CAPABILITY");
  return asks_for(launch, PROGRAMMATIC) && (!capability || atoi(capability) >= 9);
}
/* Blocks of a cluster; 0: in a way that no launch here asks for. */
static uint32_t cluster_of(const struct launch *launch) {
  for (uint32_t i = 0; i < launch->attribute_count; i++) {
    const struct attribute *attribute = &launch->attributes[i];
    if (attribute->id != CLUSTER) continue;
    const uint32_t *extent = attribute->value.extent;
    return extent[1] == 1 && extent[2] == 1 && extent[0] && launch->grid[0] % extent[0] == 0 ? extent[0] : 0;
  }
  return 1;
}

static uint64_t graphs_captured, nodes_captured;

struct graph *new_graph(void) {
  struct graph *graph = calloc(1, sizeof *graph);
  graph->number = __atomic_add_fetch(&graphs_captured, 1, __ATOMIC_RELAXED);
  return graph;
}

/* The kernels that a graph's launch runs, where kernels run, by how many arguments they have, all words of 8 bytes but for the
 * fourth of tg_ways_layer. */
static int runs_with(const char *kernel) {
  static const struct { const char *name; int arguments; } all[] = {
    {"tg_ways_layer", 4}, {"tg_ways_decide", 1}, {"tg_pair_rows", 2}, {"tg_pair_digest", 2}, {"tg_pair_end", 1},
    {"tg_pair_end_again", 1}, {"tg_pair_put", 4}, {"tg_pair_put_token", 3}, {"tg_pair_take_rows", 2}, {"tg_pair_take_token", 2},
    {"tg_pair_reduce", 6}};
  for (size_t i = 0; run_kernel && i < sizeof all / sizeof *all; i++)
    if (!strcmp(all[i].name, kernel)) return all[i].arguments;
  return 0;
}

static struct node *new_node(struct stream *stream) {
  struct graph *graph = stream->capture;
  graph->nodes = realloc(graph->nodes, (graph->count + 1) * sizeof *graph->nodes);
  struct node *node = &graph->nodes[graph->count++];
  *node = (struct node){.after = stream->captured};
  stream->captured = graph->count;
  return node;
}

void capture_operation(struct stream *stream, struct node operation) {
  static const struct function none = {.name = "an operation"};
  struct node *node = new_node(stream);
  operation.after = node->after;
  operation.function = &none;
  operation.type = operation.op == COPY ? 1 : 0; /* CU_GRAPH_NODE_TYPE_MEMCPY, _KERNEL */
  *node = operation;
}

int leave(const struct node *node) {
  struct letter *letter = malloc(sizeof *letter + node->bytes), **last = &node->other->first;
  *letter = (struct letter){.bytes = node->bytes};
  memcpy(letter->data, (const void *)node->to, node->bytes);
  while (*last) last = &(*last)->behind;
  *last = letter;
  return 0;
}

static float of_bf16(uint16_t half) {
  uint32_t bits = (uint32_t)half << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static void add_bf16(uint16_t *to, const uint16_t *other, size_t count) {
  for (size_t i = 0; i < count; i++) {
    float sum = of_bf16(to[i]) + of_bf16(other[i]);
    uint32_t bits;
    memcpy(&bits, &sum, sizeof bits);
    to[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
}

int do_operation(const struct node *node, int again) {
  if (node->op == COPY) memcpy((void *)node->to, (const void *)node->from, node->bytes);
  if (node->op == SEND || (node->op == REDUCE && !again)) leave(node);
  if (node->op == COPY || node->op == SEND) return 1;
  struct letter *letter = node->own->first;
  if (!letter) return 0;
  if (letter->bytes != node->bytes) abort();
  node->own->first = letter->behind;
  if (node->op == REDUCE) add_bf16((uint16_t *)node->to, (const uint16_t *)letter->data, node->bytes / 2);
  else memcpy((void *)node->to, letter->data, node->bytes);
  free(letter);
  return 1;
}

int cuLaunchKernelEx(const struct launch *launch, struct function *function, void **arguments, void **extra) {
  (void)extra;
  ENTER_IN(launch->stream->context);
  if (function->context != current) return INVALID_CONTEXT;
  struct graph *graph = launch->stream->capture;
  if (!graph && order_is_checked()) order_launch(launch->stream);
  if (!graph && !strcmp(function->name, "tg_bounce")) return bounce(launch->stream, arguments);
  if (!cluster_of(launch)) return INVALID_VALUE;
  if (!graph && !run_kernel) return SUCCESS;
  if (!graph) return run_kernel(function->name, launch->grid, launch->block, cluster_of(launch), launch->shared_bytes, is_early(launch), arguments);
  struct node *node = new_node(launch->stream);
  node->function = function;
  node->shared_bytes = launch->shared_bytes;
  node->early = asks_for(launch, PROGRAMMATIC);
  memcpy(node->grid, launch->grid, sizeof node->grid);
  memcpy(node->block, launch->block, sizeof node->block);
  for (int i = 0; i < dispatch_arguments(function->name); i++) node->dispatch[i] = *(uint64_t *)arguments[i];
  for (int i = 0; i < runs_with(function->name); i++)
    memcpy(&node->arguments[i], arguments[i], i == 3 && !strcmp(function->name, "tg_ways_layer") ? 4 : 8);
  uint64_t number = nodes_captured++;
  unsigned long long other;
  const char *text = getenv("TEST_CUDA_NODE");
  int type;
  if (text && sscanf(text, "%llu:%d", &other, &type) == 2 && other == number) node->type = type;
  return SUCCESS;
}

/* ---- graphs */

int cuGraphGetNodes(struct graph *graph, struct node **nodes, size_t *count) {
  ENTER();
  for (size_t i = 0; nodes && i < *count && i < graph->count; i++) nodes[i] = &graph->nodes[i];
  *count = graph->count;
  return SUCCESS;
}
/* A node comes after one other or none. An edge has ports of 1 byte each, a type, and 5 bytes that are reserved. */
int cuGraphGetEdges_v2(struct graph *graph, struct node **from, struct node **to, uint8_t (*data)[8], size_t *count) {
  ENTER();
  size_t edges = 0;
  for (struct node *node = graph->nodes; node < graph->nodes + graph->count; node++) {
    if (!node->after) continue;
    if (from && edges < *count) {
      from[edges] = &graph->nodes[node->after - 1];
      to[edges] = node;
      memset(data[edges], 0, sizeof data[edges]);
      data[edges][2] = node->early; /* CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC */
    }
    edges++;
  }
  *count = edges;
  return SUCCESS;
}
int cuGraphNodeGetType(const struct node *node, int *type) { ENTER(); *type = node->type; return SUCCESS; }

struct kernel_node {
  const struct function *function;
  uint32_t grid[3], block[3], shared_bytes;
  void **arguments, **extra;
  void *kernel, *context;
};
int cuGraphKernelNodeGetParams_v2(const struct node *node, struct kernel_node *kernel) {
  ENTER();
  kernel->function = node->function;
  memcpy(kernel->grid, node->grid, sizeof node->grid);
  memcpy(kernel->block, node->block, sizeof node->block);
  kernel->shared_bytes = node->shared_bytes;
  return SUCCESS;
}

struct instantiate {
  uint64_t flags;
  void *upload_stream;
  struct node *error_node;
  int result;
};
/* What TEST_CUDA_GRAPH answers. */
static int answer_of(const char *function, const struct graph *graph) {
  const char *list = getenv("TEST_CUDA_GRAPH");
  for (; list; list = strchr(list, ',') ? strchr(list, ',') + 1 : NULL) {
    char name[48];
    unsigned long long number;
    int code;
    if (sscanf(list, "%47[^:]:%llu:%d", name, &number, &code) != 3) abort();
    if (!strcmp(name, function) && number == graph->number) return code;
  }
  return SUCCESS;
}
int cuGraphInstantiateWithParams(struct graph **exec, struct graph *graph, struct instantiate *instantiate) {
  if (graph->count) instantiate->error_node = &graph->nodes[graph->count - 1];
  instantiate->result = 1; /* CUDA_GRAPH_INSTANTIATE_ERROR */
  ENTER();
  int answer = answer_of(__func__, graph);
  if (answer) return answer;
  instantiate->error_node = NULL;
  instantiate->result = 0;
  *exec = malloc(sizeof **exec);
  (*exec)->count = graph->count;
  (*exec)->number = graph->number;
  (*exec)->nodes = malloc(graph->count * sizeof *graph->nodes);
  memcpy((*exec)->nodes, graph->nodes, graph->count * sizeof *graph->nodes);
  return SUCCESS;
}
int cuGraphUpload(struct graph *exec, struct stream *stream) {
  ENTER_IN(stream->context);
  return stream->capture ? CAPTURE_UNSUPPORTED : answer_of(__func__, exec);
}

/* ---- a graph's launch: its nodes in the order they were captured. One that waits for another GPU is gone on with by whatever is
 * launched behind it, on any stream. */

struct run { struct graph *exec; struct stream *stream; size_t next; int again, waited; struct run *behind; };
static struct run *runs;
static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;

static void queue_run(struct graph *exec, struct stream *stream) {
  struct run *run = calloc(1, sizeof *run), **last = &runs;
  *run = (struct run){.exec = exec, .stream = stream};
  while (*last) last = &(*last)->behind;
  *last = run;
}

static int call(const struct node *node, const char *name) {
  void *arguments[MOST_ARGUMENTS];
  for (int i = 0; i < MOST_ARGUMENTS; i++) arguments[i] = (void *)&node->arguments[i];
  const int answer = run_kernel(name, node->grid, node->block, 1, node->shared_bytes, 0, arguments);
  return answer ? answer : finish_kernels();
}

/* Whether it is done; else it waits. tg_pair's first words are steps done and their limit (kernels/ways/pair.cu). */
static int do_node(struct run *run, const struct node *node) {
  const char *name = node->function->name;
  if (node->op != KERNEL) return do_operation(node, run->again);
  if (!runs_with(name)) return 1;
  const uint64_t *pair = (const uint64_t *)node->arguments[0], *flag = NULL;
  if (!strcmp(name, "tg_pair_take_rows") || !strcmp(name, "tg_pair_take_token")) flag = (const uint64_t *)node->arguments[1];
  if (!strcmp(name, "tg_pair_reduce")) {
    flag = (const uint64_t *)node->arguments[4];
    if (!run->again) call(node, "tg_pair_push");
  }
  if (flag && pair[0] < pair[1] && *flag <= pair[0]) return 0;
  if (!strcmp(name, "tg_pair_end_again")) {
    call(node, "tg_pair_end");
    if (pair[0] < pair[1]) queue_run(run->exec, run->stream);
    return 1;
  }
  if (call(node, name)) abort();
  return 1;
}

/* Whether a run ahead is on the same stream. */
static int has_one_ahead(const struct run *run) {
  for (const struct run *ahead = runs; ahead != run; ahead = ahead->behind)
    if (ahead->stream == run->stream) return 1;
  return 0;
}

static void advance(void) {
  for (struct run **at = &runs; *at;) {
    struct run *run = *at;
    size_t began = run->next;
    int ahead = has_one_ahead(run);
    while (!ahead && run->next < run->exec->count && do_node(run, &run->exec->nodes[run->next])) {
      run->next++;
      run->again = 0;
    }
    if (run->next < run->exec->count) {
      int moved = run->next != began || (!ahead && !run->again);
      run->again = run->again || !ahead;
      run->waited = 1;
      __atomic_store_n(&run->stream->running, 1, __ATOMIC_RELEASE);
      /* Others may wait for what it did. */
      at = moved ? &runs : &run->behind;
      continue;
    }
    *at = run->behind;
    int more = 0;
    for (struct run *other = runs; other; other = other->behind) {
      if (other->stream != run->stream) continue;
      more = 1;
      other->waited |= run->waited;
    }
    if (run->waited) __atomic_store_n(&run->stream->running, more, __ATOMIC_RELEASE);
    free(run);
    at = &runs;
  }
}

int cuGraphLaunch(struct graph *exec, struct stream *stream) {
  ENTER_IN(stream->context);
  if (order_is_checked()) order_launch(stream);
  const struct node *last = &exec->nodes[exec->count - 1];
  if (last->dispatch[0]) {
    run_device(stream, last->function->name, last->dispatch);
    return SUCCESS;
  }
  pthread_mutex_lock(&one);
  queue_run(exec, stream);
  advance();
  pthread_mutex_unlock(&one);
  return SUCCESS;
}
int cuGraphDestroy(struct graph *graph) { ENTER(); free(graph->nodes); free(graph); return SUCCESS; }
int cuGraphExecDestroy(struct graph *exec) { ENTER(); free(exec->nodes); free(exec); return SUCCESS; }
