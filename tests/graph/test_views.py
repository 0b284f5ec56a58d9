"""Views as indices: reading what a view is of at these indices gives the view."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tdsl.graph.values import Argument, Spec, View
from tdsl.graph.views import index_of_base
from tdsl.lang.expr import Const, Var, const
from tdsl.lang.show import show_expr
from tdsl.lang.simplify import simplify, substitute

CHANGES = {
    "transposed": lambda a: a.T,
    "swapped": lambda a: a.swapaxes(0, -1),
    "flat": lambda a: a.reshape(-1),
    "in rows of 2": lambda a: a.reshape(-1, 2),
    "in rows of 3": lambda a: a.reshape(2, -1, 3),
    "backwards": lambda a: a[::-1],
    "every other one": lambda a: a[..., 1::2],
    "one row": lambda a: a[-1],
    "nothing": lambda a: a[:0],
    "with an axis": lambda a: a[:, None],
    "repeated": lambda a: np.broadcast_to(a, (2, *a.shape)),
    "windows": lambda a: np.lib.stride_tricks.sliding_window_view(a, 2, 0),
    "diagonal": lambda a: np.diagonal(a),
}


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple),
    st.lists(st.sampled_from(sorted(CHANGES)), max_size=5),
)
def test_index_of_base_addresses_the_elements_of_the_view(shape, names):
    base, changes = np.arange(np.prod(shape)).reshape(shape), []
    viewed = base
    for name in names:
        try:
            next_view = CHANGES[name](viewed)
        except (ValueError, IndexError):
            continue
        if next_view.size and not np.shares_memory(next_view, base):
            continue  # a copy
        viewed = next_view
        changes.append(CHANGES[name])
    view = View(Argument(0), tuple(changes), Spec(viewed.shape, viewed.dtype))
    index = index_of_base(view, Spec(shape, base.dtype), [Var(f"i{n}") for n in range(viewed.ndim)])
    for point in np.ndindex(viewed.shape):
        at = {f"i{n}": const(k) for n, k in enumerate(point)}
        base_index = [simplify(substitute(e, at)) for e in index]
        assert all(isinstance(e, Const) for e in base_index)
        assert base[tuple(e.value for e in base_index)] == viewed[point]


def test_indices_of_whole_axes_are_simplified():
    view = View(
        Argument(0),
        (lambda a: a.transpose(0, 2, 1, 3).reshape(6, 5, 4, 8)[:, 1:, ::-1],),
        Spec((6, 4, 4, 8), np.dtype("f4")),
    )
    index = index_of_base(view, Spec((6, 4, 5, 8), np.dtype("f4")), [Var(n) for n in "abcd"])
    assert [show_expr(e) for e in index] == ["a", "c * -1 + 3", "b + 1", "d"]
