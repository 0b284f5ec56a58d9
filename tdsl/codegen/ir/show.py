"""Prints the loop IR as Python-like text, with the extent and kind of loops and the scope of allocations.

for y in range(0, 1080):  # parallel
  rows = alloc(f32, [18, 1923])  # heap
  blur[y, x:x + 16] = (rows[0, x:x + 16] + rows[1, x:x + 16]) / 3.0
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from tdsl.codegen.ir.loops import (
    SERIAL,
    Alloc,
    Argument,
    ArriveBarrier,
    Barrier,
    Block,
    BufferParam,
    Check,
    Commit,
    CopyTile,
    For,
    If,
    InitBarriers,
    Invoke,
    Kernel,
    Let,
    Message,
    Operand,
    Prefetch,
    Print,
    ScalarParam,
    Shuffle,
    SizeParam,
    Stmt,
    Store,
    Synchronization,
    Wait,
    WaitBarrier,
    WarpSpecialize,
)  # fmt: skip
from tdsl.core.text import Writer, call
from tdsl.lang.expr import TRUE, Expr, const
from tdsl.lang.show import show_expr, show_index
from tdsl.lang.simplify import add

_ASSIGN = {"add": "+=", "mul": "*=", "and": "&=", "or": "|=", "xor": "^="}


def show(code: Kernel | Stmt) -> str:
    """The text of a kernel or a statement; equal for equal code.

    >>> from tdsl.lang.expr import Var, const
    >>> print(show(For("i", const(0), const(4), "parallel", Store("a", (Var("i"),), Var("i")))))
    for i in range(0, 4):  # parallel
      a[i] = i
    """
    return str(_written(code))


def show_with_lines(kernel: Kernel) -> tuple[str, dict[int, int]]:
    """The text of a kernel, and the number of the line of each statement, by its `id`, from 1 on.

    >>> from tdsl.lang.expr import Var, const
    >>> store = Store("a", (Var("i"),), Var("i"))
    >>> text, line = show_with_lines(Kernel("k", (), For("i", const(0), const(4), "serial", store)))
    >>> text.splitlines()[line[id(store)] - 1].strip()
    'a[i] = i'
    """
    writer = _written(kernel)
    return str(writer), writer.first


def _written(code: Kernel | Stmt) -> Writer:
    writer = Writer()
    if not isinstance(code, Kernel):
        _statement(code, writer, ())
        return writer
    fast = "  # fast math" if code.fast_math else ""
    with writer.block(f"def {code.name}({', '.join(map(_argument, code.params))}):{fast}"):
        _statement(code.body, writer, code.messages)
    return writer


def message_text(message: Message, values: tuple[object, ...]) -> str:
    """The text of a `Check` or `Print` site with its values; floats have up to 8 significant digits.

    >>> message_text(Message("print", ("row ", ": ", ""), ""), (3, 0.1))
    'row 3: 0.1'
    """
    shown = (*(f"{v:.8g}" if isinstance(v, float) else str(v) for v in values), "")
    return "".join(p + v for p, v in zip(message.parts, shown, strict=True))


def _argument(p: Argument) -> str:
    match p:
        case BufferParam():
            strides = ""
            if any(s is not None for s in p.strides):
                known = ", ".join("?" if s is None else str(s) for s in p.strides)
                strides = f" strides ({known})"
            extents = ", ".join(map(show_expr, p.extents))
            of = f" of [{', '.join(map(show_expr, p.shape))}]" if p.shape else ""
            return f"{'out ' * p.written}{p.name}: {p.dtype}[{extents}]{of}{strides}"
        case ScalarParam(name, dtype):
            return f"{name}: {dtype}"
        case SizeParam(name):
            return f"{name}: size"
        case _:
            assert_never(p)


def _statement(s: Stmt, w: Writer, messages: tuple[Message, ...]) -> None:
    if not isinstance(s, Block):
        w.begin(s)
    match s:
        case For(name, lo, extent, kind, body):
            stages = (
                f", {s.stages} stages{' by producer warps' * s.producer_warps}{' overlapped' * s.overlap_mma}"
                if s.stages
                else ""
            )
            note = "" if kind == SERIAL else f"  # {kind}{stages}"
            with w.block(f"for {name} in range({show_expr(lo)}, {show_expr(add(lo, extent))}):{note}"):
                _statement(body, w, messages)
        case Let(name, value, body):
            w.line(f"{name} = {show_expr(value)}")
            _statement(body, w, messages)
        case Alloc(name, dtype, extents, scope, body, strides, swizzle):
            shape = ", ".join(map(show_expr, extents))
            layout = f" strides {strides}" if strides else ""
            layout += f", swizzled by {swizzle} bytes" if swizzle else ""
            w.line(f"{name} = alloc({dtype}, [{shape}])  # {scope}{layout}")
            _statement(body, w, messages)
        case Store():
            _store(s, w)
        case If(cond, then, orelse):
            with w.block(f"if {show_expr(cond)}:"):
                _statement(then, w, messages)
            if orelse is not None:
                with w.block("else:"):
                    _statement(orelse, w, messages)
        case Block(body):
            for inner in body:
                _statement(inner, w, messages)
            if not body:
                w.line("pass")
        case Check(cond, site, values):
            w.line(f"check {show_expr(cond)}, {_message(site, values, messages)}")
        case Print(cond, site, values):
            when = "" if cond == TRUE else f" if {show_expr(cond)}"
            w.line(f"print({_message(site, values, messages)}){when}")
        case Prefetch(buffer, index):
            w.line(f"prefetch {buffer}[{show_index(index)}]")
        case Invoke(instruction, operands):
            w.line(call(instruction, *map(_operand, operands)).text)
        case WarpSpecialize(parts):
            for part in parts:
                with w.block("warps:"):
                    _statement(part, w, messages)
        case InitBarriers(name, slots, arrivals, body):
            cluster = f", blocks={s.blocks}" if s.blocks > 1 else ""
            w.line(f"{name} = mbarriers({slots}, arrivals={arrivals}{cluster})")
            _statement(body, w, messages)
        case _:
            w.line(_synchronization(s))


def _synchronization(s: Synchronization) -> str:
    match s:
        case Barrier(group, grid):
            return f"barrier({'group' * group}{'grid' * grid})"
        case Shuffle(buffer, value, distance):
            return f"{buffer}[()] = shuffle({show_expr(value)}, {distance})"
        case Commit(mma):
            return f"commit({'mma' * mma})"
        case Wait(pending, mma):
            return f"wait({pending}{', mma' * mma})"
        case ArriveBarrier(mbarriers, slot, count):
            announced = f", {count} bytes" if count else ", as a warp" * s.per_warp
            announced += f", in {s.blocks} blocks" if s.blocks > 1 else ""
            return f"arrive({mbarriers}[{show_expr(slot)}]{announced})"
        case WaitBarrier(mbarriers, slot, parity):
            return f"wait({mbarriers}[{show_expr(slot)}], {show_expr(parity)})"
        case CopyTile():
            return _copy_tile(s)
        case _:
            assert_never(s)


def _copy_tile(s: CopyTile) -> str:
    lead = [show_expr(i) for i in s.index[: len(s.index) - len(s.extents)]]
    tile = [*lead, *(f"{show_expr(i)}:" for i in s.index[len(lead) :])]
    box = [f"{show_expr(i)}:{show_expr(add(i, const(n)))}" for i, n in zip(s.start, s.extents, strict=True)]
    ends = f"  # ends in {s.mbarriers}[{show_expr(s.slot)}]" if s.mbarriers else ""
    cluster = f", to {s.blocks} blocks" if s.blocks > 1 else ""
    return f"copy_tile({s.buffer}[{', '.join(tile)}], {s.source}[{', '.join(box)}]{cluster}){ends}"


def _store(s: Store, w: Writer) -> None:
    target = f"{s.buffer}[{show_index(s.index)}]"
    value = show_expr(s.value)
    if s.atomic in ("min", "max"):
        assign, value = "=", f"{s.atomic}({target}, {value})"
    else:
        assign = _ASSIGN[s.atomic] if s.atomic else "="
    notes = ["atomic"] * bool(s.atomic) + ["streaming"] * s.streaming
    notes += ["asynchronous"] * s.asynchronous
    line = f"{target} {assign} {value}{'  # ' * bool(notes)}{', '.join(notes)}"
    if s.mask is None:
        w.line(line)
    else:
        with w.block(f"if {show_expr(s.mask)}:"):
            w.line(line)


def _operand(o: Operand) -> str:
    """The text of a tile, with `:` for the axes that it spans."""
    subscripts = [f"{show_expr(i)}:" if axis in o.axes else show_expr(i) for axis, i in enumerate(o.index)]
    return f"{o.buffer}[{', '.join(subscripts) or '()'}]"


def _message(site: int, values: tuple[Expr, ...], messages: tuple[Message, ...]) -> str:
    """The message as an f-string if it is known, else the number of the site."""
    shown = [show_expr(v) for v in values]
    if site >= len(messages):
        return ", ".join([f"site {site}", *shown])
    return f'f"{"".join(_parts(messages[site].parts, shown))}"'


def _parts(parts: tuple[str, ...], values: list[str]) -> Iterator[str]:
    for position, part in enumerate(parts):
        yield part.replace("{", "{{").replace("}", "}}").replace("\n", "\\n").replace('"', '\\"')
        if position < len(values):
            yield f"{{{values[position]}}}"
