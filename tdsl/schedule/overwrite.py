"""`overwrite` and `donate`: what becomes of the memory of an input that nothing reads any more."""

from __future__ import annotations

from dataclasses import replace

from tdsl.errors import did_you_mean
from tdsl.lang.program import FuncDef, Input
from tdsl.schedule.state import Illegal, State


def overwrite(state: State, func: str, definition: int, *, source: str) -> State:
    """Store a func in the memory of an input of the same placement, after the last reader of the input."""
    f, t = state.program.func(func), _input(state, source)
    if func not in state.program.outputs:
        raise Illegal(f"{func!r} is no output", "what overwrites an input is a result: add it to the outputs")
    if f.dtypes != (t.dtype,) or len(f.variables) != len(t.shape):
        raise Illegal(
            f"{func!r} has other elements or dimensions than {source!r}",
            "overwrite an input of the same type and shape",
            ((t.loc, f"{source!r}"), (f.loc, f"{func!r}")),
        )
    for v, w in state.overwrites:
        if func == v or source == w:
            raise Illegal(f"{v!r} overwrites {w!r} already", "a func overwrites one input, each at most once")
    if source in state.donated:
        raise Illegal(f"{source!r} is donated already", "donate an input, or overwrite it")
    if state.grid is None:
        raise Illegal("nothing is placed on a grid yet", "place tensors first; in one process pass out=")
    _check_overwriting_reads(f, source)
    return replace(state, overwrites=(*state.overwrites, (func, source)))


def donate(state: State, func: str, definition: int, *, source: str) -> State:
    """Free the blocks of an input after its last reader."""
    _input(state, source)
    if state.grid is None:
        raise Illegal("nothing is placed on a grid yet", "place tensors first: ranks free blocks")
    if source in state.donated:
        raise Illegal(f"{source!r} is donated already", "donate each input once")
    for v, w in state.overwrites:
        if source == w:
            raise Illegal(f"{v!r} overwrites {w!r} already", "donate an input, or overwrite it")
    return replace(state, donated=(*state.donated, source))


def _input(state: State, name: str) -> Input:
    """The input of a name; raises Illegal if there is none."""
    inputs = {t.name: t for t in state.program.inputs}
    if name not in inputs:
        raise Illegal(f"there is no input {name!r}", did_you_mean(name, inputs))
    return inputs[name]


def _check_overwriting_reads(f: FuncDef, source: str) -> None:
    """Raise Illegal if a func reads other elements of the input than the one that it replaces."""
    d = f.definitions[0]
    reads = [r for x in f.definitions for r in x.reads if r.name == source]
    if not reads:
        return
    is_pure = len(f.definitions) == 1 and d.combine is None
    if not is_pure or any(r.index != d.index for r in reads):
        raise Illegal(
            f"{f.name!r} still reads {source!r} where it overwrites it",
            "read the element at the func's own index only, or use a func in between",
            ((d.loc, "this definition"),),
        )
