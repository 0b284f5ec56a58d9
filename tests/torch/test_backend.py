"""torch.compile(backend="tdsl"): the results and gradients of torch, whatever is compiled."""

import pytest

import tdsl as td

torch = pytest.importorskip("torch", reason="torch is an optional package")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from tdsl.torch.backend import compile_fx  # noqa: E402
from tdsl.torch.report import _reports  # noqa: E402

TOLERANCES = {torch.float32: 2e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2}


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)
    _reports.clear()


def compiled(function, **options):
    return torch.compile(function, backend=compile_fx, fullgraph=True, **options)


def is_complete():
    return all(r.compiled == r.nodes and not r.reasons for r in _reports) and len(_reports) > 0


def check(function, *args, tolerance=2e-5):
    results, expected = compiled(function)(*args), function(*args)
    torch.testing.assert_close(results, expected, rtol=tolerance, atol=tolerance)


FUNCTIONS = {
    "arithmetic": lambda x, y: (x + 2 * y) * (x - y) / (y * y + 1),
    "alpha": lambda x, y: torch.add(x, y, alpha=3) + torch.sub(x, y, alpha=0.5),
    "unary": lambda x, y: torch.exp(-x.abs()) + torch.tanh(y) * torch.sigmoid(x) + torch.rsqrt(y * y + 1),
    "more unary": lambda x, y: torch.log1p(x.abs()) + y.sin().floor() + x.cos().ceil() + torch.erf(y),
    "activations": lambda x, y: F.gelu(x) + F.gelu(y, approximate="tanh") + F.silu(x) + y.relu() + F.relu6(x),
    "clamp": lambda x, y: x.clamp(-0.5, 0.5) + y.clamp(min=0) + x.clamp(max=0.1),
    "where": lambda x, y: torch.where((x > y) & (y != 0), x, 1.5) + (x >= 0.5).to(x.dtype),
    "powers": lambda x, y: x**2 + y.abs() ** 1.5 + x.abs() ** y,
    "views": lambda x, y: (x.t().reshape(5, 3, 1).transpose(0, 2) + y[None, :, :2].sum()).squeeze(0),
    "slices": lambda x, y: x[1:, ::2] + y[:-1, 1:4] + x[0, :3].unsqueeze(0).expand(2, 3),
    "parts": lambda x, y: torch.cat([x, y[:1], x * 2]) + torch.cat([c.sum(1) for c in x.split(2, 1)]).sum(),
    "reductions": lambda x, y: x.sum(1) + y.mean(1) + x.amax(-1) - y.amin(dim=1) + x.sum(),
    "keepdim": lambda x, y: x / x.abs().sum(1, keepdim=True) + y.mean((0, 1), keepdim=True),
    "any": lambda x, y: (x > 1).any(1) | (y < 0).any(),
    "softmax": lambda x, y: torch.softmax(x, 0) + torch.softmax(y, -1),
    "products": lambda x, y: x @ y.t() @ x + torch.baddbmm(x[None], x[None], (y.t() @ y)[None])[0],
    "norms": lambda x, y: F.layer_norm(x, (5,), y[0], y[1], 1e-5) + F.layer_norm(y, (3, 5)),
    "padding": lambda x, y: F.pad(x, (1, 2), value=0.5).sum(0)[:5] + F.pad(y, (0, 0, 1, 0)).sum(0),
    "numbers": lambda x, y: x * torch.tensor(2.0, dtype=x.dtype) + y.sum() * 3,
    "empty": lambda x, y: x[:0] + y[:0],
    "constants": lambda x, y: torch.where(torch.ones(3, 5).tril().bool(), x, torch.arange(5) * y),
    "strides": lambda x, y: (x * 2).t().as_strided((5, 3), (1, 5)) + (y * 2).as_strided((5, 3), (0, 1), 4),
    "positions": lambda x, y: (x.argmax() + y.argmin(1), *x.max(0), *torch.sort(y, 1, descending=True)),
    "running": lambda x, y: x.cumsum(1) + y.cumprod(0),
    "no axes": lambda x, y: torch.softmax(x.sum(), 0) + y.sum().cumsum(0),
    "more binary": lambda x, y: torch.atan2(x, y) + torch.fmod(x, y) + torch.fmin(x, y) + (x % y).sign(),
    "flips": lambda x, y: x.flip(0).roll(2, 1) + y.repeat(2, 1)[3:],
}  # fmt: skip


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_floats(name, dtype):
    x, y = torch.randn(3, 5, dtype=dtype), torch.randn(3, 5, dtype=dtype)
    check(FUNCTIONS[name], x, y, tolerance=TOLERANCES[dtype])
    assert _reports[0].parts and not any(p.problem for p in _reports[0].parts)


INTEGERS = {
    "rounded division": lambda x, y: torch.div(x, y * y + 1, rounding_mode="trunc") + x // (y * y + 1),
    "shifts": lambda x, y: (x << 2) ^ (y >> 1),
    "indices": lambda x, y: (
        x[y[0].abs() % 3] + x.gather(1, y.abs() % 5)[0] + x.index_select(1, y[0].abs() % 5).sum()
    ),
    "stores": lambda x, y: x.scatter(1, y.abs() % 5, 7) + x.scatter_add(0, y.abs() % 3, y),
    "stores by index": lambda x, y: x.index_put((y[:, 0].abs() % 3,), y[0], accumulate=True),
    "division": lambda x, y: x / (y * y + 1),
    "means of bools": lambda x, y: (x > y).sum(1) + (x == 3).sum(),
    "comparison with a float": lambda x, y: (x > 1.5) | (y < x),
    "conversion": lambda x, y: x.to(torch.float32) * 0.5 + y.to(torch.int32),
    "bits": lambda x, y: (x & 3) | ~y,
    "not": lambda x, y: torch.logical_not(x) | torch.logical_and(x, y),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_functions_of_integers(name):
    x, y = torch.randint(-5, 6, (3, 5)), torch.randint(-5, 6, (3, 5))
    check(INTEGERS[name], x, y)
    assert _reports[0].parts and not any(p.problem for p in _reports[0].parts)


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self, size=32):
        super().__init__()
        self.attend = nn.MultiheadAttention(size, 4, batch_first=True)
        self.first, self.second = nn.LayerNorm(size), nn.LayerNorm(size)
        self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, x):
        n = self.first(x)
        x = x + self.attend(n, n, n, need_weights=False)[0]
        return x + self.down(F.gelu(self.up(self.second(x))))


def test_a_block_is_one_part_and_follows_its_weights():
    block = Block().eval()
    fast = compiled(block)
    with torch.no_grad():
        x = torch.randn(2, 9, 32)
        torch.testing.assert_close(fast(x), block(x), rtol=1e-4, atol=1e-5)
        block.up.weight.mul_(0.5)
        block.first.weight.data.mul_(2)
        torch.testing.assert_close(fast(x), block(x), rtol=1e-4, atol=1e-5)
        block.load_state_dict(Block().state_dict())
        torch.testing.assert_close(fast(x), block(x), rtol=1e-4, atol=1e-5)
    assert is_complete() and len(_reports) == 1 and len(_reports[0].parts) == 1
    assert "in 1 part" in str(td.torch.report())


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("mask", [None, "bool", "float"])
def test_attention(is_causal, mask):
    if is_causal and mask:
        pytest.skip("torch takes one of them")
    q, k, v = torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 8)
    masks = {None: None, "bool": torch.ones(7, 7).tril().bool(), "float": torch.randn(7, 7)}

    def attention(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=masks[mask], is_causal=is_causal)

    with torch.no_grad():
        check(attention, q, k, v)


@pytest.mark.parametrize("dynamic", [None, True])
def test_other_shapes_are_planned_when_they_come(dynamic):
    block = Block().eval()
    fast = compiled(block, dynamic=dynamic)
    with torch.no_grad():
        for rows, words in ((2, 9), (3, 9), (2, 12), (1, 1)):
            x = torch.randn(rows, words, 32)
            torch.testing.assert_close(fast(x), block(x), rtol=1e-4, atol=1e-5)


def test_training_follows_torch():
    def losses(compile):
        torch.manual_seed(1)
        model = nn.Sequential(Block(), nn.Linear(32, 5)).train()
        step = compile(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x, target = torch.randn(4, 6, 32), torch.randint(0, 5, (4, 6))
        result = []
        for _ in range(20):
            loss = F.cross_entropy(step(x).flatten(0, 1), target.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            result.append(loss.item())
        return result

    expected, computed = losses(lambda m: m), losses(compiled)
    assert expected[-1] < expected[0]
    assert max(abs(a - b) for a, b in zip(expected, computed, strict=True)) < 1e-3


def test_buffers_that_a_call_changes_are_changed():
    def model():
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU())

    eager, other = model(), model()
    fast, x = compiled(other), torch.randn(10, 6)
    for _ in range(3):
        torch.testing.assert_close(fast(x), eager(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(other[1].running_mean, eager[1].running_mean)
    torch.testing.assert_close(other.eval()(x), eager.eval()(x))
    torch.testing.assert_close(compiled(other)(x), eager(x), rtol=1e-4, atol=1e-5)


def test_arguments_that_a_function_changes_are_changed():
    def add_to(x, y):
        x.add_(y)
        return x[0], x * 2

    a, b, y = torch.randn(3, 4), torch.randn(3, 4), torch.randn(3, 4)
    b.copy_(a)
    results, expected = compiled(add_to)(a, y), add_to(b, y)
    torch.testing.assert_close(results, expected)
    torch.testing.assert_close(a, b)
    assert results[0].data_ptr() == a.data_ptr()  # a view, as in torch


def test_results_that_are_arguments_or_each_other():
    def same(x):
        y = x + 1
        return x, y, y, x.t()

    x = torch.randn(3, 4)
    results = compiled(same)(x)
    for one, other in zip(results, same(x), strict=True):
        torch.testing.assert_close(one, other)


def test_what_tdsl_lacks_is_computed_by_torch_and_reported():
    def second(x):
        y = torch.kthvalue(x * 2 + 1, 2, dim=1, keepdim=True)
        return y.values * 3 + y.indices

    check(second, torch.randn(4, 7))
    (report,) = _reports
    assert report.compiled == 4 and sum(report.reasons.values()) == report.nodes - report.compiled
    assert "aten.kthvalue" in str(td.torch.report())


def test_a_part_that_tdsl_refuses_is_computed_by_torch_with_a_warning(monkeypatch):
    from tdsl.torch.supported import BODIES

    def refuse(*_):
        raise td.TypeMismatch("it cannot")

    monkeypatch.setitem(BODIES, torch.ops.aten.tanh.default, refuse)
    x = torch.randn(3)
    with pytest.warns(td.CompileWarning, match="it cannot"):
        torch.testing.assert_close(compiled(torch.tanh)(x), torch.tanh(x))
    assert "it cannot" in str(td.torch.report())


CONVOLUTIONS = {
    "plain": nn.Conv2d(3, 4, 3),
    "padded": nn.Conv2d(3, 4, 3, padding=1, bias=False),
    "strided": nn.Conv2d(3, 4, (3, 2), stride=2, padding=(1, 0)),
    "dilated": nn.Conv2d(3, 4, 3, dilation=2, padding=2),
    "by channel": nn.Conv2d(3, 6, 3, groups=3, padding=1),
    "groups": nn.Conv2d(6, 4, 3, groups=2),
    "one axis": nn.Conv1d(5, 4, 3, padding=2),
    "three axes": nn.Conv3d(2, 3, 2, stride=2),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name):
    conv = CONVOLUTIONS[name]
    x = torch.randn(2, conv.in_channels, *(9, 8, 6)[: conv.weight.ndim - 2])
    with torch.no_grad():
        check(lambda x: conv(x).relu(), x)
    assert is_complete()


def test_a_transposed_convolution_is_left_to_torch():
    conv = nn.ConvTranspose2d(3, 4, 3)
    with torch.no_grad():
        check(lambda x: conv(x) * 2, torch.randn(2, 3, 5, 5))
    assert "transposed" in str(td.torch.report())


POOLS = {
    "largest": nn.MaxPool2d(3, 2, padding=1),
    "largest with positions": nn.MaxPool2d(2, dilation=2, return_indices=True),
    "mean": nn.AvgPool2d((3, 2), 2, padding=1, ceil_mode=True, count_include_pad=False),
    "mean of almost equal windows": nn.AdaptiveAvgPool2d((3, 5)),
}


@pytest.mark.parametrize("name", POOLS)
def test_pools(name):
    check(POOLS[name], torch.randn(2, 3, 9, 8))
    assert is_complete()


def test_a_constant_that_is_returned_is_the_callers():
    fast = compiled(lambda x: (torch.arange(3.0).flip(0), x + 1))
    for _ in range(2):
        result, _ = fast(torch.ones(2))
        assert result.tolist() == [2, 1, 0]
        result.zero_()


def test_an_index_out_of_bounds_is_refused():
    fast = compiled(lambda x, at: x.scatter(0, at, 1.0) + x[at])
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        fast(torch.zeros(3), torch.tensor([0, 3, 1]))
    assert fast(torch.zeros(3), torch.tensor([0, 2, 0])).tolist() == [1, 0, 1]
    assert not _reports[0].parts[0].problem  # wrong values are no reason to leave it to torch


def test_an_embedding():
    embed = nn.Embedding(11, 6)
    check(lambda at: embed(at).relu() + 1, torch.randint(0, 11, (2, 8)))


def test_operators_of_td_in_a_compiled_function():
    @td.op
    def double(x: td.f32["N"]):
        i, y = td.vars("i"), td.Func("y")
        y[i] = x[i] * 2
        return y

    doubled = td.torch.op(double, name="tests_backend::double")
    check(lambda x: doubled(x + 1) * 3, torch.randn(5))
