"""`Value`, a scalar or vector in LLVM IR with its element type and lanes, and its broadcast and selection."""

from __future__ import annotations

from typing import NamedTuple

from tdsl.codegen.cpu.builder import Builder
from tdsl.codegen.cpu.ir_types import register_type, scalar_type
from tdsl.lang.types import DType, bool_, i64


class Value(NamedTuple):
    """A scalar or vector: `name` is an SSA name or a literal; for a uniform vector, the name of one lane.

    `limit` is an upper bound of the magnitude of an integer's lanes, if known.
    """

    name: str
    dtype: DType
    lanes: int = 1
    uniform: bool = False
    limit: int | None = None

    @property
    def type(self) -> str:
        """The LLVM type of all lanes."""
        return register_type(self.dtype, self.lanes)

    @property
    def constant(self) -> int | None:
        """The value of every lane if it is an integer or bool literal, else None."""
        if self.name.startswith(("%", "<")) or (self.lanes > 1 and not self.uniform):
            return None
        if self.dtype.is_float:
            return None
        return {"true": 1, "false": 0}.get(self.name) if self.dtype == bool_ else int(self.name)

    def lane(self) -> Value:
        """The scalar that a uniform value has in every lane."""
        assert self.uniform or self.lanes == 1
        return Value(self.name, self.dtype, limit=self.limit)


def index(value: int) -> Value:
    """An i64 constant."""
    return Value(str(value), i64, limit=abs(value))


def broadcast(x: Value, lanes: int) -> Value:
    """`x`, broadcast to `lanes` lanes as a uniform value if it is a scalar."""
    return x if x.lanes == lanes else Value(x.name, x.dtype, lanes, True, x.limit)


def full(b: Builder, x: Value) -> str:
    """The name of the whole vector or scalar; writes the broadcast of a uniform value."""
    return splat(b, scalar_type(x.dtype), x.name, x.lanes) if x.uniform else x.name


def splat(b: Builder, element: str, name: str, lanes: int) -> str:
    """Broadcast the scalar `name` to a vector.

    >>> from tdsl.codegen.cpu.builder import Module
    >>> from tdsl.machine.cpu import level
    >>> splat(Builder(Module(level("avx2")), "define void @f()"), "i64", "3", 4)
    'splat (i64 3)'
    """
    if lanes == 1:
        return name
    if not name.startswith("%"):
        return f"splat ({element} {name})"
    one = b.v(f"insertelement <{lanes} x {element}> poison, {element} {name}, i64 0")
    return b.v(
        f"shufflevector <{lanes} x {element}> {one}, <{lanes} x {element}> poison, "
        f"<{lanes} x i32> zeroinitializer"
    )


def select(b: Builder, type_: str, cond: str, yes: str, no: str) -> str:
    """`yes` in the lanes where `cond` is true, else `no`; `cond` has as many lanes as `type_`."""
    if cond in ("true", "false"):
        return yes if cond == "true" else no
    lanes = type_[1 : type_.index(" ")] if type_.startswith("<") else ""
    mask = f"<{lanes} x i1>" if lanes else "i1"
    return b.v(f"select {mask} {cond}, {type_} {yes}, {type_} {no}")
