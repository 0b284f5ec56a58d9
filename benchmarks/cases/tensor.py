"""Products of tensors of three dimensions: matricised tensor times Khatri-Rao product, and times a matrix."""

from typing import Any

import numpy as np

import tdsl as td
from benchmarks import jax_peers, torch_peers
from benchmarks.case import (
    Array,
    Arrays,
    Call,
    Case,
    PeerMissing,
    Prepare,
    function,
    kernel,
    within,
)

SIDE, RANK = 256, 32
SIZES = {"I": SIDE, "J": SIDE, "K": SIDE, "R": RANK}
MTTKRP, TTM = "ijk,jr,kr->ir", "ijk,kr->ijr"


@td.op
def mttkrp(x: td.f32["I", "J", "K"], b: td.f32["J", "R"], c: td.f32["K", "R"]):
    """Row i is the sum over j and k of x[i, j, k] * b[j] * c[k]."""
    return td.einsum(MTTKRP, x, b, c)


@td.op
def ttm(x: td.f32["I", "J", "K"], c: td.f32["K", "R"]):
    """The tensor times a matrix along its last axis."""
    return td.einsum(TTM, x, c)


def by_matrices(torch: Any, x: Any, b: Any, c: Any) -> Any:
    """MTTKRP as PyTorch computes it fastest: a product of matrices, then one sum."""
    return ((x @ c) * b).sum(1)


def numba_mttkrp(arrays: Arrays) -> Call:
    """MTTKRP in loops for numba: threads over i, a block of rows of the partial sums in the cache."""
    try:
        import numba
    except ImportError:
        raise PeerMissing("pip install numba") from None

    @numba.njit(parallel=True, fastmath=True)
    def run(x: Array, b: Array, c: Array) -> Array:
        rows, columns, terms = x.shape
        rank = b.shape[1]
        out = np.zeros((rows, rank), np.float32)
        for i in numba.prange(rows):
            part = np.empty(rank, np.float32)
            for j in range(columns):
                part[:] = np.float32(0)
                for k in range(terms):
                    factor = x[i, j, k]
                    for r in range(rank):
                        part[r] += factor * c[k, r]
                for r in range(rank):
                    out[i, r] += part[r] * b[j, r]
        return out

    return function(run)(arrays)


def case(name: str, text: str, op: td.Operator, others: dict[str, Prepare]) -> Case:
    """A product by its subscripts."""
    terms = text.partition("->")[0].split(",")

    def inputs() -> Arrays:
        rng = np.random.default_rng(7)
        shapes = (tuple(SIZES[x.upper()] for x in term) for term in terms)
        return tuple(rng.standard_normal(s, dtype=np.float32) for s in shapes)

    return Case(
        name=name,
        title=f"{text}, {SIDE} x {SIDE} x {SIDE}, rank {RANK}",
        inputs=inputs,
        is_right=within(
            2 * SIDE * float(np.finfo(np.float32).eps),
            lambda *arrays: np.einsum(text, *arrays, optimize=True),
        ),
        peers={
            "tdsl": kernel(lambda: op.compile(**SIZES)),
            "jax": jax_peers.peer(lambda jax, *a: jax.numpy.einsum(text, *a)),
            **others,
        },
        flops=2.0 * SIDE**3 * RANK,
        group="mixed" if text == MTTKRP else "",
    )


CASES = (
    case(
        "mttkrp",
        MTTKRP,
        mttkrp,
        {
            "torch": torch_peers.peer(by_matrices),
            "torch-compile": torch_peers.peer(by_matrices, compiled=True),
            "torch-einsum": torch_peers.peer(lambda torch, *a: torch.einsum(MTTKRP, *a)),
            "numba": numba_mttkrp,
        },
    ),
    case("ttm", TTM, ttm, torch_peers.peers(lambda torch, x, c: x @ c)),
)
