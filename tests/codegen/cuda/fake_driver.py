"""A driver without a GPU: memory is that of the process, and launches are written down.

A kernel gives `2 * first + 1` of 100 numbers, unless its module is the `image` of a library that has the
kernels of a text, compiled for the CPU (`shim.py`): then it runs those, as a GPU would.
"""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

SOURCE = r"""
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
typedef unsigned long long ptr;
static char log_[1 << 16];
static int failing = 0, refusing = 0, quiet = 0, launched = 0, device = 0, capability = 90;
static void *context = 0;
static void tell(const char *text) { if (!quiet) strncat(log_, text, sizeof log_ - strlen(log_) - 1); }
const char *fake_log(void) { return log_; }
void fake_clear(void) { log_[0] = 0; }
void fake_fail(int status) { failing = status; log_[0] = 0; }
void fake_refuse(int status) { refusing = status; }
void fake_capability(int n) { capability = n; }
void fake_quiet(int on) { quiet = on; }
void fake_leave(void) { context = 0; }
void fake_device_of_pointers(int n) { device = n; }
int cuInit(int flags) { return 0; }
int cuGetErrorString(int e, const char **s) {
  *s = e == 700 ? "an illegal memory access" : "some error"; return 0;
}
int cuDeviceGetCount(int *n) { *n = 1; return 0; }
int cuDeviceGet(int *d, int n) { *d = n; return 0; }
int cuDeviceGetName(char *name, int size, int d) { strcpy(name, "Fake"); return 0; }
int cuDeviceGetAttribute(int *v, int which, int d) {
  *v = which == 75 ? capability / 10 : which == 76 ? capability % 10 : which == 97 ? 99 << 10 : which == 115;
  return 0;
}
int cuDeviceGetDefaultMemPool(void **pool, int d) { *pool = (void *)3; return 0; }
int cuMemPoolSetAttribute(void *pool, int which, void *value) { return which == 4 ? 0 : 1; }
int cuCtxGetCurrent(void **c) { *c = context; return 0; }
int cuMemsetD8Async(ptr p, unsigned char byte, size_t n, void *stream) {
  if (n < 1 << 20) memset((void *)p, byte, n);  // what is larger only empties caches
  return 0;
}
int cuMemcpyDtoDAsync_v2(ptr to, ptr from, size_t n, void *stream) { return 0; }
int cuCtxGetDevice(int *d) { *d = 0; return context ? 0 : 201; }
int cuDevicePrimaryCtxRetain(void **c, int d) { *c = (void *)1; return 0; }
int cuCtxSetCurrent(void *c) { context = c; return 0; }
int cuDriverGetVersion(int *v) { *v = 13000; return 0; }
struct map {  // of shim_tiles.py
  char *base; int rank, size, swizzle; long long dims[5], steps[5]; int box[5];
};
int cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *array, ptr *dims, ptr *strides,
                           unsigned *box, unsigned *steps, int interleave, int swizzle, int l2, int fill) {
  char line[300];
  sprintf(line, "map of type %d, %llu x %llu, %llu bytes apart, box %u x %u\n", type, dims[1], dims[0],
          strides[0], box[1], box[0]);
  tell(line);
  static const int sizes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2};
  struct map *made = map;
  if ((ptr)map % 64 || (ptr)array % 16 || rank > 5 || sizeof *made > 128) return 1;
  made->base = array;
  made->rank = rank;
  made->size = sizes[type];
  made->swizzle = swizzle ? 16 << swizzle : 0;
  for (int d = 0; d < rank; d++) {
    if (d && strides[d - 1] % 16) return 1;
    made->dims[d] = dims[d];
    made->steps[d] = d ? strides[d - 1] : sizes[type];
    made->box[d] = box[d];
  }
  return 0;
}
int cuModuleLoadData(void **m, const void *image) {
  if (!memcmp(image, "// PTX", 6)) { tell("PTX is assembled\n"); *m = (void *)2; return 0; }
  const char *path = (const char *)image + 4;
  *m = *path == '/' ? dlopen(path, RTLD_NOW) : (void *)2;
  return memcmp(image, "\177ELF", 4) || !*m ? 200 : 0;
}
int cuModuleUnload(void *m) { tell("unloaded\n"); return 0; }
struct function { char name[200]; int (*run)(const unsigned *, void **); int arguments, maps; };
int cuModuleGetFunction(void **f, void *m, const char *name) {
  struct function *made = calloc(1, sizeof *made);
  char entry[220];
  strncpy(made->name, name, sizeof made->name - 1);
  sprintf(entry, "driver_%s", made->name);
  made->arguments = 2;
  if (m != (void *)2) {
    made->run = (int (*)(const unsigned *, void **))dlsym(m, entry);
    sprintf(entry, "count_%s", made->name);
    const int *counts = dlsym(m, entry);
    if (counts) made->arguments = counts[0], made->maps = counts[1];
  }
  *f = made;
  return 0;
}
int cuFuncSetAttribute(void *f, int which, int value) {
  char line[200]; sprintf(line, "%.150s attribute %d = %d\n", (char *)f, which, value); tell(line); return 0;
}
static int live = 0;
int fake_live(void) { return live; }
int cuMemAllocAsync(ptr *p, size_t n, void *stream) {
  live++; *p = (ptr)aligned_alloc(256, (n + 255) / 256 * 256); return 0;
}
int cuMemFreeAsync(ptr p, void *stream) { live--; free((void *)p); return 0; }
int cuPointerGetAttribute(void *value, int which, ptr p) { *(int *)value = device; return which != 9; }
int cuMemcpyHtoDAsync_v2(ptr to, const void *from, size_t n, void *s) {
  memcpy((void *)to, from, n); return 0;
}
int cuMemcpyDtoHAsync_v2(void *to, ptr from, size_t n, void *s) { memcpy(to, (void *)from, n); return 0; }
int cuStreamSynchronize(void *stream) { return launched ? failing : 0; }
int cuEventCreate(void **e, int flags) { *e = malloc(1); return 0; }
int cuEventDestroy_v2(void *e) { free(e); return 0; }
int cuEventRecord(void *e, ptr stream) {
  char line[200]; sprintf(line, "record on %llu\n", stream); tell(line); return 0;
}
int cuStreamWaitEvent(ptr stream, void *e, int flags) {
  char line[200]; sprintf(line, "stream %llu waits\n", stream); tell(line); return 0;
}
int cuEventSynchronize(void *e) { return failing; }
int cuEventElapsedTime(float *ms, void *a, void *b) { *ms = 0.5f; return 0; }
// kernels
struct config { unsigned grid[3], block[3], shared; ptr stream; void *attributes; unsigned count; };
static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER, capture = PTHREAD_MUTEX_INITIALIZER;
static int run(const unsigned *grid, struct function *called, void **arguments) {
  if (called->run) {  // one kernel at a time
    pthread_mutex_lock(&one);
    int status = called->run(grid, arguments) ? 719 : 0;
    pthread_mutex_unlock(&one);
    return status;
  }
  float *in = *(float **)arguments[0], *out = *(float **)arguments[1];
  for (int n = 0; n < 100; n++) out[n] = in[n] * 2 + 1;
  return 0;
}
// graphs: a node has copies of its arguments, as those of CUDA
struct node { struct config config; struct function *called; void *arguments[64]; };
struct graph { struct node *nodes[256]; int count; };
static struct graph *captured = 0;
static ptr capturing = 0, last_stream = 100;
static int graphs = 0, updating = 0;
int fake_graphs(void) { return graphs; }
void fake_refuse_updates(int status) { updating = status; }
static void set_arguments(struct node *n, void **arguments) {
  for (int k = 0; k < n->called->arguments + n->called->maps; k++) {
    int size = k < n->called->arguments ? 8 : 128;
    free(n->arguments[k]);
    n->arguments[k] = aligned_alloc(128, 128);
    memcpy(n->arguments[k], arguments[k], size);
  }
}
int cuStreamCreate(ptr *stream, int flags) { *stream = ++last_stream; return 0; }
int cuStreamDestroy_v2(ptr stream) { return 0; }
int cuStreamBeginCapture_v2(ptr stream, int mode) {
  if (!context) return 201;
  if (stream < 3) return 900;
  pthread_mutex_lock(&capture);
  captured = calloc(1, sizeof *captured);
  capturing = stream;
  graphs++;
  tell("capture\n");
  return 0;
}
int cuStreamEndCapture(ptr stream, struct graph **g) {
  *g = captured; captured = 0; capturing = 0; tell("captured\n");
  pthread_mutex_unlock(&capture);
  return 0;
}
int cuStreamGetCaptureInfo_v2(ptr stream, int *status, ptr *id, void **g, void ***nodes, size_t *count) {
  static void *last;
  last = captured->nodes[captured->count - 1];
  *status = 1; *nodes = &last; *count = 1;
  return 0;
}
int cuGraphInstantiateWithFlags(struct graph **made, struct graph *g, ptr flags) {
  *made = malloc(sizeof *g); **made = *g; graphs++; return 0;
}
int cuGraphDestroy(struct graph *g) { graphs--; tell("graph is destroyed\n"); return 0; }
int cuGraphExecDestroy(struct graph *g) { graphs--; return 0; }
struct params {
  void *called; unsigned grid[3], block[3], shared; void **arguments, **extra; void *kernel, *context;
};
int cuGraphExecKernelNodeSetParams_v2(struct graph *g, struct node *n, const struct params *p) {
  char line[300];
  sprintf(line, "update of %s\n", (char *)p->called);
  tell(line);
  if (updating) return updating;
  if (p->called != n->called || memcmp(p->grid, n->config.grid, 24)) return 1;
  if (p->shared != n->config.shared) return 1;
  set_arguments(n, p->arguments);
  return 0;
}
int cuGraphLaunch(struct graph *g, ptr stream) {
  char line[200];
  if (!context) return 201;
  if (refusing) return refusing;
  launched = 1;
  sprintf(line, "graph of %d on %llu\n", g->count, stream);
  tell(line);
  for (int n = 0; n < g->count; n++) {
    int status = run(g->nodes[n]->config.grid, g->nodes[n]->called, g->nodes[n]->arguments);
    if (status) return status;
  }
  return 0;
}
int cuLaunchKernelEx(const struct config *c, void *f, void **arguments, void **extra) {
  if (!context) return 201;
  if (refusing) return refusing;
  if (captured && c->stream == capturing) {
    struct node *n = calloc(1, sizeof *n);
    n->config = *c;
    n->called = f;
    set_arguments(n, arguments);
    captured->nodes[captured->count++] = n;
    return 0;
  }
  launched = 1;
  if (!quiet) {
    char line[200], on[60] = "";
    if (c->stream != 1) sprintf(on, " stream %llu", c->stream);
    const int *attribute = c->attributes;  // id, padding, value
    if (c->count && attribute[0] == 2 && attribute[2] == 1) strcat(on, " cooperative");
    else if (c->count) strcat(on, attribute[0] == 6 && attribute[2] == 1 ? " early" : " unknown attribute");
    sprintf(line, "%s grid %u %u %u block %u %u %u shared %u%s\n", (char *)f, c->grid[0], c->grid[1],
            c->grid[2], c->block[0], c->block[1], c->block[2], c->shared, on);
    tell(line);
  }
  return run(c->grid, f, arguments);
}
"""


def image(library: Path) -> bytes:
    """A module whose kernels are in a library of this machine."""
    return b"\x7fELF" + str(library).encode() + b"\0"


class FakeDriver:
    """The library as a file, and what happened in it."""

    def __init__(self, folder: Path) -> None:
        (folder / "driver.c").write_text(SOURCE)
        self.path = str(folder / "libfakecuda.so")
        command = [
            "gcc",
            "-shared",
            "-fPIC",
            "-w",
            "-o",
            self.path,
            str(folder / "driver.c"),
            "-ldl",
        ]
        subprocess.run(command, check=True)
        self._lib = ctypes.CDLL(self.path)
        self._lib.fake_log.restype = ctypes.c_char_p

    def log(self) -> str:
        """What was launched, and how."""
        return self._lib.fake_log().decode()

    def clear(self) -> None:
        """Forget what was launched."""
        self._lib.fake_clear()

    def fail(self, status: int) -> None:
        """Let the next kernels end with an error of CUDA; 0 for none."""
        self._lib.fake_fail(status)

    def refuse(self, status: int) -> None:
        """Let the next launches be refused; 0 for none."""
        self._lib.fake_refuse(status)

    def leave(self) -> None:
        """Let this thread have no context any more."""
        self._lib.fake_leave()

    def place_pointers(self, ordinal: int) -> None:
        """Let all memory be on the GPU with this number."""
        self._lib.fake_device_of_pointers(ordinal)

    def become(self, capability: int) -> None:
        """Let the GPU have another compute capability, such as 80, before it is looked for."""
        self._lib.fake_capability(capability)

    def refuse_updates(self, status: int) -> None:
        """Let graphs refuse other arguments; 0 for none."""
        self._lib.fake_refuse_updates(status)

    @property
    def graphs(self) -> int:
        """How many graphs there are, executable ones and others."""
        return self._lib.fake_graphs()

    def quiet(self) -> None:
        """Write nothing down."""
        self._lib.fake_quiet(1)

    @property
    def live(self) -> int:
        """How many pieces of memory there are."""
        return self._lib.fake_live()
