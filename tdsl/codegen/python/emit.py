"""Emits a kernel as a standalone Python module: readable, NumPy only, a plain reading of the loop IR.

Parallel, vectorized and unrolled loops become ordinary loops, and vectors NumPy arrays.
"""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import assert_never

from tdsl.codegen.ir.loops import (
    Alloc,
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
    Operand,
    Prefetch,
    Print,
    ScalarParam,
    Shuffle,
    SizeParam,
    Stmt,
    Store,
    Wait,
    WaitBarrier,
    WarpSpecialize,
)  # fmt: skip
from tdsl.codegen.python.expressions import (
    ARRAY,
    BOOL,
    INT,
    LARGEST_SIZE,
    SCALAR,
    Expressions,
    Value,
    integer,
    tuple_text,
)  # fmt: skip
from tdsl.codegen.python.instructions import instructions_of
from tdsl.codegen.python.support import SUPPORT, support_text
from tdsl.core.text import Names, Piece, Writer, call, infix, prefix
from tdsl.lang.expr import TRUE, Binary, Expr, Load, dtype_of, lanes_of
from tdsl.lang.types import ML_DTYPES, DType, bool_, i64

# Python refuses more than 20 nested loops; deeper ones go into a local function.
_DEEPEST_NESTING = 16
RESERVED = {*keyword.kwlist, *dir(builtins), *SUPPORT, "np", "math", *ML_DTYPES, "Fraction"}
_UFUNC = {
    "add": "add", "mul": "multiply", "min": "minimum", "max": "maximum",
    "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
}  # fmt: skip


def emit(kernel: Kernel, *, checked: bool = False, emitter: type[Emitter] | None = None) -> str:
    """The text of a module that defines the kernel as a function of arrays, scalars and sizes.

    Arguments are in the order of `kernel.params`. A failed check raises the module's `CheckFailed(site,
    values)`. Instructions are called by names that the caller of the text has to define. `checked` adds a
    bounds assertion to each access and fills new memory with NaN, 99 or True. `emitter`, a subclass of
    `Emitter`, may emit some statements in another way.

    >>> from tdsl.codegen.ir.loops import row_major
    >>> from tdsl.lang.expr import Const, Var, const
    >>> from tdsl.lang.types import f32
    >>> a, i = BufferParam("a", f32, (const(4),), (1,), True), Var("i")
    >>> twice = Store("a", (i,), Binary("mul", Load("a", (i,), f32), Const(2.0, f32)))
    >>> print(emit(Kernel("twice", (a,), For("i", const(0), const(4), "serial", twice))))
    import numpy as np
    <BLANKLINE>
    <BLANKLINE>
    @np.errstate(all="ignore")
    def twice(a):
        for i in range(4):
            a[i] = a[i] * 2.0
    """
    writer = Writer("    ")
    names = Names(RESERVED)
    function = names.fresh(kernel.name)
    expressions = Expressions(names, writer.line, checked)
    (emitter or Emitter)(kernel, writer, names, expressions).kernel(function)
    used = expressions.used
    head = support_text(used - ML_DTYPES.keys(), used & ML_DTYPES.keys())
    return f"{head}\n\n\n{writer}\n"


class Emitter:
    """Emits statements; `Expressions` emits the expressions in them."""

    def __init__(self, kernel: Kernel, writer: Writer, names: Names, expressions: Expressions) -> None:
        self.source, self.writer, self.names = kernel, writer, names
        self.expressions, self.depth = expressions, 0
        self.instructions = instructions_of(kernel)
        self.decorator = '@np.errstate(all="ignore")'

    def kernel(self, function: str) -> None:
        """Emit the function of the kernel: conversions of scalar arguments, then the loops."""
        coercions, arguments = [], []
        for p in self.source.params:
            name = self.names.fresh(p.name)
            arguments.append(name)
            match p:
                case BufferParam():
                    self.expressions.buffers[p.name] = name
                case ScalarParam(_, dtype):
                    kind, text = self.scalar(name, dtype)
                    coercions.append(text)
                    self.expressions.scalars[p.name] = kind
                case SizeParam():
                    self.expressions.sizes[p.name] = integer(Piece(name), 0, LARGEST_SIZE)
                case _:
                    assert_never(p)
        self.writer.line(self.decorator)
        with self.body(f"def {function}({', '.join(arguments)}):"):
            for text in coercions:
                self.writer.line(text)
            self.statement(self.source.body)

    def scalar(self, name: str, dtype: DType) -> tuple[Value, str]:
        """The value of a scalar argument, and the statement that converts it to its type."""
        if dtype == i64:
            return integer(Piece(name), i64.low, i64.high), f"{name} = int({name})"
        if dtype == bool_:
            return Value(Piece(name), BOOL), f"{name} = bool({name})"
        type_name = self.expressions.scalar_type(dtype)
        return Value(Piece(name), SCALAR), f"{name} = {type_name}({name})"

    @contextmanager
    def body(self, header: str) -> Iterator[None]:
        """An indented block below a header, with `pass` if nothing else is emitted in it."""
        with self.writer.block(header):
            before = len(self.writer.lines)
            yield
            if len(self.writer.lines) == before:
                self.writer.line("pass")

    def statement(self, s: Stmt) -> None:
        """Emit a statement."""
        match s:
            case For():
                self.loop(s)
            case Let(name, value, body):
                self.let(name, value)
                self.statement(body)
            case Alloc():
                self.alloc(s)
                self.statement(s.body)
            case Store():
                self.store(s)
            case If(cond, then, orelse):
                with self.body(f"if {self.expressions.value(cond).text}:"):
                    self.statement(then)
                if orelse is not None:
                    with self.body("else:"):
                        self.statement(orelse)
            case Block(body):
                for inner in body:
                    self.statement(inner)
            case Check(cond, site, values):
                self.check(cond, site, values)
            case Print():
                self.print(s)
            case Prefetch():
                pass  # NumPy has no prefetch
            case Invoke(instruction, operands):
                shapes = self.instructions[instruction].shapes()
                views = map(self.view, operands, shapes)
                self.writer.line(call(instruction, *views).text)
            case Barrier() | Shuffle() | Commit() | Wait():
                raise AssertionError("only kernels of a GPU synchronise threads")
            case InitBarriers() | WarpSpecialize() | ArriveBarrier() | WaitBarrier() | CopyTile():
                raise AssertionError("only kernels of a GPU synchronise threads")
            case _:
                assert_never(s)

    def loop(self, s: For) -> None:
        """Emit a loop, in a local function if too many loops are nested for Python."""
        if self.depth and self.depth % _DEEPEST_NESTING == 0:
            name = self.names.fresh("nest")
            with self.writer.block(f"def {name}():"):
                self.nest(s)
            self.writer.line(f"{name}()")
        else:
            self.nest(s)

    def nest(self, s: For) -> None:
        """Emit a loop with its body."""
        lo, extent = (self.expressions.fit(v) for v in self.expressions.values(s.lo, s.extent))
        name = self.scalar_name(s.name)
        self.expressions.scalars[s.name] = _loop_variable(name, lo, extent)
        self.depth += 1
        with self.heading(s, name, _bounds(lo, extent)):
            self.statement(s.body)
        self.depth -= 1

    def heading(self, s: For, name: str, bounds: str) -> AbstractContextManager[None]:
        """The block of a loop over range(bounds)."""
        return self.body(f"for {name} in range({bounds}):")

    def scalar_name(self, name: str) -> str:
        """The identifier of a loop variable or let; siblings of one name share it."""
        known = self.expressions.scalars.get(name)
        return known.text if known is not None else self.names.fresh(name)

    def let(self, name: str, e: Expr) -> None:
        """Emit the assignment of a let."""
        value = self.expressions.with_dtype(self.expressions.value(e), dtype_of(e))
        target = self.scalar_name(name)
        self.writer.line(f"{target} = {value.text}")
        self.expressions.scalars[name] = Value(Piece(target), value.kind, value.lo, value.hi)

    def alloc(self, s: Alloc) -> None:
        """Emit the allocation of a buffer, uninitialised, or poisoned if `checked`."""
        extents = self.expressions.values(*s.extents)
        name = self.expressions.buffers.setdefault(s.name, self.names.fresh(s.name))
        dtype = self.expressions.scalar_type(s.dtype)
        shape = tuple_text(v.text for v in extents)
        if self.expressions.checked:
            text = self.expressions.support("poisoned", shape, dtype).text
        else:
            text = call("np.empty", shape, dtype).text
        self.writer.line(f"{name} = {text}")

    def store(self, s: Store) -> None:
        """Emit a store to an element, or to the elements of all lanes."""
        if s.mask is None:
            self.unmasked(s)
        elif lanes_of(s.mask) == 1:
            with self.writer.block(f"if {self.expressions.value(s.mask).text}:"):
                self.unmasked(s)
        else:
            mask, *index, value = self.expressions.values(s.mask, *s.index, s.value)
            self.scatter(s, index, self.expressions.with_dtype(value, dtype_of(s.value)), mask.text)

    def unmasked(self, s: Store) -> None:
        """Emit a store without regard to its mask."""
        dtype, value = dtype_of(s.value), s.value
        if s.atomic:
            value = Binary(s.atomic, Load(s.buffer, s.index, dtype), s.value)
        *index, stored, operand = self.expressions.values(*s.index, value, s.value)
        if s.atomic and any(v.kind == ARRAY for v in index):
            self.scatter(s, index, self.expressions.with_dtype(operand, dtype), "True")
        else:
            target = self.expressions.element(s.buffer, s.index, index)
            self.writer.line(f"{target} = {self.expressions.fit(stored).text}")

    def scatter(self, s: Store, index: list[Value], value: Value, mask: str) -> None:
        """Emit a masked vector store, or an atomic one, several lanes of which may update one element."""
        where = tuple_text(v.text for v in index)
        buffer = self.expressions.buffers[s.buffer]
        if s.atomic:
            op = f"np.{_UFUNC[s.atomic]}"
            piece = self.expressions.support("accumulate", op, buffer, where, mask, value.text)
        else:
            piece = self.expressions.support("store", buffer, where, mask, value.text)
        self.writer.line(piece.text)

    def check(self, cond: Expr, site: int, values: tuple[Expr, ...]) -> None:
        """Emit a check, which raises CheckFailed if its condition is false."""
        condition = self.expressions.value(cond)
        with self.writer.block(f"if {prefix('not', condition.piece)}:"):
            value_texts = [v.text for v in self.expressions.values(*values)]
            failure = self.expressions.support("CheckFailed", site, tuple_text(value_texts))
            self.writer.line(f"raise {failure}{self.comment(site)}")

    def comment(self, site: int) -> str:
        """The message of a site as a comment."""
        text = "{}".join(self.source.messages[site].parts).replace("\n", " ")
        return f"  # {text}"

    def print(self, s: Print) -> None:
        """Emit a print statement under its condition."""
        if s.cond == TRUE:
            self.print_line(s)
        else:
            with self.writer.block(f"if {self.expressions.value(s.cond).text}:"):
                self.print_line(s)

    def print_line(self, s: Print) -> None:
        """Emit the line that prints."""
        values = [v.text for v in self.expressions.values(*s.values)]
        self.writer.line(self.message(s, values))

    def message(self, s: Print, values: list[str]) -> str:
        """The text of a call of print with the message of the site."""
        formats = [
            f"{{float({v}):.8g}}" if dtype_of(e).is_float else f"{{{v}}}"
            for e, v in zip(s.values, values, strict=True)
        ]
        pieces = []
        for part, value_text in zip(self.source.messages[s.site].parts, [*formats, ""], strict=True):
            literal = repr(part)[1:-1].replace('"', '\\"')
            pieces += [literal.replace("{", "{{").replace("}", "}}"), value_text]
        return f'print(f"{"".join(pieces)}")'

    def view(self, o: Operand, shape: tuple[int, ...]) -> str:
        """The text of a view of a tile, transposed to the order of the operand's axes."""
        view = self.tile(self.expressions.buffers[o.buffer], self.subscripts(o, shape))
        order = tuple(sorted(o.axes).index(axis) for axis in o.axes)
        return view if order == tuple(sorted(order)) else f"{view}.transpose({tuple_text(map(str, order))})"

    def tile(self, buffer: str, subscripts: str) -> str:
        """The text of a view of some elements of an array."""
        return f"{buffer}[{subscripts}]"

    def subscripts(self, o: Operand, shape: tuple[int, ...]) -> str:
        """The text of the subscripts of a tile."""
        starts = self.expressions.values(*o.index)
        subscripts = [v.text for v in starts]
        for axis, extent in zip(o.axes, shape, strict=True):
            subscripts[axis] = self.expressions.slice(starts[axis], 1, extent)
        if not o.axes:
            subscripts.append("...")  # a view of one element, not its value
        return ", ".join(subscripts)


def _loop_variable(name: str, lo: Value, extent: Value) -> Value:
    """The value of a loop variable, with the range that its bounds allow."""
    bound = 4 * LARGEST_SIZE
    first = lo.lo if lo.kind == INT else -bound
    last = lo.hi + extent.hi - 1 if lo.kind == INT and extent.kind == INT else bound
    return integer(Piece(name), max(first, -bound), min(last, bound))


def _bounds(lo: Value, extent: Value) -> str:
    if lo.kind == INT and lo.lo == lo.hi == 0:
        return extent.text
    if all(v.kind == INT and v.lo == v.hi for v in (lo, extent)):
        return f"{lo.text}, {int(lo.lo + extent.lo)}"
    return f"{lo.text}, {infix('+', lo.piece, extent.piece)}"
