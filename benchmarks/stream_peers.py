"""The bandwidth of memory as a peer: STREAM's copy and triad in C, with stores past the caches."""

import ctypes
import functools
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.case import Array, Arrays, Call, Converted, PeerMissing, Prepare

BLOCK = 16384  # elements that a thread takes at a time; arrays are multiples of it
SOURCE = """
#if defined(__AVX512F__)
#include <immintrin.h>
#define LANES 16
typedef __m512 vec;
#define LOAD _mm512_loadu_ps
#define STORE _mm512_stream_ps
#define FENCE _mm_sfence()
#elif defined(__AVX__)
#include <immintrin.h>
#define LANES 8
typedef __m256 vec;
#define LOAD _mm256_loadu_ps
#define STORE _mm256_stream_ps
#define FENCE _mm_sfence()
#else
#define LANES 1
typedef float vec;
#define LOAD(p) (*(p))
#define STORE(p, x) (*(p) = (x))
#define FENCE (void)0
#endif
#define EACH(EXPR) \\
  _Pragma("omp parallel for") for (long block = 0; block < n / BLOCK; block++) { \\
    for (long i = block * BLOCK; i < (block + 1) * BLOCK; i += LANES) STORE(out + i, EXPR); \\
    FENCE; }
void copy(float *out, const float *a, long n) { EACH(LOAD(a + i)) }
void triad(float *out, const float *a, const float *b, float s, long n) {
  EACH(LOAD(a + i) + s * LOAD(b + i))
}
"""


@functools.cache
def library() -> ctypes.CDLL:
    """The compiled kernels; PeerMissing without a C compiler."""
    folder = Path(tempfile.mkdtemp())
    (folder / "stream.c").write_text(SOURCE)
    options = f"-O3 -march=native -fopenmp -shared -fPIC -DBLOCK={BLOCK}"
    command = ["gcc", *options.split(), "stream.c", "-o", "stream.so"]
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        return ctypes.CDLL(str(folder / "stream.so"))
    except (OSError, subprocess.CalledProcessError):
        raise PeerMissing("a C compiler with OpenMP: gcc") from None


def copy(arrays: Arrays) -> Call:
    """Copies the first array."""
    (a, *_), out = arrays, aligned(arrays[0].shape)
    kernel, n = library().copy, ctypes.c_long(a.size)

    def call() -> Array:
        kernel(_at(out), _at(a), n)
        return out

    return call


def triad(arrays: Arrays) -> Call:
    """The first array and three times the second."""
    (a, b), out = arrays, aligned(arrays[0].shape)
    kernel, n, s = library().triad, ctypes.c_long(a.size), ctypes.c_float(3)

    def call() -> Array:
        kernel(_at(out), _at(a), _at(b), s, n)
        return out

    return call


def same_traffic(expected: Callable[..., Array]) -> Prepare:
    """A copy of the first array, for a computation that reads and writes as much.

    The array of the copy is no result: the check gets `expected` of the input.
    """
    return lambda arrays: Converted(copy(arrays), lambda _: expected(*arrays))


def aligned(shape: tuple[int, ...]) -> Array:
    """An array of f32 at a multiple of 64 bytes, whose pages are there."""
    count = int(np.prod(shape))
    memory = np.zeros(4 * count + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + 4 * count].view(np.float32).reshape(shape)


def _at(a: Array) -> Any:
    return ctypes.c_void_p(a.ctypes.data)
