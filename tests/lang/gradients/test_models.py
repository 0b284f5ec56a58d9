"""The gradients of the models in examples/, and of each of their operators, equal those of jax.vjp."""

import inspect
import math
from pathlib import Path
from types import FunctionType

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


class WithJax:
    """JAX under the names of NumPy that the models use, also those that JAX has not."""

    class lib:  # as NumPy's
        class stride_tricks:
            @staticmethod
            def sliding_window_view(x, window, axes):
                for axis, extent in zip(axes, window, strict=True):
                    at = np.arange(x.shape[axis] - extent + 1)[:, None] + np.arange(extent)
                    x = jax.numpy.moveaxis(jax.numpy.take(x, at, axis=axis), axis + 1, -1)
                return x

    def vectorize(self, function):
        assert function is math.erf
        return jax.scipy.special.erf

    def __getattr__(self, name):
        return getattr(jax.numpy, name)


def leaves(value):
    """The arrays of a nested argument, in order."""
    if isinstance(value, dict | list | tuple):
        for x in value.values() if isinstance(value, dict) else value:
            yield from leaves(x)
    else:
        yield value


def rebuilt(value, arrays):
    """A nested argument with other arrays."""
    if isinstance(value, dict):
        return {n: rebuilt(x, arrays) for n, x in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(rebuilt(x, arrays) for x in value)
    return next(arrays)


@pytest.mark.filterwarnings("ignore:os.fork.. was called:RuntimeWarning")  # JAX has threads
@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.stem)
def test_gradient_of_a_whole_model(path):
    """By every parameter, equal to that of the model's own reference, which JAX differentiates in f64."""
    jax.config.update("jax_enable_x64", True)
    names = {"__name__": path.stem}
    exec(compile(path.read_text().partition("\nfor run in ")[0], str(path), "exec"), names)
    model = names["network" if path.stem == "mlp" else "block"]
    expected = names["expected"]
    parameters = list(inspect.signature(model).parameters)
    arguments = [names[p] for p in parameters]
    given = [np.asarray(x) for x in leaves(arguments)]
    reference = dict(names, np=WithJax(), erf=jax.scipy.special.erf)
    reference_of = FunctionType(expected.__code__, reference, closure=expected.__closure__)
    narrow = any(x.dtype.itemsize == 2 for x in given)
    exact = [jax.numpy.asarray(x if narrow else x.astype(np.float64)) for x in given]
    out, pull = jax.vjp(lambda arrays: reference_of(*rebuilt(arguments, iter(arrays))), exact)
    result = model(*arguments)
    seed = np.random.default_rng(1).uniform(-1, 1, result.shape).astype(result.dtype)
    (slopes,) = pull(jax.numpy.asarray(seed).astype(out.dtype))
    got = td.vjp(td.Graph(model), tuple(parameters))(*arguments, seed)
    errors = []
    for mine, theirs in zip(leaves(got), slopes, strict=True):
        e = np.asarray(theirs, np.float64)
        assert np.shape(mine) == e.shape
        errors.append(np.abs(np.asarray(mine, np.float64) - e).max() / np.abs(e).max())
    assert max(errors) < (2e-2 if narrow else 2e-5), errors
