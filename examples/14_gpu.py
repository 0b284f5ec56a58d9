"""A matrix product for a GPU, checked on the CPU: every block and thread is emulated, every access watched."""
import numpy as np
import tdsl as td


@td.op
def matmul(a: td.f16["M", "K"], b: td.f16["K", "N"]):
    i, j, k = td.vars("i j k")
    c = td.Func("c")
    c[i, j] = td.sum(td.cast(a[i, k], td.f32) * td.cast(b[k, j], td.f32), axis=k)
    return c


s = matmul.schedule()
c = s["c"]
io, jo, ii, ji = c.tile(("i", "j"), (32, 32))
ty, tx, i0, j0 = c.tile((ii, ji), (4, 4))
ko, ki = c.split("k", 16)
c.reorder(io, jo, ty, tx, ko, ki, i0, j0)
c.bind(io, "blockIdx.y").bind(jo, "blockIdx.x")
c.bind(ty, "threadIdx.y").bind(tx, "threadIdx.x")
s.cache_write(c, at=tx, scope="register")           # the accumulator of a thread
for t in ("a", "b"):
    tile = s.cache_read(t, c, at=ko, scope="shared")    # fetched together by the block's threads
    tile.cooperate(vector=8)                            # 16 bytes for each of them at a time
c.unroll(i0).unroll(j0)

f = td.compile(s, target="cuda")
rng = np.random.default_rng(0)
for m, k, n in ((64, 48, 96), (50, 20, 33)):            # the second leaves tails everywhere
    a, b = rng.standard_normal((m, k)).astype(np.float16), rng.standard_normal((k, n)).astype(np.float16)
    wide = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_allclose(td.emulate(f)(a, b), wide, rtol=1e-3, atol=1e-3)
print(f.loops("final", M=64, K=48, N=96))               # with the barriers that the compiler has placed

# Without a schedule each func is a kernel of its own, by the recipe that fits its sizes.
i, j = td.vars("i j")
x, top, e, total, softmax = td.Tensor("x", ("R", "C"), td.f32), *map(td.Func, ("top", "e", "total", "softmax"))
top[i] = td.max(x[i, j], axis=j)
e[i, j] = td.exp(x[i, j] - top[i])
total[i] = td.sum(e[i, j], axis=j)
softmax[i, j] = e[i, j] / total[i]
rows = rng.standard_normal((6, 700)).astype(np.float32)
expected = np.exp(rows - rows.max(1, keepdims=True))
got = td.emulate(td.compile(softmax, target="cuda"))(rows)
np.testing.assert_allclose(got, expected / expected.sum(1, keepdims=True), rtol=1e-5)
