"""A compiled module as plain data: what a launch needs, without the tools that compiled it.

In the disk cache it is JSON followed by the code, a cubin or PTX:

    length of the JSON | {"source": ..., "arch": ..., "kernels": [...], "temporaries": [...], ...} | code
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, field
from typing import Any

from tdsl.codegen.cuda.size_formulas import Count, count_text
from tdsl.codegen.gpu.tensor_map_specs import TensorMapSpec
from tdsl.core.node import frozen
from tdsl.machine.devices import describe_gpu
from tdsl.machine.occupancy import Occupancy, occupancy

Extents = tuple[int, int, int]
_LENGTH = struct.Struct("<I")


@frozen
class KernelRecord:
    """One launch: names of its arguments, its grid and block, and the dynamic `shared` bytes to request.

    `maps` are the tensor maps, passed after `arguments`; `cluster` is the number of blocks of a cluster. If
    `early`, it is launched before the previous kernel ends, and waits for it (programmatic dependent launch);
    if `cooperative`, all its blocks are resident at a time.

    `registers`, `stack` and `spills` (bytes) are per thread, `used_shared` the shared bytes of a block.
    """

    name: str
    arguments: tuple[str, ...]
    grid: tuple[Count, ...]
    block: Extents
    shared: int
    used_shared: int
    registers: int
    stack: int
    spills: int
    maps: tuple[TensorMapSpec, ...] = ()
    cluster: int = 1
    early: bool = False
    cooperative: bool = False

    def __str__(self) -> str:
        blocks, threads = (" x ".join(map(count_text, x)) for x in (self.grid, self.block))
        stack = f", {self.stack} bytes of stack" if self.stack else ""
        clusters = f" in clusters of {self.cluster}," if self.cluster > 1 else ""
        tiles = ", ".join(f"{m.array} {' x '.join(map(str, m.box))}" for m in self.maps)
        return (
            f"{self.name}({', '.join(self.arguments)}): {blocks} blocks{clusters} of {threads} threads, "
            f"{self.used_shared} shared bytes, {self.registers} registers{stack}, "
            f"{self.spills} bytes spilled"
            + (", launched before the previous kernel ends" if self.early else "")
            + (", cooperative" if self.cooperative else "")
        ) + (f"\n  tiles by tensor maps (TMA): {tiles}" if tiles else "")


@frozen
class Module:
    """The kernels of a program in launch order, and temporary buffers between them by name and bytes.

    `code` is a cubin for the architecture `arch`, or PTX for one such as compute_90. Its loops are not
    unrolled if `limit` is not 0: the seconds after which the compiler was stopped that unrolled them.

    >>> kernel = KernelRecord("k", ("a", "b"), (7, 1, 1), (256, 1, 1), 0, 1024, 12, 0, 0)
    >>> print(Module("", "sm_80", (kernel,), (("t", 4096),), (), b""))
    k(a, b): 7 x 1 x 1 blocks of 256 x 1 x 1 threads, 1024 shared bytes, 12 registers, 0 bytes spilled
      64 of 64 warps of a multiprocessor: 8 blocks by threads, 16 by registers, 82 by shared bytes, 32 at most
    memory between kernels: t, 4096 bytes
    """

    source: str = field(repr=False)
    arch: str
    kernels: tuple[KernelRecord, ...]
    temporaries: tuple[tuple[str, Count], ...]
    warnings: tuple[str, ...]
    code: bytes = field(repr=False)
    limit: float = 0.0

    def __str__(self) -> str:
        temporaries = [
            f"memory between kernels: {name}, {count_text(n)} bytes" for name, n in self.temporaries
        ]
        kernels = [f"{k}\n  {self.occupancy(k)}" for k in self.kernels]
        return "\n".join([*kernels, *temporaries, *self.warnings])

    @property
    def spills(self) -> int:
        """The bytes that a thread of each kernel spills, of all kernels."""
        return sum(k.spills for k in self.kernels)

    def occupancy(self, kernel: KernelRecord) -> Occupancy:
        """The occupancy of a kernel of the module."""
        gpu = describe_gpu(self.arch).gpu
        assert gpu is not None, "an architecture of GPUs"
        return occupancy(gpu, kernel.block, kernel.registers, kernel.used_shared)


def pack(module: Module) -> bytes:
    """Serialise a module to bytes.

    >>> module = Module("text", "sm_80", (), (("t", 8),), (), b"code")
    >>> unpack(pack(module)) == module
    True
    """
    fields = asdict(module)
    code = fields.pop("code")
    about = json.dumps(fields).encode()
    return _LENGTH.pack(len(about)) + about + bytes(code)


def unpack(payload: bytes) -> Module:
    """The module that `pack` serialised."""
    (length,) = _LENGTH.unpack_from(payload)
    start = _LENGTH.size + length
    about: dict[str, Any] = json.loads(payload[_LENGTH.size : start])
    kernels = tuple(map(kernel_of, about["kernels"]))
    return Module(
        about["source"], about["arch"], kernels, _tuples(about["temporaries"]),
        tuple(about["warnings"]), payload[start:], about["limit"],
    )  # fmt: skip


def kernel_of(fields: dict[str, Any]) -> KernelRecord:
    """The record of a kernel from its fields as JSON returns them."""
    plain = {name: _tuples(value) for name, value in fields.items() if name != "maps"}
    maps = (TensorMapSpec(**{k: _tuples(v) for k, v in x.items()}) for x in fields["maps"])
    return KernelRecord(**plain, maps=tuple(maps))


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
