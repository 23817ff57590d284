/* graphs.c: launches, of which a stream that is captured makes nodes, and the graphs of these. See driver.h. */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- launches */

struct attribute {
  int id;
  char pad[4];
  union { int on; char room[64]; } value;
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
enum { PROGRAMMATIC = 6 };

static uint64_t nodes_captured;

int cuLaunchKernelEx(const struct launch *launch, struct function *function, void **arguments, void **extra) {
  (void)extra;
  ENTER_IN(launch->stream->context);
  if (function->context != current) return INVALID_CONTEXT;
  struct graph *graph = launch->stream->capture;
  if (!graph && order_is_checked()) order_launch(launch->stream);
  if (!graph && !strcmp(function->name, "tg_ways_bounce")) return bounce(launch->stream, arguments);
  if (!graph) return run_kernel ? run_kernel(function->name, launch->grid, launch->block, arguments) ? SUCCESS : NOT_FOUND : SUCCESS;
  graph->nodes = realloc(graph->nodes, (graph->count + 1) * sizeof *graph->nodes);
  struct node *node = &graph->nodes[graph->count++];
  *node = (struct node){
    .function = function, .shared_bytes = launch->shared_bytes, .early = asks_for(launch, PROGRAMMATIC),
    .after = launch->stream->captured};
  launch->stream->captured = graph->count;
  memcpy(node->grid, launch->grid, sizeof node->grid);
  memcpy(node->block, launch->block, sizeof node->block);
  for (int i = 0; i < dispatch_arguments(function->name); i++) node->dispatch[i] = *(uint64_t *)arguments[i];
  /* Of these a graph's launch runs the kernels, in the order they were captured. */
  if (run_kernel && !strcmp(function->name, "tg_ways_layer"))
    for (int i = 0; i < 4; i++) memcpy(&node->arguments[i], arguments[i], i < 3 ? 8 : 4);
  if (run_kernel && !strcmp(function->name, "tg_ways_decide")) memcpy(&node->arguments[0], arguments[0], 8);
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
int cuGraphDebugDotPrint(const struct graph *graph, const char *path, unsigned flags) {
  (void)flags;
  ENTER();
  FILE *file = fopen(path, "w");
  if (!file) return INVALID_VALUE;
  fprintf(file, "digraph dot {\n");
  for (size_t i = 0; i < graph->count; i++) fprintf(file, "  n%zu [label=\"%s\"];\n", i, graph->nodes[i].function->name);
  fprintf(file, "}\n");
  return fclose(file) ? INVALID_VALUE : SUCCESS;
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
int cuGraphInstantiateWithParams(struct graph **exec, struct graph *graph, struct instantiate *instantiate) {
  if (graph->count) instantiate->error_node = &graph->nodes[graph->count - 1];
  instantiate->result = 1; /* CUDA_GRAPH_INSTANTIATE_ERROR */
  ENTER();
  instantiate->error_node = NULL;
  instantiate->result = 0;
  *exec = malloc(sizeof **exec);
  (*exec)->count = graph->count;
  (*exec)->nodes = malloc(graph->count * sizeof *graph->nodes);
  memcpy((*exec)->nodes, graph->nodes, graph->count * sizeof *graph->nodes);
  return SUCCESS;
}
int cuGraphUpload(struct graph *exec, struct stream *stream) { (void)exec, (void)stream; ENTER(); return SUCCESS; }
int cuGraphLaunch(struct graph *exec, struct stream *stream) {
  ENTER_IN(stream->context);
  if (order_is_checked()) order_launch(stream);
  for (struct node *node = exec->nodes; node < exec->nodes + exec->count; node++) {
    void *arguments[4];
    for (int i = 0; i < 4; i++) arguments[i] = &node->arguments[i];
    if (node->arguments[0] && !run_kernel(node->function->name, node->grid, node->block, arguments)) return NOT_FOUND;
  }
  const struct node *last = &exec->nodes[exec->count - 1];
  if (last->dispatch[0]) run_device(stream, last->function->name, last->dispatch);
  return SUCCESS;
}
int cuGraphDestroy(struct graph *graph) { ENTER(); free(graph->nodes); free(graph); return SUCCESS; }
int cuGraphExecDestroy(struct graph *exec) { ENTER(); free(exec->nodes); free(exec); return SUCCESS; }
