"""A program for mpiexec: every rank runs all of its parts, and the first prints which were right."""

import os
from typing import Any

import numpy as np

import tdsl as td
from tdsl.distribute import mpi, mpi_execution
from tdsl.distribute.engine import Transfer
from tests.distribute import pipelined
from tests.distribute.matmuls import cube, flat, matmul, two_and_a_half
from tests.distribute.test_entries import factors, two_products
from tests.distribute.test_results import histogram
from tests.distribute.test_windows import gradients_in_flight

rng = np.random.default_rng(0)
a, b = rng.integers(-9, 9, (11, 13)).astype(float), rng.integers(-9, 9, (13, 7)).astype(float)
SIZES = {"M": 11, "N": 7, "K": 13}


def products() -> None:
    """Algorithms on four ranks, each checked on rank 0."""
    for s in (
        flat(td.Grid(x=2, y=2), "ij", **SIZES),
        flat(td.Grid(x=4, y=1), "", **SIZES),
        flat(td.Grid(x=2, y=2), "ij", "rc -> r/2 c/3", **SIZES),
        cube(td.Grid(x=2, y=1, z=2), **SIZES),
        two_and_a_half(td.Grid(x=2, y=2, z=1), **SIZES),
        flat(td.Grid(x=1, y=3), "", **SIZES).ranks(4),
    ):
        p = td.compile(s)
        block, carried = p(p.block("A", a), p.block("B", b), count=True)
        plan, me = p.plan(), td.mpi.rank()
        planned = (plan.received[me], plan.sent[me], plan.messages[me]) if me < plan.grid.size else (0, 0, 0)
        assert (carried.received, carried.sent, carried.messages) == planned
        whole = p.gather("C", block)
        if td.mpi.rank() == 0:
            np.testing.assert_array_equal(whole, a @ b)


def collective_programs() -> list[tuple[td.Schedule, list[np.ndarray], np.ndarray]]:
    """Programs of four ranks with a collective of each kind: their inputs, and the result."""
    i, j = td.vars("i j")
    four = td.Grid(x=4)
    c, w = rng.integers(-9, 9, (9, 14)), rng.integers(0, 5, 19).astype(np.int32)
    t, entries = (
        td.Tensor("t", c.shape, td.i64),
        ("r -> r", "r -> *", "r -> 2", "r -> partial(sum)"),
    )
    cases = [(histogram(entry), [w], np.bincount(w, minlength=5)) for entry in entries]
    for by_columns in (False, True):
        for axis, entry in ((i, "rc -> c"), (j, "rc -> *"), (i, "rc -> *")):
            f = td.Func("f")
            f[i, j] = t[i, j] * 2
            s = td.Schedule(f).place("t", "rc -> c" if by_columns else "rc -> r", four)
            s.place("f", entry, four)[f].distribute(axis, four)
            cases.append((s, [c], c * 2))
    for op, expected in ((td.sum, c.sum(0)), (td.max, c.max(0)), (td.argmax, c.argmax(0))):
        f = td.Func("f")
        f[j] = op(t[i, j], axis=i)
        s = td.Schedule(f).place("t", "rc -> r", four)
        for name in dict.fromkeys(("f", s.program.funcs[0].name)):
            s.place(name, "r -> *", four)
        if op is td.argmax:
            s["f"].distribute(j, four)
        s[s.program.funcs[0].name].distribute(i, four)
        cases.append((s, [c], expected))
    for grid, turn in (
        (td.Grid(x=1, y=4), ""),
        (td.Grid(x=1, y=4), "ij"),
        (td.Grid(x=4, y=1), "i"),
    ):
        cases.append((flat(grid, turn, **SIZES), [a, b], a @ b))
    for name, grid in (("cannon", td.Grid(x=2, y=2)), ("summa", td.Grid(x=1, y=4))):
        s = matmul.schedule(**SIZES)
        getattr(td.recipes, name)(s["C"], grid, prefetch=1)
        cases.append((s, [a, b], a @ b))
    cases.append((cube(td.Grid(x=1, y=1, z=4), **SIZES), [a, b], a @ b))
    f, machine = td.Func("f"), [td.Grid(node=2), td.Grid(x=2)]
    f[i] = td.sum(t[i, j], axis=j)
    for entry in ("r -> 1 0", "r -> * *", "r -> r r"):
        s = td.Schedule(f).place("t", "rc -> c c", machine).place("f", entry, machine)
        outer, _ = s[f].split(j, nparts=2)
        s[f].distribute((outer, s[f].loops[2]), machine)
        cases.append((s, [c], c.sum(1)))
    cases.append((flat(td.Grid(x=2, y=2), "ij", "rc -> r/2 c/1", **SIZES), [a, b], a @ b))
    f = td.Func("f", shape=c.shape)
    f[i, j] = t[(i + 1) % 9, j] * 3 - t[(i - 2) % 9, j]
    s = td.Schedule(f).place("t", "rc -> r", four).place("f", "rc -> r", four)
    s[f].distribute(i, four)
    cases.append((s, [c], np.roll(c, -1, 0) * 3 - np.roll(c, 2, 0)))
    f, padded = td.Func("f", shape=c.shape), td.pad(t, mode="edge", shape=c.shape)
    f[i, j] = padded[i - 1, j] * 3 - padded[i + 1, j]
    s = td.Schedule(f).place("t", "rc -> r", four).place("f", "rc -> r", four)
    s[f].communicate("t", at=s[f].distribute(i, four)[0], overlap=True)
    cases.append((s, [c], c[[0, *range(8)]] * 3 - c[[*range(1, 9), 8]]))
    for entry, placed in (("partial", "ij -> *"), ("partial", "ij -> i"), ("*", "ij -> *"), (2, "ij -> 2")):
        given = factors()
        expected = 2 * (given[0] @ given[1]) - given[2] @ given[3]
        cases.append((two_products(entry, placed, lambda p, q: 2 * p - q), given, expected))
    f = td.Func("f")
    f[i, j] = t[i, j] * 2
    s = td.Schedule(f).place("t", "rc -> r", four).place("f", "rc -> r", four)
    s[f].distribute(i, four)
    cases.append((s.overwrite(f, "t"), [c], c * 2))
    s = td.Schedule(f).place("t", "rc -> c", four).place("f", "rc -> r", four)
    s[f].distribute(i, four)
    cases.append((s.donate("t"), [c], c * 2))
    f, grid = td.Func("f"), td.Grid(x=2, y=2)
    f[j] = td.sum(t[i, j], axis=i)
    s = td.Schedule(f).place("t", "ij -> i *", grid).place("f", "j -> * *", grid)
    s[f].distribute((i, "*"), grid)
    cases.append((s, [c], c.sum(0)))
    x = rng.integers(-9, 9, (8, 7))
    cases += [(gradients_in_flight("v", entry), [x], -x.sum(0)) for entry in ("i", "*")]
    for n, index in ((11, lambda i: 10 - i), (16, lambda i: i ^ 4)):  # two boxes of one tensor
        x, f = td.Tensor("x", (n,), td.f64), td.Func("f")
        f[i] = x[i] - 3 * x[index(i)]
        s = td.Schedule(f).place(x, "i -> i", four).place(f, "i -> i", four)
        s[f].distribute(i, four)
        v = np.arange(float(n))
        cases.append((s, [v], v - 3 * v[index(np.arange(n))]))
    return cases


def collectives(largest: int) -> None:
    """Every kind of collective, in calls of so many bytes at most."""
    mpi.LARGEST = largest
    for kind, call in COLLECTIVES.items():
        mpi_execution.COLLECTIVES[kind] = limited(call)
    for s, arrays, expected in collective_programs():
        p = td.compile(s)
        names = [t.name for t in p.signature.inputs]
        block, carried = p(*map(p.block, names, arrays), count=True)
        plan, me = p.plan(), td.mpi.rank()
        planned = (plan.received[me], plan.sent[me], plan.messages[me])
        assert (carried.received, carried.sent, carried.messages) == planned, str(s)
        whole = p.gather(names_of(p)[-1], block)
        if me == 0:
            np.testing.assert_array_equal(whole, expected, err_msg=str(s))


COLLECTIVES = dict(mpi_execution.COLLECTIVES)


def limited(call: Any) -> Any:
    """A collective that asserts the limit of what a rank passes to it."""

    def limited_call(transfer: Transfer, me: int, group: Any) -> Any:
        for parcels in (
            transfer.sends[:1] if call.__name__ == "_broadcast" else transfer.sends,
            transfer.receives,
        ):
            assert sum(array.nbytes for _, array in parcels) <= mpi.LARGEST
        return call(transfer, me, group)

    return limited_call


def names_of(p: Any) -> list[str]:
    return [out.name for out in p.signature.outputs]


def modules() -> None:
    """The standalone modules of the same programs; their kernels run as Python, which starts at once."""
    os.environ["NUMBA_DISABLE_JIT"] = "1"
    for s, arrays, expected in [
        *collective_programs(),
        (two_and_a_half(td.Grid(x=2, y=2, z=1), **SIZES), [a, b], a @ b),
        (flat(td.Grid(x=1, y=3), "", **SIZES).ranks(4), [a, b], a @ b),
    ]:
        p = td.compile(s)
        text = str(p.source("mpi"))
        space: dict[str, Any] = {}
        exec(compile(text, "module of a plan", "exec"), space)
        names = [t.name for t in p.signature.inputs]
        block = space["run"](*map(p.block, names, arrays))
        whole = p.gather(names_of(p)[-1], block)
        if td.mpi.rank() == 0:
            np.testing.assert_array_equal(whole, expected, err_msg=str(s))


def pipelines() -> None:
    """Orders of a pipeline of four stages, without and with windows, one of them also as a module."""
    os.environ["NUMBA_DISABLE_JIT"] = "1"
    inputs = pipelined.arrays(4, 10, 3)
    expected = pipelined.gradients(inputs, 4)
    cases = ((td.recipes.gpipe, False), (td.recipes.one_f_one_b, True), (td.recipes.eager_one_f_one_b, True))
    for order, windows in cases:
        s = pipelined.on_stages(pipelined.training(4, 10, 3), 4)
        s.interleave(pipelined.steps_of(s, 4, 5, windows=windows), order=order(4, 5))
        p = td.compile(s, target="python")
        blocks = [p.block(t.name, x) for t, x in zip(p.signature.inputs, inputs, strict=True)]
        results, carried = p(*blocks, count=True)
        plan, me = p.plan(), td.mpi.rank()
        planned = (plan.received[me], plan.sent[me], plan.messages[me])
        assert (carried.received, carried.sent, carried.messages) == planned, str(s)
        if order is td.recipes.one_f_one_b:
            space: dict[str, Any] = {}
            exec(compile(str(p.source("mpi")), "module of a plan", "exec"), space)
            for got, block in zip(space["run"](*blocks), results, strict=True):
                np.testing.assert_array_equal(got, block)
        for name, block, right in zip(names_of(p), results, expected, strict=True):
            whole = p.gather(name, block)
            if me == 0:
                np.testing.assert_array_equal(whole, right, err_msg=str(s))


PARTS = {
    "products": products,
    "collectives": lambda: collectives(mpi.LARGEST),
    "collectives of 40": lambda: collectives(40),
    "collectives of 150": lambda: collectives(150),
    "modules": modules,
    "pipelines": pipelines,
}

if __name__ == "__main__":
    most = mpi.LARGEST
    for name, part in PARTS.items():
        mpi.LARGEST = most
        part()
        if td.mpi.rank() == 0:
            print(f"right: {name}", flush=True)
