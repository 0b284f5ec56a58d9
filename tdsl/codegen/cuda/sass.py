"""The machine code (SASS) of kernels: the instructions of each kind, in all and in its main loop.

NVIDIA's disassembler nvdisasm reads a cubin; neither a GPU nor a driver is needed.
"""

from __future__ import annotations

import functools
import importlib.metadata
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.errors import TargetError

_KERNEL = re.compile(r"^\s*\.section\s+\.text\.([^\s,\"]+)")
_LABEL = re.compile(r"^(\.L\S*):")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)(.*)")
_BRANCH = re.compile(r"`\((\.L\S+?)\)")
_WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16, "256": 32}  # bytes; others have 4
_MEMORY = ("LDG", "STG", "LDS", "STS", "LDGSTS", "LDL", "STL", "LD", "ST")  # accesses that have widths


@frozen
class InstructionMix:
    """The number of instructions of each kind in a kernel, and in `loop`, its main loop.

    A kind is the name without modifiers, such as FFMA, HMMA, BAR or SHFL; accesses have their width in bytes,
    as in LDG.16. The main loop is the innermost one with the most instructions; empty if there is none.
    """

    kernel: str
    all: tuple[tuple[str, int], ...]
    loop: tuple[tuple[str, int], ...]

    @property
    def total(self) -> int:
        """The number of instructions."""
        return sum(n for _, n in self.all)

    def count(self, kind: str, *, in_loop: bool = False) -> int:
        """The instructions of a kind; of accesses those of all widths unless the kind has one."""
        return sum(
            n for name, n in (self.loop if in_loop else self.all) if kind in (name, name.partition(".")[0])
        )

    def __str__(self) -> str:
        loop = " ".join(f"{n} {name}" for name, n in self.loop)
        return f"{self.kernel}: {self.total} instructions" + (f"; main loop: {loop}" if loop else "")


def instruction_mix(text: str) -> tuple[InstructionMix, ...]:
    """The instructions of each kernel in the output of nvdisasm, in its order.

    >>> mix, = instruction_mix('''
    ... 	.section	.text.k,"ax",@progbits
    ...         /*0000*/                   MOV R1, c[0x0][0x28] ;
    ... .L_x_0:
    ...         /*0010*/                   LDG.E.128.CONSTANT R4, [R2.64] ;
    ...         /*0020*/                   FFMA R0, R4, R5, R0 ;
    ...         /*0030*/               @P0 BRA `(.L_x_0) ;
    ...         /*0040*/                   STG.E [R6.64], R0 ;
    ...         /*0050*/                   EXIT ;
    ... ''')
    >>> print(mix, mix.count("STG.4"), mix.count("LDG", in_loop=True))
    k: 6 instructions; main loop: 1 BRA 1 FFMA 1 LDG.16 1 1
    """
    mixes = []
    for name, lines in _kernels(text):
        kinds: list[str] = []
        labels: dict[str, int] = {}
        loops: list[tuple[int, int]] = []
        for line in lines:
            if label := _LABEL.match(line):
                labels[label[1]] = len(kinds)
            elif instruction := _INSTRUCTION.search(line):
                kinds.append(_kind(instruction[1]))
                target = _BRANCH.search(instruction[2]) if kinds[-1] == "BRA" else None
                start = labels.get(target[1]) if target else None
                if start is not None and start < len(kinds) - 1:
                    loops.append((start, len(kinds)))
        inner = [x for x in loops if not any(_is_inside(y, x) for y in loops)]
        first, end = max(inner, key=lambda x: x[1] - x[0], default=(0, 0))
        mixes.append(InstructionMix(name, _counted(kinds), _counted(kinds[first:end])))
    return tuple(mixes)


def _kernels(text: str) -> list[tuple[str, list[str]]]:
    kernels: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if section := _KERNEL.match(line):
            kernels.append((section[1], []))
        elif kernels:
            kernels[-1][1].append(line)
    return kernels


def _kind(mnemonic: str) -> str:
    name, *modifiers = mnemonic.split(".")
    if name not in _MEMORY:
        return name
    return f"{name}.{next((_WIDTHS[m] for m in modifiers if m in _WIDTHS), 4)}"


def _is_inside(inner: tuple[int, int], outer: tuple[int, int]) -> bool:
    return inner != outer and outer[0] <= inner[0] and inner[1] <= outer[1]


def _counted(kinds: Sequence[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(Counter(kinds).items()))


def disassemble(cubin: bytes) -> str:
    """The instructions of a cubin as text; TargetError if nvdisasm is missing or refuses it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernels.cubin")
        path.write_bytes(cubin)
        command = [_nvdisasm(), "-c", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TargetError(
            f"nvdisasm refuses the machine code: {done.stderr.strip()}",
            loc=here(),
            label="this call",
            hint='pip install --upgrade "tdsl[cuda]"',
        )
    return done.stdout


@functools.cache
def _nvdisasm() -> str:
    """The path of the disassembler, which is a package of its own."""
    try:
        files = importlib.metadata.files("nvidia-cuda-nvdisasm") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    path = next((str(f.locate()) for f in files if f.name in ("nvdisasm", "nvdisasm.exe")), None)
    if path is None:
        raise TargetError(
            "machine code is read by nvdisasm, which is not installed",
            loc=here(),
            label="this call",
            hint='pip install "tdsl[cuda]"',
        )
    return path
