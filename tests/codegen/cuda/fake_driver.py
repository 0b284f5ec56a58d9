"""A driver without a GPU: memory is that of the process, launches are written down and copy their input."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

SOURCE = r"""
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
typedef unsigned long long ptr;
static char log_[1 << 16];
static int failing = 0;
static void tell(const char *text) { strncat(log_, text, sizeof log_ - strlen(log_) - 1); }
const char *fake_log(void) { return log_; }
void fake_fail(int status) { failing = status; log_[0] = 0; }
int cuInit(int flags) { return 0; }
int cuGetErrorString(int e, const char **s) {
  *s = e == 700 ? "an illegal memory access" : "some error"; return 0;
}
int cuDeviceGetCount(int *n) { *n = 1; return 0; }
int cuDeviceGet(int *d, int n) { *d = n; return 0; }
int cuDeviceGetName(char *name, int size, int d) { strcpy(name, "Fake"); return 0; }
int cuDeviceGetAttribute(int *v, int which, int d) { *v = which == 75 ? 9 : 0; return 0; }
int cuCtxGetCurrent(void **c) { *c = 0; return 0; }
int cuDevicePrimaryCtxRetain(void **c, int d) { *c = (void *)1; return 0; }
int cuCtxSetCurrent(void *c) { return 0; }
int cuModuleLoadData(void **m, const void *image) {
  *m = (void *)2; return memcmp(image, "\177ELF", 4) ? 200 : 0;
}
int cuModuleGetFunction(void **f, void *m, const char *name) { *f = strdup(name); return 0; }
int cuFuncSetAttribute(void *f, int which, int value) {
  char line[200]; sprintf(line, "%s attribute %d = %d\n", (char *)f, which, value); tell(line); return 0;
}
int cuMemAlloc_v2(ptr *p, size_t n) { *p = (ptr)malloc(n); return 0; }
int cuMemFree_v2(ptr p) { free((void *)p); return 0; }
int cuMemcpyHtoD_v2(ptr to, const void *from, size_t n) { memcpy((void *)to, from, n); return 0; }
int cuMemcpyDtoH_v2(void *to, ptr from, size_t n) { memcpy(to, (void *)from, n); return 0; }
int cuCtxSynchronize(void) { return failing; }
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **arguments, void **extra) {
  char line[200];
  sprintf(line, "%s grid %u %u %u block %u %u %u shared %u\n", (char *)f, gx, gy, gz, bx, by, bz, shared);
  tell(line);
  float *in = *(float **)arguments[0], *out = *(float **)arguments[1];
  for (int n = 0; n < 100; n++) out[n] = in[n] * 2 + 1;
  return 0;
}
"""


class FakeDriver:
    """The library as a file, and what happened in it."""

    def __init__(self, folder: Path) -> None:
        (folder / "driver.c").write_text(SOURCE)
        self.path = str(folder / "libfakecuda.so")
        command = ["gcc", "-shared", "-fPIC", "-w", "-o", self.path, str(folder / "driver.c")]
        subprocess.run(command, check=True)
        self._lib = ctypes.CDLL(self.path)
        self._lib.fake_log.restype = ctypes.c_char_p

    def log(self) -> str:
        """What was launched, and how."""
        return self._lib.fake_log().decode()

    def fail(self, status: int) -> None:
        """Let the next kernels end with an error of CUDA; 0 for none."""
        self._lib.fake_fail(status)
