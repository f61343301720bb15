/* A driver of CUDA that plays one GPU in host memory, for tests of what a program asks of a driver.
 *
 * Copies are copies, and are done when they are asked for; kernels do nothing, so that numbers mean nothing. Calls about host
 * memory are written to the file that DRIVER_LOG names, a line for each:
 *
 *     pin START BYTES | unpin START | allocate-pinned START BYTES | free-pinned START
 *     to-device STREAM START BYTES | to-host STREAM START BYTES
 */

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID = 1 };
typedef int result;
typedef uint64_t address;

static FILE *log_file;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uintptr_t last_handle = 16;

#define LOG(...) \
  do { \
    pthread_mutex_lock(&lock); \
    if (log_file) { fprintf(log_file, __VA_ARGS__); fflush(log_file); } \
    pthread_mutex_unlock(&lock); \
  } while (0)

static void *handle(void) {
  pthread_mutex_lock(&lock);
  void *made = (void *)(last_handle += 16);
  pthread_mutex_unlock(&lock);
  return made;
}

/* The device. */

result cuInit(unsigned flags) {
  const char *path = getenv("DRIVER_LOG");
  pthread_mutex_lock(&lock);
  if (!log_file && path) log_file = fopen(path, "w");
  pthread_mutex_unlock(&lock);
  return flags ? INVALID : SUCCESS;
}
result cuDriverGetVersion(int *version) { *version = 12080; return SUCCESS; }
result cuDeviceGetCount(int *count) { *count = 1; return SUCCESS; }
result cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal ? INVALID : SUCCESS; }
result cuDeviceGetName(char *name, int length, int device) { (void)device; snprintf(name, length, "played"); return SUCCESS; }
result cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; *bytes = (size_t)8 << 30; return SUCCESS; }
result cuDeviceGetPCIBusId(char *id, int length, int device) { (void)device; snprintf(id, length, "0000:01:00.0"); return SUCCESS; }
result cuDeviceGetUuid_v2(char *uuid, int device) { (void)device; memset(uuid, 1, 16); return SUCCESS; }
result cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  switch (attribute) {
    case 75: *value = 8; break;           /* compute capability 8.0 */
    case 76: *value = 0; break;
    case 10: *value = 32; break;          /* warp */
    case 1: *value = 1024; break;         /* threads of a block, then each dimension */
    case 2: case 3: *value = 1024; break;
    case 4: *value = 64; break;
    case 5: *value = 2147483647; break;   /* a grid's dimensions */
    case 6: case 7: *value = 65535; break;
    case 16: *value = 108; break;         /* multiprocessors */
    case 8: *value = 49152; break;        /* shared memory of a block */
    case 97: *value = 166912; break;
    case 115: *value = 1; break;          /* pools of memory */
    default: *value = 0;
  }
  return SUCCESS;
}
result cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; *context = (void *)8; return SUCCESS; }
result cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return SUCCESS; }
result cuCtxSetCurrent(void *context) { (void)context; return SUCCESS; }
result cuCtxGetCurrent(void **context) { *context = (void *)8; return SUCCESS; }
result cuCtxSynchronize(void) { return SUCCESS; }
result cuCtxGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return SUCCESS; }
result cuMemGetInfo_v2(size_t *left, size_t *all) { *left = *all = (size_t)8 << 30; return SUCCESS; }
result cuGetErrorName(result code, const char **name) { *name = code ? "CUDA_ERROR_INVALID_VALUE" : "CUDA_SUCCESS"; return SUCCESS; }
result cuGetErrorString(result code, const char **text) { *text = code ? "refused by the played driver" : "no error"; return SUCCESS; }

/* Streams and events: everything is done at once. */

result cuStreamCreate(void **stream, unsigned flags) { (void)flags; *stream = handle(); return SUCCESS; }
result cuStreamCreateWithPriority(void **stream, unsigned flags, int priority) { (void)priority; return cuStreamCreate(stream, flags); }
result cuStreamDestroy_v2(void *stream) { (void)stream; return SUCCESS; }
result cuStreamSynchronize(void *stream) { (void)stream; return SUCCESS; }
result cuStreamWaitEvent(void *stream, void *event, unsigned flags) { (void)stream; (void)event; (void)flags; return SUCCESS; }
result cuStreamIsCapturing(void *stream, int *status) { (void)stream; *status = 0; return SUCCESS; }
result cuEventCreate(void **event, unsigned flags) { (void)flags; *event = handle(); return SUCCESS; }
result cuEventRecord(void *event, void *stream) { (void)event; (void)stream; return SUCCESS; }
result cuEventQuery(void *event) { (void)event; return SUCCESS; }
result cuEventSynchronize(void *event) { (void)event; return SUCCESS; }
result cuEventElapsedTime(float *ms, void *from, void *to) { (void)from; (void)to; *ms = 0.01f; return SUCCESS; }
result cuEventElapsedTime_v2(float *ms, void *from, void *to) { return cuEventElapsedTime(ms, from, to); }
result cuEventDestroy_v2(void *event) { (void)event; return SUCCESS; }

/* Memory. That of the device is the host's, filled with zeros. */

result cuMemAlloc_v2(address *start, size_t bytes) { *start = (address)calloc(1, bytes); return *start ? SUCCESS : 2; }
result cuMemAllocAsync(address *start, size_t bytes, void *stream) { (void)stream; return cuMemAlloc_v2(start, bytes); }
result cuMemFree_v2(address start) { free((void *)start); return SUCCESS; }
result cuMemFreeAsync(address start, void *stream) { (void)stream; return cuMemFree_v2(start); }
result cuMemAllocHost_v2(void **start, size_t bytes) {
  *start = calloc(1, bytes);
  LOG("allocate-pinned %lu %lu\n", (unsigned long)*start, (unsigned long)bytes);
  return *start ? SUCCESS : 2;
}
result cuMemFreeHost(void *start) { LOG("free-pinned %lu\n", (unsigned long)start); free(start); return SUCCESS; }
result cuMemHostRegister_v2(void *start, size_t bytes, unsigned flags) {
  (void)flags;
  if (getenv("DRIVER_REFUSES")) return INVALID;
  LOG("pin %lu %lu\n", (unsigned long)start, (unsigned long)bytes);
  return SUCCESS;
}
result cuMemHostUnregister(void *start) { LOG("unpin %lu\n", (unsigned long)start); return SUCCESS; }

/* Copies. */

static void to_device(void *stream, const void *from, size_t bytes) { LOG("to-device %lu %lu %lu\n", (unsigned long)stream, (unsigned long)from, (unsigned long)bytes); }
static void to_host(void *stream, void *to, size_t bytes) { LOG("to-host %lu %lu %lu\n", (unsigned long)stream, (unsigned long)to, (unsigned long)bytes); }

result cuMemcpyHtoDAsync_v2(address to, const void *from, size_t bytes, void *stream) {
  to_device(stream, from, bytes);
  memcpy((void *)to, from, bytes);
  return SUCCESS;
}
result cuMemcpyDtoHAsync_v2(void *to, address from, size_t bytes, void *stream) {
  to_host(stream, to, bytes);
  memcpy(to, (void *)from, bytes);
  return SUCCESS;
}
result cuMemcpyDtoDAsync_v2(address to, address from, size_t bytes, void *stream) {
  (void)stream;
  memmove((void *)to, (void *)from, bytes);
  return SUCCESS;
}
result cuMemsetD8Async(address start, unsigned char value, size_t bytes, void *stream) {
  (void)stream;
  memset((void *)start, value, bytes);
  return SUCCESS;
}

enum { HOST = 1 };
struct plane { size_t x, y; int kind; void *host; address device; void *array; size_t pitch; };
struct rectangle { struct plane from, to; size_t width, height; };

static char *origin(const struct plane *plane) {
  char *start = plane->kind == HOST ? plane->host : (char *)plane->device;
  return start + plane->y * plane->pitch + plane->x;
}
result cuMemcpy2DAsync_v2(const struct rectangle *copy, void *stream) {
  char *from = origin(&copy->from), *to = origin(&copy->to);
  if (copy->from.kind == HOST) to_device(stream, from, copy->width * copy->height);
  if (copy->to.kind == HOST) to_host(stream, to, copy->width * copy->height);
  for (size_t row = 0; row < copy->height; row++)
    memcpy(to + row * copy->to.pitch, from + row * copy->from.pitch, copy->width);
  return SUCCESS;
}

/* Kernels do nothing. */

result cuModuleLoadData(void **module, const void *image) { *module = handle(); return image ? SUCCESS : INVALID; }
result cuModuleUnload(void *module) { (void)module; return SUCCESS; }
result cuModuleGetFunction(void **function, void *module, const char *name) { (void)module; *function = handle(); return name ? SUCCESS : INVALID; }
result cuFuncSetAttribute(void *function, int attribute, int value) { (void)function; (void)attribute; (void)value; return SUCCESS; }
result cuFuncGetAttribute(int *value, int attribute, void *function) { (void)function; (void)attribute; *value = 0; return SUCCESS; }
result cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                      void *stream, void **arguments, void **extra) {
  (void)gx; (void)gy; (void)gz; (void)bx; (void)by; (void)bz; (void)shared; (void)stream; (void)arguments; (void)extra;
  return function ? SUCCESS : INVALID;
}
