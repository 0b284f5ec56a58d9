"""Tiles of operands of tensor cores: swizzled in shared memory, and in the registers of warps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tdsl.autoschedule.recipes.choices import gpu_of
from tdsl.autoschedule.recipes.operands import Operand
from tdsl.autoschedule.recipes.stage_facts import shape_of_source, sizes_of
from tdsl.autoschedule.recipes.tensor_forms import Form
from tdsl.core.node import frozen
from tdsl.cost.sectors import WIDEST
from tdsl.lang.affine import variables
from tdsl.lang.expr import Read, Var
from tdsl.lang.regions import reads_in
from tdsl.machine.instructions.block_scaled import BlockScaledMma
from tdsl.machine.instructions.tensor_cores import LOADS
from tdsl.schedule.fluent import Stage
from tdsl.schedule.inlining import value_at
from tdsl.schedule.naming import Loop, LoopLike
from tdsl.schedule.state import FRAGMENT, SHARED, SWIZZLES

_PADDED, _PAD = 8, 32  # bytes of elements, and between their rows: 4 lanes of 4 rows are in different banks


@frozen
class RegisterFactor:
    """A factor of rows that threads compute in registers, of an array and vectors of rows or terms."""

    array: Read
    vectors: tuple[Read, ...]


def register_factor(stage: Stage, x: Operand, terms: int) -> RegisterFactor | None:
    """The arrays of a computed factor of rows whose tiles of so many terms the copy unit (TMA) can load.

    None where it cannot: the factor has one matrix, of its own size with contiguous terms, and its terms
    are whole tiles, since zeros beyond the edges could become anything.
    """
    term = next((v for e in x.read.index for v in variables(e) if v != x.along and _is_term(stage, v)), "")
    if not x.computed or x.gathered or (sizes_of(stage).get(term) or 1) % terms:
        return None
    value = value_at(stage.schedule.state.program.func(x.read.name).definitions[0], x.read)
    arrays, vectors = list[Read](), list[Read]()
    for r in dict.fromkeys(reads_in((value,))):
        used = [v for v in (x.along, term) if v in variables(r)]
        last = r.index[-1] if r.index else None
        if not used:
            continue
        plain = all(isinstance(e, Var) for e in r.index) and len({*r.index}) == len(r.index)
        row = shape_of_source(stage, r.name)[-1]
        if not plain or last != Var(used[-1]) or row is None or row * r.dtype.bytes % WIDEST:
            return None
        (arrays if len(used) == 2 else vectors).append(r)
    if len(arrays) != 1 or arrays[0].dtype.bytes != x.read.dtype.bytes:
        return None
    names = [r.name for r in (*arrays, *vectors)]
    return RegisterFactor(arrays[0], tuple(vectors)) if len({*names}) == len(names) else None


def _is_term(stage: Stage, v: str) -> bool:
    d = stage.schedule.state.program.func(stage.func).definitions[0]
    return any(v == name for name, _, _ in d.ranges)


def compute_in_registers(stage: Stage, x: Operand, at: Loop, factor: RegisterFactor, terms: int) -> None:
    """Compute a factor in fragments in each iteration of a loop, of tiles that the copy unit loads."""
    schedule = stage.schedule
    schedule[x.read.name].compute_at(stage, at).set_scope(FRAGMENT).cooperate()
    for r in (factor.array, *factor.vectors):
        tile = schedule.cache_read(r.name, stage.func, at=at, scope=SHARED, inside=True, filled=True)
        if r is factor.array:
            tile.swizzle(max(n for n in SWIZZLES if terms * r.dtype.bytes % n == 0))
        tile.bulk_copy()


Place = tuple[Stage, LoopLike]


def copy_tile(
    stage: Stage, x: Operand, row: int, place: Place, vector: int, *, scope: str = SHARED
) -> Stage:  # fmt: skip
    """Copy tiles of an operand, with rows of so many elements, to shared memory in a loop; the copy.

    Threads copy `vector` elements at a time; with 0 the copy unit (TMA) copies tiles.
    """
    size = x.read.dtype.bytes
    tile = _copied(
        stage, x.read.name, place, scope=scope, filled=True, gathered=x.gathered, along=x.copy_along
    )
    wide = [n for n in SWIZZLES if row * size % n == 0]
    if size == _PADDED:
        tile.align_storage(x.axes[1], row + _PAD // size)
    elif wide and x.axes[1] == len(x.read.index) - 1:
        tile.swizzle(max(wide))
    return tile.cooperate(vector) if vector else tile.bulk_copy()


def _copied(stage: Stage, source: str, place: Place, **options: Any) -> Stage:
    """A copy of what a stage reads of an array or func, in one of its loops or of those around it."""
    host, loop = place
    if host.func == stage.func:
        return stage.schedule.cache_read(source, stage.func, at=loop, **options)
    return stage.schedule.cache_read(source, stage.func, **options).compute_at(*place)


def load_tile(stage: Stage, x: Operand, source: str, place: Place, operand: str, rows: int) -> None:
    """Load tiles of an operand to fragments in a loop, by an instruction if there is one.

    `operand` is "a" or "b", with so many rows or columns of a warp.
    """
    along = x.copy_along if source == x.read.name else None
    fragment = _copied(stage, source, place, scope=FRAGMENT, along=along)
    key = operand, x.read.dtype, x.transposed, 4 if operand == "a" or rows % 16 == 0 else 2
    load = {(r.operand, r.dtype, r.transposed, r.matrices): r for r in LOADS}.get(key)
    if load is None:
        fragment.cooperate()  # each thread loads its own elements
        return
    loops = fragment.loops
    down, across, tile, inner = fragment.tile([loops[axis] for axis in x.axes], load.shape)
    others = [loop for n, loop in enumerate(loops) if n not in x.axes]
    fragment.reorder(*others, down, across, tile, inner)
    fragment.tensorize(tile, load.name).unroll(down).unroll(across)


def multiply_tiles(
    stage: Stage, form: Form | BlockScaledMma, tile: tuple[LoopLike, LoopLike, LoopLike],
    outside: Sequence[LoopLike],
) -> Loop:  # fmt: skip
    """Multiply a tile (loops over rows, columns, terms) by an instruction; its loop over steps of terms."""
    mi, nj, i1, j1 = stage.tile(tile[:2], (form.rows, form.columns))
    ko, k1 = stage.split(tile[2], form.k)
    stage.reorder(*outside, ko, mi, nj, i1, j1, k1).tensorize(i1, form.name)
    stage.unroll(mi).unroll(nj).unroll(ko)
    return ko


def is_fetched_whole(stage: Stage, x: Operand, tile: tuple[int, ...]) -> bool:
    """True where the copy unit (TMA) fetches a tile, whose rows are a multiple of a swizzle."""
    row_bytes = (tile[0] if x.transposed else tile[1]) * x.read.dtype.bytes
    return row_bytes % min(SWIZZLES) == 0 and is_boxed(stage, x)


def is_boxed(stage: Stage, x: Operand) -> bool:
    """True where the array of an operand has rows of whole accesses, and tiles are boxes of it."""
    if x.gathered or x.computed or x.axes[1] != len(x.read.index) - 1:
        return False
    shape = [n or 0 for n in shape_of_source(stage, x.read.name)]
    return all(shape) and shape[-1] * x.read.dtype.bytes % WIDEST == 0


def shared_limit(stage: Stage) -> int:
    """The bytes of shared memory that a block can have, on the GPU of a schedule or else the default one."""
    return gpu_of(stage).level("shared").bytes or 0
