"""`write_launcher`: kernels as a C file with a header, which load and launch them by the CUDA driver.

NAME.h   NAME_kernels, NAME_load, NAME_unload, and NAME, which launches the kernels on a stream
NAME.c   the machine code for each architecture, and for each the launches

The C file needs `cuda.h` and libcuda. The launches are those of `launcher.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tdsl.codegen.cuda.record import KernelRecord, Module
from tdsl.codegen.cuda.size_formulas import Count, argument_name
from tdsl.codegen.cuda.tensor_maps import encoding_of
from tdsl.codegen.gpu.launches import ARRIVED_BLOCKS, FAILED_CHECK
from tdsl.codegen.ir.loops import Argument, BufferParam, ScalarParam, SizeParam
from tdsl.codegen.runtime.c_parameters import c_names, c_parameters, c_type, meaning
from tdsl.codegen.runtime.signature import Signature
from tdsl.lang.expr import Binary, Cast, Const, Expr, Select, Size, Unary
from tdsl.machine.gpu import capability, is_ptx
from tdsl.schedule.specialize import decode_condition

_USED = {
    "kernels", "stream", "status", "arguments", "maps", "memory", "launch", "allocate", "release", "check",
    "aligned", "encode", "floordiv_of", "mod_of", "min_of", "max_of",
}  # fmt: skip
"""Names that the launching functions use."""
_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip
_WORDS_A_LINE = 5  # of code


def write_launcher(
    modules: Sequence[Module], params: Sequence[Argument], signature: Signature, folder: Path, name: str
) -> tuple[Path, Path]:
    """Writes the C file and its header; returns the header and the C file."""
    best_first = sorted(modules, key=lambda m: (not is_ptx(m.arch), capability(m.arch), m.arch), reverse=True)
    writer = _Writer(best_first, params, signature, name)
    folder.mkdir(parents=True, exist_ok=True)
    header, source = folder / f"{name}.h", folder / f"{name}.c"
    header.write_text(writer.header())
    source.write_text("".join(writer.source()))
    return header, source


def _with_names(names: Mapping[str, str], requested: Mapping[str, str]) -> dict[str, str]:
    """`names` in C by argument, and one for each argument of `requested`, like its name there.

    >>> _with_names({"x": "x"}, {"size x": "x", "y": "stream"})
    {'x': 'x', 'size x': 'x_', 'y': 'stream_'}
    """
    chosen = c_names(requested.values(), {*_USED, *names.values()})
    return {**names, **dict(zip(requested, chosen, strict=True))}


def _type_of(p: Argument) -> str:
    match p:
        case BufferParam():
            return "CUdeviceptr"
        case SizeParam():
            return "int64_t"
        case ScalarParam(_, dtype):
            return c_type(dtype)


class _Writer:
    """The texts for modules, of which the first that runs on a device is loaded."""

    def __init__(
        self, modules: Sequence[Module], params: Sequence[Argument], signature: Signature, name: str
    ) -> None:
        self.modules, self.name, self.upper = modules, name, name.upper()
        self.c_params, self.arrays = c_parameters(params), {a.name: a for a in signature.arrays}
        self.names = _with_names({}, {argument_name(p): p.name for p in self.c_params})  # in C

    def header(self) -> str:
        """The text of the header, for C99 and C++."""
        rows = [f" *   {self.names[argument_name(p)]:12} {meaning(p, self.arrays)}" for p in self.c_params]
        archs = ", ".join(f"{m.arch} (PTX)" if is_ptx(m.arch) else m.arch for m in self.modules)
        return f"""#ifndef {self.upper}_H
#define {self.upper}_H

#include <cuda.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

/* The kernels, loaded in a context. */
typedef struct {{
  CUmodule module;
  CUfunction functions[{max(len(m.kernels) for m in self.modules) or 1}];
  int code; /* which of the architectures */
}} {self.name}_kernels;

/* Loads the kernels for the device of the current context, of {archs}.
 * CUDA_ERROR_NO_BINARY_FOR_GPU if none of them runs there.
 */
CUresult {self.name}_load({self.name}_kernels *kernels);
CUresult {self.name}_unload({self.name}_kernels *kernels);

/* Launches the kernels on a stream, in the context in which they were loaded.
 *
{chr(10).join(rows)}
 *
 * Arrays are row-major without gaps, and begin at multiples of 16 bytes. Outputs overlap no other array.
 * CUDA_ERROR_INVALID_VALUE for a negative extent, an array that begins elsewhere, and a grid that is too
 * large. Several threads may launch at once.{self._about_checks()}
 */
CUresult {self.name}({self._parameters()});

#ifdef __cplusplus
}}
#endif

#endif
"""

    def _about_checks(self) -> str:
        if not any(name == FAILED_CHECK for m in self.modules for name, _ in m.temporaries):
            return ""
        return "\n * Waits for the kernels; CUDA_ERROR_ASSERT if a condition of the program does not hold."

    def _parameters(self) -> str:
        shown = [f"const {self.name}_kernels *kernels", "CUstream stream"]
        shown += [f"{_type_of(p)} {self.names[argument_name(p)]}" for p in self.c_params]
        return ", ".join(shown)

    def source(self) -> Iterator[str]:
        """The parts of the C file."""
        body = [*self._launching(), *self._checking()]
        yield f'#include "{self.name}.h"\n\n#include <string.h>\n'
        for n, m in enumerate(self.modules):
            yield from self._code(n, m)
        yield self._table()
        yield _LOAD.replace("NAME", self.name).replace("COUNT", str(len(self.modules)))
        text = "".join(body)
        yield from (helper for call, helper in _HELPERS.items() if f"{call}(" in text)
        yield text

    def _code(self, n: int, module: Module) -> Iterator[str]:
        code = bytes(module.code) + bytes(-len(module.code) % 8)
        yield f"\n/* {module.arch} */\nstatic const uint64_t code_{n}[] = {{"
        for k in range(0, len(code), 8):
            yield "\n  " if k % (8 * _WORDS_A_LINE) == 0 else " "
            yield f"UINT64_C(0x{int.from_bytes(code[k : k + 8], 'little'):016x}),"
        yield "\n};\n"
        names = ", ".join(f'"{k.name}"' for k in module.kernels)
        shared = ", ".join(str(k.shared) for k in module.kernels)
        yield f"static const char *const names_{n}[] = {{{names}}};\n"
        yield f"static const int shared_{n}[] = {{{shared}}};\n"

    def _table(self) -> str:
        rows = []
        for n, m in enumerate(self.modules):
            kind = "PTX" if is_ptx(m.arch) else "ONE_DEVICE" if m.arch.endswith("a") else "FAMILY"
            largest = max((k.shared for k in m.kernels), default=0)
            rows.append(
                f"  {{code_{n}, {capability(m.arch)}, {kind}, {largest}, names_{n}, shared_{n}, "
                f"{len(m.kernels)}}},\n"
            )
        return (
            "\n/* What runs where: on this compute capability only, on this and later ones of its family,\n"
            " * or on all later ones. */\n"
            "enum { ONE_DEVICE, FAMILY, PTX };\n"
            "static const struct {\n"
            "  const uint64_t *code;\n  int capability, kind, shared;\n"
            "  const char *const *names;\n  const int *kernel_shared;\n  int count;\n"
            f"}} codes[] = {{\n{''.join(rows)}}};\n"
        )

    def _launching(self) -> Iterator[str]:
        for n, m in enumerate(self.modules):
            yield f"\nstatic CUresult launch_{n}({self._parameters()}) {{\n"
            yield from self._launches(m)
            yield "  return status;\n}\n"

    def _launches(self, m: Module) -> Iterator[str]:
        yield "  CUresult status = CUDA_SUCCESS;\n"
        names = _with_names(self.names, {name: f"memory_{n}" for n, (name, _) in enumerate(m.temporaries)})
        temporaries = [(name, names[name], count) for name, count in m.temporaries]
        for name, memory, count in temporaries:
            zero = int(name in (FAILED_CHECK, ARRIVED_BLOCKS))
            yield f"  CUdeviceptr {memory} = 0; /* {name} */\n"
            yield f"  allocate(&status, &{memory}, {self._count(count)}, {zero}, stream);\n"
        for n, k in enumerate(m.kernels):
            yield from self._launch(n, k, names)
        if any(name == FAILED_CHECK for name, _, _ in temporaries):
            yield f"  check(&status, {names[FAILED_CHECK]}, stream);\n"
        for _, memory, _ in temporaries[::-1]:
            yield f"  release(&status, {memory}, stream);\n"
        if not m.kernels:
            yield "  (void)kernels;\n  (void)stream;\n"

    def _launch(self, n: int, k: KernelRecord, names: Mapping[str, str]) -> Iterator[str]:
        pointers = [f"(void *)&{names[a]}" for a in k.arguments]
        pointers += [f"&maps[{m}]" for m in range(len(k.maps))]
        grid, block = ", ".join(map(self._count, k.grid)), ", ".join(map(str, k.block))
        kind = "COOPERATIVE" if k.cooperative else "IGNORE"
        kind = "PROGRAMMATIC_STREAM_SERIALIZATION" if k.early else kind
        yield f"  {{ /* {k.name} */\n"
        if k.maps:
            yield f"    cuuint64_t memory[{16 * len(k.maps) + 8}];\n"
            yield "    CUtensorMap *maps = aligned(memory);\n"
        for m, tile in enumerate(k.maps):
            e = encoding_of(tile)
            shown = [", ".join(map(str, x)) for x in (e.extents, e.strides, e.box)]
            yield (
                f"    encode(&status, &maps[{m}], {e.dtype}, {len(e.extents)}, {self.names[tile.array]},\n"
                f"           (const cuuint64_t[]){{{shown[0]}}}, (const cuuint64_t[]){{{shown[1]}}},\n"
                f"           (const cuuint32_t[]){{{shown[2]}}}, {e.swizzle});\n"
            )
        yield f"    void *arguments[] = {{{', '.join(pointers) or '0'}}};\n"
        yield (
            f"    launch(&status, kernels->functions[{n}], (const int64_t[]){{{grid}}},\n"
            f"           (const unsigned[]){{{block}}}, {k.shared}, CU_LAUNCH_ATTRIBUTE_{kind}, stream,\n"
            "           arguments);\n  }\n"
        )

    def _checking(self) -> Iterator[str]:
        yield f"\nCUresult {self.name}({self._parameters()}) {{\n"
        for p in self.c_params:
            name = self.names[argument_name(p)]
            if isinstance(p, SizeParam):
                yield f"  if ({name} < 0) return CUDA_ERROR_INVALID_VALUE;\n"
        for p in self.c_params:
            if isinstance(p, BufferParam):
                name, extents = self.names[argument_name(p)], p.argument.extents
                open_extents = [self._expr(e) for e in extents if not isinstance(e, Const)]
                for e in open_extents:
                    yield f"  if ({e} < 0) return CUDA_ERROR_INVALID_VALUE;\n"
                elements = " && ".join(f"{self._expr(e)} != 0" for e in extents) or "1"
                yield f"  if ({name} % 16 != 0 || ({name} == 0 && {elements}))\n"
                yield "    return CUDA_ERROR_INVALID_VALUE;\n"
        given = ", ".join(["kernels", "stream", *(self.names[argument_name(p)] for p in self.c_params)])
        yield "  switch (kernels->code) {\n"
        for n in range(len(self.modules)):
            yield f"    case {n}: return launch_{n}({given});\n"
        yield "    default: return CUDA_ERROR_INVALID_HANDLE;\n  }\n}\n"

    def _count(self, count: Count) -> str:
        return str(count) if isinstance(count, int) else self._expr(decode_condition(count))

    def _expr(self, e: Expr) -> str:
        """An expression of sizes as `extent` computes it, in C."""
        match e:
            case Const(value):
                return f"INT64_C({int(value)})" if int(value) >= 1 << 31 else str(int(value))
            case Size(name):
                return self.names[f"size {name}"]
            case Binary(op, left, right) if op in _INFIX:
                return f"({self._expr(left)} {_INFIX[op]} {self._expr(right)})"
            case Binary(op, left, right):
                return f"{op}_of({self._expr(left)}, {self._expr(right)})"
            case Unary("neg", x):
                return f"(-{self._expr(x)})"
            case Select(cond, yes, no):
                return f"({self._expr(cond)} ? {self._expr(yes)} : {self._expr(no)})"
            case Cast(x):
                return self._expr(x)
            case _:
                raise AssertionError(f"not an extent: {e!r}")


_LOAD = """
static int runs(int n, int capability) {
  if (codes[n].kind == ONE_DEVICE) return codes[n].capability == capability;
  return codes[n].capability <= capability &&
         (codes[n].kind == PTX || codes[n].capability / 10 == capability / 10);
}

CUresult NAME_load(NAME_kernels *kernels) {
  CUdevice device;
  int major = 0, minor = 0, shared = 0, n = 0;
  CUresult status = cuCtxGetDevice(&device);
  if (!status) status = cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
  if (!status) status = cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
  if (!status)
    status = cuDeviceGetAttribute(&shared, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device);
  if (status) return status;
  while (n < COUNT && !(runs(n, 10 * major + minor) && codes[n].shared <= shared)) n++;
  if (n == COUNT) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  memset(kernels, 0, sizeof *kernels);
  kernels->code = n;
  status = cuModuleLoadData(&kernels->module, codes[n].code);
  if (status) return status;
  for (int k = 0; k < codes[n].count && !status; k++) {
    status = cuModuleGetFunction(&kernels->functions[k], kernels->module, codes[n].names[k]);
    if (!status && codes[n].kernel_shared[k])
      status = cuFuncSetAttribute(kernels->functions[k], CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                  codes[n].kernel_shared[k]);
  }
  if (status) cuModuleUnload(kernels->module);
  return status;
}

CUresult NAME_unload(NAME_kernels *kernels) { return cuModuleUnload(kernels->module); }
"""

# What the launching functions may call, by name. After an error only memory is freed.
_HELPERS = {
    "floordiv_of": """
static int64_t floordiv_of(int64_t a, int64_t b) {
  return b ? a / b - (a % b && (a < 0) != (b < 0)) : 0;
}
""",
    "mod_of": """
static int64_t mod_of(int64_t a, int64_t b) { return b ? (a % b + b) % b : 0; }
""",
    "min_of": """
static int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
""",
    "max_of": """
static int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }
""",
    "allocate": """
static void allocate(CUresult *status, CUdeviceptr *memory, int64_t bytes, int zero, CUstream stream) {
  if (!*status && bytes > 0) *status = cuMemAllocAsync(memory, (size_t)bytes, stream);
  if (!*status && bytes > 0 && zero) *status = cuMemsetD8Async(*memory, 0, (size_t)bytes, stream);
}
""",
    "release": """
/* Frees memory after the kernels before it in the stream, also after an error. */
static void release(CUresult *status, CUdeviceptr memory, CUstream stream) {
  CUresult freed = memory ? cuMemFreeAsync(memory, stream) : CUDA_SUCCESS;
  if (!*status) *status = freed;
}
""",
    "check": """
/* Waits for the kernels, and reads which check failed. */
static void check(CUresult *status, CUdeviceptr record, CUstream stream) {
  int64_t site = 0;
  if (!*status) *status = cuMemcpyDtoHAsync(&site, record, sizeof site, stream);
  if (!*status) *status = cuStreamSynchronize(stream);
  if (!*status && site) *status = CUDA_ERROR_ASSERT;
}
""",
    "aligned": """
/* The first multiple of 64 bytes, where a tensor map begins; C99 has no _Alignas. */
static CUtensorMap *aligned(void *memory) {
  return (CUtensorMap *)(((uintptr_t)memory + 63) / 64 * 64);
}
""",
    "encode": """
static void encode(CUresult *status, CUtensorMap *map, int type, cuuint32_t rank, CUdeviceptr array,
                   const cuuint64_t *extents, const cuuint64_t *strides, const cuuint32_t *box, int swizzle) {
  static const cuuint32_t steps[] = {1, 1, 1, 1, 1};
  if (!*status)
    *status = cuTensorMapEncodeTiled(map, (CUtensorMapDataType)type, rank, (void *)(uintptr_t)array, extents,
                                     strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                     (CUtensorMapSwizzle)swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                                     CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}
""",
    "launch": """
static void launch(CUresult *status, CUfunction function, const int64_t *grid, const unsigned *block,
                   unsigned shared, CUlaunchAttributeID id, CUstream stream, void **arguments) {
  CUlaunchConfig config;
  CUlaunchAttribute attribute;
  if (*status || !grid[0] || !grid[1] || !grid[2]) return;
  if (grid[0] > 2147483647 || grid[1] > 65535 || grid[2] > 65535) {
    *status = CUDA_ERROR_INVALID_VALUE;
    return;
  }
  memset(&config, 0, sizeof config);
  memset(&attribute, 0, sizeof attribute);
  attribute.id = id;
  if (id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) attribute.value.cooperative = 1;
  else attribute.value.programmaticStreamSerializationAllowed = 1;
  config.gridDimX = (unsigned)grid[0];
  config.gridDimY = (unsigned)grid[1];
  config.gridDimZ = (unsigned)grid[2];
  config.blockDimX = block[0];
  config.blockDimY = block[1];
  config.blockDimZ = block[2];
  config.sharedMemBytes = shared;
  config.hStream = stream;
  config.attrs = &attribute;
  config.numAttrs = id != CU_LAUNCH_ATTRIBUTE_IGNORE;
  *status = cuLaunchKernelEx(&config, function, arguments, 0);
}
""",
}
