"""Contractions of tensors by their subscripts, in the layouts that applications have.

The rows of the first table are those of TCCG (the Tensor Contraction Code Generator, a collection of
contractions of chemistry and of other fields). Peers are called as their users call them: where NumPy or
PyTorch return a view whose axes are permuted, they are not asked to copy it; tdsl writes its result in C
order. A transpose alone is copied by all.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import tdsl as td
from benchmarks import jax_peers, torch_peers
from benchmarks.case import Array, Arrays, Call, Case, PeerMissing, Prepare, function, kernel, within

GROUP = "unknown-contractions"
LAYOUTS = "unknown-layouts"  # all sizes of batched products: a part of them is in GROUP
TYPES = {"f32": np.float32, "f64": np.float64}
Program = Callable[..., td.Func]

TCCG_SIZES = {  # by the rank of the result, and by the number of axes summed over
    (2, 2): "a384 b360 c48 d44",
    (3, 1): "a160 b144 c96 d128",
    (3, 2): "a48 b72 c64 d40 e36",
    (4, 1): "a40 b36 c48 d32 e64",
    (4, 2): "a32 b30 c36 d28 e24 f20",
    (5, 1): "a24 b20 c32 d16 e30 f32",
    (6, 1): "a16 b14 c12 d18 e10 f16 g24",
}
TCCG = (
    "ab-acd-dbc", "ab-cad-dcb", "abc-acd-db", "abc-adc-bd", "abc-adec-ebd", "abc-bda-dc", "abc-dca-bd",
    "abcd-aebf-dfce", "abcd-aebf-fdec", "abcd-aecf-bfde", "abcd-dbea-ec", "abcd-deca-be", "abcd-ea-ebcd",
    "abcd-eafd-fbec", "abcd-eb-aecd", "abcd-ebad-ce", "abcd-ec-abed", "abcde-ecbfa-fd", "abcde-efbad-cf",
    "abcde-efcad-bf", "abcdef-dega-gfbc", "abcdef-degb-gfac", "abcdef-degc-gfab", "abcdef-dfgb-geac",
)  # fmt: skip

# A family, its subscripts, the sizes of letters, and the types.
TABLE = (
    ("scores", "bqhd,bkhd->bhqk", "b4 q256 k256 h8 d64", "f32 f64"),
    ("ttm", "ijk,ia->ajk", "i160 j144 k128 a48", "f32 f64"),
    ("ttm", "ijk,ja->iak", "i160 j144 k128 a48", "f32 f64"),
    ("ttm", "ijk,ka->ija", "i160 j144 k128 a48", "f32 f64"),
    ("ttm-chain", "ijk,ia,jb,kc->abc", "i128 j120 k112 a24 b32 c20", "f32 f64"),
    ("mttkrp", "ijk,jr,kr->ir", "i160 j144 k128 r24", "f32 f64"),
    ("mttkrp", "ijk,ir,kr->jr", "i160 j144 k128 r24", "f32 f64"),
    ("mttkrp", "ijk,ir,jr->kr", "i160 j144 k128 r24", "f32 f64"),
    ("mttkrp", "ijkl,jr,kr,lr->ir", "i48 j40 k44 l36 r16", "f32 f64"),
    ("mttkrp", "ijkl,ir,jr,kr->lr", "i48 j40 k44 l36 r16", "f32 f64"),
    ("trace", "ij,ji->", "i2000 j1800", "f32 f64"),
    ("matvec", "ijk,i->jk", "i160 j300 k200", "f32 f64"),
    ("small", "bij,bkj->bik", "b20000 i5 j7 k5", "f32 f64"),
    ("small", "bij,bj->bi", "b50000 i5 j7", "f32 f64"),
    ("small", "bij,bjk->bik", "b40000 i3 j3 k3", "f32 f64"),
    ("lattice", "abcd,bfgh,cijk,hjlm->afdigkml", "a6 b6 c6 d6 f6 g6 h6 i6 j6 k6 m6 l6", "f32 f64"),
)
TRANSPOSES = (  # of 64 MB
    ("ij->ji", "i4096 j4096", "f32"),
    ("ij->ji", "i4096 j2048", "f64"),
    ("abcd->acbd", "a64 b128 c64 d32", "f32"),
    ("abcd->acbd", "a64 b64 c64 d32", "f64"),
)
BATCHES = {1: (64, 256, 1024), 16: (16, 64, 256, 384), 512: (16, 32, 64)}
TWO_STEPS = ("i24 j30 k40 l50", "i100 j100 k100 l100")


def parse_sizes(text: str) -> dict[str, int]:
    """The extents of letters: `a32 b30`."""
    return {word[0]: int(word[1:]) for word in text.split()}


def operand_shapes(subscripts: str, sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
    """The shapes of the operands of an einsum."""
    return [tuple(sizes[x] for x in term) for term in subscripts.partition("->")[0].split(",")]


def einsum(subscripts: str) -> Program:
    """The program of an einsum."""
    return lambda *operands: td.einsum(subscripts, *operands)


def transpose(subscripts: str) -> Program:
    """The program of a transpose, one definition."""
    source, _, result = subscripts.partition("->")

    def program(a: td.Tensor) -> td.Func:
        out, variables = td.Func("out"), {x: td.vars(x) for x in source}
        out[tuple(variables[x] for x in result)] = a[tuple(variables[x] for x in source)]
        return out

    return program


def two_steps(a: td.Tensor, b: td.Tensor, c: td.Tensor) -> td.Func:
    """A product of matrices for each j, then the diagonal of a second one."""
    i, j, k, l = td.vars("i j k l")
    t, out = td.Func("t"), td.Func("out")
    t[i, j, l] = td.sum(a[i, j, k] * b[k, j, l], axis=k)
    out[i, j] = td.sum(t[i, j, l] * c[l, i], axis=l)
    return out


def compiled(program: Program, shapes: Sequence[tuple[int, ...]], dtype: str) -> Prepare:
    """The peer `tdsl`: a program of tensors of these shapes."""

    def build() -> td.Compiled:
        tensors = (td.Tensor(f"x{n}", shape, dtype) for n, shape in enumerate(shapes))
        return td.compile(program(*tensors))

    return kernel(build)


def opt_einsum(subscripts: str) -> Prepare:
    """The peer `opt_einsum`, with its path found before it is timed."""

    def prepare(arrays: Arrays) -> Call:
        try:
            import opt_einsum as library
        except ImportError:
            raise PeerMissing("pip install opt_einsum") from None
        expression = library.contract_expression(subscripts, *(a.shape for a in arrays))
        return lambda: expression(*arrays)

    return prepare


def numpy_einsum(subscripts: str) -> Prepare:
    """The peer `numpy`, with its path found before it is timed."""

    def prepare(arrays: Arrays) -> Call:
        path = np.einsum_path(subscripts, *arrays, optimize="optimal")[0]
        return lambda: np.einsum(subscripts, *arrays, optimize=path)

    return prepare


def contraction_peers(subscripts: str) -> dict[str, Prepare]:
    """What users of other libraries write."""
    return {
        "numpy": numpy_einsum(subscripts),
        "torch": torch_peers.peer(lambda torch, *a: torch.einsum(subscripts, *a)),
        "opt_einsum": opt_einsum(subscripts),
        "jax": jax_peers.peer(lambda jax, *a: jax.numpy.einsum(subscripts, *a)),
    }


def transpose_peers(subscripts: str) -> dict[str, Prepare]:
    """A transpose that is copied into C order."""
    source, _, result = subscripts.partition("->")
    axes = tuple(source.index(x) for x in result)
    return {
        "numpy": function(lambda a: np.ascontiguousarray(a.transpose(axes))),
        "torch": torch_peers.peer(lambda torch, a: a.permute(axes).contiguous()),
        "jax": jax_peers.peer(lambda jax, a: jax.numpy.transpose(a, axes)),
    }


def matmul_peers(subscripts: str) -> dict[str, Prepare]:
    """A batched product of matrices, some of them transposed, by `@`."""
    left, right, result = subscripts.replace("->", ",").split(",")

    def multiply(swap: Callable[[Any], Any], a: Any, b: Any) -> Any:
        product = (a if left == "bij" else swap(a)) @ (b if right == "bjk" else swap(b))
        return product if result == "bik" else swap(product)

    return {
        "numpy-matmul": function(lambda a, b: multiply(lambda x: x.transpose(0, 2, 1), a, b)),
        "torch-matmul": torch_peers.peer(lambda torch, *ab: multiply(lambda x: x.transpose(1, 2), *ab)),
    }


def case(
    name: str, subscripts: str, sizes: str, dtype: str, group: str = GROUP, program: Program | None = None
) -> Case:
    """The case of an einsum; `program` computes the same in another way."""
    extents, is_copy = parse_sizes(sizes), "," not in subscripts
    shapes, element = operand_shapes(subscripts, extents), np.dtype(TYPES[dtype])
    terms = math.prod(n for x, n in extents.items() if x not in subscripts.partition("->")[2])
    points = math.prod(extents.values())

    def inputs() -> Arrays:
        rng = np.random.default_rng(17)
        return tuple(rng.standard_normal(s, dtype=element) for s in shapes)

    def expected(*arrays: Array) -> Array:
        return np.asarray(np.einsum(subscripts, *arrays, optimize=True))

    default = transpose(subscripts) if is_copy else einsum(subscripts)
    peers = transpose_peers(subscripts) if is_copy else contraction_peers(subscripts)
    if name.startswith("bmm"):
        peers |= matmul_peers(subscripts)
    return Case(
        name=f"{name}-{dtype}",
        title=f"{subscripts}, {sizes}, {dtype}",
        inputs=inputs,
        is_right=within(4 * terms**0.5 * float(np.finfo(element).eps), expected),
        peers={"tdsl": compiled(program or default, shapes, dtype), **peers},
        flops=2.0 * points if len(shapes) == 2 else 0.0,
        bytes=2.0 * points * element.itemsize if is_copy else 0.0,
        group=group,
    )


def tccg(words: str, dtype: str) -> Case:
    """A row of TCCG: the result, then the operands."""
    result, left, right = words.split("-")
    sizes = TCCG_SIZES[len(result), len(set(left + right)) - len(result)]
    return case(f"tccg-{words}", f"{left},{right}->{result}", sizes, dtype)


def batched_products() -> Iterator[Case]:
    """All layouts of a batched product of matrices in all sizes; some of each layout are in GROUP."""
    shapes = [(batch, side) for batch, sides in BATCHES.items() for side in sides]
    layouts = list(itertools.product(("bij", "bji"), ("bjk", "bkj"), ("bik", "bki")))
    for n, (left, right, result) in enumerate(layouts):
        for m, (batch, side) in enumerate(shapes):
            group = GROUP if m in {n % len(shapes), (n + 5) % len(shapes)} else LAYOUTS
            name = f"bmm-{left[1:]}-{right[1:]}-{result[1:]}-{batch}x{side}"
            sizes = f"b{batch} i{side} j{side} k{side}"
            yield case(name, f"{left},{right}->{result}", sizes, "f32", group)


def tabulated() -> Iterator[Case]:
    """The cases of TABLE, TRANSPOSES and TWO_STEPS, named by a family and their subscripts."""
    for family, subscripts, sizes, dtypes in TABLE:
        words = subscripts.replace("->", ",").split(",")
        name = family if family == "lattice" else "-".join((family, *filter(None, words)))
        for dtype in dtypes.split():
            yield case(name, subscripts, sizes, dtype)
    for subscripts, sizes, dtype in TRANSPOSES:
        yield case("transpose-" + subscripts.replace("->", "-"), subscripts, sizes, dtype)
    for sizes in TWO_STEPS:
        name = "two-steps-" + "x".join(str(n) for n in parse_sizes(sizes).values())
        for dtype in ("f32", "f64"):
            yield case(name, "ijk,kjl,li->ij", sizes, dtype, program=two_steps)


CASES = (
    *(tccg(words, dtype) for words in TCCG for dtype in ("f32", "f64")),
    *batched_products(),
    *tabulated(),
)
