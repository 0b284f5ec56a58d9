"""The gradients of every operator of the models in examples/ equal those of jax.vjp."""

import math
from pathlib import Path

import numpy as np
import pytest

import tdsl as td
from tdsl.errors import ShapeError
from tdsl.lang.interp import interpret
from tdsl.lang.program import bind_expr
from tests.lang.gradients.jax_program import function_of

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install -e '.[bench]'")
MODELS = sorted((Path(__file__).parents[3] / "examples" / "models").glob("*.py"))


def operators(path):
    """The operators of a model, without running it."""
    names = {"__name__": path.stem}
    exec(compile(path.read_text().partition("\nrng = ")[0], str(path), "exec"), names)
    return {n: x for n, x in names.items() if isinstance(x, td.Operator)}


def arrays_of(program, sizes, rng):
    def extent(e):
        return int(bind_expr(e, sizes).value)

    arrays = {}
    for t in program.inputs:
        shape = tuple(map(extent, t.shape))
        if t.dtype.is_float:
            arrays[t.name] = rng.uniform(0.2, 1.5, shape).astype(t.dtype.numpy)
        else:
            arrays[t.name] = rng.integers(0, 2, shape).astype(t.dtype.numpy)
    return arrays | {s.name: s.dtype.numpy.type(1.25) for s in program.scalars}


SIZES = {
    "swin.windows": {"H": 16, "W": 8, "C": 2},
    "swin.picture": {"B": 2, "T": 64, "C": 2, "H": 16, "W": 8},
}
CASES = [(path.stem, name) for path in MODELS for name in operators(path)]


@pytest.mark.parametrize("model, name", CASES)
def test_operator_of_a_model(model, name):
    jax.config.update("jax_enable_x64", True)
    op = operators(next(p for p in MODELS if p.stem == model))[name]
    program, rng = op.program, np.random.default_rng(0)
    sizes = {s: (3, 5, 4, 6, 2)[n % 5] for n, s in enumerate(program.sizes)}
    sizes |= SIZES.get(f"{model}.{name}", {})
    arrays = arrays_of(program, sizes, rng)
    wrt = [t.name for t in (*program.inputs, *program.scalars) if t.dtype.is_float]
    try:
        function = function_of(program, arrays)
    except ShapeError:
        arrays = arrays_of(program, dict.fromkeys(sizes, 4), rng)
        function = function_of(program, arrays)
    outs, pull = jax.vjp(lambda given: function(arrays | given), {n: arrays[n] for n in wrt})
    seeds = tuple(rng.uniform(-1, 1, np.shape(o)).astype(o.dtype) for o in outs)
    (expected,) = pull(seeds)
    backward = td.vjp(op, wrt)
    given = dict(
        zip(backward.program.parameters, (*map(arrays.get, program.parameters), *seeds), strict=True)
    )
    for n, g in zip(wrt, interpret(backward.program, given), strict=True):
        e = np.asarray(expected[n], np.float64)
        narrow = arrays[n].dtype.itemsize == 2
        scale = max(1e-3, float(np.abs(e).max(initial=0)))
        assert np.all(np.abs(np.asarray(g, np.float64) - e) <= (2e-2 if narrow else 2e-4) * scale), n
        assert math.isfinite(scale)
