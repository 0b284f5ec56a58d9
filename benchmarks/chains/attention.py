"""Chains of attention, of its variants and of the scan of Mamba-2."""

from functools import partial
from typing import Any

from benchmarks.chains.chain import Chain

HEADS = 128  # the depth of heads of large models


def masked_softmax(ops: Any, q: Any, k: Any, mask: Any) -> Any:
    scores = ops.einsum("bhik,bhkj->bhij", q, k) / 8 + mask
    e = ops.exp(ops.minus_rows(scores, ops.row_max(scores)))
    return ops.over_rows(e, ops.row_sum(e))


def attention(ops: Any, q: Any, k: Any, v: Any) -> Any:
    scores = ops.einsum("hik,hjk->hij", q, k) / k.shape[-1] ** 0.5
    return ops.einsum("hij,hje->hie", ops.softmax(scores), v)


def two_products(ops: Any, a: Any, b: Any, d: Any) -> Any:
    return ops.einsum("hij,hje->hie", ops.einsum("hik,hkj->hij", a, b), d)


def softmax_between(ops: Any, a: Any, b: Any, d: Any) -> Any:
    p = ops.softmax(ops.einsum("hik,hkj->hij", a, b))
    return ops.einsum("hij,hje->hie", p, d)


def without_maximum(ops: Any, q: Any, k: Any, v: Any) -> Any:
    e = ops.exp(ops.einsum("hik,hkj->hij", q, k))
    return ops.einsum("hij,hje->hie", ops.over_rows(e, ops.row_sum(e)), v)


def causal_attention(ops: Any, q: Any, k: Any, v: Any, variant: str = "") -> Any:
    scores = ops.einsum("hik,hjk->hij", q, k) / HEADS**0.5
    if variant == "capped":
        scores = ops.tanh(scores / 50) * 50
    p = ops.softmax(ops.causal(scores))
    out = ops.einsum("hij,hje->hie", p, v)
    if variant == "column sums":
        return out, ops.column_sums(p)
    if variant == "columns above":
        return out, ops.any_above(p, 0.01)
    return out


def grouped_attention(ops: Any, q: Any, k: Any, v: Any, causal: bool = False) -> Any:
    scores = ops.einsum("hgik,hjk->hgij", q, k) / HEADS**0.5
    p = ops.softmax(ops.causal(scores) if causal else scores)
    return ops.einsum("hgij,hje->hgie", p, v)


def chunk_scan(ops: Any, c: Any, b: Any, total: Any, dt: Any, x: Any, states: Any) -> Any:
    """[c, t, s], [c, u, s], [c, t, h], [c, t, h], [c, t, h, p] and states [c, h, p, s]."""
    weights = ops.decayed(ops.einsum("cts,cus->ctu", c, b), total, dt)
    within_chunk = ops.einsum("chtu,cuhp->cthp", weights, x)
    from_before = ops.einsum("cts,chps->cthp", c, states)
    return within_chunk + ops.times_steps(from_before, ops.exp(total))


def chunk_state(ops: Any, b: Any, total: Any, dt: Any, x: Any) -> Any:
    return ops.einsum("cthp,cts->chps", ops.times_steps(x, ops.left_over(total, dt)), b)


def _attention(h: int, m: int, j: int, d: int) -> float:
    return 4.0 * h * m * j * d


def _products(b: int, m: int, n: int, k: int, length: int) -> tuple[tuple[int, ...], ...]:
    return (b, m, k), (b, k, length), (b, length, n)


def _heads(count: int, size: int) -> tuple[tuple[int, ...], ...]:
    return ((count, size, HEADS),) * 3


def _grouped(kv: int, group: int, size: int) -> tuple[tuple[int, ...], ...]:
    return (kv, group, size, HEADS), (kv, size, HEADS), (kv, size, HEADS)


def _causal(name: str, what: str, variant: str, size: int) -> Chain:
    compute = partial(causal_attention, variant=variant)
    flops = _attention(2, size, size, HEADS)
    return Chain(name, f"causal attention{what}, 2 x {size} x 128", compute, _heads(2, size), 2 * size, flops)


def _llama(name: str, kv: int, group: int, size: int, causal: bool) -> Chain:
    title = f"{'causal ' * causal}attention, {kv * group} heads of {kv}, {size} x 128"
    compute = partial(grouped_attention, causal=causal)
    flops = _attention(kv * group, size, size, HEADS)
    return Chain(name, title, compute, _grouped(kv, group, size), 2 * size, flops)


def _without(name: str, b: int, m: int, j: int) -> Chain:
    return Chain(
        name, f"q k, exp, sum, /, v: {b} x {m} x {j} x 64", without_maximum,
        ((b, m, 64), (b, 64, j), (b, j, 64)), 2 * j, _attention(b, m, j, 64),
    )  # fmt: skip


CHUNKS, STEPS, STATE, PER_HEAD, SCANNED = 4, 256, 128, 64, 16
OF_STEPS = (CHUNKS, STEPS, SCANNED)

CHAINS = (
    Chain(
        "chain-1", "product, scale, mask, softmax by parts: 64 x 12 x 128 x 128", masked_softmax,
        ((64, 12, 128, 64), (64, 12, 64, 128), (64, 1, 1, 128)), 256, 2.0 * 64 * 12 * 128 * 128 * 64,
    ),
    Chain(
        "chain-15", "attention: 8 x 8 heads, 512 x 64", attention, ((64, 512, 64),) * 3, 1024,
        _attention(64, 512, 512, 64),
    ),
    *(
        Chain(
            f"chain-16-{b}", f"two products, {b} x 512 x 64 x 64 x 512", two_products,
            _products(b, 512, 64, 64, 512), 1024, _attention(b, 512, 512, 64),
        )
        for b in (8, 12, 16)
    ),
    *(
        Chain(
            f"chain-17-{b}", f"product, softmax, product, {b} x 512 x 64 x 64 x 512", softmax_between,
            _products(b, 512, 64, 64, 512), 1024, _attention(b, 512, 512, 64),
        )
        for b in (8, 12, 16)
    ),
    *(
        Chain(
            f"chain-22-{m}", f"two products, {m} x 49 x 49 x {length}", two_products,
            _products(1, m, 49, 49, length), 49 + length, _attention(1, m, length, 49),
        )
        for m, length in ((512, 256), (768, 384), (1024, 512))
    ),
    *(_without(f"chain-27-{b}", 2 * b, 256, 4096) for b in (1, 8)),
    _without("chain-28-heads", 32, 16, 4096),
    _without("chain-28-one", 1, 1024, 4096),
    _causal("chain-35-plain", "", "", 1024),
    _causal("chain-35-h2o", " with sums of columns", "column sums", 1024),
    _causal("chain-35-corm", " and which columns matter", "columns above", 1024),
    _causal("chain-35-gemma", ", capped", "capped", 1024),
    _llama("chain-36-8b", 8, 4, 512, causal=False),
    _llama("chain-36-8b-causal", 8, 4, 512, causal=True),
    _llama("chain-36-70b", 8, 8, 512, causal=False),
    _llama("chain-36-70b-causal", 8, 8, 512, causal=True),
    _llama("chain-36-long", 1, 4, 2048, causal=False),
    Chain(
        "chain-38-scan", f"scan of chunks, {CHUNKS} x 256, {SCANNED} heads", chunk_scan,
        (
            (CHUNKS, STEPS, STATE), (CHUNKS, STEPS, STATE), OF_STEPS, OF_STEPS,
            (*OF_STEPS, PER_HEAD), (CHUNKS, SCANNED, PER_HEAD, STATE),
        ),
        STATE + STEPS,
        2.0 * CHUNKS * STEPS * (STEPS * STATE + SCANNED * PER_HEAD * (STEPS + STATE)),
    ),
    Chain(
        "chain-38-state", f"states of chunks, {CHUNKS} x 256, {SCANNED} heads", chunk_state,
        ((CHUNKS, STEPS, STATE), OF_STEPS, OF_STEPS, (*OF_STEPS, PER_HEAD)), STEPS,
        2.0 * CHUNKS * STEPS * SCANNED * PER_HEAD * STATE,
    ),
)  # fmt: skip
