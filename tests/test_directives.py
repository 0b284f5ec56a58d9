"""Every directive, on loops of no, one, a prime number and other numbers of iterations, keeps the meaning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

import tdsl as td
from tdsl.lang.interp import interpret
from tdsl.schedule.directive import DIRECTIVES
from tdsl.tilegraph.schedule import Schedule

SHAPES = {1: ((0,), (1,), (13,), (20,)), 2: ((0, 5), (13, 1), (20, 13))}


@dataclass(frozen=True, slots=True)
class Programs:
    """Funcs of a tensor `a` of one or two dimensions; `outer` and `inner` are their loops."""

    a: td.Tensor
    index: tuple[Any, ...]

    @property
    def outer(self) -> str:
        return self.index[0].name

    @property
    def inner(self) -> str:
        return self.index[-1].name

    def stencil(self) -> Schedule:
        """f reads g, which is made of the padded tensor, at its own point and the next one."""
        g, f, padded = td.Func("g"), td.Func("f"), td.pad(self.a, "edge")
        g[self.index] = padded[self.index] * 2 + 1
        f[self.index] = g[self.index] + g[(*self.index[:-1], self.index[-1] + 1)]
        return td.Schedule(f.with_shape(*self.a.shape))

    def scaled(self) -> Schedule:
        """f is an element-wise func of g, and g of the tensor."""
        g, f = td.Func("g"), td.Func("f")
        g[self.index] = self.a[self.index] * 2
        f[self.index] = g[self.index] + 1
        return td.Schedule(f)

    def sums(self) -> Schedule:
        """f sums over the last dimension."""
        f, k = td.Func("f"), td.vars("k")
        f[self.index[:-1]] = td.sum(self.a[(*self.index[:-1], k)], axis=k)
        return td.Schedule(f)

    def counts(self) -> Schedule:
        """f counts, by an update, how often a value stands in a row."""
        f, k, bins = td.Func("f", shape=(*self.a.shape[:-1], 4)), td.vars("k"), td.vars("b")
        place = td.clip(td.cast(self.a[(*self.index[:-1], k)], td.i64), 0, 3)
        f[(*self.index[:-1], bins)] = td.cast(0, td.i32)
        f[(*self.index[:-1], place)] += 1
        return td.Schedule(f)

    def with_a_table(self) -> Schedule:
        """f adds a number of a table to each element of a row."""
        t, f = td.Func("t"), td.Func("f")
        t[self.index[0]] = self.index[0] * 3
        f[self.index] = self.a[self.index] + td.cast(t[self.index[0]], self.a.dtype)
        return td.Schedule(f)

    def two(self) -> Schedule:
        """f and g, which have nothing to do with each other."""
        g, f = td.Func("g"), td.Func("f")
        f[self.index] = self.a[self.index] + 1
        g[self.index] = self.a[self.index] - 1
        return td.Schedule(f, g)

    def shares(self) -> Schedule:
        """f sums powers of two, relative to the largest, over the last dimension."""
        top, f, k = td.Func("top"), td.Func("f"), td.vars("k")
        x = td.cast(self.a[(*self.index[:-1], k)], td.f32)
        top[self.index[:-1]] = td.max(x, axis=k)
        f[self.index[:-1]] = td.sum(td.exp2(x - top[self.index[:-1]]), axis=k)
        return td.Schedule(f)

    def products(self) -> Schedule:
        """f sums products of elements with s, which sums products of elements of the last dimension."""
        s, f, (k, m), row = td.Func("s"), td.Func("f"), td.vars("k m"), self.index[:-1]
        t = self.a.dtype
        s[(*row, m)] = td.sum(self.a[(*row, k)] * self.a[(*row, m)], axis=k, dtype=t)
        f[row] = td.sum(s[(*row, m)] * self.a[(*row, m)], axis=m, dtype=t)
        return td.Schedule(f)


Use = Callable[[Programs], Schedule]


def on(program: Callable[[Programs], Schedule], steps: Callable[[Schedule, Programs], Any]) -> Use:
    """A schedule of a program by some steps."""

    def use(p: Programs) -> Schedule:
        s = program(p)
        steps(s, p)
        return s

    return use


P = Programs


def fused(s: Schedule, p: Programs) -> None:
    outer, inner = s["f"].split(p.inner, 4)
    s["f"].fuse(outer, inner)
    if len(p.index) > 1:
        s["f"].fuse(*s["f"].loops)


def flattened(s: Schedule, p: Programs) -> None:
    if len(p.index) > 1:
        for name in ("g", "f"):
            s[name].flatten(*p.index)


def unflattened(p: Programs) -> Schedule:
    """Pairs of a new dimension of six points, of which f reads each but the last."""
    g, f, d = td.Func("g", shape=(*p.a.shape, 6)), td.Func("f", shape=(*p.a.shape, 5)), td.vars("d")
    g[(*p.index, d)] = p.a[p.index] * d
    f[(*p.index, d)] = g[(*p.index, d + 1)] + g[(*p.index, d // 2)]
    s = td.Schedule(f)
    s[g].compute_root().unflatten("d", 2)
    return s


def reordered(s: Schedule, p: Programs) -> None:
    outer, inner = s["f"].split(p.inner, 4)
    s["f"].reorder(inner, outer)


def inside_blocks(s: Schedule, p: Programs) -> Any:
    """g in blocks of 4 points of f, as part of other uses."""
    block, _ = s["f"].split(p.inner, 4)
    s["g"].compute_at("f", block)
    return block


def in_a_window(s: Schedule, p: Programs) -> None:
    block, point = s["f"].split(p.inner, 4)
    s["g"].store_at("f", block).compute_at("f", point)


def after_its_producer(s: Schedule, p: Programs) -> None:
    block, _ = s["g"].compute_root().split(p.inner, 4)
    s["f"].reverse_compute_at("g", block)


def in_blocks_of_threads(s: Schedule, p: Programs) -> Any:
    """f in blocks of 4 threads, as part of other uses."""
    block, thread = s["f"].split(p.inner, 4)
    s["f"].reorder(block, *(x for x in s["f"].loops if x.name not in (block.name, thread.name)))
    s["f"].bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    return thread


def by_all_threads(s: Schedule, p: Programs) -> None:
    thread = in_blocks_of_threads(s, p)
    s["g"].compute_at("f", thread).set_scope("shared").cooperate(2)


def inside_of_a_row(s: Schedule, p: Programs) -> None:
    s["g"].compute_at("f", p.outer)
    s.cache_read("a", "f", p.outer, inside=True)


def in_other_banks(s: Schedule, p: Programs) -> None:
    by_all_threads(s, p)
    s["g"].align_storage(p.inner, 32).swizzle(128)


def fetched_ahead(s: Schedule, p: Programs) -> None:
    """What the steps of a block of f need of g, two steps ahead."""
    block, rest = s["f"].split(p.inner, 12)
    step, thread = s["f"].split(rest, 4)
    s["f"].reorder(block, thread, *(x for x in s["f"].loops if x.name not in (block.name, thread.name)))
    s["f"].bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    s["g"].compute_at("f", step).set_scope("shared").cooperate()
    s["f"].pipeline(step, 3)


def fetched_as_a_whole(s: Schedule, p: Programs) -> None:
    """Pieces of 32 numbers of the table, one after the other in each block of f."""
    s["t"].compute_root()
    whole, thread = s["f"].split(p.outer, 32)
    block, step = s["f"].split(whole, 3)
    s["f"].bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    s.cache_read("t", "f", at=step, scope="shared").bulk_copy()
    s["f"].pipeline(step, 2)


def compiled(s: Schedule) -> Any:
    """The program as a callable: on a GPU, emulated, where loops run there, or on ranks, simulated."""
    if s.state.grid is not None:
        return td.compile(s).simulate
    if any(d.name == "bind" for d in s.directives):
        return td.emulate(td.compile(s, target="cuda"))
    return td.compile(s)


@cache
def doubling(t: td.DType) -> Any:
    """An instruction that doubles four elements."""
    x, y, i = td.Tensor("x", (4,), t), td.Func("y"), td.vars("i")
    y[i] = x[i] * 2

    def double(out: np.ndarray, four: np.ndarray) -> None:
        out[...] = four * 2

    return td.instruction(f"double_{t}", y, python=double)


def by_an_instruction(p: Programs) -> Schedule:
    f = td.Func("f")
    f[p.index] = p.a[p.index] * 2
    s = td.Schedule(f, target="python")
    _, four = s[f].split(p.inner, 4, tail="peel")
    s[f].tensorize(four, doubling(p.a.dtype))
    return s


def by_unsigned_factors(p: Programs) -> Schedule:
    g, f, out, k = td.Func("g"), td.Func("f"), td.Func("out"), td.vars("k")
    g[p.index] = td.cast(p.a[p.index], td.i8)
    f[p.index[:-1]] = td.sum(td.cast(g[(*p.index[:-1], k)], td.i32) * 3, axis=k, dtype=td.i32)
    out[p.index[:-1]] = f[p.index[:-1]] + 1
    s = td.Schedule(out)
    s[f].unsigned(g)
    return s


def by_a_factor(p: Programs) -> Schedule:
    f, k, row = td.Func("f"), td.vars("k"), p.index[:-1]
    f[p.index] = td.sum(p.a[p.index] * abs(p.a[(*row, k)]), axis=k, dtype=p.a.dtype)
    s = td.Schedule(f)
    s[f].outline("k").compute_root()
    return s


def by_a_common_factor(p: Programs) -> Schedule:
    f, k, row = td.Func("f"), td.vars("k"), p.index[:-1]
    f[p.index] = td.sum(p.a[p.index] * p.a[(*row, k)], axis=k, dtype=p.a.dtype)
    s = td.Schedule(f)
    s[f].factor_out().compute_root()
    return s


def below_a_diagonal(p: Programs) -> Schedule:
    f, k, row = td.Func("f"), td.vars("k"), p.index[:-1]
    first = td.where(k <= (row[0] if row else 4), p.a[(*row, k)], 0)
    f[row] = td.sum(first * p.a[(*row, k)], axis=k, dtype=p.a.dtype)
    s = td.Schedule(f)
    s[f].skip_masked()
    return s


def by_blocks(p: Programs) -> Schedule:
    f, k, row = td.Func("f"), td.range("k", 0, 24), p.index[:-1]
    f[row] = td.argmax(td.pad(p.a)[(*row, k)], axis=k)
    s = td.Schedule(f)
    s["f_argmax" if s.state.program.has_func("f_argmax") else "f"].in_blocks("k", 8)
    return s


def scanned(p: Programs) -> Schedule:
    """Running sums of the first 24 elements along the last dimension, with padding."""
    f, r, row = td.Func("f", shape=(*p.a.shape[:-1], 24)), td.range("r", 1, 24), p.index[:-1]
    f[p.index] = td.pad(p.a)[p.index]
    f[(*row, r)] += f[(*row, r - 1)]
    return td.Schedule(f)


def by_fused_reductions(p: Programs) -> Schedule:
    top, total, f = (td.Func(name) for name in ("top", "total", "f"))
    k, row = td.vars("k"), p.index[:-1]
    top[row] = td.max(p.a[(*row, k)], axis=k)
    total[row] = td.sum(p.a[(*row, k)] * p.a[(*row, k)], axis=k, dtype=p.a.dtype)
    f[row] = top[row] - total[row]
    s = td.Schedule(f)
    s[top].fuse_reductions(total)
    return s


def two_products(p: Programs) -> Schedule:
    """Two products of the tensor, added to it."""
    y, z, f, k = td.Func("y"), td.Func("z"), td.Func("f"), td.vars("k")
    for g, start in ((y, 1), (z, 4)):
        terms = p.a[(*p.index[:-1], k)] * td.cast(k + start, p.a.dtype)
        g[p.index[:-1]] = td.sum(terms, axis=k, dtype=p.a.dtype)
    f[p.index] = p.a[p.index] + y[p.index[:-1]] + z[p.index[:-1]]
    return td.Schedule(f)


def updated(p: Programs) -> Schedule:
    """f adds the tensor to its double, by an update."""
    f = td.Func("f")
    f[p.index] = p.a[p.index] * 2
    f[p.index] += p.a[p.index]
    return td.Schedule(f)


def turned(s: Schedule, p: Programs) -> None:
    block, _ = s["f"].split(p.inner, 4)
    outer, inner = s["f"].split(block, 2)
    s["f"].rotate(inner, by=outer)


def on_ranks(s: Schedule, p: Programs) -> Any:
    """Three ranks share the first loop of f and the first dimension of the tensor."""
    grid = td.Grid(x=3)
    dims = "ab"[: len(p.index)]
    kept = dims[: len(s.program.func("f").variables)]
    s.place("a", f"{dims} -> a", grid).place("f", f"{kept} -> {kept[:1] or 0}", grid)
    return s["f"].distribute(p.outer if kept else "k", grid)[0]


def in_memory_of_the_tensor(s: Schedule, p: Programs) -> Any:
    """f takes the memory of the tensor, which g has read."""
    on_ranks(s, p)
    dims = "ab"[: len(p.index)]
    s.place("g", f"{dims} -> a", td.Grid(x=3))["g"].distribute(onto="g")
    return s.overwrite("f", "a")


def in_steps_of_two_funcs(s: Schedule, p: Programs) -> None:
    """Steps of two points of g take turns with those of f."""
    grid, dims = td.Grid(x=3), "ab"[: len(p.index)]
    s.place("a", f"{dims} -> a", grid)
    steps = []
    for f in ("g", "f"):
        s.place(f, f"{dims} -> a", grid)[f].distribute(p.outer, grid)
        step, _ = s[f].split(s[f].loops[-1], 2)
        s[f].reorder(step, *(x.name for x in s[f].loops[1:] if x.name != step.name))
        steps.append(step)
    s.interleave(steps)


def in_steps(s: Schedule, p: Programs) -> Any:
    """The tensor is fetched in steps of four points of the last loop, f is sent step by step."""
    on_ranks(s, p)
    last = s["f"].loops[-1]
    steps, _ = s["f"].split(last, 4)
    s["f"].reorder(steps, *(x.name for x in s["f"].loops[1:] if x.name != steps.name))
    s["f"].communicate(("a", "f"), at=steps)
    return steps


def in_turned_steps(s: Schedule, p: Programs) -> None:
    s["f"].rotate(in_steps(s, p), by=s["f"].loops[0])


USES: dict[str, tuple[Use, ...]] = {
    "split": (
        on(P.scaled, lambda s, p: s["f"].split(p.inner, 4)),
        on(P.scaled, lambda s, p: s["f"].split(p.inner, 4, tail="shift")),
        on(P.scaled, lambda s, p: s["f"].split(p.inner, 4, tail="peel")),
        on(P.stencil, lambda s, p: s["g"].compute_root().split(p.inner, 4, tail="round_up")),
        on(P.scaled, lambda s, p: s["f"].divide(p.outer, 3)),
    ),
    "fuse": (on(P.stencil, fused),),
    "rename": (on(P.scaled, lambda s, p: s["f"].rename(p.inner, "x")),),
    "reorder": (on(P.stencil, reordered),),
    "serial": (on(P.sums, lambda s, p: s["f"].serial("k")),),
    "parallel": (on(P.stencil, lambda s, p: s["f"].parallel(p.outer)),),
    "unroll": (
        on(P.stencil, lambda s, p: s["f"].unroll(p.inner, 4)),
        on(P.sums, lambda s, p: s["f"].unroll("k", 4)),
    ),
    "vectorize": (
        on(P.stencil, lambda s, p: s["f"].vectorize(p.inner, 8)),
        on(P.sums, lambda s, p: s["f"].vectorize("k", 8)),
    ),
    "bind": (
        on(P.stencil, lambda s, p: s["f"].bind(p.outer, "blockIdx.x")),
        on(P.scaled, in_blocks_of_threads),
    ),
    "cooperate": (on(P.stencil, by_all_threads),),
    "launch_bounds": (
        on(P.stencil, lambda s, p: s["f"].bind(p.outer, "blockIdx.x").launch_bounds(2)),
    ),
    "grid_sync": (on(P.stencil, lambda s, p: s["f"].bind(p.outer, "blockIdx.x").grid_sync()),),
    "bulk_copy": (on(P.with_a_table, fetched_as_a_whole),),
    "pipeline": (on(P.stencil, fetched_ahead),),
    "swizzle": (on(P.stencil, in_other_banks),),
    "atomic": (
        on(P.counts, lambda s, p: s["f"].update().atomic().parallel("k")),
        on(P.sums, lambda s, p: s["f"].atomic().parallel("k")),
    ),
    "compute_at": (on(P.stencil, inside_blocks),),
    "store_at": (on(P.stencil, in_a_window),),
    "store_root": (on(P.stencil, lambda s, p: s["g"].compute_at("f", p.inner).store_root()),),
    "compute_root": (on(P.stencil, lambda s, p: s["g"].compute_root()),),
    "inline": (on(P.stencil, lambda s, p: s["g"].inline()),),
    "reverse_compute_at": (on(P.scaled, after_its_producer),),
    "compute_with": (on(P.two, lambda s, p: s["g"].compute_with("f", p.inner)),),
    "reorder_storage": (
        on(P.stencil, lambda s, p: s["g"].compute_root().reorder_storage(*reversed(p.index))),
    ),
    "align_storage": (on(P.stencil, lambda s, p: s["g"].compute_root().align_storage(p.inner, 16)),),
    "fold_storage": (
        on(P.stencil, lambda s, p: s["g"].compute_at("f", p.inner).store_root().fold_storage(p.inner, 4)),
    ),
    "bound_extent": (on(P.stencil, lambda s, p: (inside_blocks(s, p), s["g"].bound_extent(p.inner))),),
    "set_scope": (
        on(P.stencil, lambda s, p: (inside_blocks(s, p), s["g"].set_scope("stack"))),
        on(P.stencil, lambda s, p: s["g"].compute_root().set_scope("heap")),
    ),
    "stream_stores": (
        on(P.scaled, lambda s, p: s["f"].vectorize(p.inner, 8).stream_stores()),
    ),
    "cache_policy": (on(P.sums, lambda s, p: s["f"].cache_policy("a", "evict_first")),),
    "prefetch": (
        on(P.sums, lambda s, p: s["f"].prefetch("a", "k", 2)),
        on(P.sums, lambda s, p: s["f"].prefetch("a", "k", of=s["f"].loops[0])),
    ),
    "pin": (on(P.stencil, lambda s, p: s["f"].pin()),),
    "cache_read": (
        on(P.stencil, lambda s, p: s.cache_read("g", "f", p.outer)),
        on(P.sums, lambda s, p: s.cache_read("a", "f", pack={0: 4})),
        on(P.scaled, inside_of_a_row),
        on(P.products, lambda s, p: s.cache_read("a", "s", at="k", along="m")),
    ),
    "cache_write": (on(P.stencil, lambda s, p: s.cache_write("f", p.outer)),),
    "rfactor": (
        on(P.sums, lambda s, p: s["f"].rfactor("k")),
        on(P.sums, lambda s, p: s["f"].rfactor(s["f"].split("k", 4)[1])),
    ),
    "specialize": (
        on(
            P.stencil,
            lambda s, p: s["f"].specialize(p.a.shape[-1] >= 13, lambda f: f.vectorize(p.inner, 4)),
        ),
    ),
    "tensorize": (by_an_instruction,),
    "place": (on(P.stencil, on_ranks),),
    "ranks": (on(P.stencil, lambda s, p: (on_ranks(s, p), s.ranks(5))),),
    "distribute": (on(P.stencil, on_ranks), on(P.sums, on_ranks)),
    "overwrite": (on(P.scaled, in_memory_of_the_tensor),),
    "donate": (on(P.scaled, lambda s, p: (on_ranks(s, p), s.donate("a"))),),
    "interleave": (on(P.scaled, in_steps_of_two_funcs),),
    "communicate": (on(P.stencil, in_steps), on(P.sums, in_steps)),
    "rotate": (on(P.scaled, turned), on(P.sums, in_turned_steps)),
    "flatten": (on(P.stencil, flattened), on(P.scaled, flattened)),
    "unflatten": (unflattened,),
    "in_blocks": (by_blocks, on(scanned, lambda s, p: s["f"].update(0).in_blocks("r", 5))),
    "unsigned": (by_unsigned_factors,),
    "skip_masked": (below_a_diagonal,),
    "fold_update": (on(updated, lambda s, p: s["f"].update(0).fold_update().split(p.inner, 4)),),
    "outline": (by_a_factor,),
    "factor_out": (by_a_common_factor,),
    "reassociate": (on(P.products, lambda s, p: s["f"].reassociate("s")),),
    "fuse_reductions": (by_fused_reductions,),
    "merge_products": (on(two_products, lambda s, p: s["y"].merge_products("z")),),
    "add_first": (on(two_products, lambda s, p: s["f"].add_first(("y", "z"))),),
    "clone_in": (on(two_products, lambda s, p: s["y"].clone_in("f")),),
    "double": (on(scanned, lambda s, p: s["f"].update(0).double("r")),),
    "online": tuple(on(P.shares, lambda s, p, n=n: s["f"].online("k", n)) for n in (4, 64)),
}  # fmt: skip

CASES = [
    pytest.param(use, rank, id=f"{name}-{n}-{rank}d")
    for name, uses in USES.items()
    for n, use in enumerate(uses)
    for rank in SHAPES
]


def test_every_directive_is_used() -> None:
    assert set(USES) == set(DIRECTIVES)


@pytest.mark.in_part(80)
@pytest.mark.parametrize("use, rank", CASES)
def test_a_directive_keeps_the_meaning_at_every_size(use: Use, rank: int) -> None:
    for dtype, shapes in ((td.i32, SHAPES[rank]), (td.f32, SHAPES[rank][-2:])):
        a = td.Tensor("a", ("M", "N")[-rank:], dtype)
        s = use(Programs(a, (td.vars("i j")[:rank])))
        run = compiled(s)
        for shape in shapes:
            # whole numbers: their sums are exact in any order
            x = (np.arange(np.prod(shape)) * 7 % 11 - 3).reshape(shape).astype(dtype.numpy)
            want, got = interpret(s.program, {"a": x}), run(x)
            for mine, expected in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
                np.testing.assert_array_equal(mine, expected, strict=True)


@pytest.mark.parametrize("name", USES)
def test_the_uses_of_a_directive_hold_it(name: str) -> None:
    for use in USES[name]:
        s = use(Programs(td.Tensor("a", ("M", "N"), td.i32), td.vars("i j")))
        assert name in {d.name for d in s.directives}
