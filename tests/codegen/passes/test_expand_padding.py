"""Padding indices against numpy.pad."""

import numpy as np
import pytest

from tdsl.codegen.ir.show import show
from tdsl.codegen.passes.expand_padding import expand_padding
from tests.codegen.passes.loop_text import kernel, run


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric", "wrap"])
@pytest.mark.parametrize("n, width", [(1, 1), (1, 7), (2, 1), (2, 9), (5, 2), (5, 4), (5, 5), (5, 30)])
def test_indices_equal_numpy_pad(mode, n, width):
    total = n + 2 * width
    text = f"""
        for x in serial(0, {total}):
            out[x] = pad_{mode}(x - {width}, {n})
        """
    (out,) = run(expand_padding(kernel(f"out[{total}]", text)))
    np.testing.assert_array_equal(out, np.pad(np.arange(n), width, mode))


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric", "wrap"])
def test_no_division_within_one_period(mode):
    text = f"""
        for x in serial(0, 20):
            out[x] = pad_{mode}(x - 5, 10)
        """
    assert "%" not in show(expand_padding(kernel("out[20]", text)))
    far = text.replace("x - 5", "x * 5")
    assert ("%" in show(expand_padding(kernel("out[20]", far)))) == (mode != "edge")


def test_nested_padding():
    text = """
        for x in serial(0, 9):
            out[x] = pad_reflect(pad_wrap(x - 3, 4) - 2, 3)
        """
    (out,) = run(expand_padding(kernel("out[9]", text)))
    reflected = np.pad(np.arange(3), 2, "reflect")
    np.testing.assert_array_equal(out, [reflected[(x - 3) % 4] for x in range(9)])
