"""`pad`: a tensor or func extended beyond its edges, so that it can be read at any index."""

from __future__ import annotations

from typing import Any

from tdsl.core.source import Loc, here
from tdsl.errors import DefinitionError, ShapeError, TypeMismatch, counted, did_you_mean, is_one_of
from tdsl.lang.expr import ZERO, Access, Binary, Call, Const, Expr, Select
from tdsl.lang.extents import as_shape, extent_value
from tdsl.lang.handle import Handle
from tdsl.lang.simplify import conjunction
from tdsl.lang.tensor import Func, Tensor
from tdsl.lang.types import DType, i64
from tdsl.lang.value import Value, as_index, convert_const, lift

MODES = ("constant", "edge", "reflect", "symmetric", "wrap")


class Padded(Handle):
    """A padded tensor or func, the result of `td.pad`; it can be read at any index.

    It is not a stage: a read of it becomes a read of the source at an index inside, so that the padding is
    neither stored nor loaded nor sent.
    """

    def __init__(
        self, source: Tensor | Func, box: tuple[tuple[Expr, Expr], ...], mode: str, value: Value
    ) -> None:
        self.source, self.box, self.mode, self.value = source, box, mode, value

    def __repr__(self) -> str:
        fill = f", value={self.value}" if self.mode == "constant" else ""
        return f"pad({self.name}, mode={self.mode!r}{fill})"

    @property
    def name(self) -> str:
        """The name of the padded tensor or func."""
        return self.source.name

    @property
    def shape(self) -> tuple[Any, ...]:
        """The extents of the padded tensor or func, without padding."""
        return tuple(extent_value(e) for _, e in self.box)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.box)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise DefinitionError(
            f"a padding of {self.name!r} cannot be defined",
            loc=here(),
            label="this definition",
            hint="define a td.Func",
        )

    def __getitem__(self, index: Any) -> Value:
        loc = here()
        given = index if isinstance(index, tuple) else (index,)
        if len(given) != self.ndim:
            raise ShapeError(
                f"padded {self.name!r} has {counted(self.ndim, 'dimension')}, indexed with {len(given)}",
                loc=loc,
                label="this access",
                hint=f"write {self.name}[{', '.join('ijklmnpq'[: self.ndim])}] of the padding",
            )
        where = [as_index(i, loc) for i in given]
        call = "pad_edge" if self.mode == "constant" else f"pad_{self.mode}"
        inside = []
        for i, (lo, extent) in zip(where, self.box, strict=True):
            at = Call(call, (_subtract_first(i, lo), extent), i64, loc=loc)
            inside.append(at if lo == ZERO else Binary("add", at, lo))
        source: Any = self.source
        dtype = source.dtype
        read = Access(source, tuple(inside), 0, dtype, loc=loc)
        if self.mode != "constant":
            return Value(read)
        tests: list[Expr] = []
        for i, (lo, extent) in zip(where, self.box, strict=True):
            offset = _subtract_first(i, lo)
            tests += [Binary("gt", extent, ZERO)] if not isinstance(extent, Const) else []
            tests += [Binary("le", ZERO, offset), Binary("lt", offset, extent)]
        return Value(Select(conjunction(tests), read, self.value.node, loc=loc))


def _subtract_first(i: Expr, lo: Expr) -> Expr:
    return i if lo == ZERO else Binary("sub", i, lo)


def pad(source: Any, mode: str = "constant", value: Any = 0, shape: Any = None) -> Padded:
    """`source` extended beyond its edges, with the modes of `numpy.pad`; it can be read at any index.

    The modes are constant (with `value`), edge, reflect, symmetric and wrap. `source` is a tensor or a func;
    the extents of a func are inferred unless `shape` is given.

    >>> from tdsl.lang.value import vars
    >>> i, a, f = vars("i"), Tensor("a", (5,), "f32"), Func("f")
    >>> edge = pad(a, mode="edge")
    >>> f[i] = edge[i - 1] + edge[i] + edge[i + 1]
    >>> f.shape
    (5,)

    Raises DefinitionError for an unknown mode, ShapeError if the extents of a func cannot be inferred.
    """
    loc = here()
    if not is_one_of(mode, MODES):
        raise DefinitionError(
            f"there is no padding mode {mode!r}",
            loc=loc,
            label="this padding",
            hint=did_you_mean(str(mode), MODES),
        )
    _check_source(source, loc)
    fill = lift(value, loc)
    if not isinstance(fill.node, Const):
        raise DefinitionError(
            "the value of a padding must be a number",
            loc=loc,
            label="this padding",
            hint="for other values choose with td.where",
        )
    number = _fill_value(fill.node, source.dtype, loc)
    box: tuple[tuple[Expr, Expr], ...]
    if shape is not None:
        box = tuple((ZERO, e) for e in as_shape(shape, loc))
    elif isinstance(source, Tensor):
        box = tuple((ZERO, e) for e in source.extents)
    else:
        box = source._domain()
    if len(box) != source.ndim:
        raise ShapeError(
            f"{source.name!r} has {counted(source.ndim, 'dimension')}, the shape has {len(box)}",
            loc=loc,
            label="this padding",
            hint="give one extent for each dimension",
        )
    return Padded(source, box, mode, number)


def _check_source(source: Any, loc: Loc | None) -> None:
    """Raise DefinitionError or TypeMismatch unless `source` is a tensor or a func with one value."""
    if not isinstance(source, Tensor | Func):
        raise DefinitionError(
            f"only tensors and funcs can be padded, not {type(source).__name__}",
            loc=loc,
            label="this padding",
            hint="declare an array as td.Tensor(name, shape, dtype)",
        )
    if isinstance(source, Func):
        source._pure_definition()
        if len(source.dtypes) > 1:
            raise TypeMismatch(
                f"{source.name!r} has {counted(len(source.dtypes), 'value')}, one can be padded",
                loc=loc,
                label="this padding",
                hint=f"pad a func of its own: g[...] = {source.name}[...][0]",
            )


def _fill_value(c: Const, t: DType, loc: Loc | None) -> Value:
    """The fill value converted to the type of the padded tensor or func."""
    if c.dtype.is_float and not t.is_float:
        if not float(c.value).is_integer():
            raise TypeMismatch(
                f"{c.value} cannot be a padding of {t}",
                loc=loc,
                label="this padding",
                hint=f"give an integer, or pad a func that holds floats instead of {t}",
            )
        c = Const(int(c.value), i64)
    return Value(convert_const(c, t, loc))
