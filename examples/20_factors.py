"""Cholesky and LU factors (without pivoting) on block-cyclic tiles, right-looking, one step for each block column.

A step factors the block on the diagonal, solves the panel below it (and for LU the one to its right), and
updates the trailing matrix by a product of the two. Each func is placed as the matrix is, so that only the
diagonal block and panels move: along a column or a row of the grid. Run alone, or under `mpiexec -n` any number.
"""
import numpy as np

import tdsl as td

i, j, p, q = td.vars("i j p q")


def eliminate(D, a, k, w, t):
    """D[p, q] = the block of `a` at (k, k) after Gaussian elimination, a step for each of its w columns."""
    u = td.range(f"u{t}", 0, w)
    D[p, q] = a[k + p, k + q]
    D[p, q] = D[p, q] - td.where((p > u) & (q > u), D[p, u] * D[u, q] / D[u, u], 0)


def below(P, a, D, k, w, t):
    """P[i, q] = columns k to k + w of `a`, eliminated by the upper triangle of D."""
    z, v = td.range(f"z{t}", 0, w), td.range(f"v{t}", 0, w)
    P[i, q] = a[i, k + q]
    P[i, z] = P[i, z] - td.where(v < z, P[i, v] * D[v, z] / D[v, v], 0)


def cholesky(n, block, grid):
    """The schedule of A = L L', for n x n matrices A in square blocks on a grid of two axes."""
    columns, tiles = grid.shape[1], f"ij -> i/{block} j/{block}"
    A, L = td.Tensor("A", (n, n), td.f64), td.Func("L", shape=(n, n))
    a: td.Tensor | td.Func = A
    places: list[tuple[td.Tensor | td.Func, str]] = [(A, tiles)]
    L[i, j] = 0.0
    for t, k in enumerate(range(0, n, block)):
        w, owner = min(block, n - k), t % columns
        D, (P, R, T, C) = td.Func(f"D{t}", shape=(w, w)), (td.Func(f"{x}{t}") for x in "PRTC")
        eliminate(D, a, k, w, t)
        below(P, a, D, k, w, t)
        y = td.range(f"y{t}", 0, w)
        P[i, y] = P[i, y] / td.sqrt(D[y, y])
        x = td.vars("x")                                    # L in the columns of the panel
        x = td.range("x", 0, w, where=(j == k + x) & (i >= j))
        L[i, j] = P[i, x]
        places += [(D, f"pq -> * {owner}"), (P, f"iq -> i/{block} {owner}")]
        if k + w < n:
            m = td.range(f"m{t}", 0, w)
            R[i, q] = P[i, q]                               # the panel, along rows of the grid
            T[j, q] = R[j, q]                               # its transpose, along columns
            C[i, j] = a[i, j] - td.sum(R[i, m] * T[j, m], axis=m)
            places += [(R, f"iq -> i/{block} *"), (T, f"jq -> * j/{block}"), (C, tiles)]
            a = C
    return schedule(L, [*places, (L, tiles)], grid)


def lu(n, block, grid):
    """The schedule of F, with L below the diagonal of ones and U above, for n x n matrices A = L U."""
    (rows, columns), tiles = grid.shape, f"ij -> i/{block} j/{block}"
    A, F = td.Tensor("A", (n, n), td.f64), td.Func("F", shape=(n, n))
    a: td.Tensor | td.Func = A
    places: list[tuple[td.Tensor | td.Func, str]] = [(A, tiles)]
    F[i, j] = 0.0
    for t, k in enumerate(range(0, n, block)):
        w, row, column = min(block, n - k), t % rows, t % columns
        D, E = (td.Func(f"{x}{t}", shape=(w, w)) for x in "DE")
        P, U, R, S, C = (td.Func(f"{x}{t}") for x in "PURSC")
        eliminate(D, a, k, w, t)
        places.append((D, f"pq -> * {column}"))
        x, y = td.vars("x y")
        at = td.range("x", 0, w, where=(i == k + x) & (j >= k) & (j < k + w))
        F[i, j] = D[at, j - k] / td.where(i > j, D[j - k, j - k], 1)
        if k + w < n:
            below(P, a, D, k, w, t)
            c = td.range(f"c{t}", 0, w)
            P[i, c] = P[i, c] / D[c, c]
            E[p, q] = D[p, q]                               # the block on the diagonal, along its row
            z, v = td.range(f"z{t}", 0, w), td.range(f"v{t}", 0, w)
            U[p, j] = a[k + p, j]
            U[z, j] = U[z, j] - td.where(v < z, E[z, v] / E[v, v] * U[v, j], 0)
            m = td.range(f"m{t}", 0, w)
            R[i, q] = P[i, q]
            S[p, j] = U[p, j]
            C[i, j] = a[i, j] - td.sum(R[i, m] * S[m, j], axis=m)
            at = td.range("x", 0, w, where=(j == k + x) & (i >= k + w))
            F[i, j] = P[i, at]
            at = td.range("y", 0, w, where=(i == k + y) & (j >= k + w))
            F[i, j] = U[at, j]
            places += [(E, f"pq -> {row} *"), (P, f"iq -> i/{block} {column}"), (U, f"pj -> {row} j/{block}"),
                       (R, f"iq -> i/{block} *"), (S, f"pj -> * j/{block}"), (C, tiles)]
            a = C
    return schedule(F, [*places, (F, tiles)], grid)


def schedule(result, places, grid):
    """The schedule in which ranks compute what they own; copies are of what the rank before them computes."""
    s, names = td.Schedule(result), {f.name: f for f, _ in places}
    for f, place in places:
        s.place(f, place, grid)
    for f, _ in places[1:]:
        source = {"R": "P", "S": "U"}.get(f.name[0])        # panels that are sent: computed where they are
        s[f].distribute(onto=names[source + f.name[1:]] if source else f)
    return s


def received(n, block, grid, rank, *, symmetric):
    """The bytes that a rank receives in closed form: diagonal blocks and panels that it has not got."""
    rows, columns = grid.shape
    r, c = grid.coordinates(rank)
    total = 0
    for t, k in enumerate(range(0, n, block)):
        w, behind = min(block, n - k), range(min(k + block, n), n)
        total += w * w * (c == t % columns and r != t % rows)
        mine = [x for x in behind if x // block % columns == c]
        if c != t % columns:                                # the panel below, along rows of the grid
            total += w * sum(x // block % rows == r for x in behind)
        if symmetric:                                       # rows of the panel that another rank of the column has
            total += w * sum(x // block % rows != r for x in mine)
        elif behind:
            total += w * w * (r == t % rows and c != t % columns)
            total += w * len(mine) * (r != t % rows)
    return 8 * total


def run(name, s, a, expected, closed):
    """Run a schedule, compare its result with NumPy's, and the bytes of each rank with the closed form."""
    program = td.compile(s, target="python")
    plan, me = program.plan(), td.mpi.rank()
    if td.mpi.size() > 1:
        block, traffic = program(program.block("A", a), count=True)
        out, counted = program.gather(program.signature.outputs[0].name, block), traffic.received
    else:
        out, traffic = program.simulate(a, count=True)
        counted = traffic.received[me]
    assert plan.received == tuple(map(closed, range(plan.grid.size)))
    assert counted == plan.received[me]
    if me == 0:
        np.testing.assert_allclose(out, expected, rtol=1e-9, atol=1e-9)
        print(f"{name:10} {plan.summary()}")


if __name__ == "__main__":
    P = td.mpi.size() if td.mpi.size() > 1 else 4
    rows = max(r for r in range(1, int(P**0.5) + 1) if P % r == 0)
    grid, n, block = td.Grid(x=rows, y=P // rows), 7, 3
    rng = np.random.default_rng(0)
    a = rng.standard_normal((n, n))
    a = a @ a.T + n * np.eye(n)
    run("Cholesky", cholesky(n, block, grid), a, np.linalg.cholesky(a),
        lambda rank: received(n, block, grid, rank, symmetric=True))
    b = rng.standard_normal((n, n)) + n * np.eye(n)
    packed = b.copy()                                       # unblocked elimination in place
    for k in range(n):
        packed[k + 1 :, k] /= packed[k, k]
        packed[k + 1 :, k + 1 :] -= np.outer(packed[k + 1 :, k], packed[k, k + 1 :])
    run("LU", lu(n, block, grid), b, packed, lambda rank: received(n, block, grid, rank, symmetric=False))
