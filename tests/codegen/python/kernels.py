"""Small kernels built by hand, for tests of printers, the verifier and the Python backend."""

from collections.abc import Sequence

from tdsl.codegen.ir.loops import BufferParam, For, Kernel, Store
from tdsl.lang.expr import Broadcast, Expr, Load, Ramp, Var, const, lanes_of
from tdsl.lang.types import DType

i, j = Var("i"), Var("j")


def buffer(name: str, dtype: DType, *extents: int, written: bool = False) -> BufferParam:
    return BufferParam(name, dtype, tuple(map(const, extents)), (None,) * len(extents), written)


def out(dtype: DType, *extents: int) -> BufferParam:
    return buffer("out", dtype, *extents, written=True)


def pointwise(params: Sequence[BufferParam], result: DType, n: int, value: Expr) -> Kernel:
    """out[i] = value for i in range(n)."""
    loop = For("i", const(0), const(n), "serial", Store("out", (i,), value))
    return Kernel("pointwise", (*params, out(result, n)), loop)


def vectors(params: Sequence[BufferParam], result: DType, n: int, value: Expr) -> Kernel:
    """out[0:n] = value, where value is a vector of n lanes."""
    return Kernel("vectors", (*params, out(result, n)), Store("out", (Ramp(const(0), 1, n),), value))


def element(name: str, dtype: DType, n: int = 0) -> Expr:
    """name[i], or name[0:n]."""
    return Load(name, (Ramp(const(0), 1, n) if n else i,), dtype)


def paired(x: Expr, other: Expr) -> Expr:
    """A scalar with as many lanes as another operand."""
    lanes = lanes_of(other)
    return Broadcast(x, lanes) if lanes > 1 else x
