"""Calling a compiled program: names, layouts, results, aliasing, errors."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from tdsl.codegen.ir.loops import Block, BufferParam, Kernel, ScalarParam, SizeParam, row_major
from tdsl.codegen.runtime.call import Entry
from tdsl.codegen.runtime.signature import (
    ArrayArg,
    ScalarArg,
    Signature,
    Specialisation,
    dense_specialisation,
    extent,
)
from tdsl.core.source import Loc
from tdsl.errors import ShapeError, TypeMismatch
from tdsl.lang.expr import Binary, Size, const
from tdsl.lang.types import bf16, f32

R, C = Size("R"), Size("C")
HERE = Loc(__file__, 1)


class Fake:
    """An executable that computes with NumPy, checks what it is handed, and counts its runs."""

    def __init__(self, signature, compute, specialisation, quick):
        self.signature, self.compute, self.specialisation = signature, compute, specialisation
        self.fixed = dict(specialisation.sizes)
        layouts = iter(specialisation.layouts)
        params = [
            BufferParam(a.name, a.dtype, a.shape, next(layouts), a in signature.outputs)
            if isinstance(a, ArrayArg)
            else ScalarParam(a.name, a.dtype)
            for a in (*signature.inputs, *signature.outputs)
        ]
        sizes = [SizeParam(n) for n in signature.sizes if n not in self.fixed]
        self.kernel = Kernel(signature.name, (*sizes, *params), Block(()))
        self.params = self.kernel.params
        self.fast = self.accept if quick else None
        self.slow_runs = self.quick_runs = 0

    def run(self, arguments):
        values = dict(zip((p.name for p in self.kernel.params), arguments, strict=True))
        sizes = self.fixed | {n: values[n] for n in self.signature.sizes if n in values}
        for param in self.kernel.params:
            if isinstance(param, BufferParam):
                assert self.fits(param, values[param.name], sizes)
        self.slow_runs += 1
        self.write(values)

    def accept(self, *args):
        """The contract of the entry in machine code."""
        params = [p for p in self.kernel.params if not isinstance(p, SizeParam)]
        if len(args) != len(params):
            return False
        values = dict(zip((p.name for p in params), args, strict=True))
        sizes = dict(self.fixed)
        for param in params:
            if isinstance(param, ScalarParam):
                if type(values[param.name]) is not float:
                    return False
                values[param.name] = param.dtype.numpy.type(values[param.name])
                continue
            a = values[param.name]
            if type(a) is not np.ndarray or a.dtype != param.dtype.numpy:
                return False
            if a.ndim != len(param.extents) or (param.written and not a.flags.contiguous):
                return False
            for e, n in zip(param.extents, a.shape, strict=True):
                if isinstance(e, Size) and sizes.setdefault(e.name, n) != n:
                    return False
        arrays = [(p, values[p.name]) for p in params if isinstance(p, BufferParam)]
        for p, a in arrays:
            if not self.fits(p, a, sizes):
                return False
            if p.written and any(np.may_share_memory(a, b) for q, b in arrays if q is not p):
                return False
        self.quick_runs += 1
        self.write(values)
        return True

    def fits(self, param, a, sizes):
        shape = tuple(extent(e, sizes) for e in param.extents)
        strides = row_major(a.shape) if a.flags.c_contiguous else None
        return (
            a.shape == shape
            and a.dtype == param.dtype.numpy
            and a.flags.aligned
            and (a.flags.writeable or not param.written)
            and all(
                known is None or known * a.itemsize == s or (strides and strides[axis] == known)
                for axis, (known, s) in enumerate(zip(param.strides, a.strides, strict=True))
            )
        )

    def write(self, values):
        # Outputs first hold rubbish, so an input that shares memory with one is spoilt.
        inputs = [values[a.name] for a in self.signature.inputs]
        for a in self.signature.outputs:
            values[a.name][...] = 99
        results = self.compute(*inputs)
        for a, result in zip(self.signature.outputs, results, strict=True):
            values[a.name][...] = result


def program(signature, compute, dynamic=(), quick=True):
    entry = Entry(
        signature,
        frozenset(dynamic),
        lambda s: executables_built.append(Fake(signature, compute, s, quick)) or executables_built[-1],
    )
    entry.executables_built = executables_built = []
    return entry


def array(name, *shape, dtype=f32):
    return ArrayArg(name, dtype, shape, HERE)


SCALED = Signature(
    "scaled", (array("x", R, C), array("w", C), ScalarArg("s", f32, HERE)), (array("y", R, C),)
)
TWO = Signature("two", (array("x", R),), (array("y", R), array("total")))


def scaled(**options):
    return program(SCALED, lambda x, w, s: [x * w + s], **options)


def two(**options):
    return program(TWO, lambda x: [x + 1, x.sum()], **options)


def f(*shape):
    return np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


X, W = f(3, 4), f(4)
Y = X * W + np.float32(0.5)

DYNAMIC = pytest.mark.parametrize("dynamic", [(), ("R",), ("R", "C")], ids=str)
QUICK = pytest.mark.parametrize("quick", [True, False], ids=["quick", "slow"])


@DYNAMIC
@QUICK
def test_by_position_and_by_name(dynamic, quick):
    call = scaled(dynamic=dynamic, quick=quick)
    for _ in range(2):
        np.testing.assert_array_equal(call(X, W, 0.5), Y)
        np.testing.assert_array_equal(call(X, s=0.5, w=W), Y)
        np.testing.assert_array_equal(call(s=0.5, x=X, w=W), Y)
    assert len(call.executables_built) == 1
    assert call.executables_built[0].quick_runs == (5 if quick else 0)
    assert call.executables_built[0].slow_runs == (1 if quick else 6)


@DYNAMIC
@QUICK
def test_memory_of_the_caller_is_returned_as_it_is(dynamic, quick):
    call = scaled(dynamic=dynamic, quick=quick)
    base = np.zeros((8, 12), np.float32)
    for out in (f(3, 4), f(4, 3).T, f(3, 4)[::-1], base[1:7:2, ::3], base.view(np.memmap)[5:, :4]):
        for _ in range(2):
            out[...] = 0
            assert call(X, W, 0.5, out=out) is out
            np.testing.assert_array_equal(out, Y)
    for wrap in (lambda a: (a,), lambda a: {"y": a}):
        out = f(3, 4)
        result = call(X, W, s=0.5, out=wrap(out))
        assert result is out
        np.testing.assert_array_equal(out, Y)
    assert not base[0].any()


def test_memory_of_other_libraries_is_written_and_returned():
    call = two()
    output_memory = memoryview(bytearray(12)).cast("f")
    total = np.zeros((), np.float32)
    result = call(memoryview(f(3)), out=(output_memory, total))
    assert result == (output_memory, total)
    assert output_memory.tolist() == [1, 2, 3]
    assert total == 3


@QUICK
def test_several_outputs_are_a_tuple_and_rank_0_is_a_scalar(quick):
    call = two(quick=quick)
    for _ in range(2):
        y, total = call(f(4))
        np.testing.assert_array_equal(y, f(4) + 1)
        assert (type(total), total) == (np.float32, 6)
    out = np.empty(4, np.float32)
    y, total = call(f(4), out=(out, None))
    assert y is out
    assert type(total) is np.float32
    y, total = call(f(4), out={"total": (output_memory := np.zeros((), np.float32))})
    assert total is output_memory
    assert output_memory == 6
    np.testing.assert_array_equal(y, f(4) + 1)


def test_a_second_array_by_position_is_no_output():
    call = two()
    call(f(4))
    with pytest.raises(TypeMismatch, match="takes 1 argument, got 2"):
        call(f(4), f(4), out=np.zeros((), np.float32))


@QUICK
def test_the_result_of_rank_0_alone(quick):
    call = program(Signature("sum", (array("x", R),), (array("t"),)), lambda x: [x.sum()], quick=quick)
    for n in (4, 4, 0):
        assert call(f(n)) == f(n).sum()
    out = np.zeros((), np.float32)
    assert call(f(4), out=out) is out
    assert out == 6


@QUICK
def test_programs_without_inputs(quick):
    call = program(Signature("ones", (), (array("y", const(3)),)), lambda: [1], quick=quick)
    for _ in range(2):
        np.testing.assert_array_equal(call(), np.ones(3))


def test_one_variant_for_each_fixed_size_and_layout():
    call = scaled()
    call(X, W, 1)
    call(X, W, 2)
    call(f(5, 4), W, 1)
    call(f(4, 3).T, W, 1)
    call(f(3, 8)[:, ::2], W, 1)
    assert [m.specialisation for m in call.executables_built] == [
        Specialisation((("R", r), ("C", 4)), (x, (1,), (4, 1)))
        for r, x in ((3, (4, 1)), (5, (4, 1)), (3, (1, None)), (3, (None, None)))
    ]


def test_dynamic_sizes_share_a_variant():
    call = scaled(dynamic=("R",))
    for rows in (3, 0, 1, 7, 1000):
        x = f(rows, 4)
        np.testing.assert_array_equal(call(x, W, 0.5), x * W + np.float32(0.5))
    assert len(call.executables_built) == 1
    assert call.executables_built[0].specialisation == dense_specialisation(SCALED, {"C": 4}, {"R"})
    assert call.executables_built[0].slow_runs == 1


def test_variants_used_in_turn_stay_quick():
    call = scaled()
    inputs = [f(n, 4) for n in range(1, 5)]
    for _ in range(3):
        for x in inputs:
            np.testing.assert_array_equal(call(x, W, 0.5), x * W + np.float32(0.5))
    assert [m.slow_runs for m in call.executables_built] == [1] * 4
    for n in range(5, 9):
        call(f(n, 4), W, 0.5)
    np.testing.assert_array_equal(call(inputs[0], W, 0.5), inputs[0] * W + np.float32(0.5))
    assert len(call.executables_built) == 8


def test_the_dense_variant_can_be_built_ahead():
    call = scaled()
    built = call.executable(dense_specialisation(SCALED, {"R": 3, "C": 4}))
    call(X, W, 0.5)
    assert call.executables_built == [built]


def test_a_build_that_fails_is_tried_again():
    def build(specialisation):
        if not failed:
            failed.append(1)
            raise ShapeError("cannot")
        return Fake(SCALED, lambda x, w, s: [x * w + s], specialisation, True)

    failed = []
    call = Entry(SCALED, frozenset(), build)
    with pytest.raises(ShapeError, match="cannot"):
        call(X, W, 0.5)
    np.testing.assert_array_equal(call(X, W, 0.5), Y)


def test_other_arrays_and_numbers_take_the_quick_way_once_converted():
    call = scaled()
    call(X, W, 0.5)
    np.testing.assert_array_equal(call(memoryview(X), W, np.float64(0.5)), Y)
    np.testing.assert_array_equal(call(X, W.view(np.memmap), 0.5), Y)
    np.testing.assert_array_equal(call(X, W, 1), X * W + 1)
    assert call.executables_built[0].slow_runs == 1
    assert call.executables_built[0].quick_runs == 3


def test_a_negative_extent_is_an_error():
    signature = Signature("g", (array("x", R),), (array("y", Binary("sub", R, const(2))),))
    for dynamic in ((), ("R",)):
        call = program(signature, lambda x: [x[1:-1]], dynamic)
        np.testing.assert_array_equal(call(f(5)), f(5)[1:-1])
        with pytest.raises(ShapeError, match=r"y would have shape \(-1,\), for R = 1"):
            call(f(1))


def test_a_size_that_only_an_output_has_comes_from_out():
    call = program(Signature("fill", (ScalarArg("s", f32),), (array("y", R),)), lambda s: [s])
    out = np.zeros(3, np.float32)
    assert call(2.0, out=out) is out
    np.testing.assert_array_equal(out, [2, 2, 2])
    with pytest.raises(ShapeError, match="no argument of fill decides the size R of y") as caught:
        call(2.0)
    assert "out=" in caught.value.hint


def test_misaligned_arrays_are_copied_in_and_out():
    def misaligned(*shape):
        a = np.zeros(4 * int(np.prod(shape)) + 1, np.uint8)[1:].view(np.float32).reshape(shape)
        assert not a.flags.aligned
        return a

    call = scaled()
    x, out = misaligned(3, 4), misaligned(3, 4)
    x[...] = X
    assert call(x, W, 0.5, out=out) is out
    np.testing.assert_array_equal(out, Y)


def test_bfloat16():
    signature = Signature("g", (array("x", R, dtype=bf16),), (array("y", R, dtype=bf16),))
    x = np.array([1.5, 2], bf16.numpy)
    np.testing.assert_array_equal(program(signature, lambda x: [x])(x), x)


@QUICK
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_views_of_one_memory_in_any_position(quick, data):
    call = scaled(quick=quick)
    memory = np.arange(60, dtype=np.float32)

    def view(rows, columns):
        start = data.draw(st.integers(0, 20))
        row, column = data.draw(st.sampled_from([(4, 1), (1, 3), (5, 1), (8, 2), (-4, 1), (4, -1)]))
        lowest = min(0, row * (rows - 1)) + min(0, column * (columns - 1))
        a = memory[start - lowest :]
        return np.lib.stride_tricks.as_strided(a, (rows, columns), (4 * row, 4 * column))

    x, w, out = view(3, 4), view(1, 4)[0], view(3, 4)
    expected = x * w + np.float32(0.5)
    untouched = memory.copy()
    result = call(x, w, 0.5, out=out)
    assert result is out
    np.testing.assert_array_equal(out, expected)
    out[...] = 0
    written = memory == 0
    np.testing.assert_array_equal(memory[~written], untouched[~written])


@QUICK
def test_the_same_array_as_input_and_output(quick):
    call = scaled(quick=quick)
    for _ in range(2):
        x = X.copy()
        call(x, W, 0.5, out=x)
        np.testing.assert_array_equal(x, Y)


def test_outputs_that_share_memory_are_refused():
    call = two()
    memory = f(10)
    with pytest.raises(ShapeError, match="the outputs y and total share memory") as caught:
        call(f(4), out=(memory[:4], memory[3:4].reshape(())))
    assert caught.value.hint
    assert len(caught.value.related) == 2
    call(f(4), out=(memory[:4], memory[4:5].reshape(())))
    np.testing.assert_array_equal(memory[:5], [1, 2, 3, 4, 6])


BAD = {
    "too few": (lambda g: g(X, W), TypeMismatch, "scaled needs 's', too"),
    "none": (lambda g: g(), TypeMismatch, "scaled needs 'x', 'w', 's', too"),
    "too many": (lambda g: g(X, W, 1, 2), TypeMismatch, "takes 3 arguments, got 4"),
    "unknown": (lambda g: g(X, W, z=1), TypeMismatch, "has no argument 'z'"),
    "twice": (lambda g: g(X, W, 1, w=W), TypeMismatch, "got 'w' by position and by name"),
    "list": (lambda g: g([[1.0]], W, 1), TypeMismatch, "not an array"),
    "dtype": (lambda g: g(X.astype(float), W, 1), TypeMismatch, "float64, expected float32"),
    "scalar": (lambda g: g(X, W, "1"), TypeMismatch, "needs a number"),
    "rank": (lambda g: g(W, W, 1), ShapeError, "x has shape (4,), expected (R, C)"),
    "two values": (
        lambda g: g(X, f(3), 1), ShapeError,
        "w has shape (3,), expected (C,): C is 4 by axis 1 of x, but 3 by axis 0 of w",
    ),
    "out shape": (
        lambda g: g(X, W, 1, out=f(4, 4)), ShapeError,
        "y has shape (4, 4), expected (R, C): R is 3 by axis 0 of x, but 4 by axis 0 of y",
    ),
    "out dtype": (lambda g: g(X, W, 1, out=np.zeros((3, 4))), TypeMismatch, "out= of y has dtype"),
    "out list": (lambda g: g(X, W, 1, out=[1.0]), TypeMismatch, "out= of y is of type list"),
    "out tuple": (lambda g: g(X, W, 1, out=(X, X)), TypeMismatch, "2 entries, but scaled has 1 output"),
    "out name": (lambda g: g(X, W, 1, out={"Y": X}), TypeMismatch, "has no output 'Y'"),
    "out bytes": (lambda g: g(X, W, 1, out=memoryview(bytes(4)).cast("f")), TypeMismatch, "read-only"),
    "out broadcast": (
        lambda g: g(X, W, 1, out=np.lib.stride_tricks.as_strided(W, (3, 4), (0, 4))),
        ShapeError, "elements of y in out= share memory",
    ),
}  # fmt: skip


@DYNAMIC
@pytest.mark.parametrize("action, kind, words", BAD.values(), ids=BAD)
def test_an_error_has_its_location_and_the_next_call_works(dynamic, action, kind, words):
    call = scaled(dynamic=dynamic)
    for _ in range(2):
        with pytest.raises(kind) as caught:
            action(call)
        error = caught.value
        assert words in error.message
        assert error.loc.file == __file__
        assert "test_call.py" in str(error)
        np.testing.assert_array_equal(call(X, W, 0.5), Y)


def test_several_outputs_need_several_arrays():
    with pytest.raises(TypeMismatch, match="has 2 outputs, out= is one ndarray"):
        two()(f(3), out=f(3))


def test_extents_that_are_constants():
    signature = Signature("g", (array("A", const(8), const(9)),), (array("y", const(8)),))
    call = program(signature, lambda a: [a.sum(1)])
    with pytest.raises(ShapeError, match=r"A has shape \(8, 8\), expected \(8, 9\)") as caught:
        call(f(8, 8))
    assert caught.value.related == ((HERE, "A is declared here"),)
    np.testing.assert_array_equal(call(f(8, 9)), f(8, 9).sum(1))
    with pytest.raises(ShapeError, match=r"y has shape \(9,\), expected \(8,\)"):
        call(f(8, 9), out=f(9))


def test_an_output_of_computed_extent_must_have_it():
    signature = Signature("g", (array("x", R),), (array("y", Binary("mul", R, const(2))),))
    call = program(signature, lambda x: [np.repeat(x, 2)])
    with pytest.raises(ShapeError, match=r"y has shape \(5,\), expected \(6,\)"):
        call(f(3), out=f(5))
    np.testing.assert_array_equal(call(f(3), out=f(6)), [0, 0, 1, 1, 2, 2])


def test_its_text_names_inputs_and_outputs():
    assert repr(two()) == "<compiled two(x) -> y, total>"
