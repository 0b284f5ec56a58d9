"""Inputs for tests of a program: random ones for some sizes, and a strategy over sizes and layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tdsl.errors import TdslError
from tdsl.testing.reference import all_sizes, as_compiled, bound_call
from tdsl.tuning.oracle import random_values

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

_LAYOUTS = ("C", "F", "every second", "backwards")


def random_inputs(of: Any, *, seed: int = 0, **sizes: int) -> dict[str, Any]:
    """The arguments of a call of `of` by name: normally distributed floats, integers 0 and 1, scalars 1.

    `of` is an operator, a func or several, a schedule or a compiled program; every size must be given.

    >>> import tdsl as td
    >>> i, a, f = td.vars("i"), td.Tensor("a", ("N",), td.f32), td.Func("f")
    >>> f[i] = a[i] * 2
    >>> {name: (x.dtype, x.shape) for name, x in random_inputs(f, N=3).items()}
    {'a': (dtype('float32'), (3,))}
    """
    compiled = as_compiled(of)
    return random_values(compiled.schedule.program, all_sizes(compiled, sizes), seed)


def inputs(of: Any, *, max_size: int = 8) -> SearchStrategy[dict[str, Any]]:
    """A strategy of hypothesis: arguments of a call of `of` by name, as from `random_inputs`.

    Sizes are 0 to `max_size`, shrinking towards 0, and fit the program; arrays are dense by rows or by
    columns, every second element of a larger one, or reversed.

    >>> import tdsl as td
    >>> i, a, f = td.vars("i"), td.Tensor("a", ("N",), td.f32), td.Func("f")
    >>> f[i] = a[i] * 2
    >>> example = td.testing.inputs(f)   # @given(example) def test_f(values): assert_matches(f, **values)
    """
    from hypothesis import reject
    from hypothesis import strategies as st

    compiled = as_compiled(of)
    program = compiled.schedule.program
    free = [n for n in program.sizes if n not in compiled.sizes]

    @st.composite
    def arguments(draw: Any) -> dict[str, Any]:
        sizes = {n: draw(st.integers(0, max_size), label=n) for n in free}
        seed = draw(st.integers(0, 2**16), label="seed")
        try:
            values = random_values(program, all_sizes(compiled, sizes), seed)
            bound_call(compiled, (), values)
        except TdslError:  # sizes that do not fit the program
            reject()
        layouts = st.sampled_from(_LAYOUTS)
        return {
            n: _laid_out(x, draw(layouts, label=n)) if isinstance(x, np.ndarray) else x
            for n, x in values.items()
        }

    strategy: SearchStrategy[dict[str, Any]] = arguments()
    return strategy


def _laid_out(x: np.ndarray[Any, Any], layout: str) -> np.ndarray[Any, Any]:
    if layout == "F":
        return np.asfortranarray(x)
    if layout == "backwards":
        return x[::-1].copy()[::-1] if x.ndim else x
    if layout == "every second" and x.ndim:
        wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
        wide[..., ::2] = x
        return wide[..., ::2]
    return x
