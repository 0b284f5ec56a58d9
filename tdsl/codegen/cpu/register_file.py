"""Instructions on tile registers, as in AMX: allocates the registers, and loads and stores the tiles.

Consecutive invocations share the tiles that they load. Around a loop whose body consists of invocations only,
the accumulator tiles stay in registers:

    load sums                              tmm0 .. tmm3
    for k:
      load operands                        tmm4 .. tmm7, each once
      invoke, invoke, ...
    store sums

The caller of a function that uses tile registers configures them, see `configured_register_files`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tdsl.codegen.cpu.builder import Builder
from tdsl.codegen.cpu.context import Context
from tdsl.codegen.cpu.emit_expr import access
from tdsl.codegen.ir.loops import Block, For, Invoke, Operand, Prefetch, Stmt
from tdsl.core.node import post_order
from tdsl.lang.affine import constant_difference, variables
from tdsl.machine.instructions.instruction import Instruction, RegisterFile

_OPERAND_REGISTERS = 2  # registers; the accumulators of a loop leave at least these for operands


def instruction_of(cx: Context, s: Stmt) -> Instruction | None:
    """The instruction that `s` invokes if its operands are in tile registers, else None."""
    if not isinstance(s, Invoke):
        return None
    tile_instructions = (i for i in cx.kernel.instructions if isinstance(i, Instruction) and i.registers)
    return next((i for i in tile_instructions if i.name == s.instruction), None)


def emit_invocations(cx: Context, body: Sequence[Stmt], begin: int) -> int:
    """Write the invocations from `body[begin]` on that use the same register file; their number, or 0."""
    first = instruction_of(cx, body[begin])
    if first is None or first.registers is None:
        return 0
    tiles, count = _TileAllocator(cx, first.registers), 0
    for s in body[begin:]:
        instruction = instruction_of(cx, s)
        if instruction is None or instruction.registers != first.registers:
            break
        assert isinstance(s, Invoke)
        tiles.invoke(instruction, s)
        count += 1
    tiles.flush()
    cx.invalidate()
    return count


@contextmanager
def accumulators_in_registers(cx: Context, s: For) -> Iterator[None]:
    """Keep the accumulator tiles of a loop in registers if its body consists of invocations only."""
    outputs = {} if cx.tile_registers else _resident_accumulators(cx, s)
    if not outputs:
        yield
        return
    (file,) = {i.registers for i in outputs.values() if i.registers is not None}
    _add_register_file(cx, file)
    cx.tile_registers = {operand: n for n, operand in enumerate(outputs)}
    for operand, n in cx.tile_registers.items():
        _transfer(cx, file.load, n, operand)
    yield
    registers, cx.tile_registers = cx.tile_registers, {}
    for operand, n in registers.items():
        _transfer(cx, file.store, n, operand)


@contextmanager
def configured_register_files(b: Builder, files: dict[str, RegisterFile]) -> Iterator[None]:
    """Configure register files before the call written inside, and release them after it."""
    states = {name: b.alloca(f"[{file.state} x i8]", 64) for name, file in files.items()}
    for name, file in files.items():
        for line in file.begin:
            b.do(line.format(state=states[name]))
    yield
    for name, file in files.items():
        for line in file.end:
            b.do(line.format(state=states[name]))


class _TileAllocator:
    """Allocates registers of a file to tiles, the least recently used first in `register_of_tile`."""

    def __init__(self, cx: Context, file: RegisterFile) -> None:
        self.cx, self.file = cx, file
        self.register_of_tile: dict[Operand, int] = {}
        self.modified: dict[Operand, tuple[int, ...]] = {}  # tiles to store, with their shapes
        self.free = [n for n in range(file.count) if n not in cx.tile_registers.values()]
        _add_register_file(cx, file)

    def invoke(self, instruction: Instruction, s: Invoke) -> None:
        """Load the operands that are not in registers, and execute the instruction."""
        shapes = dict(zip(s.operands, instruction.shapes(), strict=True))
        out = s.operands[0]
        if any(self._overlaps_modified(o, shape) for o, shape in shapes.items()):
            self.flush()
        numbers = [self._register(o, s.operands) for o in s.operands]
        registers = dict(zip(instruction.operands(), numbers, strict=True))
        types = ", ".join(["i8 immarg"] * len(numbers))
        line = instruction.llvm.format(**registers)
        self.cx.b.declare(f"declare void @{line.partition('@')[2].partition('(')[0]}({types})")
        self.cx.b.do(line)
        if out not in self.cx.tile_registers:
            self.modified[out] = shapes[out]

    def flush(self) -> None:
        """Store the modified tiles, and free the registers of all tiles that no loop keeps in registers."""
        for operand in self.modified:
            _transfer(self.cx, self.file.store, self.register_of_tile[operand], operand)
        self.free += self.register_of_tile.values()
        self.register_of_tile, self.modified = {}, {}

    def _overlaps_modified(self, o: Operand, shape: tuple[int, ...]) -> bool:
        """True if a tile may overlap in memory another tile that has been modified and not yet stored."""
        return any(
            o != other and o.buffer == other.buffer and not _are_disjoint(o, shape, other, extents)
            for other, extents in self.modified.items()
        )

    def _register(self, o: Operand, operands: tuple[Operand, ...]) -> int:
        register = self.cx.tile_registers.get(o, self.register_of_tile.pop(o, None))
        if register is None:
            if not self.free:
                evicted = next(x for x in self.register_of_tile if x not in operands)
                if evicted in self.modified:
                    _transfer(self.cx, self.file.store, self.register_of_tile[evicted], evicted)
                    del self.modified[evicted]
                self.free.append(self.register_of_tile.pop(evicted))
            register = self.free.pop(0)
            _transfer(self.cx, self.file.load, register, o)
        if o not in self.cx.tile_registers:
            self.register_of_tile[o] = register
        return register


def _resident_accumulators(cx: Context, s: For) -> dict[Operand, Instruction]:
    """The accumulator tiles of a loop of invocations if all can stay in registers, else an empty dict."""
    invoked = list(_invocations(s.body))
    bound = {s.name, *(x.name for x in post_order(s.body) if isinstance(x, For))}
    outputs: dict[Operand, Instruction] = {}
    shapes: dict[Operand, tuple[int, ...]] = {}
    for x in invoked:
        instruction = None if x is None else instruction_of(cx, x)
        if instruction is None or x is None:
            return {}
        out = x.operands[0]
        outputs[out], shapes[out] = instruction, instruction.shapes()[0]
    read = {o.buffer for x in invoked if x is not None for o in x.operands[1:]}
    accumulators = list(outputs)
    are_invariant = all(not variables(e) & bound for o in accumulators for e in o.index)
    are_write_only = not read & {o.buffer for o in accumulators}
    are_disjoint = all(
        a.buffer != b.buffer or _are_disjoint(a, shapes[a], b, shapes[b])
        for n, a in enumerate(accumulators)
        for b in accumulators[:n]
    )
    files = {i.registers for i in outputs.values()}
    fits = len(files) == 1 and all(
        f is not None and len(accumulators) + _OPERAND_REGISTERS <= f.count for f in files
    )
    return outputs if are_invariant and are_write_only and are_disjoint and fits else {}


def _invocations(s: Stmt) -> Iterator[Invoke | None]:
    """The invocations in a statement, and None for any other statement with an effect."""
    match s:
        case Invoke():
            yield s
        case Block(body):
            for inner in body:
                yield from _invocations(inner)
        case For(_, _, _, "serial", body):
            yield from _invocations(body)
        case Prefetch():
            pass
        case _:
            yield None


def _are_disjoint(a: Operand, shape: tuple[int, ...], b: Operand, other: tuple[int, ...]) -> bool:
    """True if two tiles of a buffer are known to be disjoint."""
    spans, others = dict(zip(a.axes, shape, strict=True)), dict(zip(b.axes, other, strict=True))
    for axis, (i, j) in enumerate(zip(a.index, b.index, strict=True)):
        d = constant_difference(i, j)
        if d is not None and (d >= others.get(axis, 1) or -d >= spans.get(axis, 1)):
            return True
    return False


def _transfer(cx: Context, text: str, register: int, o: Operand) -> None:
    """Write `text`, the load or the store of a tile, for a register and an operand."""
    buffer = cx.buffers[o.buffer]
    at = access(cx, o.buffer, o.index, certain=True)
    stride = buffer.strides[o.axes[0]]
    step = stride if isinstance(stride, str) else stride * buffer.dtype.bytes
    cx.b.do(text.format(register=register, pointer=at.pointer, stride=step))


def _add_register_file(cx: Context, file: RegisterFile) -> None:
    cx.register_files[file.name] = file
    for line in file.declarations:
        cx.b.declare(line)
