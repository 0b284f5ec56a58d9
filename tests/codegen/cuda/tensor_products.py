"""Products scheduled by hand for tensor cores, for the tests beside this file."""

import tdsl as td
from tdsl.machine.instructions import tensor_cores

i, j, k = td.vars("i j k")


def product(left=td.f16, right=td.f16, total=td.f32, *, turned_a=False, turned_b=False):
    """c = a @ b with sums of another type, each operand either way in memory: c, a and b."""
    a = td.Tensor("a", ("K", "M") if turned_a else ("M", "K"), left)
    b = td.Tensor("b", ("N", "K") if turned_b else ("K", "N"), right)
    x, y = a[k, i] if turned_a else a[i, k], b[j, k] if turned_b else b[k, j]
    if left != total:
        x, y = td.cast(x, total), td.cast(y, total)
    c = td.Func("c")
    c[i, j] = td.sum(x * y, axis=k, dtype=total)
    return c, a, b


def by_warps(
    c, a, b, mma: str, loads=(None, None), *, block=(64, 32, 32), warp=(32, 16), swizzle=0
) -> td.Schedule:
    """Tiles in shared memory, sums in fragments; operands by `loads`, or by ordinary loads for None."""
    s = td.Schedule(c)
    stage, form = s[c], tensor_cores.find(mma)
    io, jo, ii, ji = stage.tile((i, j), block[:2])
    wi, wj, ii, ji = stage.tile((ii, ji), warp)
    mi, nj, i1, j1 = stage.tile((ii, ji), form.shapes()[0])
    ko, ki = stage.split(k, block[2])
    ki, k1 = stage.split(ki, form.shapes()[1][1])
    stage.reorder(io, jo, wi, wj, ko, ki, mi, nj, i1, j1, k1)
    stage.bind(io, "blockIdx.y").bind(jo, "blockIdx.x")
    stage.bind(wi, "threadIdx.z").bind(wj, "threadIdx.y")
    stage.tensorize(i1, mma)
    s.cache_write(c, at=wj, scope="fragment").cooperate(2)
    for t, load in zip((a, b), loads, strict=True):
        tile = s.cache_read(t, c, at=ko, scope="shared").cooperate(16 // t.dtype.bytes)
        if swizzle:
            tile.swizzle(swizzle)
        fragment = s.cache_read(tile, c, at=ki, scope="fragment")
        if load is None:
            fragment.cooperate()
        else:
            shape = tensor_cores.find(load).shapes()[0]
            x, y, u, _ = fragment.tile([x.name for x in fragment.loops], shape)
            fragment.tensorize(u, load).unroll(x).unroll(y)
    stage.unroll(mi).unroll(nj).unroll(ki)
    return s
