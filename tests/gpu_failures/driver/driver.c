/* driver.c: the entry points that tailgraph calls, as libcuda.so has them, but for launches and graphs (graphs.c). See driver.h. */
#define _GNU_SOURCE
#include "driver.h"
#include "abi.h"
#include "tensor_map.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct context contexts[MOST_DEVICES];
_Thread_local struct context *current;

/* Where no context was current: of all that there are. */
static int all_lost;

int lost(const struct context *context) {
  int all = __atomic_load_n(&all_lost, __ATOMIC_ACQUIRE);
  return all || !context ? all : __atomic_load_n(&context->lost, __ATOMIC_ACQUIRE);
}
void lose(struct context *context, int code) { __atomic_store_n(context ? &context->lost : &all_lost, code, __ATOMIC_RELEASE); }

static struct allocation { uint64_t at; size_t bytes; struct context *context; } allocations[1 << 14];
static size_t allocation_count;

static uint64_t setting(const char *name, uint64_t otherwise) {
  const char *text = getenv(name);
  return text ? strtoull(text, NULL, 10) : otherwise;
}

/* Codes after which a context gives no other answer: an unavailable device, faults, an unknown error. */
static int ends_context(int code) { return code == 46 || (code >= 700 && code < 720) || code == 999; }

struct count { char name[48]; uint64_t calls; };
static struct count counts[64];

/* Under the lock. */
static struct count *count_of(const char *name) {
  struct count *count = counts;
  while (count->name[0] && strcmp(count->name, name)) count++;
  if (!count->name[0]) snprintf(count->name, sizeof count->name, "%s", name);
  return count;
}

/* Whether the environment's WHERE, of this function, is this call: `N`, or `G+N` once the N-th G has been called. */
static int is_here(const char *where, uint64_t call) {
  static int struck;
  const char *other = strchr(where, '+');
  if (!other) return strtoull(where, NULL, 10) == call;
  char name[48];
  snprintf(name, sizeof name, "%.*s", (int)(other - where), where);
  if (count_of(name)->calls < strtoull(other + 1, NULL, 10) || struck) return 0;
  return struck = 1;
}

int enter(const char *name) {
  if (lost(current)) return lost(current);
  const int ran = finish_kernels && strcmp(name, "cuLaunchKernelEx") ? finish_kernels() : SUCCESS;
  if (ran) lose(current, ran);
  if (ran) return ran;
  const char *list = getenv("TEST_CUDA_FAIL");
  char code[16] = "";
  pthread_mutex_lock(&lock);
  uint64_t call = ++count_of(name)->calls;
  for (; list && !*code; list = strchr(list, ',') ? strchr(list, ',') + 1 : NULL) {
    char function[48], where[64], answer[16];
    if (sscanf(list, "%47[^:]:%63[^:]:%15[^,]", function, where, answer) != 3) abort();
    if (!strcmp(function, name) && is_here(where, call)) strcpy(code, answer);
  }
  pthread_mutex_unlock(&lock);
  while (!strcmp(code, "hang")) pause();
  if (!strcmp(code, "slow")) sleep(1);
  if (ends_context(atoi(code))) lose(current, atoi(code));
  return atoi(code);
}

static void log_bytes(const char *kind, size_t bytes) {
  const char *path = getenv("TEST_CUDA_LOG");
  FILE *file = path ? fopen(path, "a") : NULL;
  if (!file) return;
  fprintf(file, "%s %zu\n", kind, bytes);
  fclose(file);
}

/* ---- devices and contexts */

/* Needs no context, so it answers whatever has become of one. */
int cuDriverGetVersion(int *version) { *version = (int)setting("TEST_CUDA_VERSION", 13000); return SUCCESS; }
int cuInit(unsigned flags) { (void)flags; ENTER(); return setting("TEST_CUDA_DEVICES", 1) ? SUCCESS : NO_DEVICE; }
int cuDeviceGetCount(int *count) { ENTER(); *count = (int)setting("TEST_CUDA_DEVICES", 1); return SUCCESS; }
int cuDeviceCanAccessPeer(int *can, int device, int peer) {
  const char *peers = getenv("TEST_CUDA_PEERS");
  ENTER();
  *can = device != peer && (!peers || strcmp(peers, "0"));
  return SUCCESS;
}
/* Native atomics alone are asked about. */
int cuDeviceGetP2PAttribute(int *value, int attribute, int device, int peer) {
  ENTER();
  if (attribute != 3) return INVALID_VALUE;
  const char *peers = getenv("TEST_CUDA_PEERS");
  *value = device != peer && (!peers || !strcmp(peers, "1"));
  return SUCCESS;
}
int cuCtxEnablePeerAccess(struct context *peer, unsigned flags) {
  (void)flags;
  ENTER();
  return current && current != peer ? SUCCESS : INVALID_CONTEXT;
}
int cuDeviceGet(int *device, int ordinal) { ENTER(); *device = ordinal; return SUCCESS; }
int cuDeviceGetName(char *name, int room, int device) {
  ENTER();
  snprintf(name, (size_t)room, "Test GPU %d", device);
  return SUCCESS;
}
int cuDeviceGetPCIBusId(char *id, int room, int device) {
  ENTER();
  snprintf(id, (size_t)room, "0000:%02x:00.0", device);
  return SUCCESS;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  (void)device;
  ENTER();
  *bytes = setting("TEST_CUDA_MEMORY", 1 << 30);
  return SUCCESS;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  ENTER();
  int major = 9, minor = 0;
  const char *capability = getenv("TEST_CUDA_CAPABILITY");
  if (capability && sscanf(capability, "%d.%d", &major, &minor) != 2) abort();
  switch (attribute) {
    case 16: *value = (int)setting("TEST_CUDA_MULTIPROCESSORS", 132); return SUCCESS;
    case 36: *value = 1000000; return SUCCESS; /* kHz of the memory */
    case 37: *value = (int)setting("TEST_CUDA_RATE", 4800) * 4; return SUCCESS; /* bits of its bus */
    case 75: *value = major; return SUCCESS;
    case 76: *value = minor; return SUCCESS;
    case 97: *value = 227 << 10; return SUCCESS; /* shared bytes that a block may ask for */
    default: *value = 1; return SUCCESS;
  }
}
int cuDevicePrimaryCtxRetain(struct context **context, int device) {
  ENTER();
  if (device < 0 || device >= MOST_DEVICES) return NO_DEVICE;
  contexts[device].device = device;
  *context = &contexts[device];
  return SUCCESS;
}
int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; ENTER(); return SUCCESS; }
/* A thread leaves a context that is lost as it leaves any other. */
int cuCtxGetCurrent(struct context **context) { *context = current; return SUCCESS; }
int cuCtxSetCurrent(struct context *context) { current = context; ENTER(); return SUCCESS; }
int cuGetErrorString(int error, const char **text) { (void)error; *text = "a test's error"; return SUCCESS; }
int cuGetErrorName(int error, const char **text) { (void)error; *text = "TEST_ERROR"; return SUCCESS; }

/* ---- memory */

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
  ENTER_IN(current);
  *total = setting("TEST_CUDA_MEMORY", 1 << 30);
  *free_bytes = *total - current->used_bytes;
  return SUCCESS;
}
int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
  ENTER_IN(current);
  if (bytes == 0) return INVALID_VALUE;
  pthread_mutex_lock(&lock);
  const int fits = current->used_bytes + bytes <= setting("TEST_CUDA_MEMORY", 1 << 30);
  if (fits) current->used_bytes += bytes;
  pthread_mutex_unlock(&lock);
  if (!fits) return OUT_OF_MEMORY;
  log_bytes("device", bytes);
  void *memory = NULL;
  if (posix_memalign(&memory, 256, bytes)) abort();
  memset(memory, 0, bytes);
  *address = (uint64_t)memory;
  pthread_mutex_lock(&lock);
  if (allocation_count == sizeof allocations / sizeof *allocations) abort();
  allocations[allocation_count++] = (struct allocation){*address, bytes, current};
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}
/* Whose memory so many bytes are in. */
static struct context *owner(uint64_t at, size_t bytes) {
  struct context *found = NULL;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < allocation_count; i++)
    if (at >= allocations[i].at && at + bytes <= allocations[i].at + allocations[i].bytes) found = allocations[i].context;
  pthread_mutex_unlock(&lock);
  return found;
}
int cuMemAllocAsync(uint64_t *address, size_t bytes, void *stream) { (void)stream; return cuMemAlloc_v2(address, bytes); }
int cuMemFree_v2(uint64_t address) {
  ENTER();
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < allocation_count; i++) {
    if (allocations[i].at != address) continue;
    allocations[i].context->used_bytes -= allocations[i].bytes;
    allocations[i] = allocations[--allocation_count];
    break;
  }
  pthread_mutex_unlock(&lock);
  free((void *)address);
  return SUCCESS;
}
int cuMemFreeAsync(uint64_t address, void *stream) { (void)stream; return cuMemFree_v2(address); }
int cuMemHostAlloc(void **start, size_t bytes, unsigned flags) {
  (void)flags;
  ENTER_IN(current);
  log_bytes("pinned", bytes);
  return posix_memalign(start, 4096, bytes) ? OUT_OF_MEMORY : SUCCESS;
}
int cuMemFreeHost(void *start) { ENTER(); free(start); return SUCCESS; }
int cuMemHostGetDevicePointer_v2(uint64_t *address, void *start, unsigned flags) {
  (void)flags;
  ENTER();
  *address = (uint64_t)start;
  return SUCCESS;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, struct stream *stream) {
  ENTER_IN(stream->context);
  if (order_is_checked()) order_to_device(stream, to, from, bytes);
  memcpy((void *)to, from, bytes);
  return SUCCESS;
}
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) {
  ENTER();
  memcpy((void *)to, from, bytes);
  return SUCCESS;
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, struct stream *stream) {
  ENTER_IN(stream->context);
  if (stream->capture) {
    capture_operation(stream, (struct node){.op = COPY, .to = to, .from = from, .bytes = bytes});
    return SUCCESS;
  }
  memcpy((void *)to, (const void *)from, bytes);
  return SUCCESS;
}
int cuMemcpyPeerAsync(uint64_t to, struct context *to_context, uint64_t from, struct context *from_context, size_t bytes,
                      struct stream *stream) {
  ENTER_IN(stream->context);
  if (owner(to, bytes) != to_context || owner(from, bytes) != from_context) return INVALID_VALUE;
  if (order_is_checked()) order_peer(stream, to_context, to, from_context, from, bytes);
  memcpy((void *)to, (const void *)from, bytes);
  return SUCCESS;
}
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) { ENTER(); memcpy(to, (void *)from, bytes); return SUCCESS; }
/* Where no kernels run, only sampled tables are copied back while a run goes on. */
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, struct stream *stream) {
  ENTER_IN(stream->context);
  memcpy(to, (const void *)from, bytes);
  /* Else it is what stages leave for each other. */
  if (!run_kernel && bytes % sizeof(tg_sampled) == 0)
    for (size_t i = 0; i < bytes / sizeof(tg_sampled); i++) ((tg_sampled *)to)[i] = (tg_sampled){.token = TOKEN};
  if (order_is_checked()) order_to_host(stream, to, from, to, bytes);
  return SUCCESS;
}
int cuMemsetD8Async(uint64_t to, unsigned char byte, size_t bytes, struct stream *stream) {
  ENTER_IN(stream->context);
  memset((void *)to, byte, bytes);
  return SUCCESS;
}

/* ---- modules: every kernel exists */

int cuModuleLoadData(struct context ***module, const void *image) {
  (void)image;
  ENTER_IN(current);
  *module = malloc(sizeof **module);
  **module = current;
  return SUCCESS;
}
int cuModuleUnload(void *module) { ENTER(); free(module); return SUCCESS; }
int cuModuleGetFunction(struct function **function, struct context **module, const char *name) {
  ENTER_IN(*module);
  *function = calloc(1, sizeof **function);
  (*function)->context = *module;
  snprintf((*function)->name, sizeof (*function)->name, "%s", name);
  return SUCCESS;
}
/* Kernels here leave no stamps, so where they would is nobody's concern. */
int cuModuleGetGlobal_v2(uint64_t *address, size_t *bytes, void *module, const char *name) {
  static uint64_t stamping;
  (void)module;
  ENTER();
  if (strcmp(name, "tg_stamping")) return NOT_FOUND;
  *address = (uint64_t)&stamping;
  *bytes = sizeof stamping;
  return SUCCESS;
}
/* What copies need (tensor_map.h); an array that a GPU would refuse is refused. */
int cuTensorMapEncodeTiled(void *to, int type, uint32_t rank, void *address, const uint64_t *size, const uint64_t *row_bytes,
                           const uint32_t *box, const uint32_t *steps, int interleave, int swizzle, int promotion, int fill) {
  (void)steps, (void)interleave, (void)promotion, (void)fill;
  ENTER();
  int fits = (uint64_t)address % 16 == 0 && rank >= 1 && rank <= 5;
  /* CU_TENSOR_MAP_DATA_TYPE_FLOAT32, else of 16 bits; CU_TENSOR_MAP_SWIZZLE_64B or _128B, else none */
  struct tensor_map map = {
    .sign = TENSOR_MAP_SIGN, .at = (uint64_t)address, .size = {1, 1, 1, 1, 1}, .box = {1, 1, 1, 1, 1}, .element = type == 7 ? 4 : 2,
    .swizzled = swizzle == 3 ? 7 : swizzle == 2 ? 3 : 0};
  for (uint32_t i = 0; fits && i < rank; i++) {
    fits = size[i] && box[i] && box[i] <= 256;
    if (i + 1 < rank) fits = fits && row_bytes[i] % 16 == 0 && row_bytes[i] < 1ull << 40;
    map.size[i] = size[i];
    map.box[i] = (uint16_t)box[i];
    if (i + 1 < rank) map.stride[i] = row_bytes[i];
  }
  fits = fits && map.box[0] * map.element % 16 == 0 && (!map.swizzled || map.box[0] * map.element <= 128);
  if (!fits) return INVALID_VALUE;
  memcpy(to, &map, sizeof map);
  return SUCCESS;
}
int cuFuncSetAttribute(void *function, int attribute, int value) {
  (void)function, (void)attribute, (void)value;
  ENTER();
  return SUCCESS;
}
/* A block has so many static shared bytes, a thread so many local bytes and registers. */
int cuFuncGetAttribute(int *value, int attribute, const struct function *function) {
  (void)function;
  ENTER();
  *value = attribute == 1 ? 1024 : attribute == 3 ? 16 : attribute == 4 ? 40 : 0;
  return SUCCESS;
}
int cuFuncGetName(const char **name, const struct function *function) { ENTER(); *name = function->name; return SUCCESS; }
int cuKernelGetName(const char **name, const struct function *function) { ENTER(); *name = function->name; return SUCCESS; }

/* ---- streams */

int cuStreamCreate(struct stream **stream, unsigned flags) {
  (void)flags;
  ENTER_IN(current);
  *stream = calloc(1, sizeof **stream);
  (*stream)->context = current;
  return SUCCESS;
}
/* The thread of a device may still look at it. */
int cuStreamDestroy_v2(struct stream *stream) { (void)stream; ENTER(); return SUCCESS; }
int cuStreamQuery(struct stream *stream) {
  ENTER_IN(stream->context);
  return __atomic_load_n(&stream->running, __ATOMIC_ACQUIRE) ? NOT_READY : SUCCESS;
}
int cuStreamSynchronize(struct stream *stream) {
  ENTER_IN(stream->context);
  while (__atomic_load_n(&stream->running, __ATOMIC_ACQUIRE)) usleep(50);
  if (order_is_checked()) order_synchronize(stream);
  return lost(stream->context);
}
/* What is recorded is done, and so is what waits for it. In a capture an event is where a branch begins or ends; no node
 * comes after an end here, so that one is not looked at. */
int cuEventCreate(struct event **event, unsigned flags) {
  (void)flags;
  ENTER();
  *event = calloc(1, sizeof **event);
  return SUCCESS;
}
int cuEventRecord(struct event *event, struct stream *stream) {
  ENTER_IN(stream->context);
  event->capture = stream->capture;
  event->captured = stream->captured;
  clock_gettime(CLOCK_MONOTONIC, &event->at);
  if (!stream->capture && order_is_checked()) order_record(event, stream);
  return SUCCESS;
}
int cuEventSynchronize(struct event *event) {
  ENTER();
  if (order_is_checked()) order_look(event, 1);
  return lost(current);
}
int cuEventQuery(struct event *event) {
  ENTER();
  if (order_is_checked() && !order_look(event, 0)) return NOT_READY;
  return lost(current);
}
int cuEventElapsedTime_v2(float *ms, const struct event *begin, const struct event *end) {
  ENTER();
  *ms = (float)((double)(end->at.tv_sec - begin->at.tv_sec) * 1e3 + (double)(end->at.tv_nsec - begin->at.tv_nsec) / 1e6);
  return SUCCESS;
}
int cuStreamWaitEvent(struct stream *stream, struct event *event, unsigned flags) {
  (void)flags;
  ENTER();
  if (stream->capture) return SUCCESS;
  if (!event->capture && order_is_checked()) order_wait(stream, event);
  stream->capture = event->capture;
  stream->captured = event->captured;
  return SUCCESS;
}
int cuEventDestroy_v2(struct event *event) { ENTER(); free(event); return SUCCESS; }
int cuStreamBeginCapture_v2(struct stream *stream, int mode) {
  (void)mode;
  ENTER_IN(stream->context);
  stream->capture = new_graph();
  stream->captured = 0;
  return SUCCESS;
}
int cuStreamEndCapture(struct stream *stream, struct graph **graph) {
  *graph = stream->capture;
  stream->capture = NULL;
  ENTER();
  return SUCCESS;
}
