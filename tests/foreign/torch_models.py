"""Models of `transformers` and `torchvision`, with random weights, by `torch.compile(backend="tdsl")`.

The models are small configurations of published architectures. Each is compiled as one graph, and compared
with torch on the same weights and inputs; a node that torch computes is a failure.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tdsl.torch.backend import compile_fx
from tdsl.torch.report import GraphReport, reports

TOLERANCE = 2e-4
Case = tuple[torch.nn.Module, dict[str, torch.Tensor]]


def _tokens(words: int = 24, vocabulary: int = 99) -> torch.Tensor:
    return torch.randint(0, vocabulary, (2, words))


def _bert() -> Case:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=99, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128
    )
    return BertModel(config), {"input_ids": _tokens()}


def _gpt2() -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=99, n_positions=64, n_embd=64, n_layer=2, n_head=4)
    return GPT2LMHeadModel(config), {"input_ids": _tokens(), "use_cache": False}


def _llama() -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=99, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    return LlamaForCausalLM(config), {"input_ids": _tokens(), "use_cache": False}


def _t5() -> Case:
    from transformers import T5Config, T5Model

    config = T5Config(vocab_size=99, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4)
    inputs = {"input_ids": _tokens(), "decoder_input_ids": _tokens(12), "use_cache": False}
    return T5Model(config), inputs


def _whisper() -> Case:
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        d_model=64, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=128, num_mel_bins=20,
        max_source_positions=30,
    )  # fmt: skip
    return WhisperEncoder(config), {"input_features": torch.randn(2, 20, 60)}


def _vit() -> Case:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, image_size=32,
        patch_size=8,
    )  # fmt: skip
    return ViTModel(config), {"pixel_values": torch.randn(2, 3, 32, 32)}


def _swin() -> Case:
    from transformers import SwinConfig, SwinModel

    config = SwinConfig(
        image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4
    )
    return SwinModel(config), {"pixel_values": torch.randn(2, 3, 32, 32)}


def _of_torchvision(name: str, size: int, **options: Any) -> Callable[[], Case]:
    def build() -> Case:
        import torchvision

        model = getattr(torchvision.models, name)(weights=None, num_classes=10, **options)
        return model, {"": torch.randn(2, 3, size, size)}

    return build


MODELS: dict[str, Callable[[], Case]] = {
    "BERT": _bert,
    "GPT-2": _gpt2,
    "Llama": _llama,
    "T5": _t5,
    "Whisper encoder": _whisper,
    "ViT": _vit,
    "Swin": _swin,
    "ResNet18": _of_torchvision("resnet18", 64),
    "MobileNetV2": _of_torchvision("mobilenet_v2", 64, width_mult=0.5),
    "ConvNeXt": _of_torchvision("convnext_tiny", 64),
    "EfficientNet": _of_torchvision("efficientnet_b0", 64),
}


@dataclass(frozen=True)
class Outcome:
    """The graphs of a model, the largest relative error, and the seconds of the first call."""

    graphs: tuple[GraphReport, ...]
    error: float
    seconds: float

    @property
    def nodes(self) -> int:
        return sum(g.nodes for g in self.graphs)

    @property
    def parts(self) -> int:
        return sum(len(g.parts) for g in self.graphs)

    @property
    def by_torch(self) -> list[str]:
        """What torch computes: operators, and the parts that tdsl refused."""
        operators = [f"{n} x {reason}" for g in self.graphs for reason, n in g.reasons.items()]
        return operators + [p.problem for g in self.graphs for p in g.parts if p.problem]

    @property
    def is_right(self) -> bool:
        """True if tdsl computed all of the model, within the tolerance."""
        return self.nodes > 0 and not self.by_torch and self.error < TOLERANCE


def run(name: str) -> Outcome:
    """Compile a model as one graph, and compare its results with those of torch."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model.eval()
    args = (inputs.pop(""),) if "" in inputs else ()
    before = len(reports())
    with torch.no_grad():
        expected = _tensors(model(*args, **inputs))
        start = time.perf_counter()
        compiled = torch.compile(model, backend=compile_fx, fullgraph=True)
        results = _tensors(compiled(*args, **inputs))
        seconds = time.perf_counter() - start
    assert len(results) == len(expected)
    error = max(map(relative_error, results, expected))
    return Outcome(tuple(reports()[before:]), error, seconds)


def relative_error(result: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, over the largest magnitude that is expected."""
    assert result.shape == expected.shape
    assert result.dtype == expected.dtype
    difference = (result.double() - expected.double()).abs().max()
    return float(difference / expected.double().abs().max())


def _tensors(results: Any) -> list[torch.Tensor]:
    """The tensors in the results of a model."""
    match results:
        case torch.Tensor():
            return [results]
        case dict():
            return [t for value in results.values() for t in _tensors(value)]
        case list() | tuple():
            return [t for value in results for t in _tensors(value)]
    return []


def main(names: list[str]) -> int:
    """Run models, all by default; how many fail."""
    failed = 0
    print(f"{'model':16} {'nodes':>5} {'parts':>5} {'error':>8} {'first call':>10}")
    for name in names or MODELS:
        outcome = run(name)
        failed += not outcome.is_right
        print(f"{name:16} {outcome.nodes:5} {outcome.parts:5} {outcome.error:8.1e} {outcome.seconds:8.1f} s")
        for line in outcome.by_torch:
            print(f"    torch computes {line}")
    print(f"{len(names or MODELS)} models of torch {torch.__version__}, {failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:])))
