"""Contractions: sums of products in which each operand is reused along another axis.

`find_contraction` recognises them by their indices, `plan_tiles` decides how they run:

    for others, [bands of `across`,] blocks of `along`:                  one of these loops is parallel
      [pack the panel of the vector operand]
      for rows of `across`:
        for the terms:  rows of `across` x vectors of `along`, in registers

`along` is the vectorised variable: operands indexed by it load as vectors, all others broadcast. `across`
is the variable along which each vector is reused. `recipes/matmul.py` writes the plan as directives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from functools import partial
from math import gcd, prod

from tdsl.autoschedule.patterns.cache_conflicts import ROWS, WAYS, has_cache_conflicts
from tdsl.autoschedule.patterns.parts import is_of_few
from tdsl.autoschedule.patterns.register_tile import MOST_VECTORS, tile_shape
from tdsl.autoschedule.patterns.rows import vector_variable
from tdsl.autoschedule.patterns.streaming import is_large
from tdsl.autoschedule.patterns.windows import UNKNOWN, are_digits, slides, window_variables
from tdsl.core.node import frozen
from tdsl.lang.affine import variables
from tdsl.lang.expr import Expr, Read, Var, dtype_of
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, reads_in
from tdsl.machine.instructions.dots import DOTS, Dot, find_dots
from tdsl.machine.model import PAGE_BYTES, Machine
from tdsl.schedule.constants import constant_names
from tdsl.schedule.inlining import inline_funcs
from tdsl.schedule.properties import coefficient, extents, max_bytes, stride_of
from tdsl.schedule.state import State, is_ordered

LEAST_TERMS = 8  # terms of a sum; with fewer, tiles do not pay
REUSE = 64  # rows and terms from which packing a panel pays
SERIAL_WORK = 1 << 20  # multiplications; fewer take less time than waking threads
NO_REUSE_COST = 4  # cost of a multiplication without reuse, relative to one with
PREFETCHED = 0.25  # share of a thread's L2; larger operands are prefetched
KEPT = 0.9  # share of a thread's L2 for what stays there while other operands pass
WIDE = 16  # elements; shorter vectorised extents waste lanes
FULL = 0.9  # share of the lanes of a window's vectors that must be used
SHORT = 8  # full vectors of a row; from here on, lanes wasted by a tail do not count
PIXELS = 4  # depthwise windows summed in one tile
PRODUCTS = 100  # products of such a tile that are unrolled: 4 windows of 5 x 5
THIN = 64  # terms; shorter sums with large results are bound by writing
FEW = 4  # tiles per band of rows of such a result
WHOLE = 0.9  # share of the products that must lie in full tiles of an instruction
AHEAD = 8  # iterations between the prefetch of a row and its use


@frozen
class Contraction:
    """`func` reduces; `owner` is `func` or an element-wise func that is its only reader.

    `names` maps variables of `func` to variables of `owner`; `value` is the summed expression, `moving` its
    vector operand. `final`: the owner is an output that no func reads. `windowed`: a sum over a window
    without reuse along another variable, such as a depthwise convolution. `constant`: the vector operand is
    the same in every call; a copy of it at the root is computed once. `by_hand`: directives copy the vector
    operand. `crowded`: the vector operand's k stride
    causes cache conflicts. `broadcast_strided`: a broadcast operand is strided along its last dimension.
    """

    func: str
    owner: str
    along: str
    across: str
    names: dict[str, str]
    sizes: dict[str, int]
    element: int
    value: Expr
    moving: Read
    ranges: tuple[str, ...]
    final: bool = False
    windowed: bool = False
    constant: bool = False
    crowded: bool = False
    broadcast_strided: bool = False
    by_hand: bool = False

    @property
    def slides(self) -> bool:
        """True if the vectors are loaded from a sliding window: unaligned, and overlapping."""
        along = (e for e in self.moving.index if self.along in variables(e))
        return not all(are_digits(e, self.sizes) for e in along)

    @property
    def terms(self) -> int:
        """The number of products in a sum."""
        return prod(self.sizes[name] for name in self.ranges)

    @property
    def others(self) -> tuple[str, ...]:
        """The free variables that are neither `along` nor `across`."""
        return tuple(v for v in self.names if v not in (self.along, self.across))


def find_contraction(state: State, owner: str, group: list[str], boxes: dict[str, Box]) -> Contraction | None:
    """The contraction that `owner` is, or that it reads element by element."""
    recognized = recognize(state, owner, group, boxes)
    return recognized if isinstance(recognized, Contraction) else None


def recognize(
    state: State, owner: str, group: list[str], boxes: dict[str, Box], *, along: str = ""
) -> Contraction | str:
    """The contraction that `owner` is, or that it reads element by element; or why there is none.

    With `along` the vectors lie along this variable of the owner; in a matrix product this swaps which
    operand is broadcast.
    """
    recognized = _recognize(state, owner, group, boxes, partial(_contraction, vectors=along))
    return _final(state, owner, recognized)


def contraction(f: FuncDef, boxes: dict[str, Box]) -> Contraction | None:
    """The contraction that a func is where these boxes are needed."""
    recognized = _contraction(f, f, {v: v for v in f.variables}, boxes)
    return recognized if isinstance(recognized, Contraction) else None


def find_window(state: State, owner: str, group: list[str], boxes: dict[str, Box]) -> Contraction | None:
    """The sum over a window that `owner` is, or that it reads element by element."""
    recognized = _final(state, owner, _recognize(state, owner, group, boxes, _window))
    return recognized if isinstance(recognized, Contraction) else None


def _final(state: State, owner: str, c: Contraction | str) -> Contraction | str:
    if not isinstance(c, Contraction):
        return c
    # an inlined func is no operand in memory; its definition replaces it in the products
    (value,) = inline_funcs(state).program.func(c.func).definitions[0].values
    if c.moving not in reads_in((value,)):
        return f"{c.moving.name!r} is inlined"
    final = owner in state.program.outputs and not any(True for _ in state.consumers(owner))
    constant = c.moving.name in constant_names(state.program)
    crowded = has_cache_conflicts(state.program, c.moving, c.ranges[-1], c.element)
    strided = any(r.name in state.strided_inputs for r in reads_in((value,)) if r != c.moving)
    return replace(
        c, value=value, final=final, constant=constant, crowded=crowded, broadcast_strided=strided,
        by_hand=_is_copied_by_hand(state, c.moving.name),
    )  # fmt: skip


def _is_copied_by_hand(state: State, name: str) -> bool:
    """True for a func of elements of another array alone on which there are directives."""
    if not state.program.has_func(name) or not state.plan(name).scheduled:
        return False
    (first, *others) = state.program.func(name).definitions
    return not others and first.init is None and all(isinstance(v, Read) for v in first.values)


_Find = Callable[[FuncDef, FuncDef, dict[str, str], dict[str, Box]], Contraction | str]


def _recognize(
    state: State, owner: str, group: list[str], boxes: dict[str, Box], find: _Find
) -> Contraction | str:
    f = state.program.func(owner)
    if len(f.definitions) > 1:
        return "it has updates"
    if f.definitions[0].ranges:
        return find(f, f, {v: v for v in f.variables}, boxes)
    for name in group:
        g = state.program.func(name)
        places = {r.index for r in f.definitions[0].reads if r.name == name}
        if len(places) != 1 or {c.name for c, _ in state.consumers(name)} != {owner}:
            continue
        (index,) = places
        bare = [e.name for e in index if isinstance(e, Var)]
        if len(bare) < len(index):
            continue
        if len(g.definitions) == 1 and sorted(bare) == sorted(f.variables):
            product = find(g, f, dict(zip(g.variables, bare, strict=True)), boxes)
            same = tuple(bare) == f.variables  # the sum alone would be written in the same order
            if isinstance(product, Contraction) and (same or product.names[product.along] == f.variables[-1]):
                return product
    return "it is no sum of products, and reads none element by element"


def _contraction(
    f: FuncDef, owner: FuncDef, names: dict[str, str], boxes: dict[str, Box], vectors: str = ""
) -> Contraction | str:
    sizes = _sizes_of_sum(f, boxes)
    if isinstance(sizes, str):
        return sizes
    d = f.definitions[0]
    ranges = tuple(name for name, _, _ in d.ranges)
    if prod(sizes[name] for name in ranges) < LEAST_TERMS:
        return f"its sums have fewer than {LEAST_TERMS} terms"
    width = max_bytes(d)
    if is_of_few(f, boxes[f.name], WIDE * width):
        return "it has so few values that the terms are vectorised and split"
    best: tuple[int, Contraction] | None = None
    for along in d.free:
        if vectors not in ("", names[along]):
            continue
        scored = _candidate(f, along, sizes)
        if scored is None:
            continue
        score, across, moving = scored
        candidate = Contraction(
            f.name, owner.name, along, across, names, sizes, width, d.values[0], moving, ranges
        )
        if best is None or score > best[0]:
            best = score, candidate
    if best is None and vectors:
        return f"no operand alone moves along {vectors!r}, and is used again along another variable"
    return "no operand is used again along a variable of another one" if best is None else best[1]


def _sizes_of_sum(f: FuncDef, boxes: dict[str, Box]) -> dict[str, int] | str:
    """The extents of the variables of a sum with two free variables or more; or why there is no such sum."""
    d = f.definitions[0]
    if d.init is None or f.name not in boxes:
        return "it is no reduction"
    if is_ordered(f, 0):
        return "its terms are taken in order"
    if len(f.dtypes) > 1 or len(d.free) < 2:
        return "it has no two variables for a tile of single values"
    return {n: UNKNOWN if e is None else e for n, e in extents(f, d, boxes[f.name]).items()}


def _window(f: FuncDef, owner: FuncDef, names: dict[str, str], boxes: dict[str, Box]) -> Contraction | str:
    """A contraction with contiguous vectors; `across` is a window variable, if one has an extent above 1."""
    sizes = _sizes_of_sum(f, boxes)
    if isinstance(sizes, str):
        return sizes
    d = f.definitions[0]
    along, windows = vector_variable(d), window_variables(d)
    moving = [r for r in reads_in(d.values) if along and stride_of(r, along)]
    if along is None or not windows or not moving or sizes[along] < 4:
        return "it is no sum over a window along memory"
    others = [v for v in d.free if v != along]
    several = [v for v in others if sizes[v] > 1]
    across = next((v for v in windows if v in several), others[-1])
    ranges = tuple(name for name, _, _ in d.ranges)
    width = max_bytes(d)
    return Contraction(
        f.name, owner.name, along, across, names, sizes, width, d.values[0], moving[0], ranges,
        windowed=True,
    )  # fmt: skip


def _candidate(f: FuncDef, along: str, sizes: dict[str, int]) -> tuple[int, str, Read] | None:
    """(score, variable across, vector operand) for vectors along a variable."""
    d = f.definitions[0]
    reads = list(dict.fromkeys(reads_in(d.values)))
    moving = [r for r in reads if any(along in variables(e) for e in r.index)]
    if len(moving) != 1 or sizes[along] < 4:
        return None
    (read,) = moving
    axes = [e for e in read.index if along in variables(e)]
    column = len(axes) == 1 and coefficient(axes[0], along) == 1 and are_digits(axes[0], sizes)
    if not column and not _fills(read, along, sizes[along]):
        return None
    for across in reversed(d.free):
        again = any(across in variables(e) for e in read.index)
        used = any(across in variables(e) for r in reads if r != read for e in r.index)
        if across != along and not again and used and sizes[across] >= 2:
            adjacent = stride_of(read, along) == 1
            last = d.index[-1] == Var(along)
            plain = all(are_digits(e, sizes) for e in read.index)
            if not (adjacent or plain):
                return None
            lanes = (sizes[along] >= WIDE) - 2 * (sizes[along] < WIDE // 2)
            return 2 * adjacent + last + lanes + plain, across, read
    return None


def _fills(read: Read, along: str, extent: int) -> bool:
    """True if vectors of a window are contiguous in memory, and most of their lanes are used."""
    half = WIDE // 2
    even = extent > WIDE and extent >= FULL * -(-extent // half) * half
    return stride_of(read, along) == 1 and even


@frozen
class RegisterTiles:
    """How a contraction runs.

    A register tile has `rows` of `across` and `vectors` vectors of `lanes` elements of `along`. `terms` are
    summed before the next panel is packed; 0 means all. `panel` says where the vector operand is packed:
    "no", in the "block" that uses it, or all of it at the "root". `parallel` is the loop for threads: a
    variable of the owner, or "" for none; `across` is split into bands of `band` rows for threads. A vector
    operand that is not packed is prefetched `ahead` iterations before its use, the broadcast operand in
    pieces of `fetch` terms; 0 leaves prefetching to the processor. `dot` names the row of `dots.DOTS` whose
    instruction sums several terms at once, "" for none. `stream` uses non-temporal stores. `unroll` are the
    inner ranges whose loops are unrolled. With `short`, half or a quarter of the lanes left at the end of a
    row are a shorter vector, not a masked one.
    """

    lanes: int
    rows: int
    vectors: int
    terms: int = 0
    panel: str = field(default="no", metadata={"among": ("no", "block", "root")})
    parallel: str = ""
    band: int = 0
    ahead: int = 0
    dot: str = field(default="", metadata={"among": ("", *(d.name for d in DOTS))})
    fetch: int = 0
    stream: bool = False
    unroll: tuple[str, ...] = ()
    short: bool = False

    @property
    def width(self) -> int:
        """The elements of `along` in a tile."""
        return self.lanes * self.vectors


def plan_tiles(c: Contraction, machine: Machine) -> RegisterTiles:
    """The tiles that fit the shape: few loads, little waste at the ends, work for every thread."""
    tiles = _plan_window(c, machine) if c.windowed else _plan_product(c, machine)
    whole, rest = divmod(c.sizes[c.along], tiles.lanes)
    halved = rest >= 4 and rest in (tiles.lanes // 2, tiles.lanes // 4)
    return replace(tiles, short=halved and whole < SHORT and not tiles.dot)


def _plan_product(c: Contraction, machine: Machine) -> RegisterTiles:
    dot = _dot(c, machine)
    lanes = dot.lanes if dot else _lanes(c, machine)
    rows_of, columns = c.sizes[c.across], c.sizes[c.along]
    rows, vectors = tile_shape(rows_of, columns, lanes, machine.registers)
    if dot and dot.rows > 1:  # two by two tiles of sums, and two tiles of each operand
        rows, vectors = (min(2, n // side) for n, side in ((rows_of, dot.rows), (columns, lanes)))
        rows *= dot.rows
    width = vectors * lanes
    adjacent = stride_of(c.moving, c.along) == 1
    again = rows_of >= REUSE and c.terms >= REUSE and not c.slides
    crowded = c.crowded and rows_of >= ROWS and c.terms > WAYS and not c.slides
    pays = (again or crowded or c.constant) and not c.by_hand
    copied = dot is not None or not adjacent or pays
    parallel, band = _for_threads(c, rows, width, machine.threads)
    if dot and dot.rows > 1 and not band:
        band = _rows_in_cache(c, rows, width, machine)
        parallel = c.names[c.across] if band and parallel else parallel
    moves = {v for e in c.moving.index for v in variables(e)}
    whole = c.constant or band > 0 or parallel == c.names[c.across] or not moves.issuperset(c.others)
    terms = 0
    panel = (width + 2 * rows) * c.terms * c.element  # bytes with rows that pass by, which L2 should keep
    if copied and len(c.ranges) == 1 and c.terms < UNKNOWN and panel > machine.l2_share:
        blocks = -(-panel // machine.l2_share)
        terms = -(-c.terms // blocks)
        terms += -terms % (dot.terms if dot else 1)
    large = c.element * prod(c.sizes[v] for v in moves) > PREFETCHED * machine.l2_share
    prefetched = adjacent and large and not c.slides and not c.constant
    if _is_write_bound(c, machine):
        across = c.names[c.across] if parallel else ""
        return RegisterTiles(
            lanes, rows, vectors, panel="root", parallel=across, band=FEW * rows,
            dot=dot.name if dot else "", stream=True,
        )  # fmt: skip
    return RegisterTiles(
        lanes, rows, vectors, terms, "no" if not copied else "root" if whole else "block", parallel, band,
        AHEAD if prefetched else 0, dot.name if dot else "",
        0 if dot or terms or columns > width else _fetch(c, machine),
    )  # fmt: skip


def _lanes(c: Contraction, machine: Machine) -> int:
    lanes = max(machine.vector_bytes // c.element, 1)
    while lanes > 1 and lanes > c.sizes[c.along]:
        lanes //= 2
    return lanes


def _plan_window(c: Contraction, machine: Machine) -> RegisterTiles:
    """Tiles of adjacent windows, which share loads, or of several vectors of one window; small, to unroll."""
    lanes = _lanes(c, machine)
    shared = [v for v in c.ranges if slides(c.across, (c.value,), {v})]
    rows = min(PIXELS, c.sizes[c.across]) if shared else 1
    vectors = 1 if shared else min(-(-c.sizes[c.along] // lanes), MOST_VECTORS)
    unroll: tuple[str, ...] = ()
    for v in (*shared, *(v for v in reversed(c.ranges) if v not in shared)):
        if rows * vectors * prod(c.sizes[n] for n in (v, *unroll)) > PRODUCTS:
            break
        unroll = (v, *unroll)
    parallel, band = _for_threads(c, rows, lanes * vectors, machine.threads)
    return RegisterTiles(lanes, rows, vectors, parallel=parallel, band=band, unroll=unroll)


def _is_write_bound(c: Contraction, machine: Machine) -> bool:
    """True for a large result of short sums, which takes longer to write than to compute.

    Such a result is written in bands of few rows, since each row spans a page of memory or more.
    """
    free = prod(c.sizes[v] for v in c.names)
    known = max(c.sizes.values()) < UNKNOWN
    large = known and is_large(free * c.element, machine)
    return large and c.final and c.terms <= THIN and not c.others and len(c.ranges) == 1


def _fetch(c: Contraction, machine: Machine) -> int:
    """The terms in a cache line if a broadcast operand is loaded from memory line by line; otherwise 0."""
    for r in reads_in((c.value,)):
        plain = r != c.moving and all(isinstance(e, Var) for e in r.index)
        if not plain or stride_of(r, c.ranges[-1]) != 1:
            continue
        if c.element * prod(c.sizes[v] for e in r.index for v in variables(e)) > machine.llc_bytes:
            return machine.levels[0].line // c.element
    return 0


def _dot(c: Contraction, machine: Machine) -> Dot | None:
    """The instruction that sums several terms at once, if the operands can be packed for it."""
    last = c.ranges[-1]
    dots = find_dots(c.value, c.moving, machine)
    dot = next((d for d in dots if _is_filled(c, d)), None)
    if dot is None:
        return None
    (left,) = (r for r in reads_in((c.value,)) if r != c.moving)
    if left.name == c.moving.name and dot.right != c.moving.dtype:
        return None  # both operands would be read as unsigned
    if dot.rows > 1:
        paired = _is_paired(left, last) and _is_paired(left, c.across)
    else:
        paired = is_contiguous_along(c, left, last) or _is_paired(left, last)
    return dot if paired and _is_paired(c.moving, last) else None


def is_contiguous_along(c: Contraction, left: Read, variable: str) -> bool:
    """True if the broadcast operand is contiguous along a variable."""
    return stride_of(left, variable) == 1 and not c.broadcast_strided


def _is_filled(c: Contraction, dot: Dot) -> bool:
    """True for enough work in each dimension, with few tails, which run in loops."""
    last = c.sizes[c.ranges[-1]]
    if dot.rows == 1:  # dot.terms rows pay for packing a panel
        return c.sizes[c.along] >= dot.lanes and last >= dot.terms and c.sizes[c.across] >= dot.terms
    sides = ((c.sizes[c.across], dot.rows), (c.sizes[c.along], dot.lanes), (last, dot.terms))
    return prod(n - n % side for n, side in sides) >= WHOLE * prod(n for n, _ in sides) > 0


def _is_paired(r: Read, variable: str) -> bool:
    """True if a copy of an operand can be contiguous along a variable."""
    return sum(variable in variables(e) for e in r.index) == 1 and Var(variable) in r.index


def _for_threads(c: Contraction, rows: int, width: int, threads: int) -> tuple[str, int]:
    """(the variable whose loop threads share most evenly, the rows of a band if the variable is `across`)."""
    work = prod(c.sizes.values()) * (NO_REUSE_COST if c.windowed else 1)
    if threads == 1 or work < SERIAL_WORK:
        return "", 0
    blocks = {c.names[v]: c.sizes[v] for v in c.others}
    blocks[c.names[c.along]] = -(-c.sizes[c.along] // width)
    for enough in (0.95, 0.8):
        for name, n in blocks.items():
            if share(n, threads) > enough:
                return name, 0
    tiles = -(-c.sizes[c.across] // rows)
    band = -(-tiles // threads)
    best = max(blocks, key=lambda name: share(blocks[name], threads))
    if share(tiles, threads) > share(blocks[best], threads):
        return c.names[c.across], band * rows
    return best, 0


def _rows_in_cache(c: Contraction, rows: int, width: int, machine: Machine) -> int:
    """The rows that stay in the L2 for all panels of a tile unit, as many for each thread; 0 for all of them.

    Vectors are busy with a row that comes from the last cache; tile units take less time than that. Rows of
    a result whose distance is a page share few sets of a cache.
    """
    (left,) = (r for r in reads_in((c.value,)) if r != c.moving)
    size = dtype_of(c.value).bytes
    row = c.terms * left.dtype.bytes + max(width * size, gcd(c.sizes[c.along] * size, PAGE_BYTES))
    room = KEPT * machine.l2_share - 2 * width * c.terms * c.moving.dtype.bytes
    if c.others or c.sizes[c.across] >= UNKNOWN or c.sizes[c.across] * row <= room or room < rows * row:
        return 0
    bands = -(-c.sizes[c.across] * row // int(room))
    bands += -bands % machine.threads
    return -(-c.sizes[c.across] // (bands * rows)) * rows


def share(n: int, threads: int) -> float:
    """The share of the time in which a thread has work, when threads share n equal tasks."""
    return n / (-(-n // threads) * threads)
